//! `bench=memslot-N` and `bench=zap`: the cost of removing guest memory.

use core::sync::atomic::Ordering;

use crate::paging::PAGE;
use crate::pci::{self, Rom, place, word};
use crate::report::{Failure, ensure, measured};
use crate::{clock, report};

const MIB: u64 = 1 << 20;
/// Memory below belongs to the program.
const FIRST: u64 = 32 * MIB;
/// Address and size of the memory that the host adds.
const ADDED: u64 = 1 << 30;
const ADDED_SIZE: u64 = 1 << 30;
/// Time limit.
const PATIENCE_MS: u64 = 60_000;
/// Time for the answer to a request.
const TELLING_MS: u64 = 100;

/// Stores to each page from `start` on.
fn touch(start: u64, bytes: u64) {
    for page in (start..start + bytes).step_by(PAGE as usize) {
        place(page).store(page, Ordering::Relaxed);
    }
}

/// `memslot-N`: the ROM is added and removed N times while `count` MiB of other memory are in use.
pub(crate) fn memslot(name: &str, count: u32) -> Result<(), Failure> {
    let rounds = name.strip_prefix("memslot-").and_then(|rounds| rounds.parse().ok()).unwrap_or(0u64).max(1);
    let bytes = u64::from(count) * MIB;
    let rom = Rom::find()?;
    touch(FIRST, bytes);
    let (mut deletions, mut agains, mut cycles) = (0, 0, 0);
    for _ in 0..rounds {
        let start = clock::now();
        rom.enable();
        rom.read_each_page()?;
        let before = clock::now();
        rom.disable();
        let after = clock::now();
        deletions += after - before;
        // Pages that a zap of everything has dropped are mapped again.
        touch(FIRST, bytes);
        let end = clock::now();
        agains += end - after;
        cycles += end - start;
    }
    ensure!(word(pci::WINDOW) == u64::MAX, "the ROM is still seen");
    measured("deletion", deletions / rounds);
    measured("touch again", agains / rounds);
    measured("cycle", cycles / rounds);
    Ok(())
}

/// The host adds a GiB, each page of which is stored to, and removes it again.
pub(crate) fn zap() -> Result<(), Failure> {
    report::event("waiting");
    wait(|value| value != u64::MAX)?;
    touch(ADDED, ADDED_SIZE);
    report::event("touched");
    wait(|value| value == u64::MAX)?;
    // The host has not received the event yet.
    clock::wait_until(TELLING_MS, || false);
    Ok(())
}

/// Waits for a change of the last page.
fn wait(until: impl Fn(u64) -> bool) -> Result<(), Failure> {
    let last = ADDED + ADDED_SIZE - PAGE;
    let changed = clock::wait_until(PATIENCE_MS, || until(word(last)));
    ensure!(changed, "the memory at {last:#x} did not change");
    Ok(())
}
