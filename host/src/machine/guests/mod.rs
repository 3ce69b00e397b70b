//! The guests of a machine and their consoles, as the hypervisor shows them in the machine's
//! memory.

use crate::prelude::*;
use hostlink::config::MAX_GUESTS;
use hostlink::counters::{BEACON_MAGIC, Beacon};
use hostlink::guests::{CONSOLES, ConsolePlace, GONE, GuestEntry, GuestState, stamp};
use hostlink::name::NAME_BYTES;
use hostlink::ring::{HEADER_BYTES, Reader, Source, Taken};
use std::mem::offset_of;

/// The largest ring that is believed.
const RING_BYTES_MAX: u64 = 16 << 20;
const BUFFER_BYTES: usize = 16 << 10;
/// Most reads of one ring in a row: a guest may write as fast as it is read.
const READS_MAX: usize = 16;

/// How often an entry that is being changed is read again at once.
const TRIES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entries {
    first: u64,
    count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestSeen {
    pub(crate) index: u32,
    /// The entry's stamp: a guest with another one in this entry is another guest.
    pub(crate) generation: u32,
    pub(crate) name: Name,
    pub(crate) state: GuestState,
    pub(crate) exit: Option<ExitCode>,
    pub(crate) vcpus: u32,
    /// Physical address of its counters.
    pub(crate) counters: u64,
    pub(crate) weight: u32,
    pub(crate) cap: Option<u32>,
    /// Ticks for which its vCPUs have had CPUs.
    pub(crate) used_ticks: u64,
    pub(crate) memory: u64,
    pub(crate) consoles: [Option<RingPlace>; CONSOLES],
}

/// What distinguishes a guest from every other one, earlier ones of its name included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    index: u32,
    generation: u32,
    pub(crate) name: Name,
}

