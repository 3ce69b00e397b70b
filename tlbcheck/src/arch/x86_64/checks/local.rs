//! The processor's own TLB: the translations that INVLPG, CR3, CR4 and INVPCID must drop. AMD64 APM
//! volume 2 (24593, rev. 3.42), sections 5.5.1 (PCIDs) and 5.5.3 (TLB management); Intel SDM volume
//! 3A, section 4.10.4.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};

use x86_64::registers::control::Cr4Flags;

use super::prelude::*;
use crate::arch::x86_64::window::{SPLIT_WINDOW, invlpg as drop_page};

/// Rounds of each row, and rounds without a flush, one of which must show the old page.
const ROUNDS: u64 = 200;
const TRIES: u64 = 200;
/// Bit 63 of a write to CR3: keep the translations tagged with the PCID.
const KEEP: u64 = 1 << 63;

/// Replaces the page that was just read; returns whether the new one is seen after `take`.
fn sees_new(round: u64, global: bool, take: impl FnOnce()) -> bool {
    replace(WINDOW, round, global);
    drop_page(WINDOW);
    window::read(WINDOW);
    replace(WINDOW, round + 1, global);
    take();
    window::read(WINDOW) == round + 1
}

/// `take` must drop the page, global or not, in every round. Without it the replaced page must be
/// seen once, otherwise the row is not significant.
pub(super) fn takes(global: bool, take: impl Fn()) -> Verdict {
    window::set_cr4(Cr4Flags::PAGE_GLOBAL, global);
    let notices = (0..TRIES).any(|round| !sees_new(2 * round, global, || ()));
    let seen = || (0..ROUNDS).find(|round| !sees_new(2 * round, global, &take));
    let seen = if notices { seen() } else { None };
    window::set_cr4(Cr4Flags::PAGE_GLOBAL, false);
    needs!(notices, "the TLB keeps no page that is replaced without a flush, in {TRIES} tries");
    ensure!(seen.is_none(), "the old page is seen in round {}", seen.unwrap_or(0));
    Ok(())
}

pub(super) fn off_and_on(flag: Cr4Flags) {
    window::set_cr4(flag, false);
    window::set_cr4(flag, true);
}

/// Replaces the large page that was just read; returns how many old pieces are seen after `take`.
fn pieces_left(round: u64, take: impl FnOnce()) -> usize {
    let pieces = || (0..PIECES_SEEN).map(|piece| window::read(LARGE_WINDOW + piece * SEEN_EVERY));
    window::replace_large(round);
    drop_page(LARGE_WINDOW);
    pieces().for_each(drop);
    window::replace_large(round + 1);
    take();
    pieces().filter(|seen| *seen != round + 1).count()
}

/// INVLPG of any address drops all of a large page, regardless of its form in the TLB.
pub(super) fn invlpg_large() -> Verdict {
    let notices = (0..TRIES).any(|round| pieces_left(2 * round, || ()) != 0);
    needs!(notices, "the TLB keeps no large page that is replaced without a flush, in {TRIES} tries");
    for round in 0..ROUNDS {
        let offset = round * 0x1_f123 % LARGE_PAGE;
        let left = pieces_left(2 * round, || drop_page(LARGE_WINDOW + offset));
        ensure!(left == 0, "{left} pieces are old after INVLPG at {offset:#x}");
    }
    Ok(())
}

pub(super) fn with_pcids(rows: impl FnOnce() -> Verdict) -> Verdict {
    needs!(__cpuid(1).ecx & 1 << 17 != 0, "CPUID offers no PCIDs");
    window::enter_space(window::space());
    window::set_cr4(Cr4Flags::PCID, true);
    let verdict = rows();
    window::enter_space(window::space());
    window::set_cr4(Cr4Flags::PCID, false);
    verdict
}

/// Two spaces with PCIDs, and a page at one address in each: no switch without a flush mixes them.
pub(super) fn pcid_mixes_spaces() -> Verdict {
    let pages = take(2, 1);
    let spaces = [window::space() | 1, window::other_space() | 2];
    for (index, leaf) in window::split_leaves(SPLIT_WINDOW).into_iter().enumerate() {
        pages[index].write(&[index as u64]);
        leaf.store(pages[index].address() | RIGHTS, Ordering::SeqCst);
    }
    with_pcids(|| {
        spaces.iter().for_each(|space| window::enter_space(*space));
        for round in 0..ROUNDS {
            let index = round % 2;
            window::enter_space(spaces[index as usize] | KEEP);
            let seen = window::read(SPLIT_WINDOW);
            ensure!(seen == index, "in space {index} the page of space {seen} is seen, in round {round}");
        }
        Ok(())
    })
}

/// MOV to CR3 without bit 63 drops the translations tagged with the PCID.
pub(super) fn pcid_cr3_write() -> Verdict {
    with_pcids(|| {
        window::enter_space(window::space() | 3);
        takes(false, || window::enter_space(window::space() | 3))
    })
}

/// INVPCID of a type: 0 is an address, 1 a PCID, 2 everything, 3 everything except global pages.
pub(super) fn invpcid(kind: u64, global: bool) -> Verdict {
    needs!(__cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & 1 << 10 != 0, "CPUID offers no INVPCID");
    // PCID 0; all but the first ignore the address.
    let descriptor = [0, WINDOW];
    // SAFETY: CPUID offers the instruction; dropped translations are reloaded from the tables.
    takes(global, || unsafe {
        asm!("invpcid {}, [{}]", in(reg) kind, in(reg) &raw const descriptor, options(nostack));
    })
}

/// `take` must drop the own translation of the page at [`WINDOW`]; its verdict counts too.
pub(super) fn takes_by(take: impl Fn() -> Verdict) -> Result<u64, Stop> {
    let mut stale = 0;
    for round in 0..ROUNDS {
        let mut result = Ok(());
        let new = sees_new(2 * round, false, || result = take());
        result?;
        stale += u64::from(!new);
    }
    Ok(stale)
}
