//! The measured TLBIs. The others' time is lost to a broadcast. The named pages are not mapped:
//! only the instruction and its propagation are measured, not the walks that follow. A sample
//! covers many flushes, because the counter is slow.

use baremetal::aarch64::{clock, interrupts, processors};
use baremetal::pages::PAGE;
use spin::Mutex;
use tlbcheck::arm64::Range;
use tlbcheck::report::{Unit, Verdict};

use super::machine;
use super::tlbi::{self, Form, Kind, Scope, TlbiOperand};
use crate::arch::bench::{Column, Method};
use crate::arch::window::WINDOW;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::arch) enum FlushMethod {
    /// Only the barriers.
    Barriers,
    /// A TLBI for each page, of the processor's own TLB.
    Local,
    /// A TLBI for each page, of all TLBs.
    Inner,
    /// One TLBI for all pages, of all TLBs.
    Range,
}

impl FlushMethod {
    /// The range of this many pages, in the smallest possible unit.
    fn range(pages: usize) -> Option<Range> {
        let all = (0..4).flat_map(|scale| (0..32).filter_map(move |num| Range::new(num, scale)));
        all.into_iter().find(|range| range.pages() == pages as u64)
    }
}

impl Method for FlushMethod {
    const BENCH: &'static str = "tlbi";
    const UNIT: Unit = Unit::Nanoseconds;
    const SAMPLES: usize = 51;
    const WARM_UP: usize = 3;
    const BUDGET_MS: u64 = 2000;
    const BATCH: u64 = 16;
    const RANGES: &'static [usize] = &[0, 1, 2, 8, 64, 512];

    fn name(self) -> &'static str {
        match self {
            Self::Barriers => "dsb-ish",
            Self::Local => "tlbi-local",
            Self::Inner => "tlbi-is",
            Self::Range => "tlbi-range-is",
        }
    }

    fn exists(self, pages: usize) -> bool {
        match self {
            Self::Barriers => pages == 0,
            Self::Range => machine::get().platform.has_ranges && Self::range(pages).is_some(),
            Self::Local | Self::Inner => true,
        }
    }

    /// With its barriers.
    fn flush(self, _others: &[usize], pages: usize) -> Verdict {
        let scope = if self == Self::Local { Scope::Local } else { Scope::Inner };
        let kind = if pages == 0 { Kind::All } else { Kind::VaLast };
        tlbi::order(scope);
        match self {
            Self::Barriers => {}
            Self::Range => {
                let target = TlbiOperand { range: Self::range(pages), ..TlbiOperand::page(WINDOW, 0) };
                tlbi::issue(Form(scope, kind), target);
            }
            Self::Local | Self::Inner => {
                for page in 0..pages.max(1) as u64 {
                    tlbi::issue(Form(scope, kind), TlbiOperand::page(WINDOW + page * PAGE, 0));
                }
            }
        }
        tlbi::complete(scope);
        Ok(())
    }

    fn amount(ticks: u64) -> u64 {
        clock::nanoseconds(ticks)
    }
}

/// Too large for a stack.
pub(in crate::arch) static COLUMNS: Mutex<[Column<FlushMethod>; 4]> = Mutex::new([
    Column::new(FlushMethod::Barriers),
    Column::new(FlushMethod::Local),
    Column::new(FlushMethod::Inner),
    Column::new(FlushMethod::Range),
]);

pub(in crate::arch) const fn begin() {}

pub(in crate::arch) const fn end() {}

pub(in crate::arch) fn relax() {
    clock::relax();
}

pub(in crate::arch) fn sleep_until(ends: impl Fn() -> bool) {
    while !ends() {
        interrupts::wait();
    }
}

pub(in crate::arch) fn wake(number: usize) {
    processors::wake(number);
}
