//! Loops on the mappings of one address space: they affect each other only by taking its lock.

use crate::table::Size;
use crate::team::{Worker, expect};
use std::io;
use workloads::mapping::Mapping;

/// The value that a thread stores to a page in a round; unique to the thread, page and round.
pub(crate) fn token(thread: usize, round: u64, page: usize) -> u64 {
    (thread as u64) << 48 | (round & 0xffff_ffff) << 16 | page as u64 & 0xffff
}

/// Workers made from their indices.
pub(crate) fn each(size: Size, worker: impl Fn(usize) -> io::Result<Worker>) -> io::Result<Vec<Worker>> {
    (0..size.threads).map(worker).collect()
}

/// Maps, stores to each page, reads it back, unmaps.
pub(crate) fn page_fault(size: Size) -> io::Result<Vec<Worker>> {
    each(size, |thread| {
        Ok(Box::new(move |round| {
            let mut memory = Mapping::anonymous(size.pages)?;
            for page in 0..size.pages {
                memory.write(page, 0, token(thread, round, page));
            }
            for page in 0..size.pages {
                expect("a page", memory.read(page, 0), token(thread, round, page))?;
            }
            Ok(memory.unmap()?)
        }))
    })
}

/// Maps and unmaps. There is nothing to check but the kernel's results.
pub(crate) fn map(size: Size) -> io::Result<Vec<Worker>> {
    each(size, |_| Ok(Box::new(move |_| Ok(Mapping::anonymous(size.pages)?.unmap()?))))
}

/// Makes touched pages read-only and writable again. Each page's contents stay readable throughout.
pub(crate) fn protect(size: Size) -> io::Result<Vec<Worker>> {
    each(size, |thread| {
        let mut memory = Mapping::anonymous(size.pages)?;
        for page in 0..size.pages {
            memory.write(page, 0, token(thread, 0, page));
        }
        Ok(Box::new(move |round| {
            let page = (round % size.pages as u64) as usize;
            let before = memory.read(page, 0);
            memory.protect(false)?;
            expect("a protected page", memory.read(page, 0), before)?;
            memory.protect(true)?;
            memory.write(page, 0, token(thread, round, page));
            expect("a page that was protected", memory.read(page, 0), token(thread, round, page))
        }))
    })
}
