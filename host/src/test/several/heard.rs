//! What the consoles of a machine's guests have shown.

use super::*;
use crate::machine::guests::{Entries, Follower, GuestSeen, Identity};
use crate::machine::ram::Ram;
use crate::run::tail;
use hostlink::guests::CONSOLES;
use std::sync::Arc;

/// The consoles of all guests, for each name those of the last guest that had it.
pub(super) struct Heard {
    ram: Arc<Ram>,
    beacon: u64,
    entries: Option<Entries>,
    lives: BTreeMap<Name, Life>,
}

struct Life {
    id: Identity,
    consoles: [Option<Follower>; CONSOLES],
    texts: [Vec<u8>; CONSOLES],
}

impl Heard {
    /// Nothing yet, of the machine with this memory.
    pub(super) const fn new(ram: Arc<Ram>, beacon: u64) -> Self {
        Self { ram, beacon, entries: None, lives: BTreeMap::new() }
    }

    /// The guests' entries; `None` while there are none.
    pub(super) fn entries(&mut self) -> Result<Option<Entries>> {
        if self.entries.is_none() {
            self.entries = Entries::find(&self.ram, self.beacon)?;
        }
        Ok(self.entries)
    }

    pub(super) fn read(&mut self) -> Result<()> {
        let Some(entries) = self.entries()? else { return Ok(()) };
        for guest in entries.guests(&self.ram)? {
            let new = || Life::new(&guest);
            let life = self.lives.entry(guest.name).or_insert_with(new);
            if life.id != guest.identity() {
                *life = new();
            }
            life.read(&self.ram, &entries)?;
        }
        Ok(())
    }

    /// What a console of this guest has shown; `None` before the guest was seen.
    pub(super) fn text(&self, guest: Identity, port: usize) -> Option<&[u8]> {
        self.lives.get(&guest.name).filter(|life| life.id == guest).map(|life| life.texts[port].as_slice())
    }

    /// What the first console of the last guest of this name has shown.
    pub(super) fn shown(&self, name: &str) -> String {
        let life = Name::parse(name).and_then(|name| self.lives.get(&name));
        life.map(|life| String::from_utf8_lossy(&life.texts[0]).replace('\r', "")).unwrap_or_default()
    }

    pub(super) fn ends(&self) -> String {
        let end =
            |name: &Name| format!("{name}'s console ends with:\n{}\n", tail(&self.shown(name.as_str())));
        self.lives.keys().map(end).collect()
    }
}

impl Life {
    fn new(guest: &GuestSeen) -> Self {
        let consoles = guest.consoles.map(|place| place.map(Follower::new));
        Self { id: guest.identity(), consoles, texts: Default::default() }
    }

    fn read(&mut self, ram: &Ram, entries: &Entries) -> Result<()> {
        for (console, text) in self.consoles.iter_mut().zip(&mut self.texts) {
            let Some(follower) = console else { continue };
            follower.follow(ram, entries, self.id, |lost, bytes| {
                if lost != 0 {
                    text.extend_from_slice(format!("\n({lost} bytes are missing)\n").as_bytes());
                }
                text.extend_from_slice(bytes);
                Ok(())
            })?;
        }
        Ok(())
    }
}
