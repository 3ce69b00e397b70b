//! A thread supplies the pages that others miss, and allows stores to them (userfaultfd).
//!
//! Structures and numbers are those of the kernel's include/uapi/linux/userfaultfd.h.

use crate::{Failure, Found, all_threads};
use rustix::io::{Errno, read};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{Advice, UserfaultfdFlags, userfaultfd};
use rustix::param::page_size;
use serde_json::json;
use std::os::fd::OwnedFd;
use std::thread;
use workloads::mapping::Mapping;

const PAGES: usize = 256;

const TYPE: u8 = 0xaa;
const API: u64 = 0xaa;
/// A feature, a mode of registration, a flag of a fault, and a mode of a copy.
const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
const REGISTER_MISSING: u64 = 1 << 0;
const REGISTER_WRITE_PROTECT: u64 = 1 << 1;
const FAULT_WRITE_PROTECT: u64 = 1 << 1;
const COPY_WRITE_PROTECTED: u64 = 1 << 1;
const EVENT_PAGEFAULT: u8 = 0x12;

/// Requests. Each is made of words, some of which the kernel writes.
const OPEN: Opcode = opcode::read_write::<[u64; 3]>(TYPE, 0x3f);
const REGISTER: Opcode = opcode::read_write::<[u64; 4]>(TYPE, 0);
const COPY: Opcode = opcode::read_write::<[u64; 5]>(TYPE, 3);
const WRITE_PROTECT: Opcode = opcode::read_write::<[u64; 3]>(TYPE, 6);
/// Bytes of a message: of a fault byte 0 is the event, and from 8 on are its flags and its address.
const MESSAGE_BYTES: usize = 32;

/// Makes a request of these words: as many as its number says.
fn request<const REQUEST: Opcode, const WORDS: usize>(
    file: &OwnedFd,
    words: &mut [u64; WORDS],
) -> Result<(), Errno> {
    const { assert!(REQUEST >> 16 & 0x3fff == size_of::<[u64; WORDS]>() as Opcode) };
    // SAFETY: the request takes a structure of this size. An area outlives its registration or ends
    // it by its end. A copy reads a page of an area, and makes a page that nobody could read until
    // then; protection changes rights, not contents.
    unsafe { ioctl(file, Updater::<REQUEST, [u64; WORDS]>::new(words)) }
}

/// Opens a file for faults; with which of these features.
fn open(features: u64) -> Result<(OwnedFd, u64), Failure> {
    // SAFETY: registered areas are only touched by threads other than the one that serves them.
    let file = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC)? };
    let mut words = [API, features, 0];
    request::<OPEN, _>(&file, &mut words)?;
    Ok((file, words[1]))
}

pub(crate) fn serves(rounds: u64) -> Found {
    let (_, features) = open(0)?;
    let wanted = features & FEATURE_WRITE_PROTECT;
    let (file, _) = open(wanted)?;
    let (mut area, mut source) = (Mapping::anonymous(PAGES)?, Mapping::anonymous(PAGES)?);
    // A fault is then of one small page.
    area.advise(area.all(), Advice::LinuxNoHugepage)?;
    let mode = REGISTER_MISSING | if wanted == 0 { 0 } else { REGISTER_WRITE_PROTECT };
    request::<REGISTER, _>(&file, &mut [area.address() as u64, (PAGES * page_size()) as u64, mode, 0])?;
    let (mut missed, mut stored) = (0, 0);
    for round in 0..rounds {
        let seed = round << 32;
        source.fill(source.all(), seed);
        area.advise(area.all(), Advice::LinuxDontNeed)?;
        let served = Served { file: &file, area: area.address() as u64, source: &source };
        let is_protected = wanted != 0;
        missed += thread::scope(|scope| {
            let server = scope.spawn(|| served.supply(is_protected));
            let looked = all_threads(|index| look(&area, index, seed));
            let missed = server.join().map_err(|_| "the server panicked")?;
            looked.and(missed)
        })?;
        if is_protected {
            stored += thread::scope(|scope| {
                let server = scope.spawn(|| served.allow());
                area.fill(0..PAGES, seed + 1);
                server.join().map_err(|_| "the server panicked")?
            })?;
            area.check(area.all(), seed + 1)?;
        }
    }
    Ok(json!({"missed": missed, "stored": stored}))
}

/// Looks at each page, each thread beginning elsewhere. All are looked at, whatever is found.
fn look(area: &Mapping, index: u32, seed: u64) -> Result<u64, Failure> {
    let mut found = Ok(1);
    for number in 0..PAGES {
        let page = (number + index as usize * 37) % PAGES;
        if let Err(why) = area.check(page..page + 1, seed) {
            found = Err(why.into());
        }
    }
    found
}

struct Served<'a> {
    file: &'a OwnedFd,
    area: u64,
    source: &'a Mapping,
}

impl Served<'_> {
    /// The flags and the page of the next fault.
    fn next(&self) -> Result<(u64, u64), Failure> {
        let mut message = [0; MESSAGE_BYTES];
        let count = read(self.file, &mut message)?;
        if count != message.len() || message[0] != EVENT_PAGEFAULT {
            return Err(format!("{count} bytes of event {:#x}", message[0]).into());
        }
        let word = |at: usize| Ok::<_, Failure>(u64::from_ne_bytes(message[at..at + 8].try_into()?));
        Ok((word(8)?, (word(16)? - self.area) / page_size() as u64))
    }

    /// Supplies every page once, write-protected or not.
    fn supply(&self, is_protected: bool) -> Result<u64, Failure> {
        let (page, mode) = (page_size() as u64, if is_protected { COPY_WRITE_PROTECTED } else { 0 });
        let mut count = 0;
        while count < PAGES as u64 {
            let (_, at) = self.next()?;
            let from = self.source.address() as u64 + at * page;
            match request::<COPY, _>(self.file, &mut [self.area + at * page, from, page, mode, 0]) {
                Ok(()) => count += 1,
                // Two threads missed the same page.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }

    /// Allows stores to every page, once each.
    fn allow(&self) -> Result<u64, Failure> {
        let page = page_size() as u64;
        for count in 0..PAGES as u64 {
            let (flags, at) = self.next()?;
            if flags & FAULT_WRITE_PROTECT == 0 || at != count {
                return Err(format!("a fault of page {at} with flags {flags:#x}").into());
            }
            request::<WRITE_PROTECT, _>(self.file, &mut [self.area + at * page, page, 0])?;
        }
        Ok(PAGES as u64)
    }
}
