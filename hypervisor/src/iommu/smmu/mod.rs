//! The driver of SMMUv3. Source: Arm System Memory Management Unit Architecture Specification,
//! version 3 (IHI 0070), as in [`iommu::smmu`].
//!
//! All streams are aborted from the beginning. Those of functions that a guest owns translate by
//! stage 1, with the guest's [`Mirror`](super::mirror::Mirror) as tables, which says why. The steps
//! of that are those of [`stay::iommu::smmu`].

use core::fmt;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};
use hostlink::defect::Defect;
use iommu::smmu::change::Words;
use iommu::smmu::command::sync_poll;
use iommu::smmu::event_queue::{RECORD_BYTES, Reader};
use iommu::smmu::registers::{
    CMDQ_CONS, CMDQ_ERR, CMDQ_PROD, EVENTQ_CONS, EVENTQ_IRQEN, EVENTQ_PROD, GERROR, GERRORN, IRQ_CTRL,
    IRQ_CTRL_ACK, Register,
};
use iommu::smmu::start::{Places, Ring as RingPlace, Step, StreamTable, forget_all, steps};
use iommu::smmu::stream::{Reads, Tables};
use iommu::smmu::{Asid, ContextDescriptor, Event, Features, Granule, Setup, StreamEntry};
use iommu::{Command, DeviceId, DomainId, Entry, Port, Queue, Stuck};
use paging::{Arm64Stage1, Format, Invalidation};
use spin::Mutex;
use stay::iommu::smmu::{self as engine, Structure, Structures, stream};
use stay::iommu::{Begun, Device, Domain, finish};
use stay::{Mistake, Mistakes};

use super::lines::Pin;
use crate::owned::tables::{address, ring, words};
use crate::owned::{DOMAINS_MAX, Iommu, NotAttached, Translations};
use crate::pages::Pages;
use crate::vm::defects::makes;

/// Commands and events in their queues: a page of 16 or 32 bytes each.
const COMMANDS_ORDER: u32 = 8;
const EVENTS_ORDER: u32 = 7;
/// Streams that have an entry: those of bus 0.
const STREAMS_ORDER: u32 = 8;
const WORDS: usize = 8;
/// Descriptors in their page: that of domain 1 is the first.
const CONTEXTS: usize = 64;
/// Commands up to which addresses are invalidated one by one.
const COMMANDS_MAX: u32 = 32;
/// Events are taken until there are none, but no more often than this: devices may cause them
/// faster than they are taken.
const EVENT_ROUNDS_MAX: u32 = 1 << 10;
/// Turns of waiting for the SMMU. A sync takes microseconds; this is seconds.
const TURNS_MAX: u64 = if cfg!(test) { 1 << 12 } else { 1 << 26 };

/// The registers of one SMMU.
pub trait Registers: Send + Sync {
    /// Reads a register. What the SMMU has written to memory before is found by later loads.
    fn read(&self, register: Register) -> u32;
    /// Writes a register. The SMMU finds everything that this CPU has written to memory before.
    fn write(&self, register: Register, value: u64);
}

/// An SMMU, in operation.
pub struct Smmu {
    queue: Queue<Ring, &'static [Entry]>,
    features: Features,
    setup: Setup,
    /// The stream table, and the context descriptors by domain.
    streams: &'static [AtomicU64],
    contexts: &'static [AtomicU64],
    reader: Mutex<Reader>,
    events: &'static [AtomicU64],
}

