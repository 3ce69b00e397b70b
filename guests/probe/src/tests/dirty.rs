//! Stores that the hypervisor makes for a processor are complete, and recorded in the entry, when
//! the flush of the translation returns.

use super::hypercalls::flush;
use super::mmio;
use super::prelude::*;
use crate::paging::{ACCESSED, DIRTY};
use tlbcheck::form::Kind;

const ROUNDS: u32 = 200;
/// Maximum time for which the page is mapped, and time after it in which nothing may change.
const MAPPED_US_MAX: u64 = 40;
const SILENCE_US: u64 = 50;
/// Turns of the writer of which the last is a whole one: counting may begin in the first.
const WHOLE_TURN: u64 = 2;

static PAGE: Page = Page::new();
/// Turns of the writer, which show that it is running also while the page is absent.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// Writes all the time the value read by an instruction that the processor itself cannot execute.
fn write_by_emulation(_: usize) {
    let mut turn = 0;
    while !processors::is_over() {
        turn += 1;
        let _ = mmio::move_ones(WINDOW);
        TURNS.store(turn, Ordering::Relaxed);
    }
}

/// The second processor has the hypervisor write to a page that the first removes, by one exchange
/// of its entry. After the flush neither the page nor the entry changes, and if the page has been
/// written to, the entry said so when it was removed (H30).
pub(super) fn emulated_stores() -> Verdict {
    enable()?;
    let mask = 1 << second_vp()?;
    paging::map(0, None);
    let result = processors::beside(SECOND, write_by_emulation, || rounds(mask));
    paging::map(0, None);
    result
}

fn rounds(mask: u64) -> Verdict {
    let mut random = Random::new(0xd1e7);
    let (entry, word) = (paging::entry(0), &PAGE.words()[0]);
    let mut written = 0;
    for (round, kind) in (1..=ROUNDS).zip(Kind::ALL.into_iter().cycle()) {
        let turn = TURNS.load(Ordering::Relaxed);
        word.store(0, Ordering::SeqCst);
        entry.store(PAGE.address() | RIGHTS, Ordering::SeqCst);
        let end = clock::now() + clock::ticks(random.below(MAPPED_US_MAX));
        // For this long, and for a turn that begins after the page is there.
        let turned = || TURNS.load(Ordering::Relaxed).wrapping_sub(turn) >= WHOLE_TURN;
        let ran = clock::wait_until(PATIENCE_MS, || clock::now() > end && turned());
        // No longer present; a late access would show in the bits.
        let taken = entry.swap(PAGE.address(), Ordering::SeqCst);
        let flushed = flush(kind, mask, WINDOW);
        // Anything written after this is visible.
        let left = word.swap(0, Ordering::SeqCst);
        flushed?;
        ensure!(ran, "the second processor stands still in round {round}");
        let is_written = left != 0;
        written += u32::from(is_written);
        ensure!(!is_written || taken & DIRTY != 0, "round {round}: written to by the entry {taken:#x}");
        let end = clock::now() + clock::ticks(SILENCE_US);
        while clock::now() < end {
            let (now, bits) = (word.load(Ordering::Acquire), entry.load(Ordering::Acquire));
            ensure!(now == 0, "round {round}, {kind:?}: written to after the flush");
            ensure!(bits & (ACCESSED | DIRTY) == 0, "round {round}, {kind:?}: {bits:#x} after the flush");
        }
    }
    ensure!(written > ROUNDS / 4, "only in {written} of {ROUNDS} rounds the page was written to");
    Ok(())
}
