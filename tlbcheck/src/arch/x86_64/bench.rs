//! The measured shootdowns, by each back end. The others' time goes to a handler or the hypervisor.

use baremetal::pages::PAGE;
use baremetal::x86_64::interrupts::VECTOR_WAKE;
use baremetal::x86_64::{apic, processors};
use spin::Mutex;
use tlbcheck::report::{Unit, Verdict};
use x86_64::instructions::interrupts;

use super::back_end::{self, BackEnd, RANGES_MAX, Scope};
use crate::arch::bench::{Column, Method};
use crate::arch::window::WINDOW;

static PAGES: [u64; RANGES_MAX] = {
    let mut pages = [0; RANGES_MAX];
    let mut index = 0;
    while index < RANGES_MAX {
        pages[index] = WINDOW + index as u64 * 2 * PAGE;
        index += 1;
    }
    pages
};

impl Method for BackEnd {
    const BENCH: &'static str = "shootdown";
    const UNIT: Unit = Unit::Cycles;
    const SAMPLES: usize = 101;
    const WARM_UP: usize = 5;
    /// With more processors than CPUs a sample takes long.
    const BUDGET_MS: u64 = 4000;
    const BATCH: u64 = 1;
    const RANGES: &'static [usize] = &[0, 1, 2, 4, 8, 16, 33, 64, 128, 256, RANGES_MAX];

    fn name(self) -> &'static str {
        self.name()
    }

    fn exists(self, _ranges: usize) -> bool {
        true
    }

    fn flush(self, others: &[usize], ranges: usize) -> Verdict {
        self.flush(others, if ranges == 0 { Scope::Everything } else { Scope::Pages(&PAGES[..ranges]) })
    }

    fn amount(ticks: u64) -> u64 {
        ticks
    }

    fn among(others: &[usize], work: impl FnOnce() -> Verdict) -> Verdict {
        back_end::among(others, work)
    }
}

/// Too large for a stack.
pub(in crate::arch) static COLUMNS: Mutex<[Column<BackEnd>; BackEnd::ALL.len()]> = Mutex::new({
    let [a, b, c, d, e] = BackEnd::ALL;
    [Column::new(a), Column::new(b), Column::new(c), Column::new(d), Column::new(e)]
});

pub(in crate::arch) fn begin() {
    interrupts::enable();
}

pub(in crate::arch) fn end() {
    interrupts::disable();
}

/// Between two readings: nothing that a hypervisor could notice.
pub(in crate::arch) const fn relax() {}

pub(in crate::arch) fn sleep_until(ends: impl Fn() -> bool) {
    interrupts::disable();
    while !ends() {
        // An interrupt that arrives before HLT ends it.
        interrupts::enable_and_hlt();
        interrupts::disable();
    }
}

pub(in crate::arch) fn wake(number: usize) {
    apic::send_fixed(processors::id(number), VECTOR_WAKE);
}
