//! What IOMMUs report of functions is charged to the functions' guest, and a function that causes
//! many faults is silenced: an interrupt for each would be taken from other guests' CPUs.
//!
//! ```text
//! CPU that the IOMMU interrupts                   CPU of a vCPU that writes the command register
//! A  the function is silent (owners' lock)        C  the real one: with DMA, if the guest wants it
//! B  its DMA is off                               D  reads whether it is silent (owners' lock); if so, DMA off
//! ```
//!
//! If D is before A, C is before B. Otherwise D finds A. Either way DMA is off at the end.

use core::fmt;
use hostlink::name::Name;
use iommu::DeviceId;
use pci::Address;

use super::functions::{COMMAND, MASTER};
use super::machine::MachineDevices;
use super::platform::{Iommu, Platform};
use crate::vm::{GUEST, caused_by};

/// Faults of a function within a period, of which the last one silences it. A working driver causes
/// none. One request of a page may cause many: with QEMU's SMMU it fills the queue of 128.
const FAULTS_MAX: u32 = 4096;
const PERIOD_US: u64 = 1_000_000;
/// Rows of events of a function that are reported within a period, in two lines each: the guest's
/// quota of lines must have room for the one that says that the function is silent.
const ROWS_MAX: u32 = 8;

/// The faults that a function has caused.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// When the first of the period was.
    since_us: u64,
    count: u32,
    /// The rows that were reported.
    rows: u32,
    /// Its DMA is off until its guest is reset.
    pub(super) is_silent: bool,
}

/// What follows from a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Report,
    /// It is not: enough were.
    Untold,
    /// It was one too many.
    Silence(Address),
    /// The function is silent: what was on its way arrives.
    Late(Address),
}

impl Faults {
    /// Counts a fault; returns whether the function goes on, or since when it is silent. The fault
    /// may begin a row of its guest's.
    fn count(&mut self, at: Address, now_us: u64, begins_row: bool) -> Verdict {
        if self.is_silent {
            return Verdict::Late(at);
        }
        if self.count == 0 || now_us.saturating_sub(self.since_us) >= PERIOD_US {
            (self.since_us, self.count, self.rows) = (now_us, 0, 0);
        }
        self.count += 1;
        self.is_silent = self.count >= FAULTS_MAX;
        if self.is_silent {
            return Verdict::Silence(at);
        }
        if begins_row && self.rows == ROWS_MAX {
            return Verdict::Untold;
        }
        self.rows += u32::from(begins_row);
        Verdict::Report
    }
}

impl<P: Platform> MachineDevices<P> {
    /// Counts a fault of the function that the IOMMU of this index knows by this id; returns its
    /// guest, and what follows. `None` if nobody owns it. `row` is the guest of the row so far.
    pub(crate) fn count_fault(
        &self,
        iommu: usize,
        device: DeviceId,
        row: Option<Name>,
    ) -> Option<(Name, Verdict)> {
        let now = self.bus.now_us();
        let count = |at, guest, faults: &mut Faults| (guest, faults.count(at, now, row != Some(guest)));
        let found = self.with_owned((iommu, device), count)?;
        if let (_, Verdict::Silence(at) | Verdict::Late(at)) = found {
            self.switch_dma_off(at);
        }
        Some(found)
    }

    fn switch_dma_off(&self, at: Address) {
        // The upper half has bits that are cleared by writing them.
        let command = self.bus.read(at, COMMAND) & 0xffff;
        if command & MASTER != 0 {
            self.bus.write(at, COMMAND, command & !MASTER);
        }
    }

    /// The guest wrote the command register, and the real one follows; a silent function stays so.
    pub(super) fn keep_silent(&self, at: Address) {
        if self.is_silent(at) {
            self.switch_dma_off(at);
        }
    }

