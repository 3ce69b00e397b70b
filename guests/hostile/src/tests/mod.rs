//! The tests, by name.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod alive;
mod attack;
mod bystander;
mod crossing;
mod findings;
mod prelude;
mod storm;
mod window;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use baremetal::report;
use baremetal::verdict::{Verdict, failure};
use hostile::orders::Orders;

use crate::machine;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
use arch::OWN;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

/// A test. All processors are running and idle when it begins; interrupts are masked.
pub(crate) struct Test {
    name: &'static str,
    /// Number of processors that it needs.
    processors: usize,
    run: fn(&Orders<'_>) -> Verdict,
}

pub(crate) const fn test(name: &'static str, processors: usize, run: fn(&Orders<'_>) -> Verdict) -> Test {
    Test { name, processors, run }
}

const COMMON: &[Test] = &[
    test("alive", 1, alive::alive),
    test("attack", 1, attack::attack),
    test("bystander", 2, bystander::bystander),
    test("crossing", 2, crossing::crossing),
    test("stops", 2, attack::stops),
    test("storm", 1, storm::storm),
];

pub(crate) fn run(orders: &Orders<'_>) {
    let Some(test) = COMMON.iter().chain(OWN).find(|test| test.name == orders.test) else {
        return report::end(orders.test, &Err(failure(format_args!("there is no such test"))));
    };
    report::begin(test.name);
    report::event("begin");
    let verdict = match machine::count() {
        count if count < test.processors => {
            Err(failure(format_args!("{} processors are too few: it takes {}", count, test.processors)))
        }
        _ => (test.run)(orders),
    };
    report::end(test.name, &verdict);
}
