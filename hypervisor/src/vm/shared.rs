//! Memory that guests share, and its doorbell.
//!
//! A region is memory of the machine's from its start on. It never becomes free again, whoever of
//! its guests comes and goes: so no guest reaches memory of another one through it, and what is in
//! it outlives each of them.
//!
//! Each guest of a region is at an end of it, under a number of its own. An end rings another one:
//! that guest is interrupted by a message, or, where messages are hidden, by a line that is high
//! until the guest reads its status.
//!
//! All ends are behind one lock, which is held while a guest is interrupted. So once a guest has
//! left (`Regions::leave`), nobody uses it because of a region. It is taken after the locks of a
//! guest's functions and of its bus, and before that of an interrupt controller.

use alloc::vec::Vec;
use core::ops::Range;
use hostlink::config::{Config, Share};
use hostlink::name::Name;
use memslots::PhysAddr;
use pci::Message;
use spin::Mutex;

use super::arch::{Arch, Board};
use super::files::CreateError;
use super::machine::Vm;
use super::memory::{FreeMemory, PAGE};

/// Vectors by which an end can be rung, where guests see messages.
pub const VECTORS: u16 = 8;

/// The guest's message for each vector, if it is not masked.
pub type Messages = [Option<Message>; VECTORS as usize];

/// How a guest is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// By this message.
    Message(Message),
    /// This interrupt's line becomes high, or low.
    Line(u8, bool),
}

/// A guest that can be interrupted.
pub trait Peer: Sync {
    /// Interrupts it. Returns false if the message is for several vCPUs: then the guest takes it
    /// ([`Link::take_rung`]) and delivers it in its own turn, not in that of whoever rings.
    fn signal(&self, signal: Signal) -> bool;
}

impl<A: Arch> Peer for Vm<A> {
    fn signal(&self, signal: Signal) -> bool {
        self.exists.check();
        A::signal(self, signal)
    }
}

/// What the guest at an end has set, and what has arrived there.
#[derive(Default)]
struct Set {
    /// `None` while messages are switched off.
    messages: Option<Messages>,
    /// Vectors, by bit, that were rung while they were masked.
    pending: u64,
    /// Vectors, by bit, that were rung and that the guest has to deliver.
    rung: u64,
    may_raise: bool,
    is_high: bool,
    /// Registers of these names.
    mask: u32,
    status: u32,
}

/// One guest's end of a region.
struct End {
    region: usize,
    /// The number by which other ends ring it.
    id: u16,
    /// The guest's number.
    guest: u32,
    /// The guest, while it exists.
    to: Option<&'static dyn Peer>,
    /// The interrupt of its line, where messages are hidden.
    line: Option<u8>,
    set: Set,
}

struct Region {
    name: Name,
    size: u64,
    host: u64,
}

/// All regions of the machine.
pub struct Regions {
    regions: Vec<Region>,
    ends: Mutex<Vec<End>>,
}

impl Regions {
    /// Takes the memory of all regions of these guests, and clears it.
    ///
    /// # Errors
    ///
    /// Guests disagree about a region, or there is not enough memory.
    pub fn take<'c, A: Board>(
        configs: impl Iterator<Item = &'c Config<'c>>,
        free: &mut FreeMemory,
    ) -> Result<Self, CreateError> {
        let (mut regions, mut ends) = (Vec::<Region>::new(), Vec::<End>::new());
        for (guest, config) in (0..).zip(configs) {
            for share in config.shared.iter() {
                let region = match regions.iter().position(|region| region.name == share.name) {
                    Some(index) => index,
                    None => {
                        regions.push(Region::take::<A>(share, free)?);
                        regions.len() - 1
                    }
                };
                let is_other_size = regions.get(region).is_none_or(|known| known.size != share.size);
                if is_other_size || ends.iter().any(|end| end.region == region && end.id == share.id) {
                    return Err(CreateError::Shared(share.name));
                }
                ends.push(End { region, id: share.id, guest, to: None, line: None, set: Set::default() });
            }
        }
        Ok(Self { regions, ends: Mutex::new(ends) })
    }

    /// The ends of a guest.
    pub fn links(&'static self, guest: u32) -> Vec<Link> {
        let ends = self.ends.lock();
        let own = ends.iter().enumerate().filter(|(_, end)| end.guest == guest);
        let link = |(end, known): (usize, &End)| {
            let region = self.regions.get(known.region)?;
            Some(Link { regions: self, end, host: region.host, size: region.size })
        };
        own.filter_map(link).collect()
    }

    /// A guest is created: it can be rung from now on.
    pub(super) fn join(&self, guest: u32, to: &'static dyn Peer) {
        self.of_guest(guest, |end| end.to = Some(to));
    }

    /// A guest is being destroyed: it is never used from now on.
    pub(super) fn leave(&self, guest: u32) {
        self.of_guest(guest, |end| {
            end.to = None;
            end.set = Set::default();
        });
    }

    fn of_guest(&self, guest: u32, act: impl FnMut(&mut End)) {
        self.ends.lock().iter_mut().filter(|end| end.guest == guest).for_each(act);
    }

    /// Whether memory at this address is a region's.
    pub(super) fn contain(&self, host: PhysAddr) -> bool {
        self.regions.iter().any(|region| (region.host..region.host + region.size).contains(&host.0))
    }

    fn at<R>(&self, end: usize, act: impl FnOnce(&mut End) -> R) -> Option<R> {
        self.ends.lock().get_mut(end).map(act)
    }

    /// Rings the end with this number of the region that `from` is at. Nothing happens if no such
    /// guest exists.
    fn ring(&self, from: usize, id: u16, vector: u16) {
        let mut ends = self.ends.lock();
        let Some(region) = ends.get(from).map(|end| end.region) else { return };
        if let Some(end) = ends.iter_mut().find(|end| end.region == region && end.id == id) {
            end.ring(vector);
        }
    }
}