    /// Reports what the IOMMUs have logged. Of events in a row that one guest's devices have
    /// caused, it shows the first, and how many more there are: a device can cause any number.
    pub fn report_events(&self) {
        for (index, iommu) in self.iommus().enumerate() {
            let mut row = Row::default();
            let has_lost = iommu.take_events(&mut |device, event| match device
                .and_then(|device| self.count_fault(index, device, row.guest()))
            {
                None => row.add(None, event),
                Some((guest, Verdict::Report)) => row.add(Some(guest), event),
                Some((guest, Verdict::Silence(at))) => {
                    row.end();
                    tell_of(
                        Some(guest),
                        format_args!(
                            "{at} has caused {FAULTS_MAX} faults within a second: its DMA is off until the \
                                 guest is reset"
                        ),
                    );
                }
                Some((_, Verdict::Untold | Verdict::Late(_))) => {}
            });
            row.end();
            if has_lost {
                log::warn!(target: GUEST, "IOMMU: its log was full, and events were lost");
            }
        }
    }
}

/// Events in a row of one guest's devices: whose, and how many followed the first one.
#[derive(Default)]
struct Row(Option<(Option<Name>, u32)>);

impl Row {
    fn guest(&self) -> Option<Name> {
        self.0.and_then(|(guest, _)| guest)
    }

    fn add(&mut self, guest: Option<Name>, event: &dyn fmt::Display) {
        match &mut self.0 {
            Some((last, more)) if *last == guest => *more += 1,
            _ => {
                self.end();
                self.0 = Some((guest, 0));
                tell_of(guest, format_args!("{event}"));
            }
        }
    }

    /// Shows how many there were.
    fn end(&mut self) {
        if let Some((guest, more @ 1..)) = self.0.take() {
            tell_of(guest, format_args!("{more} more such events"));
        }
    }
}

/// A line about a guest's devices, which is charged to that guest, whoever's vCPU is on this CPU.
fn tell_of(guest: Option<Name>, what: fmt::Arguments<'_>) {
    match guest {
        Some(guest) => log::warn!(target: caused_by(guest).as_str(), "guest '{guest}': {what}"),
        None => log::warn!(target: GUEST, "IOMMU: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn u64_a_function_is_silent_from_its_last_fault_within_a_second_on() {
        let at = Address::new(0, 2, 0).expect("an address");
        // As many as are borne, each second.
        let mut faults = Faults::default();
        for second in 0..100 {
            for fault in 0..u64::from(FAULTS_MAX) - 1 {
                assert_eq!(faults.count(at, second * PERIOD_US + fault, false), Verdict::Report);
            }
        }
        for more in 0..100 {
            let expected = if more == 0 { Verdict::Silence(at) } else { Verdict::Late(at) };
            assert_eq!(faults.count(at, 99 * PERIOD_US + 500 + more * PERIOD_US, true), expected);
        }
    }

    #[test]
    fn u70_what_is_reported_leaves_room_for_the_line_that_ends_it() {
        let at = Address::new(0, 2, 0).expect("an address");
        // Each row is one event, or as many as QEMU reports of a page.
        for of_row in [1, 128] {
            let mut faults = Faults::default();
            let begins = |fault: u32| fault.is_multiple_of(of_row);
            let verdicts: Vec<_> = (0..FAULTS_MAX).map(|fault| faults.count(at, 0, begins(fault))).collect();
            let reported = (0..)
                .zip(&verdicts)
                .filter(|(fault, verdict)| begins(*fault) && **verdict == Verdict::Report);
            assert_eq!((reported.count() as u32, verdicts.last()), (ROWS_MAX, Some(&Verdict::Silence(at))));
        }
        const { assert!(2 * ROWS_MAX < crate::quota::BURST) };
        let mut faults = Faults::default();
        assert!((0..100).any(|_| faults.count(at, 0, true) == Verdict::Untold));
        assert_eq!(faults.count(at, PERIOD_US, true), Verdict::Report, "in the next period");
    }
}
