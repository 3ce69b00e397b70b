//! The guests of a machine and their consoles, as the hypervisor shows them in the machine's
//! memory.

use super::ram::Ram;
use anyhow::{Result, ensure};
use hostlink::config::{MAX_GUESTS, MAX_VCPUS};
use hostlink::counters::{BEACON_MAGIC, Beacon};
use hostlink::exit::ExitCode;
use hostlink::guests::console::{HEADER_BYTES, Reader, Source, Taken};
use hostlink::guests::{CONSOLES, ConsolePlace, GuestEntry, GuestState, stamp};
use hostlink::name::{NAME_BYTES, Name};
use std::mem::offset_of;

/// The largest ring that is believed.
const RING_BYTES_MAX: u64 = 16 << 20;

/// How often an entry that is being changed is read again at once.
const TRIES: usize = 16;

/// The entries of a machine's guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entries {
    first: u64,
    count: u32,
}

/// A guest as its entry describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestSeen {
    /// Number of its entry.
    pub(crate) index: u32,
    /// The entry's stamp: a guest with another one in this entry is another guest.
    pub(crate) generation: u32,
    pub(crate) name: Name,
    pub(crate) state: GuestState,
    /// How it ended, if it did.
    pub(crate) exit: Option<ExitCode>,
    pub(crate) vcpus: u32,
    /// Physical address of its counters.
    pub(crate) counters: u64,
    pub(crate) weight: u32,
    pub(crate) cap: Option<u32>,
    /// Ticks for which its vCPUs have had CPUs.
    pub(crate) used_ticks: u64,
    pub(crate) memory: u64,
    /// Its consoles' rings.
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
    /// Its identity.
    pub(crate) const fn identity(&self) -> Identity {
        Identity { index: self.index, generation: self.generation, name: self.name }
    }
}

/// The location of a console's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingPlace {
    address: u64,
    size: u64,
}

impl Entries {
    /// The entries that the beacon at physical address `beacon` names; `None` while it is not
    /// filled in. There are none on a machine whose only guest uses its serial ports.
    pub(crate) fn find(ram: &Ram, beacon: u64) -> Result<Option<Self>> {
        let field = |offset: usize| ram.load(beacon.saturating_add(offset as u64));
        if field(offset_of!(Beacon, magic))? != BEACON_MAGIC {
            return Ok(None);
        }
        let count = low(field(offset_of!(Beacon, guest_count))?);
        ensure!(count <= MAX_GUESTS, "the hypervisor claims {count} guests");
        Ok(Some(Self { first: field(offset_of!(Beacon, guests))?, count }))
    }

    /// Whether the machine has one guest, which uses its serial ports.
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The guests now. Entries that are being changed at this moment are left out.
    pub(crate) fn guests(&self, ram: &Ram) -> Result<Vec<GuestSeen>> {
        let mut guests = Vec::new();
        for index in 0..self.count {
            guests.extend(self.guest(ram, index)?);
        }
        Ok(guests)
    }

    /// The guest in an entry; `None` if the entry is free, or being changed.
    fn guest(&self, ram: &Ram, index: u32) -> Result<Option<GuestSeen>> {
        let at = self.first.saturating_add(u64::from(index) * size_of::<GuestEntry>() as u64);
        let field = |offset: usize| ram.load(at.saturating_add(offset as u64));
        let stamp = || Ok(high(field(offset_of!(GuestEntry, state))?));
        for _ in 0..TRIES {
            let read = stamp::read(stamp, || read_entry(ram, at))?;
            if let Some((generation, guest)) = read {
                return Ok(guest.map(|guest| GuestSeen { index, generation, ..guest }));
            }
        }
        Ok(None)
    }
}

/// The guest in the entry at this address; `None` if it is free. Its stamp is checked outside: the
/// words may not belong together, so none of them is refused here for what it says.
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

/// A console that is read: its ring, and the position of this reader.
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
    pub(crate) fn read<'b>(&mut self, ram: &Ram, buffer: &'b mut [u8]) -> Result<Taken<'b>> {
        self.reader.read(&InMemory { ram, address: self.place.address }, buffer)
    }
}

/// A ring in the machine's memory.
struct InMemory<'r> {
    ram: &'r Ram,
    address: u64,
}

