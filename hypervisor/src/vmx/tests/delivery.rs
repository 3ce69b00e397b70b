//! The processor as a guest's local APIC: what it does with the virtual-APIC page (chapter 30).

use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::mock::{Stay, written};
use super::processor::DATA;
use super::said::Said;
use crate::devices::pc::lapic::VectorSet;
use crate::vmx::apic::{IRR, ISR, SELF_IPI, TPR};
use crate::vmx::controls::{APIC_REGISTERS, DELIVERY, X2APIC};
use crate::vmx::fields as f;
use crate::x86::RFLAGS_IF;
use crate::x86::vcpu::event;

const END_OF_INTERRUPT: u64 = 45;
const EPT_VIOLATION: u64 = 48;
const APIC_WRITE: u64 = 56;

/// What a guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Taken(u8),
    CutShort(u8),
    /// Whether an end of interrupt is for the I/O APIC.
    Level(bool),
    Wakes(bool),
    Registers([VectorSet; 2], u8, u64),
}

/// The guest's processor, in guest mode.
#[derive(Default)]
pub(super) struct Cpu {
    pub(super) seen: Vec<Seen>,
    /// The delivery of the next interrupt is cut short.
    pub(super) cuts: bool,
}

impl Cpu {
    fn take(&mut self, stay: &mut Stay, vector: u8) {
        if core::mem::take(&mut self.cuts) {
            let event = event::VALID | event::TYPE_INTERRUPT | u64::from(vector);
            stay.said = Said { event, physical: DATA, ..Said::of(EPT_VIOLATION, 0, 0) };
            return self.seen.push(Seen::CutShort(vector));
        }
        self.seen.push(Seen::Taken(vector));
    }

    /// An entry delivers the event that it is given, or the processor what it has (30.2.1, 30.2.2).
    pub(super) fn run(&mut self, stay: &mut Stay) {
        check_map(stay);
        let event = stay.delivered();
        if event & event::VALID != 0 {
            if event & event::TYPE_MASK == event::TYPE_INTERRUPT {
                self.take(stay, event as u8);
            }
            return;
        }
        let [mut rvi, mut svi] = status(stay);
        let priority = page()[TPR].load(Relaxed) as u8 >> 4;
        while is_processors()
            && stay.read(f::GUEST_RFLAGS) & RFLAGS_IF != 0
            && stay.said.event == 0
            && rvi >> 4 > priority.max(svi >> 4)
        {
            insert(ISR, rvi);
            remove(IRR, rvi);
            svi = rvi;
            rvi = highest(IRR);
            set_status(stay, [rvi, svi]);
            self.take(stay, svi);
        }
    }

    /// The guest ends an interrupt (30.1.4).
    pub(super) fn end(&mut self, stay: &mut Stay) {
        let [rvi, ended] = status(stay);
        remove(ISR, ended);
        set_status(stay, [rvi, highest(ISR)]);
        let exits = [f::EOI_EXITS_0, f::EOI_EXITS_1, f::EOI_EXITS_2, f::EOI_EXITS_3];
        let is_level = stay.read(exits[usize::from(ended / 64)]) >> (ended % 64) & 1 != 0;
        self.seen.push(Seen::Level(is_level));
        if is_level {
            stay.said = Said::of(END_OF_INTERRUPT, 0, ended.into());
        }
    }

    /// The guest interrupts itself (30.1.5).
    pub(super) fn interrupt_itself(&mut self, stay: &mut Stay, vector: u8) {
        if vector < 16 {
            page()[SELF_IPI].store(vector.into(), Relaxed);
            stay.said = Said::of(APIC_WRITE, 0, 0x3f0);
            return;
        }
        insert(IRR, vector);
        let [rvi, svi] = status(stay);
        set_status(stay, [rvi.max(vector), svi]);
    }

    /// The guest changes its task priority by its register.
    pub(super) fn write_tpr(&mut self, value: u64) {
        page()[TPR].store(value, Relaxed);
    }

    /// By CR8, to another value: the model keeps the lower bits of the same.
    pub(super) fn set_priority(&mut self, priority: u64) {
        if page()[TPR].load(Relaxed) >> 4 != priority {
            self.write_tpr(priority << 4);
        }
    }
}

/// Whether the entry was to a guest whose local APIC is the processor.
pub(super) fn is_processors() -> bool {
    written(f::SECONDARY_CONTROLS.raw()) >> DELIVERY & 1 != 0
}

/// The virtual-APIC page.
fn page() -> &'static [AtomicU64; 512] {
    super::mock::page(written(f::VIRTUAL_APIC.raw()))
}

/// The guest reaches registers without an exit only where they are its own.
fn check_map(stay: &Stay) {
    let controls = written(f::SECONDARY_CONTROLS.raw());
    let set = [X2APIC, APIC_REGISTERS, DELIVERY].map(|bit| controls >> bit & 1 != 0);
    assert_eq!(set, [is_processors(); 3]);
    if set[0] {
        let status = stay.read(f::INTERRUPT_STATUS);
        assert_eq!(status, u64::from(highest(ISR)) << 8 | u64::from(highest(IRR)));
    }
}

fn status(stay: &Stay) -> [u8; 2] {
    if is_processors() { (stay.read(f::INTERRUPT_STATUS) as u16).to_le_bytes() } else { [0; 2] }
}

fn set_status(stay: &mut Stay, status: [u8; 2]) {
    stay.write(f::INTERRUPT_STATUS, u16::from_le_bytes(status).into());
}

const fn place(set: usize, vector: u8) -> (usize, u64) {
    (set + 2 * (vector / 32) as usize, 1 << (vector % 32))
}

fn insert(set: usize, vector: u8) {
    let (at, bit) = place(set, vector);
    page()[at].fetch_or(bit, Relaxed);
}

fn remove(set: usize, vector: u8) {
    let (at, bit) = place(set, vector);
    page()[at].fetch_and(!bit, Relaxed);
}

fn highest(set: usize) -> u8 {
    let is_there = |&vector: &u8| {
        let (at, bit) = place(set, vector);
        page()[at].load(Relaxed) & bit != 0
    };
    (0..=255).rev().find(is_there).unwrap_or(0)
}