impl Region {
    fn take<A: Board>(share: Share, free: &mut FreeMemory) -> Result<Self, CreateError> {
        let Share { name, size, .. } = share;
        let alignments = [2 << 20, PAGE].into_iter().filter(|&align| size >= align);
        let host = alignments.into_iter().find_map(|align| free.take(size, align, u64::MAX));
        let host = host.ok_or_else(|| CreateError::NoMemory(size, free.total()))?;
        // SAFETY: the memory was free, is mapped one to one, and has no user yet.
        unsafe { A::zero(host, size) };
        if A::must_clean() {
            // So that a guest that bypasses the caches finds zeros, too.
            A::clean(host..host + size);
        }
        Ok(Self { name, size, host })
    }
}

impl End {
    fn signal(&self, signal: Signal) -> bool {
        self.to.is_none_or(|to| to.signal(signal))
    }

    fn ring(&mut self, vector: u16) {
        if vector >= VECTORS || self.to.is_none() {
            return;
        }
        if self.line.is_some() {
            self.set.status = 1;
            return self.drive();
        }
        match self.set.messages.as_ref().map(|messages| messages.get(usize::from(vector)).copied().flatten())
        {
            Some(Some(message)) if self.signal(Signal::Message(message)) => {}
            Some(Some(_)) => self.set.rung |= 1 << vector,
            Some(None) => self.set.pending |= 1 << vector,
            None => {}
        }
    }

    /// The line has the level that the registers say.
    fn drive(&mut self) {
        let is_high = self.set.may_raise && self.set.status & self.set.mask & 1 != 0;
        if let Some(line) = self.line
            && core::mem::replace(&mut self.set.is_high, is_high) != is_high
        {
            let _lines_are_always_taken = self.signal(Signal::Line(line, is_high));
        }
    }

    fn follow(&mut self, messages: Option<Messages>, may_raise: bool) {
        self.set.messages = messages;
        let pending = core::mem::take(&mut self.set.pending);
        // Those that are still masked are pending again; without messages they are lost.
        (0..VECTORS).filter(|vector| pending >> vector & 1 != 0).for_each(|vector| self.ring(vector));
        self.set.may_raise = may_raise;
        self.drive();
    }
}

/// Registers, by their offsets (QEMU, `docs/specs/ivshmem-spec.rst`).
mod register {
    pub(super) const MASK: u64 = 0;
    pub(super) const STATUS: u64 = 4;
    pub(super) const POSITION: u64 = 8;
    pub(super) const DOORBELL: u64 = 12;
}

/// A guest's end of a region, as the guest's function uses it.
#[derive(Clone)]
pub struct Link {
    regions: &'static Regions,
    end: usize,
    host: u64,
    size: u64,
}

impl Link {
    /// The region's memory, host physical.
    pub const fn memory(&self) -> Range<u64> {
        self.host..self.host + self.size
    }

    /// The guest is rung by this interrupt's line, not by messages.
    pub fn wire(&self, line: u8) {
        self.regions.at(self.end, |end| end.line = Some(line));
    }

    /// The guest has these messages now, unless they are off; and its line may become high.
    pub fn follow(&self, messages: Option<Messages>, may_raise: bool) {
        self.regions.at(self.end, |end| end.follow(messages, may_raise));
    }

    /// The state after power-on.
    pub fn reset(&self) {
        self.regions.at(self.end, |end| {
            end.set = Set { is_high: end.set.is_high, ..Set::default() };
            end.drive();
        });
    }

    /// Vectors, by bit, that will interrupt when they are unmasked.
    pub fn pending(&self) -> u64 {
        self.regions.at(self.end, |end| end.set.pending).unwrap_or(0)
    }

    /// The messages of vectors that were rung and are for several vCPUs.
    pub fn take_rung(&self) -> Messages {
        let take = |end: &mut End| {
            let rung = core::mem::take(&mut end.set.rung);
            let mut taken = Messages::default();
            let Some(messages) = &end.set.messages else { return taken };
            for (vector, (message, place)) in (0..).zip(messages.iter().zip(&mut taken)) {
                match message {
                    _ if rung >> vector & 1 == 0 => {}
                    Some(_) => *place = *message,
                    None => end.set.pending |= 1 << vector,
                }
            }
            taken
        };
        self.regions.at(self.end, take).unwrap_or_default()
    }

    /// A read of a register of 4 bytes.
    pub fn read(&self, offset: u64) -> u32 {
        let read = |end: &mut End| match offset {
            register::MASK => end.set.mask,
            register::STATUS => {
                let status = core::mem::take(&mut end.set.status);
                end.drive();
                status
            }
            register::POSITION => end.id.into(),
            _ => 0,
        };
        self.regions.at(self.end, read).unwrap_or(0)
    }

    /// A write to a register of 4 bytes.
    pub fn write(&self, offset: u64, value: u32) {
        let set = |act: fn(&mut Set, u32)| {
            self.regions.at(self.end, |end| {
                act(&mut end.set, value);
                end.drive();
            });
        };
        match offset {
            register::MASK => set(|set, value| set.mask = value),
            register::STATUS => set(|set, value| set.status = value),
            register::DOORBELL => self.regions.ring(self.end, (value >> 16) as u16, value as u16),
            _ => {}
        }
    }
}