impl Source for InMemory<'_> {
    type Error = anyhow::Error;

    fn written(&self) -> Result<u64> {
        self.ram.load(self.address) // Acquires; pairs with the writer's count, C.
    }

    fn byte(&self, place: u64) -> Result<u8> {
        let word = self.ram.load(self.address.saturating_add(HEADER_BYTES as u64 + (place & !7)))?;
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
pub(crate) mod made {
    //! Mock machines with guests: memory that a test fills like the hypervisor.

    use super::*;
    use hostlink::guests::Facts;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// Physical address of the beacon.
    pub(crate) const BEACON: u64 = 0x1000;
    const ENTRIES: u64 = 0x2000;
    const RINGS: u64 = 0x10000;
    /// Physical address of every guest's counters.
    pub(crate) const COUNTERS: u64 = 0x20000;
    /// Bytes of each ring.
    pub(crate) const RING_BYTES: u64 = 64;

    /// A mock machine.
    pub(crate) struct Made {
        pub(crate) ram: Ram,
    }

    impl Made {
        /// A machine with this many free entries.
        pub(crate) fn new(entries: u32) -> Self {
            let made = Self { ram: Ram::new(0x40000, 0).expect("makes") };
            made.put(BEACON + offset_of!(Beacon, guests) as u64, ENTRIES);
            made.put(BEACON + offset_of!(Beacon, guest_count) as u64, entries.into());
            made.put(BEACON + offset_of!(Beacon, magic) as u64, BEACON_MAGIC);
            made
        }

        /// Stores a word.
        pub(crate) fn put(&self, address: u64, word: u64) {
            self.put_bytes(address, &word.to_le_bytes());
        }

        fn put_bytes(&self, address: u64, bytes: &[u8]) {
            let file = File::from(self.ram.fd().try_clone_to_owned().expect("clones"));
            file.write_all_at(bytes, address).expect("writes");
        }

        /// The address of a console's ring.
        fn ring(entry: u32, port: usize) -> u64 {
            RINGS + (u64::from(entry) * CONSOLES as u64 + port as u64) * 256
        }

        /// The address of an entry's field.
        pub(crate) fn field(entry: u32, offset: usize) -> u64 {
            ENTRIES + u64::from(entry) * size_of::<GuestEntry>() as u64 + offset as u64
        }

        /// Puts a guest into an entry, with empty rings.
        pub(crate) fn fill(&self, entry: u32, name: &str, state: GuestState) {
            let generation = Self::field(entry, offset_of!(GuestEntry, state));
            let before = high(self.ram.load(generation).expect("reads"));
            let consoles = [0, 1].map(|port| (Self::ring(entry, port), RING_BYTES as u32));
            let name = Name::parse(name).expect("is one");
            let facts = Facts {
                name,
                vcpus: 2,
                counters: COUNTERS,
                weight: 100,
                cap: Some(50),
                memory: 1 << 28,
                consoles,
            };
            consoles.iter().for_each(|(ring, _)| self.put(*ring, 0));
            let filled = GuestEntry::new();
            filled.generation.store(before, Ordering::Relaxed);
            filled.fill(&facts, state);
            self.copy(entry, &filled);
        }

        /// Copies an entry as the hypervisor would have it in its memory.
        pub(crate) fn copy(&self, entry: u32, from: &GuestEntry) {
            let byte = |byte: &AtomicU8| byte.load(Ordering::Relaxed);
            let load = |word: &std::sync::atomic::AtomicU32| u64::from(word.load(Ordering::Relaxed));
            let name: Vec<u8> = from.name.iter().map(byte).collect();
            self.put_bytes(Self::field(entry, 0), &name);
            let mut words = vec![
                (offset_of!(GuestEntry, vcpus), load(&from.vcpus) | load(&from.exit) << 32),
                (offset_of!(GuestEntry, counters), from.counters.load(Ordering::Relaxed)),
                (offset_of!(GuestEntry, weight), load(&from.weight) | load(&from.cap) << 32),
                (offset_of!(GuestEntry, used_ticks), from.used_ticks.load(Ordering::Relaxed)),
                (offset_of!(GuestEntry, memory), from.memory.load(Ordering::Relaxed)),
            ];
            for (port, console) in from.consoles.iter().enumerate() {
                let at = offset_of!(GuestEntry, consoles) + port * size_of::<ConsolePlace>();
                words.push((at, console.ring.load(Ordering::Relaxed)));
                words.push((at + 8, load(&console.size)));
            }
            words.push((offset_of!(GuestEntry, state), load(&from.state) | load(&from.generation) << 32));
            words.into_iter().for_each(|(at, word)| self.put(Self::field(entry, at), word));
        }

        /// Changes a guest's state.
        pub(crate) fn set_state(&self, entry: u32, state: GuestState, exit: u32) {
            let vcpus = Self::field(entry, offset_of!(GuestEntry, vcpus));
            let word = self.ram.load(vcpus).expect("reads");
            self.put(vcpus, u64::from(low(word)) | u64::from(exit) << 32);
            let at = Self::field(entry, offset_of!(GuestEntry, state));
            let word = self.ram.load(at).expect("reads");
            self.put(at, state as u64 | u64::from(high(word)) << 32);
        }

        /// Writes bytes to a console.
        pub(crate) fn write(&self, entry: u32, port: usize, bytes: &[u8]) {
            let ring = Self::ring(entry, port);
            for byte in bytes {
                let written = self.ram.load(ring).expect("reads");
                self.put_bytes(ring + HEADER_BYTES as u64 + written % RING_BYTES, &[*byte]);
                self.put(ring, written + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made::{BEACON, Made, RING_BYTES};
    use super::*;

    #[test]
    fn guests_are_read_from_their_entries() {
        let made = Made::new(3);
        let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
        assert_eq!(entries.guests(&made.ram).expect("reads"), []);
        made.fill(2, "web", GuestState::Running);
        made.fill(0, "db", GuestState::Loaded);
        let guests = entries.guests(&made.ram).expect("reads");
        let names: Vec<_> = guests.iter().map(|guest| (guest.index, guest.name.as_str())).collect();
        assert_eq!(names, [(0, "db"), (2, "web")]);
        let web = &guests[1];
        assert_eq!((web.generation, web.state, web.exit, web.vcpus), (2, GuestState::Running, None, 2));
        assert_eq!((web.counters, web.weight, web.cap, web.memory), (made::COUNTERS, 100, Some(50), 1 << 28));
        assert!(web.consoles.iter().all(|console| console.is_some_and(|ring| ring.size == RING_BYTES)));
        made.set_state(2, GuestState::Failed, ExitCode::GuestTripleFault as u32);
        let web = &entries.guests(&made.ram).expect("reads")[1];
        assert_eq!((web.state, web.exit), (GuestState::Failed, Some(ExitCode::GuestTripleFault)));
        made.fill(2, "mail", GuestState::Running);
        let mail = &entries.guests(&made.ram).expect("reads")[1];
        assert_eq!((mail.generation, mail.name.as_str(), mail.exit), (4, "mail", None));
    }

    #[test]
    fn entries_that_change_or_make_no_sense_are_left_out() {
        let made = Made::new(1);
        let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
        let guests = || entries.guests(&made.ram).expect("reads");
        made.fill(0, "web", GuestState::Running);
        let state = Made::field(0, offset_of!(GuestEntry, state));
        made.put(state, GuestState::Running as u64 | 3 << 32);
        assert_eq!(guests(), [], "it is being changed");
        made.put(state, 99 | 4 << 32);
        assert_eq!(guests(), [], "there is no such state");
        made.put(state, GuestState::Running as u64 | 4 << 32);
        made.put(Made::field(0, 0), u64::from_le_bytes(*b"Web\0\0\0\0\0"));
        assert_eq!(guests(), [], "that is no name");
        made.fill(0, "web", GuestState::Running);
        for (ring, size) in [(0, 64), (0x10000, 0), (0x10000, 65), (0x10000, 1 << 30), (0x10000, 4)] {
            made.put(Made::field(0, offset_of!(GuestEntry, consoles)), ring);
            made.put(Made::field(0, offset_of!(GuestEntry, consoles) + 8), size);
            assert_eq!(guests()[0].consoles[0], None, "{ring:#x} {size}");
        }
    }

    #[test]
    fn a_beacon_may_be_empty_or_of_one_guest_or_nonsense() {
        let ram = Ram::new(0x4000, 0).expect("makes");
        assert_eq!(Entries::find(&ram, BEACON).expect("reads"), None);
        let single = Made::new(0);
        assert!(Entries::find(&single.ram, BEACON).expect("reads").is_some_and(|entries| entries.is_empty()));
        assert!(Entries::find(&Made::new(65).ram, BEACON).is_err());
        assert!(Entries::find(&ram, u64::MAX).is_err());
        let made = Made::new(2);
        made.put(BEACON + offset_of!(Beacon, guests) as u64, u64::MAX - 7);
        let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
        assert!(entries.guests(&made.ram).is_err());
    }

    #[test]
    fn a_console_is_followed_and_what_is_lost_is_counted() {
        let made = Made::new(1);
        made.fill(0, "web", GuestState::Running);
        let entries = Entries::find(&made.ram, BEACON).expect("reads").expect("is filled in");
        let place = entries.guests(&made.ram).expect("reads")[0].consoles[0].expect("has one");
        let mut follower = Follower::new(place);
        let mut buffer = [0; 128];
        let mut read = || {
            let Taken { lost, bytes } = follower.read(&made.ram, &mut buffer).expect("reads");
            (lost, String::from_utf8_lossy(bytes).into_owned())
        };
        assert_eq!(read(), (0, String::new()));
        made.write(0, 0, b"hello\r\n");
        assert_eq!(read(), (0, "hello\r\n".to_owned()));
        made.write(0, 0, &[b'x'; 100]);
        assert_eq!(read(), (37, "x".repeat(63)));
    }
}
