use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use baremetal::moment::{Moment, each_moment};
use iommu::DomainId;
use iommu::smmu::StreamId;
use iommu::smmu::command::{Depth, cfgi_cd, cfgi_ste, tlbi_nh_asid};
use iommu::smmu::registers::{
    CMDQ_BASE, CR0, CR0ACK, EVENTQ_BASE, GBPA, GBPA_ABORT, GBPA_UPDATE, IDR0, IDR1, IDR5, SMMUEN, STRTAB_BASE,
};
use paging::{FlushRange, Level};

use super::*;

/// An SMMU that does each command at once.
pub(crate) struct MockSmmu {
    words: Mutex<Vec<u64>>,
    done: Mutex<Vec<Command>>,
    is_broken: bool,
    /// This register follows no other.
    silent: Option<Register>,
    /// Of its event queue.
    interrupts: AtomicU64,
    moment: Moment,
}

/// Bits of a base register that are the address.
const ADDRESS: u64 = 0x000f_ffff_ffff_ffe0;

impl MockSmmu {
    /// Stage 1, 64-bit tables, coherent, ASIDs of 16 bits; queues of 256; 16 bits of stream; 48
    /// bits of address, pages of 4 KiB.
    fn new() -> Self {
        let fake = Self {
            words: Mutex::new(vec![0; 0x8000]),
            done: Mutex::default(),
            is_broken: false,
            silent: None,
            interrupts: AtomicU64::new(0),
            moment: Moment::default(),
        };
        fake.set(IDR0, 1 << 1 | 2 << 2 | 1 << 4 | 1 << 12);
        fake.set(IDR1, 8 << 21 | 8 << 16 | 16);
        fake.set(IDR5, 1 << 4 | 5);
        fake
    }

    fn get(&self, register: Register) -> u64 {
        self.words.lock()[register.offset as usize / 8 * 2 + register.offset as usize % 8 / 4]
    }

    fn set(&self, register: Register, value: u64) {
        self.words.lock()[register.offset as usize / 8 * 2 + register.offset as usize % 8 / 4] = value;
    }

    /// The commands since the last time, without syncs.
    fn done(&self) -> Vec<Command> {
        let mut done = core::mem::take(&mut *self.done.lock());
        done.retain(|command| *command != sync_poll());
        done
    }

    /// Writes an event, or notes that it is lost. It interrupts if there was none (3.18.2).
    fn event(&self, record: [u64; 4]) {
        let (prod, cons) = (self.get(EVENTQ_PROD), self.get(EVENTQ_CONS));
        let indexes = (2 << EVENTS_ORDER) - 1;
        if (prod ^ cons) & indexes == 1 << EVENTS_ORDER {
            let lost = 1 << 31;
            return self.set(EVENTQ_PROD, prod & !lost | !cons & lost);
        }
        if (prod ^ cons) & indexes == 0 {
            self.interrupts.fetch_add(1, Ordering::Relaxed);
        }
        let at = (self.get(EVENTQ_BASE) & ADDRESS) + prod % (1 << EVENTS_ORDER) * RECORD_BYTES;
        // SAFETY: the driver has its queue there.
        unsafe { (at as *mut [u64; 4]).write_volatile(record) };
        self.set(EVENTQ_PROD, prod & !indexes | (prod + 1) & indexes);
    }
}

impl Registers for MockSmmu {
    fn read(&self, register: Register) -> u32 {
        self.moment.pass();
        self.get(register) as u32
    }

    fn write(&self, register: Register, value: u64) {
        self.moment.pass();
        self.set(register, value);
        match register {
            CR0 if self.silent != Some(CR0ACK) => self.set(CR0ACK, value),
            IRQ_CTRL if self.silent != Some(IRQ_CTRL_ACK) => self.set(IRQ_CTRL_ACK, value),
            GBPA => self.set(GBPA, value & !u64::from(GBPA_UPDATE)),
            CMDQ_PROD if !self.is_broken => {
                let mut cons = self.get(CMDQ_CONS);
                while cons != value {
                    let at = (self.get(CMDQ_BASE) & ADDRESS) + cons % (1 << COMMANDS_ORDER) * 16;
                    // SAFETY: the driver has its queue there.
                    self.done.lock().push(unsafe { &*(at as *const Entry) }.load());
                    cons = (cons + 1) % (2 << COMMANDS_ORDER);
                }
                self.set(CMDQ_CONS, cons);
            }
            _ => {}
        }
    }
}

