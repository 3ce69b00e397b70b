//! Whether this processor still uses a translation that has been replaced.

use super::prelude::*;
use crate::paging::GLOBAL;
use x86_64::VirtAddr;
use x86_64::instructions::tlb;

/// Number of attempts without any action, one of which must be noticed.
const TRIES: u32 = 1000;

/// The pages that alternate at the beginning of the window.
pub(super) static PAGES: [Page; 2] = [const { Page::new() }; 2];

/// Maps one of the pages, global or not; its first word is its number.
fn replace(number: u64, global: bool) {
    let page = &PAGES[number as usize];
    page.write(&[number]);
    let bits = RIGHTS | if global { GLOBAL } else { 0 };
    paging::entry(0).store(page.address() | bits, Ordering::SeqCst);
}

/// Uses a page of the window, which is global or not, replaces it by another one, runs `act`, and
/// returns whether the other one is then seen.
pub(super) fn sees_new_after(is_global: bool, act: impl FnOnce() -> Verdict) -> Result<bool, Failure> {
    let drop_translation = || tlb::flush(VirtAddr::new(WINDOW));
    replace(0, is_global);
    drop_translation();
    let seen = load(WINDOW);
    ensure!(seen == Ok(0), "the first page reads as {seen:x?}");
    replace(1, is_global);
    act()?;
    let seen = load(WINDOW);
    ensure!(matches!(seen, Ok(0 | 1)), "the second page reads as {seen:x?}");
    drop_translation();
    Ok(seen == Ok(1))
}

/// Succeeds if the first page is seen when nothing is done: then not seeing it is significant.
pub(super) fn notices(is_global: bool) -> Verdict {
    for _ in 0..TRIES {
        if !sees_new_after(is_global, || Ok(()))? {
            return Ok(());
        }
    }
    Err(failure(format_args!("{TRIES} pages are replaced, and each is seen at once")))
}