/// The SMMU's side of the command queue.
struct Ring(&'static dyn Registers);

impl Ring {
    fn has_stopped(&self) -> bool {
        (self.0.read(GERROR) ^ self.0.read(GERRORN)) & CMDQ_ERR != 0
    }
}

impl Port for Ring {
    fn set_tail(&self, position: u64) {
        self.0.write(CMDQ_PROD, position % (2 << COMMANDS_ORDER));
    }

    fn head(&self) -> u32 {
        self.0.read(CMDQ_CONS)
    }

    fn sync(&self, _: u64) -> Command {
        sync_poll()
    }

    fn reported(&self) -> Option<u64> {
        None
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        core::hint::spin_loop();
        if turns > TURNS_MAX || turns % 1024 == 1023 && self.has_stopped() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl Mistakes for Ring {
    fn makes(&self, mistake: Mistake) -> bool {
        mistake == Mistake::WrongDomain && makes(Defect::DmaWrongDomain)
    }
}

/// Why an SMMU is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// It does not reach what is needed, or has it at fixed places.
    Refused(iommu::smmu::start::Refusal),
    /// It lacks stage 1 with pages of 4 KiB, coherence with the caches, or streams.
    Lacks,
    /// A register does not change as it must.
    Silent,
    /// It reads no commands.
    Stuck(Stuck),
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "it cannot use its tables: {refusal:?}"),
            Self::Lacks => f.write_str("it needs stage 1, pages of 4 KiB, coherence, and 256 streams"),
            Self::Silent => f.write_str("it does not answer"),
            Self::Stuck(stuck) => stuck.fmt(f),
        }
    }
}

impl Smmu {
    /// Puts an SMMU into operation, with all streams aborted. The requesters of bus 0 have the
    /// streams from `first_stream` on.
    ///
    /// # Errors
    ///
    /// [`NotStarted`].
    pub fn start(registers: &'static dyn Registers, first_stream: u32) -> Result<Self, NotStarted> {
        let features = Features::read(|register| registers.read(register));
        let is_usable = features.stage_1
            && features.is_coherent
            && features.has_granule(Granule::Size4K)
            && features.stream_bits >= STREAMS_ORDER
            && first_stream == 0;
        if !is_usable {
            return Err(NotStarted::Lacks);
        }
        // Each is as long as it is aligned: the table has 16 KiB, the others a page.
        let streams = words(Pages::aligned(2));
        let [contexts, events] = [0; 2].map(|_| words(Pages::new(1)));
        let commands = ring(Pages::new(1));
        let smmu = Self {
            queue: Queue::new(Ring(registers), commands),
            features,
            setup: Setup::new(&features, Granule::Size4K, COMMANDS_MAX),
            streams,
            contexts,
            reader: Mutex::new(Reader::new(EVENTS_ORDER)),
            events,
        };
        for entry in streams.chunks(WORDS) {
            store(entry, StreamEntry::ABORT.0.into_iter().enumerate());
        }
        let places = Places {
            streams: StreamTable { address: address(streams), order: STREAMS_ORDER, split: None },
            commands: RingPlace { address: address(commands), order: COMMANDS_ORDER },
            events: RingPlace { address: address(events), order: EVENTS_ORDER },
        };
        for step in steps(&features, &places).map_err(NotStarted::Refused)? {
            smmu.take(step)?;
        }
        smmu.take(Step::Write(IRQ_CTRL, EVENTQ_IRQEN.into()))?;
        smmu.take(Step::Await { register: IRQ_CTRL_ACK, mask: EVENTQ_IRQEN, value: EVENTQ_IRQEN })?;
        Ok(smmu)
    }

    fn take(&self, step: Step) -> Result<(), NotStarted> {
        let registers = self.queue.port().0;
        match step {
            Step::Write(register, value) => registers.write(register, value),
            Step::Await { register, mask, value } => {
                if !(0..TURNS_MAX).any(|_| registers.read(register) & mask == value) {
                    return Err(NotStarted::Silent);
                }
            }
            Step::AcknowledgeErrors => registers.write(GERRORN, registers.read(GERROR).into()),
            Step::Forget => {
                let issued = self.queue.issue(forget_all(&self.features));
                issued.and_then(|ticket| self.queue.wait(ticket)).map_err(NotStarted::Stuck)?;
            }
        }
        Ok(())
    }

    fn steps(&self) -> engine::Smmu<'_, Ring, &'static [Entry], Self> {
        engine::Smmu { queue: &self.queue, structures: self }
    }

    fn place(&self, of: Structure) -> Option<&'static [AtomicU64]> {
        match of {
            Structure::Entry(stream) => nth(self.streams, stream.0 as usize),
            Structure::Descriptor(domain) => self.context(domain),
        }
    }

    fn context(&self, domain: DomainId) -> Option<&'static [AtomicU64]> {
        nth(self.contexts, usize::from(domain.0).checked_sub(1)?)
    }

    /// The entry and the descriptor by which a device's stream translates.
    fn translated(&self, to: &Translations) -> Option<(StreamEntry, ContextDescriptor)> {
        let tables = Tables {
            asid: Asid(to.domain.0),
            table: to.root,
            t0sz: 64 - Arm64Stage1::INPUT_BITS as u8,
            granule: Granule::Size4K,
            reads: Reads::Coherent,
            size: self.features.output?,
            mair: Arm64Stage1::MAIR,
        };
        let context = self.context(to.domain)?;
        StreamEntry::stage_1(address(context), Reads::Coherent).zip(ContextDescriptor::new(&tables))
    }
}

