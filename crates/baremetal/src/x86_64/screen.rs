//! The one screen, on the framebuffer that the loader has left.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use spin::{Mutex, MutexGuard};

use super::info::BootInfo;
use super::tables::root;
use crate::pages::{PAGE, Page};
use crate::screen;
use crate::walk;

/// Memory below is mapped one to one by the boot tables.
const MAPPED: u64 = 1 << 32;
/// Where they map a framebuffer that is not: in the last two GiB of their root's first entry.
const WINDOW: u64 = 510 << 30;
const WINDOW_MASK: u64 = (1 << 30) - 1;
const LARGE_PAGE: u64 = 2 << 20;
/// Present, writable, not cached, large.
const UNCACHED: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 7;

/// Tries to get the lock. The screen is moved up within that time.
const TRIES: u32 = 1 << 23;

/// The mapped framebuffer.
#[derive(Debug)]
pub struct Mapped(Range<u64>);

impl screen::Memory for Mapped {
    fn store(&mut self, first: usize, pixels: &[u32]) {
        let words = self.0.start / 4 + first as u64..self.0.end / 4;
        for (word, pixel) in words.zip(pixels) {
            // SAFETY: `open` has mapped the framebuffer, which is nobody else's memory.
            unsafe { ((word * 4) as *mut u32).write_volatile(*pixel) };
        }
    }
}

static SCREEN: Mutex<screen::Screen<Mapped>> = Mutex::new(screen::Screen::none());

/// Uses the screen that the loader has left, if it has. The boot tables are active, and only this
/// processor runs.
///
/// # Errors
///
/// Why it is not used.
pub fn open(info: &BootInfo) -> Result<(), &'static str> {
    let Some(frame) = info.frame else { return Ok(()) };
    frame.check()?;
    let end = frame.address + frame.bytes();
    let start = if end <= MAPPED { frame.address } else { map(frame.address, end) };
    SCREEN.lock().open(frame, Mapped(start..start + frame.bytes()))
}

/// Maps it by the boot tables; returns where.
fn map(address: u64, end: u64) -> u64 {
    // A framebuffer is smaller than a GiB, so it takes two tables at most.
    static TABLES: [Page; 2] = [const { Page::new() }; 2];
    static USED: AtomicUsize = AtomicUsize::new(0);
    let new = || {
        let [first, second] = &TABLES;
        if USED.fetch_add(1, Ordering::Relaxed) == 0 { first } else { second }
    };
    let from = address & !WINDOW_MASK;
    let mut page = address & !(LARGE_PAGE - 1);
    while page < end {
        walk::entry(root(), WINDOW + (page - from), 1, new).store(page | UNCACHED, Ordering::Relaxed);
        page += LARGE_PAGE;
    }
    WINDOW + (address - from)
}

/// The pages of the framebuffer, for an image that builds its own tables; `None` without a screen.
pub fn pages() -> Option<Range<u64>> {
    let frame = SCREEN.lock().frame()?;
    let end = frame.address + frame.bytes();
    Some(frame.address & !(PAGE - 1)..end.next_multiple_of(PAGE))
}

/// The framebuffer is mapped one to one from here on.
///
/// # Safety
///
/// It is.
pub unsafe fn moved() {
    SCREEN.lock().move_to(|frame| Mapped(frame.address..frame.address + frame.bytes()));
}

/// Columns and rows; `None` without a screen.
pub fn size() -> Option<(usize, usize)> {
    lock()?.size()
}

/// Shows text. Where the screen is in use by what was interrupted, it is left out.
pub fn write(text: &[u8]) {
    if let Some(mut screen) = lock() {
        text.iter().for_each(|byte| screen.put(*byte));
    }
}

/// Shows this text alone.
pub fn show(text: impl Iterator<Item = u8>) {
    if let Some(mut screen) = lock() {
        screen.show(text);
    }
}

fn lock() -> Option<MutexGuard<'static, screen::Screen<Mapped>>> {
    (0..TRIES).find_map(|_| SCREEN.try_lock())
}

/// Others that were using the screen have stopped for good.
///
/// # Safety
///
/// They have.
pub unsafe fn take_over() {
    if lock().is_none() {
        // SAFETY: the caller's promise.
        unsafe { SCREEN.force_unlock() };
    }
}
