//! The one screen, on the framebuffer that the loader has left.

use core::sync::atomic::{AtomicUsize, Ordering};
use spin::{Mutex, MutexGuard};

use super::tables::root;
use crate::pages::{PAGE, Page};
use crate::screen::{self, Frame};
use crate::walk;

/// Memory below is mapped one to one by the boot tables.
const MAPPED: u64 = 1 << 32;
/// Where they map a framebuffer that is not: in the last two GiB of their root's first entry.
const WINDOW: u64 = 510 << 30;
const WINDOW_MASK: u64 = (1 << 30) - 1;
const LARGE_PAGE: u64 = 2 << 20;
/// Present, writable, not cached, large.
const UNCACHED: u64 = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 7;

/// Tries to get the lock. A character is drawn, or the screen moved, within that time.
const TRIES: u32 = 1 << 24;

/// The mapped framebuffer: address and length.
#[derive(Debug)]
pub struct Mapped(u64, u64);

impl screen::Memory for Mapped {
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let mut at = offset as u64;
        let mut rest = bytes;
        while at < self.1 {
            let address = self.0 + at;
            // As wide as they can be: each store is a message on a bus.
            let (words, is_aligned) = (rest.first_chunk::<8>(), address.is_multiple_of(8));
            let length = match (words, rest.first()) {
                (Some(word), _) if is_aligned && self.1 - at >= 8 => {
                    // SAFETY: `open` has mapped the framebuffer, which is nobody else's memory.
                    unsafe { (address as *mut u64).write_volatile(u64::from_le_bytes(*word)) };
                    8
                }
                (_, Some(byte)) => {
                    // SAFETY: as above.
                    unsafe { (address as *mut u8).write_volatile(*byte) };
                    1
                }
                _ => return,
            };
            at += length;
            rest = rest.get(length as usize..).unwrap_or(&[]);
        }
    }
}

static SCREEN: Mutex<screen::Screen<Mapped>> = Mutex::new(screen::Screen::none());

/// Shows text on this framebuffer from here on.
///
/// # Errors
///
/// Why it is not used.
///
/// # Safety
///
/// The loader says that it is there. The boot tables are active, and only this processor runs.
pub unsafe fn open(frame: Frame) -> Result<(), &'static str> {
    frame.check()?;
    let end = frame.address + frame.bytes();
    let start = if end <= MAPPED { frame.address } else { map(frame.address, end) };
    SCREEN.lock().open(frame, Mapped(start, frame.bytes()))
}

/// Maps it by the boot tables; returns where.
fn map(address: u64, end: u64) -> u64 {
    static TABLES: [Page; 2] = [const { Page::new() }; 2];
    static USED: AtomicUsize = AtomicUsize::new(0);
    let from = address & !WINDOW_MASK;
    let mut page = address & !(LARGE_PAGE - 1);
    while page < end {
        // A framebuffer is smaller than a GiB, so it takes two tables at most.
        let new = || TABLES.get(USED.fetch_add(1, Ordering::Relaxed)).unwrap_or(&TABLES[1]);
        walk::entry(root(), WINDOW + (page - from), 1, new).store(page | UNCACHED, Ordering::Release);
        page += LARGE_PAGE;
    }
    WINDOW + (address - from)
}

/// The pages of the framebuffer, for an image that builds its own tables; `None` without a screen.
pub fn pages() -> Option<core::ops::Range<u64>> {
    let frame = SCREEN.lock().frame()?;
    Some(frame.address & !(PAGE - 1)..(frame.address + frame.bytes()).next_multiple_of(PAGE))
}

/// The framebuffer is mapped one to one from here on.
///
/// # Safety
///
/// It is.
pub unsafe fn moved() {
    SCREEN.lock().move_to(|frame| Mapped(frame.address, frame.bytes()));
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
