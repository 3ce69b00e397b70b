//! `bench=memslot-N`: the cost of removing guest memory.

use core::sync::atomic::Ordering;

use crate::clock;
use crate::paging::PAGE;
use crate::pci::{self, Rom, place, word};
use crate::report::{Failure, ensure, measured};

const MIB: u64 = 1 << 20;
/// Memory below belongs to the program.
const FIRST: u64 = 32 * MIB;

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