impl Structures for Smmu {
    fn load(&self, of: Structure) -> Words {
        self.place(of).map_or([0; WORDS], load)
    }

    fn store(&self, of: Structure, word: usize, value: u64) {
        if let Some(place) = self.place(of) {
            store(place, [(word, value)].into_iter());
        }
    }
}

impl Iommu<Pin> for Smmu {
    fn requester(&self, device: DeviceId) -> Option<DeviceId> {
        (u32::from(device.0) < 1 << STREAMS_ORDER).then_some(device)
    }

    /// Interrupts pass by no SMMU.
    fn is_machines_own(&self, _: DeviceId) -> bool {
        false
    }

    fn attach(&self, device: Device, to: Translations, _: &Pin) -> Result<(), NotAttached> {
        let _place = self.place(Structure::Entry(stream(device.id))).ok_or(NotAttached::NoPlace)?;
        let by = self.translated(&to).ok_or(NotAttached::NoPlace)?;
        Ok(self.steps().attach(device.id, to.domain, by)?)
    }

    fn detach(&self, domain: &Domain<'_>) -> Result<(), Stuck> {
        self.steps().detach(domain)
    }

    fn begin(&self, domain: &Domain<'_>, invalidation: Invalidation<'_>) -> Result<Begun, Stuck> {
        engine::begin(&self.queue, &self.setup, domain.id, invalidation)
    }

    fn finish(&self, begun: Begun) -> Result<(), Stuck> {
        finish(&self.queue, begun)
    }

    fn take_events(&self, report: &mut dyn FnMut(Option<DeviceId>, &dyn fmt::Display)) -> bool {
        let registers = self.queue.port().0;
        let (mut reader, mut has_lost) = (self.reader.lock(), false);
        for _ in 0..EVENT_ROUNDS_MAX {
            let prod = registers.read(EVENTQ_PROD);
            if reader.is_at(prod) {
                break;
            }
            for event in reader.unread(prod).filter_map(|index| self.record(index)).map(Event::decode) {
                let device = u16::try_from(event.stream.0).ok().map(DeviceId);
                report(device, &event);
            }
            let advance = reader.advance(prod);
            // An event that comes before this does not interrupt: the queue was not empty (3.18.2).
            registers.write(EVENTQ_CONS, advance.cons.into());
            has_lost |= advance.has_lost;
        }
        has_lost
    }
}

impl Smmu {
    fn record(&self, index: u32) -> Option<[u64; 4]> {
        let words = (RECORD_BYTES / 8) as usize;
        let record = self.events.get(index as usize * words..)?.get(..words)?;
        // Relaxed: the register was read before.
        Some(core::array::from_fn(|word| record.get(word).map_or(0, |word| word.load(Ordering::Relaxed))))
    }
}

/// The words of entry `index`.
fn nth(table: &'static [AtomicU64], index: usize) -> Option<&'static [AtomicU64]> {
    table.get(index.checked_mul(WORDS)?..)?.get(..WORDS)
}

fn load(place: &[AtomicU64]) -> [u64; WORDS] {
    // Relaxed: the SMMU writes none of them.
    core::array::from_fn(|word| place.get(word).map_or(0, |word| word.load(Ordering::Relaxed)))
}

fn store(place: &[AtomicU64], words: impl Iterator<Item = (usize, u64)>) {
    for (index, value) in words {
        if let Some(word) = place.get(index) {
            // Relaxed: a write to a register comes later, and orders them for the SMMU.
            word.store(value, Ordering::Relaxed);
        }
    }
}

const _: () = assert!(CONTEXTS * WORDS * 8 == 4096 && DOMAINS_MAX <= CONTEXTS);

#[cfg(test)]
pub(crate) mod tests;