const DEVICE: Device = Device { id: DeviceId(0x10), ats: None };
const DOMAIN: Domain<'static> = Domain { id: DomainId(3), devices: &[DEVICE] };
const TO: Translations = Translations { root: 0x4000_3000, domain: DomainId(3) };

fn pin() -> Pin {
    let space = crate::iommu::lines::tests::function();
    <Pin as crate::owned::Interrupts<_>>::new(None, &space.0, &space.1)
}

pub(crate) fn started() -> (&'static MockSmmu, Smmu) {
    let fake: &'static MockSmmu = Box::leak(Box::new(MockSmmu::new()));
    let smmu = Smmu::start(fake, 0).unwrap_or_else(|why| panic!("{why}"));
    fake.done();
    (fake, smmu)
}

#[test]
fn all_streams_are_aborted_from_the_beginning() {
    let (fake, smmu) = started();
    assert!((0..256).all(|stream| load(nth(smmu.streams, stream).unwrap()) == StreamEntry::ABORT.0));
    assert!(nth(smmu.streams, 256).is_none());
    assert_eq!(fake.get(STRTAB_BASE) & ADDRESS, address(smmu.streams));
    assert!(fake.get(CR0) & u64::from(SMMUEN) != 0 && fake.get(GBPA) & u64::from(GBPA_ABORT) != 0);
}

#[test]
fn a_device_is_attached_when_descriptor_and_entry_are_known_and_detached_with_nothing_kept() {
    let (fake, smmu) = started();
    smmu.attach(DEVICE, TO, &pin()).unwrap();
    let entry = load(nth(smmu.streams, 0x10).unwrap());
    let context = nth(smmu.contexts, 2).unwrap();
    assert_eq!(entry[0] & ADDRESS & !0x3f, address(context), "stage 1 by the domain's descriptor");
    let [head, table, ..] = load(context);
    assert_eq!((head >> 48, table), (3, TO.root), "the ASID, and the root");
    assert_eq!(head & 0x3f, 16, "48 bits of address");
    let stream = StreamId(0x10);
    let told = fake.done();
    assert_eq!(told.last(), Some(&cfgi_ste(stream, Depth::Leaf)));
    assert!(told.iter().position(|command| *command == cfgi_cd(stream)) < Some(told.len() - 1));

    smmu.detach(&DOMAIN).unwrap();
    assert_eq!(load(nth(smmu.streams, 0x10).unwrap()), StreamEntry::ABORT.0);
    assert_eq!(load(context)[0], 0, "no descriptor");
    assert_eq!(fake.done().last(), Some(&tlbi_nh_asid(Asid(3))), "last, and waited for");
}

#[test]
fn each_domain_has_a_descriptor_of_its_own() {
    let (_, smmu) = started();
    let domains = 1..=DOMAINS_MAX as u16;
    for domain in domains.clone() {
        let device = Device { id: DeviceId(domain), ats: None };
        smmu.attach(device, Translations { domain: DomainId(domain), ..TO }, &pin()).unwrap();
    }
    for domain in domains {
        let entry = load(nth(smmu.streams, domain.into()).unwrap());
        let context = nth(smmu.contexts, usize::from(domain) - 1).unwrap();
        assert_eq!(entry[0] & ADDRESS & !0x3f, address(context), "{domain}");
        assert_eq!(load(context)[0] >> 48, u64::from(domain), "its ASID");
    }
}