impl GuestSeen {
    pub(crate) const fn identity(&self) -> Identity {
        Identity { index: self.index, generation: self.generation, name: self.name }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingPlace {
    address: u64,
    size: u64,
}

impl Entries {
    /// `None` while the beacon is not filled in. A guest that uses the serial ports has no entry.
    pub(crate) fn find(ram: &Ram, beacon: u64) -> Result<Option<Self>> {
        let field = |offset: usize| ram.load(beacon.saturating_add(offset as u64));
        if field(offset_of!(Beacon, magic))? != BEACON_MAGIC {
            return Ok(None);
        }
        let count = low(field(offset_of!(Beacon, guest_count))?);
        ensure!(count <= MAX_GUESTS, "the hypervisor claims {count} guests");
        Ok(Some(Self { first: field(offset_of!(Beacon, guests))?, count }))
    }

    /// Whether the last guest that lived has gone to another machine, or to a file.
    pub(crate) fn have_gone(ram: &Ram, beacon: u64) -> Result<bool> {
        let Some(Self { first, count }) = Self::find(ram, beacon)? else { return Ok(false) };
        // One that uses the serial ports has an entry as well.
        let exit = |index: u32| {
            let at = first.saturating_add(u64::from(index) * size_of::<GuestEntry>() as u64);
            ram.load(at.saturating_add(offset_of!(GuestEntry, vcpus) as u64)).map(high)
        };
        for index in 0..count.max(1) {
            if exit(index)? == GONE {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the machine has one guest, which uses its serial ports.
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn guests(&self, ram: &Ram) -> Result<Vec<GuestSeen>> {
        let mut guests = Vec::new();
        for index in 0..self.count {
            guests.extend(self.guest(ram, index)?);
        }
        Ok(guests)
    }

    /// If so, what was read from the guest's rings and counters before was its own.
    pub(crate) fn has(&self, ram: &Ram, guest: Identity) -> Result<bool> {
        let (_, generation) = self.state(ram, guest.index)?;
        Ok(generation == guest.generation)
    }

    pub(crate) fn is_free(&self, ram: &Ram, index: u32) -> Result<bool> {
        let (state, generation) = self.state(ram, index)?;
        Ok(state == GuestState::Empty as u32 && generation.is_multiple_of(2))
    }

    fn state(&self, ram: &Ram, index: u32) -> Result<(u32, u32)> {
        let at = self.first.saturating_add(u64::from(index) * size_of::<GuestEntry>() as u64);
        let word = ram.load(at.saturating_add(offset_of!(GuestEntry, state) as u64))?;
        Ok((low(word), high(word)))
    }

    fn guest(&self, ram: &Ram, index: u32) -> Result<Option<GuestSeen>> {
        let at = self.first.saturating_add(u64::from(index) * size_of::<GuestEntry>() as u64);
        let stamp = || Ok(self.state(ram, index)?.1);
        for _ in 0..TRIES {
            let read = stamp::read(stamp, || read_entry(ram, at))?;
            if let Some((generation, guest)) = read {
                return Ok(guest.map(|guest| GuestSeen { index, generation, ..guest }));
            }
        }
        Ok(None)
    }
}

/// `None` if it is free. Its stamp is checked outside: the words may not belong together, so none
/// is refused here for what it says.
fn read_entry(ram: &Ram, at: u64) -> Result<Option<GuestSeen>> {
    let field = |offset: usize| ram.load(at.saturating_add(offset as u64));
    // The state before the reason for it: each load acquires.
    let state = GuestState::from_code(low(field(offset_of!(GuestEntry, state))?)).unwrap_or_default();
    if state == GuestState::Empty {
        return Ok(None);
    }
    let mut name = [0; NAME_BYTES];
    for (index, bytes) in name.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&field(offset_of!(GuestEntry, name) + 8 * index)?.to_le_bytes());
    }
    let vcpus_and_exit = field(offset_of!(GuestEntry, vcpus))?;
    let share = field(offset_of!(GuestEntry, weight))?;
    let mut consoles = [None; CONSOLES];
    for (index, console) in consoles.iter_mut().enumerate() {
        let place = offset_of!(GuestEntry, consoles) + index * size_of::<ConsolePlace>();
        let address = field(place + offset_of!(ConsolePlace, ring))?;
        let size = u64::from(low(field(place + offset_of!(ConsolePlace, size))?));
        let is_one = address != 0 && size.is_power_of_two() && (8..=RING_BYTES_MAX).contains(&size);
        *console = is_one.then_some(RingPlace { address, size });
    }
    let Some(name) = Name::from_bytes(&name) else { return Ok(None) };
    Ok(Some(GuestSeen {
        index: 0,
        generation: 0,
        name,
        state,
        exit: i32::try_from(high(vcpus_and_exit)).ok().and_then(ExitCode::from_code),
        vcpus: low(vcpus_and_exit).min(MAX_VCPUS),
        counters: field(offset_of!(GuestEntry, counters))?,
        weight: low(share),
        cap: Some(high(share)).filter(|cap| *cap != 0),
        used_ticks: field(offset_of!(GuestEntry, used_ticks))?,
        memory: field(offset_of!(GuestEntry, memory))?,
        consoles,
    }))
}

const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[derive(Clone, Debug)]
pub(crate) struct Follower {
    place: RingPlace,
    reader: Reader,
}

impl Follower {
    /// A reader of everything that the ring still has.
    pub(crate) const fn new(place: RingPlace) -> Self {
        Self { place, reader: Reader::new(place.size) }
    }

    /// Reads what was written since the last time, as much as fits into `buffer`.
    pub(crate) fn read<'b>(&mut self, ram: &Ram, buffer: &'b mut [u8]) -> Result<Taken<'b, u8>> {
        self.reader.read(&InMemory { ram, address: self.place.address }, buffer)
    }

    /// Passes on what was written since the last time, and how many bytes before that are lost, if
    /// the guest is there. Otherwise the bytes may be anybody's. Returns whether it is.
    pub(crate) fn follow(
        &mut self,
        ram: &Ram,
        entries: &Entries,
        guest: Identity,
        mut take: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<bool> {
        let mut buffer = [0; BUFFER_BYTES];
        for _ in 0..READS_MAX {
            let Taken { lost, items: bytes } = self.read(ram, &mut buffer)?;
            if !entries.has(ram, guest)? {
                return Ok(false);
            }
            if lost == 0 && bytes.is_empty() {
                break;
            }
            take(lost, bytes)?;
        }
        Ok(true)
    }
}

struct InMemory<'r> {
    ram: &'r Ram,
    address: u64,
}

impl Source for InMemory<'_> {
    type Item = u8;
    type Error = anyhow::Error;

    fn count(&self) -> Result<u64> {
        self.ram.load(self.address) // Acquires; pairs with the writer's count, C.
    }

    fn load(&self, place: u64) -> Result<u8> {
        let word = self.ram.load(self.address.saturating_add(HEADER_BYTES + (place & !7)))?;
        Ok(word.to_le_bytes()[(place & 7) as usize])
    }
}

// Two halves are loaded at once: the first field below, the second above.
const _: () = {
    assert!(offset_of!(GuestEntry, generation) == offset_of!(GuestEntry, state) + 4);
    assert!(offset_of!(GuestEntry, exit) == offset_of!(GuestEntry, vcpus) + 4);
    assert!(offset_of!(GuestEntry, cap) == offset_of!(GuestEntry, weight) + 4);
    assert!(offset_of!(Beacon, guest_count).is_multiple_of(8));
};

#[cfg(test)]
pub(crate) mod made;
#[cfg(test)]
mod tests;
