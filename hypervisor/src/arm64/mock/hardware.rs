//! The mock processor's state, and what it records.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use crate::arm64::controls::{self, Control};
use crate::arm64::processor::{Features, FloatState, Registers, Vector};
use crate::arm64::vcpu::exchanged::Register;

/// Recorded operations that leave no other trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::arm64) enum Recorded {
    /// FAR_EL2 was read.
    ReadAddress,
    /// HPFAR_EL2 was read.
    ReadPage,
    /// ESR_EL2 was read.
    ReadSyndrome,
    Tlb(&'static str),
    /// VTTBR_EL2 was written.
    Vttbr(u64),
    /// TCR_EL1 was written.
    Tcr(u64),
    Deactivate(u32),
    /// This memory was cleaned out of the data caches.
    Cleaned(Range<u64>),
    /// Breakpoints were loaded, with this control.
    LoadDebug(u64),
    /// Breakpoints were disabled.
    StopDebug,
    Entered,
}

/// The mock processor's ID registers: one without optional features of EL2.
pub(super) const DESCRIPTION: controls::IdRegisters = controls::IdRegisters {
    midr: 0x410f_d034,
    pfr0: 1 << 24,
    pfr1: 0,
    dfr0: 0xf << 36,
    mmfr0: 4,
    mmfr1: 0,
    mmfr2: 0,
    isar0: 0,
    isar1: 0,
    isar2: 0,
    ctr: 3 << 14,
    dczid: 4,
    mpamidr: 0,
    counters: 0,
};

type Stay = Box<dyn FnMut(&mut Registers) -> Vector>;

/// Something that keeps its value whatever is written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::arm64) enum Stuck {
    Register(Register),
    /// HCR_EL2.
    Configuration,
    Vttbr,
    /// MDSCR_EL1.
    Debug,
    Lists,
    Float,
    /// CNTVOFF_EL2 and CNTHCTL_EL2.
    Counter,
}

#[derive(Default)]
pub(in crate::arm64) struct Hardware {
    pub(in crate::arm64) stuck: Option<Stuck>,
    pub(in crate::arm64) registers: BTreeMap<Register, u64>,
    pub(in crate::arm64) configuration: u64,
    pub(in crate::arm64) controls: Vec<u64>,
    pub(in crate::arm64) syndrome: u64,
    pub(in crate::arm64) address: u64,
    pub(in crate::arm64) page: u64,
    pub(in crate::arm64) features: Features,
    pub(in crate::arm64) lists: [u64; 16],
    pub(in crate::arm64) list_count: usize,
    pub(in crate::arm64) preemption_bits: u32,
    /// ICH_HCR_EL2.
    pub(in crate::arm64) interface: u64,
    pub(in crate::arm64) vttbr: u64,
    /// A register was written, and no ISB came behind that.
    pub(in crate::arm64) is_unsynchronized: bool,
    /// There are invalidations of ranges.
    pub(in crate::arm64) has_ranges: bool,
    /// The processor may translate speculatively with a mixture of two guests' registers.
    pub(in crate::arm64) speculates: bool,
    pub(in crate::arm64) float: FloatState,
    /// Stage 1 by page: PAR_EL1. Pages that are not listed have no translation.
    pub(in crate::arm64) pages: BTreeMap<u64, u64>,
    pub(in crate::arm64) transmitted: Vec<u8>,
    pub(in crate::arm64) told: Vec<Recorded>,
    /// The guest's behaviour at its next entries. Without any it is interrupted.
    pub(in crate::arm64) stays: VecDeque<Stay>,
}

thread_local! {
    static HARDWARE: RefCell<Hardware> = RefCell::new(Hardware::new());
}

impl Hardware {
    pub(super) fn new() -> Self {
        let value = |&control: &Control| controls::at_start(control, &DESCRIPTION).unwrap_or(0xbad);
        Self {
            controls: Control::ALL.iter().map(value).collect(),
            features: Features::ERRORS | Features::POINTER_KEYS | Features::FORCED_WRITE_BACK,
            list_count: 4,
            preemption_bits: 5,
            ..Self::default()
        }
    }
}

pub(in crate::arm64) fn hardware<R>(act: impl FnOnce(&mut Hardware) -> R) -> R {
    HARDWARE.with_borrow_mut(act)
}

/// The operations recorded since the previous call.
pub(in crate::arm64) fn told() -> Vec<Recorded> {
    hardware(|hardware| core::mem::take(&mut hardware.told))
}

/// Changes the processor, unless that part of it is stuck.
pub(super) fn change(part: Stuck, act: impl FnOnce(&mut Hardware)) {
    hardware(|hardware| {
        if hardware.stuck != Some(part) {
            act(hardware);
        }
    });
}

pub(super) fn tell(told: Recorded) {
    hardware(|hardware| hardware.told.push(told));
}
