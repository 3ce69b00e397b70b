//! Loops on the mappings of one address space: they affect each other only by taking its lock. In
//! some every round removes a translation that was just used, so that the kernel has to flush it on
//! all processors that run a thread of the address space. Only the thread itself has ever used it.

use crate::Size;
use crate::team::{Worker, expect};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::process;
use std::sync::Arc;
use workloads::mapping::{Mapping, page_bytes, page_words};

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

/// The first access is a store: a load would make the kernel map its page of zeroes, and the store
/// would then flush that as well.
pub(crate) fn discard(size: Size) -> io::Result<Vec<Worker>> {
    let words = page_words();
    each(size, |thread| {
        let mut memory = Mapping::anonymous(1)?;
        Ok(Box::new(move |round| {
            let word = (round % words as u64) as usize;
            memory.write(0, word, token(thread, round, 0));
            let last = word.checked_sub(1).unwrap_or(words - 1);
            expect("what was discarded", memory.read(0, last), 0)?;
            expect("a page", memory.read(0, word), token(thread, round, 0))?;
            Ok(memory.discard()?)
        }))
    })
}

/// Stores to a page, makes it read-only, and makes it writable again.
pub(crate) fn protect_one(size: Size) -> io::Result<Vec<Worker>> {
    each(size, |thread| {
        let mut memory = Mapping::anonymous(1)?;
        Ok(Box::new(move |round| {
            memory.write(0, 0, token(thread, round, 0));
            memory.protect(false)?;
            expect("a protected page", memory.read(0, 0), token(thread, round, 0))?;
            Ok(memory.protect(true)?)
        }))
    })
}

/// Threads take the pages of the file in turn, each starting from a different one.
pub(crate) fn unmap_file(size: Size) -> io::Result<Vec<Worker>> {
    let file = Arc::new(numbered_file(size.pages)?);
    each(size, |thread| {
        let file = Arc::clone(&file);
        Ok(Box::new(move |round| {
            let page = (round % size.pages as u64 + thread as u64) % size.pages as u64;
            let seen = Mapping::of_file(&*file, page, 1)?;
            expect("a page of the file", seen.read(0, 0), token(0, 0, page as usize))?;
            Ok(seen.unmap()?)
        }))
    })
}

/// A file each of whose pages begins with its token. Its name is already removed.
fn numbered_file(pages: usize) -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("loops-{}.data", process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(path)?;
    let mut out = BufWriter::new(&file);
    let rest = vec![0; page_bytes() - size_of::<u64>()];
    for page in 0..pages {
        out.write_all(&token(0, 0, page).to_ne_bytes())?;
        out.write_all(&rest)?;
    }
    out.flush()?;
    drop(out);
    Ok(file)
}
