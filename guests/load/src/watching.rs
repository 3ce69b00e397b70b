//! Several processors read one word over and over, and the first one reports their findings.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use baremetal::arch::serial::CONSOLE;
use baremetal::arch::{clock, guarded};
use load::watch::{Findings, Sight, WATCHERS};

use crate::guest::{Failure, LOOKS, QUIT, say};
use crate::machine;

static FINDINGS: [Findings; WATCHERS] = [const { Findings::new() }; WATCHERS];
/// The word's address. Written before the others begin, which learn of that with acquire.
static ADDRESS: AtomicU64 = AtomicU64::new(0);
/// The first processor has stopped. Nothing else is ordered by this.
static IS_OVER: AtomicBool = AtomicBool::new(false);

fn look(findings: &Findings, address: u64, last: &mut Option<Sight>) {
    for _ in 0..LOOKS {
        findings.note(last, guarded::load(address).map_or(Sight::Fault, Sight::Value));
    }
}

fn follow(number: usize) {
    let Some(findings) = FINDINGS.get(number) else { return };
    let (address, mut last) = (ADDRESS.load(Ordering::Relaxed), None);
    while !IS_OVER.load(Ordering::Relaxed) {
        look(findings, address, &mut last);
    }
}

/// Makes all processors check the word at `address` for this many seconds, or until the serial port
/// receives a `q`; reports each change that one finds. Returns how many watched.
pub(crate) fn watch(address: u64, seconds: u64) -> Result<u64, Failure> {
    FINDINGS.iter().for_each(Findings::clear);
    ADDRESS.store(address, Ordering::Relaxed);
    IS_OVER.store(false, Ordering::Relaxed);
    let watchers = machine::begin_on_others(WATCHERS, follow);
    let (begin, length) = (clock::now(), seconds.saturating_mul(clock::hz()));
    let mut told = [0; WATCHERS];
    let mut last = None;
    while clock::now() - begin < length && CONSOLE.receive() != Some(QUIT) {
        look(&FINDINGS[0], address, &mut last);
        for (number, (findings, told)) in FINDINGS.iter().zip(&mut told).enumerate() {
            for sight in findings.since(*told) {
                *told += 1;
                match sight {
                    Sight::Fault => say(format_args!("watch: processor {number} faults")),
                    Sight::Value(value) => say(format_args!("watch: processor {number} reads {value:#x}")),
                }
            }
        }
    }
    IS_OVER.store(true, Ordering::Relaxed);
    if machine::await_others(watchers) { Ok(watchers as u64) } else { Err(Failure::Lost) }
}