#[test]
fn p16_what_has_no_place_is_not_attached_and_changes_nothing() {
    let (fake, smmu) = started();
    let all = |smmu: &Smmu| {
        let words = smmu.streams.iter().chain(smmu.contexts);
        words.map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>()
    };
    let before = all(&smmu);
    for (device, domain, root) in [
        (0x10, DOMAINS_MAX as u16 + 1, TO.root),
        (0x10, 0, TO.root),
        (1 << STREAMS_ORDER, 3, TO.root),
        (0x10, 3, TO.root | 1 << 60),
    ] {
        let device = Device { id: DeviceId(device), ats: None };
        let to = Translations { domain: DomainId(domain), root };
        assert_eq!(smmu.attach(device, to, &pin()), Err(NotAttached::NoPlace), "{device:?}, {to:x?}");
        assert_eq!((fake.done(), all(&smmu) == before), (Vec::new(), true), "{device:?}, {to:x?}");
    }
}

#[test]
fn what_is_unmapped_is_named_and_a_domain_is_dropped_by_its_asid() {
    let (fake, smmu) = started();
    let range = FlushRange { start: 0x4000_0000, len: 0x2000, level: Level::Page4K, tables: false };
    let begun = smmu.begin(&DOMAIN, Invalidation::Ranges(&[range])).unwrap();
    smmu.finish(begun).unwrap();
    let told = fake.done();
    assert_eq!(told.len(), 2, "without range commands, one for each page");
    assert!(told.iter().all(|Command([head, _])| head & 0xff == 0x12 && head >> 48 == 3), "{told:x?}");
    for (pages, commands) in [(32, 32), (33, 1)] {
        let range = FlushRange { len: pages * 0x1000, ..range };
        smmu.finish(smmu.begin(&DOMAIN, Invalidation::Ranges(&[range])).unwrap()).unwrap();
        assert_eq!(fake.done().len(), commands, "more than 32 are all of the domain");
    }
    let begun = smmu.begin(&DOMAIN, Invalidation::Everything).unwrap();
    smmu.finish(begun).unwrap();
    assert_eq!(fake.done(), [tlbi_nh_asid(Asid(3))]);
    let begun = smmu.begin(&DOMAIN, Invalidation::Nothing).unwrap();
    smmu.finish(begun).unwrap();
    assert_eq!(fake.done(), []);
}

#[test]
fn events_are_reported_once_with_their_device() {
    let (fake, smmu) = started();
    let mut found = Vec::new();
    let mut look = || {
        let has_lost = smmu.take_events(&mut |device, event| found.push((device, format!("{event}"))));
        (has_lost, core::mem::take(&mut found))
    };
    assert_eq!(look(), (false, Vec::<(Option<DeviceId>, String)>::new()));
    fake.event([0x10 | 0x18 << 32, 1 << 35 | 2 << 40, 0xdead_0000, 0]);
    let (has_lost, events) = look();
    assert!(!has_lost && events.len() == 1);
    assert_eq!(events[0].0, Some(DeviceId(0x18)));
    assert!(events[0].1.contains("0xdead0000"), "{}", events[0].1);
    assert_eq!(look().1, []);
    fake.set(EVENTQ_PROD, fake.get(EVENTQ_PROD) | 1 << 31);
    assert!(look().0, "some were lost");
    assert!(!look().0, "and it was acknowledged");
}

#[test]
fn events_at_any_moment_are_reported_once_and_in_order() {
    for count in [1, 200] {
        each_moment(|at| {
            let (fake, smmu) = started();
            let event = |stream: u64| fake.event([0x10 | stream << 32, 1 << 35 | 2 << 40, 0, 0]);
            event(0);
            fake.moment.set(at, move || (1..=count).for_each(event));
            let (mut found, mut losses) = (Vec::new(), 0);
            let mut served = 0;
            while served < fake.interrupts.load(Ordering::Relaxed) {
                served += 1;
                let has_lost =
                    smmu.take_events(&mut |device, _| found.push(u64::from(device.expect("has one").0)));
                losses += u32::from(has_lost);
            }
            let has_come = fake.moment.has_come();
            if has_come {
                // The queue has 128 places, of which the second access frees one.
                let room = count.min(127 + u64::from(at > 1));
                assert_eq!(found, (0..=room).collect::<Vec<_>>(), "before access {at}");
                assert_eq!(losses, u32::from(room < count), "before access {at}");
            }
            has_come
        });
    }
}

