//! `bench=remove` and `bench=log`: a GiB that the host adds is removed, or stores to it are logged.
//!
//! The guest reports an event, the host makes the request that belongs to it, and types a byte when
//! the request is done. Meanwhile the guest only reads its clock: it knows how long it did not run.

use core::sync::atomic::Ordering;

use baremetal::stops::Stops;
use baremetal::x86_64::serial::CONSOLE;

use crate::paging::PAGE;
use crate::pci::{place, word};
use crate::report::{Failure, ensure, measured};
use crate::{clock, report};

/// The address of the added memory, and its size.
const AT: u64 = 1 << 30;
const SIZE: u64 = 1 << 30;
/// Number of clock readings between two checks of the serial port.
const LOOKS: u32 = 1024;
/// A stop is at least this many ticks: no exit takes less, and the guest's own loop varies by less.
const STOP_MIN: u64 = 100;
/// Spins between two checks of the serial port while memory is added, and the limit of checks.
const SPINS: u32 = 1 << 16;
const SPINS_MAX: u32 = 1 << 20;
/// Time limit for the host's byte.
const PATIENCE_US: u64 = 60_000_000;

/// `remove`: the memory is removed when each page of it has been stored to.
pub(crate) fn remove() -> Result<(), Failure> {
    add()?;
    measured("fault-in", store_to_each(AT, SIZE));
    let stops = during("remove")?;
    ensure!(word(AT) == u64::MAX, "the memory at {AT:#x} is still there");
    measured("stopped", stops.total);
    measured("longest stop", stops.longest);
    Ok(())
}

/// `log`: stores are logged, each page is stored to again, and the log is fetched.
pub(crate) fn log() -> Result<(), Failure> {
    add()?;
    measured("fault-in", store_to_each(AT, SIZE));
    measured("enable", during("log-start")?.total);
    measured("write", store_to_each(AT, SIZE));
    measured("fetch", during("log-fetch")?.total);
    Ok(())
}

/// `touch`: stores to each page of memory that nobody has used yet, and once more; per page.
pub(crate) fn touch() -> Result<(), Failure> {
    const OWN: u64 = 60 << 20;
    const TOUCHED: u64 = 64 << 20;
    for name in ["first-touch", "later-touch"] {
        let pages = TOUCHED / PAGE;
        measured(name, (store_to_each(OWN, TOUCHED) + pages / 2) / pages);
    }
    Ok(())
}

/// The host adds the memory. Zeroing it takes long, and the guest gets as much time meanwhile:
/// so it does not read its clock, because that is slow under emulation.
fn add() -> Result<(), Failure> {
    report::event("add");
    let answered = (0..SPINS_MAX).any(|_| {
        (0..SPINS).for_each(|spin| _ = core::hint::black_box(spin));
        CONSOLE.receive().is_some()
    });
    ensure!(answered, "the host does not answer 'add'");
    ensure!(word(AT + SIZE - PAGE) == 0, "no memory was added at {AT:#x}");
    Ok(())
}

/// The stops while the host does what belongs to an event. They may be in a check of the serial
/// port, too: an emulator tends to deliver the host's bytes there.
fn during(event: &str) -> Result<Stops, Failure> {
    let of_reading = usual(|| {});
    let of_check = usual(|| _ = CONSOLE.receive());
    // The two exits for the line's end count as well: the host may already have made its request.
    let begin = report::event_after(event, clock::now);
    let mut stops = Stops::new(begin, STOP_MIN);
    loop {
        for _ in 0..LOOKS {
            stops.look(clock::now(), of_reading);
        }
        let byte = CONSOLE.receive();
        let now = clock::now();
        stops.look(now, of_check);
        if byte.is_some() {
            return Ok(stops);
        }
        ensure!(now - begin < clock::ticks(PATIENCE_US), "the host does not answer '{event}'");
    }
}

/// Ticks between two readings of the clock with this in between, if there is no stop.
fn usual(mut act: impl FnMut()) -> u64 {
    let mut last = clock::now();
    (0..LOOKS).fold(u64::MAX, |least, _| {
        act();
        let now = clock::now();
        let apart = now - last;
        last = now;
        least.min(apart)
    })
}

/// Stores to each page; returns how long that took.
fn store_to_each(at: u64, size: u64) -> u64 {
    let begin = clock::now();
    for page in (at..at + size).step_by(PAGE as usize) {
        place(page).store(page, Ordering::Relaxed);
    }
    clock::now() - begin
}