#[test]
fn one_that_lacks_something_or_stands_still_is_not_used() {
    let start = |change: &dyn Fn(&mut MockSmmu), first_stream| {
        let mut fake = MockSmmu::new();
        change(&mut fake);
        Smmu::start(Box::leak(Box::new(fake)), first_stream).err()
    };
    let without = |register, bits: u64| {
        start(&move |fake: &mut MockSmmu| fake.set(register, fake.get(register) & !bits), 0)
    };
    assert_eq!(start(&|_| {}, 0), None);
    for (register, bits) in [(IDR0, 1 << 1), (IDR0, 1 << 4), (IDR5, 1 << 4), (IDR1, 0x3f)] {
        assert_eq!(without(register, bits), Some(NotStarted::Lacks), "{register:?}, {bits:#x}");
    }
    assert_eq!(start(&|fake| fake.set(IDR1, 8 << 21 | 8 << 16 | 7), 0), Some(NotStarted::Lacks));
    assert_eq!(start(&|fake| fake.set(IDR1, 8 << 21 | 8 << 16 | 8), 0), None, "256 streams suffice");
    assert_eq!(start(&|_| {}, 1), Some(NotStarted::Lacks), "another first stream");
    for register in [CR0ACK, IRQ_CTRL_ACK] {
        let silent = start(&move |fake: &mut MockSmmu| fake.silent = Some(register), 0);
        assert_eq!(silent, Some(NotStarted::Silent), "{register:?}");
    }
    let stuck = start(&|fake| fake.is_broken = true, 0);
    assert!(matches!(stuck, Some(NotStarted::Stuck(_))), "{stuck:?}");
}

#[test]
fn queues_are_as_long_as_the_smmu_is_told_and_it_interrupts_for_events() {
    let (fake, smmu) = started();
    let base = |register| (fake.get(register) & ADDRESS, fake.get(register) & 0x1f);
    assert_eq!(base(EVENTQ_BASE), (address(smmu.events), 7), "128 of 32 bytes");
    assert_eq!(base(CMDQ_BASE).1, 8, "256 of 16 bytes");
    assert_eq!((smmu.events.len(), fake.get(IRQ_CTRL)), (128 * 4, EVENTQ_IRQEN.into()));
    let requester = |id| smmu.requester(DeviceId(id));
    assert_eq!(
        [requester(0), requester(255), requester(256)],
        [Some(DeviceId(0)), Some(DeviceId(255)), None]
    );
}

#[test]
fn a_wait_ends_when_the_queue_has_stopped_or_at_its_limit() {
    let fake: &'static MockSmmu = Box::leak(Box::new(MockSmmu::new()));
    let ends = || [0, 1, 1022, 1023, 1024, 2047, 4096, 4097].map(|turns| Ring(fake).relax(turns).is_break());
    let never = [false, false, false, false, false, false, false, true];
    assert_eq!(ends(), never);
    // An error is active while the two registers differ (6.3.19); the first bit is this queue's.
    for (error, acknowledged, stopped) in [(1, 0, true), (1, 1, false), (0, 1, true), (4, 0, false)] {
        fake.set(GERROR, error);
        fake.set(GERRORN, acknowledged);
        let at_looks = [false, false, false, stopped, false, stopped, false, true];
        assert_eq!(ends(), at_looks, "{error}, {acknowledged}");
    }
}

#[test]
fn all_of_an_event_is_reported_round_the_end_of_the_queue() {
    let (fake, smmu) = started();
    for number in 0..300 {
        // A translation fault of stream 5 (7.3.12), at an address of its own.
        let record = [0x10 | 5 << 32, 1 << 35 | 2 << 40, number << 12, 0x9000];
        fake.event(record);
        let mut found = Vec::new();
        smmu.take_events(&mut |device, event| found.push((device, format!("{event}"))));
        let expected = format!("{}", Event::decode(record));
        assert!(expected.contains(&format!("{:#x}", number << 12)), "{expected}");
        assert_eq!(found, [(Some(DeviceId(5)), expected)], "{number}");
        assert_eq!(fake.get(EVENTQ_CONS), fake.get(EVENTQ_PROD), "{number}");
    }
}
