//! The processes of a task, and the one that starts tasks and checks their objects.

use crate::{ended, fork};
use rustix::process::{Pid, WaitOptions, wait, waitpid};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use workloads::mapping::{Mapping, page_bytes, page_words};

/// Size of the header that all compilers map.
const HEADER_BYTES: usize = 256 << 10;
const SOURCE_WORDS: usize = 512;
/// Memory that a driver writes to before it forks, and that a compiler uses.
const DRIVER_PAGES: usize = 64;
const COMPILER_WORDS: usize = 32 << 10;
/// The number of words in an object, taken from the compiler's output.
const OBJECT_WORDS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Starts the other two, one after the other.
    Drive,
    Compile,
    Assemble,
}

impl Stage {
    pub(crate) const ALL: [Self; 3] = [Self::Drive, Self::Compile, Self::Assemble];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Drive => "--drive",
            Self::Compile => "--compile",
            Self::Assemble => "--assemble",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

pub(crate) fn run(stage: Stage, directory: &Path, task: u64) -> io::Result<()> {
    match stage {
        Stage::Drive => drive(directory, task),
        Stage::Compile => {
            let header = Header::open(directory)?;
            let source = words(&fs::read(path(directory, "source", task))?);
            let text = header.text();
            fs::write(path(directory, "middle", task), bytes(&compile(&text, &source)))
        }
        Stage::Assemble => {
            let middle = path(directory, "middle", task);
            let object = assemble(&words(&fs::read(&middle)?));
            fs::remove_file(middle)?;
            fs::write(self::object(directory, task), object)
        }
    }
}

fn drive(directory: &Path, task: u64) -> io::Result<()> {
    let mut memory = Mapping::anonymous(DRIVER_PAGES)?;
    for stage in [Stage::Compile, Stage::Assemble] {
        for page in 0..DRIVER_PAGES {
            memory.write(page, 0, mix(task, page as u64));
        }
        let child = fork(stage, directory, task)?;
        // The child shared these pages until it executed a program, so each store is a fault.
        for page in 0..DRIVER_PAGES {
            memory.write(page, 1, mix(task, page as u64));
        }
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if let Some((_, status)) = waitpid(pid, WaitOptions::empty())? {
            ended(&stage.name()[2..], status)?;
        }
    }
    let is_kept = |page| memory.read(page, 0) == mix(task, page as u64);
    match (0..DRIVER_PAGES).find(|&page| !is_kept(page)) {
        Some(page) => Err(io::Error::other(format!("page {page} of the driver has changed"))),
        None => Ok(()),
    }
}

pub(crate) struct Header(Mapping);

impl Header {
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        let text: Vec<_> = (0..HEADER_BYTES / 8).map(|at| mix(u64::MAX, at as u64)).collect();
        fs::write(directory.join("header"), bytes(&text))?;
        Self::open(directory)
    }

    fn open(directory: &Path) -> io::Result<Self> {
        let file = File::open(directory.join("header"))?;
        if file.metadata()?.len() != HEADER_BYTES as u64 {
            return Err(io::Error::other("the header has another size"));
        }
        Ok(Self(Mapping::of_file(&file, 0, HEADER_BYTES / page_bytes())?))
    }

    pub(crate) fn text(&self) -> Vec<u64> {
        let page = |page| (0..page_words()).map(move |word| self.0.read(page, word));
        (0..self.0.pages()).flat_map(page).collect()
    }
}

fn path(directory: &Path, kind: &str, task: u64) -> PathBuf {
    directory.join(format!("{kind}-{task}"))
}

pub(crate) fn object(directory: &Path, task: u64) -> PathBuf {
    path(directory, "object", task)
}

pub(crate) fn write_source(directory: &Path, task: u64) -> io::Result<()> {
    fs::write(path(directory, "source", task), bytes(&source(task)))
}

pub(crate) fn source(task: u64) -> Vec<u64> {
    (0..SOURCE_WORDS).map(|at| mix(task, at as u64)).collect()
}

/// A table that takes some memory, filled from a source and the header.
pub(crate) fn compile(header: &[u64], source: &[u64]) -> Vec<u64> {
    let mut table = vec![0; COMPILER_WORDS];
    let mut last = 0;
    for (at, slot) in table.iter_mut().enumerate() {
        last = mix(last ^ header[at % header.len()], source[at % source.len()]);
        *slot = last;
    }
    table
}

/// A digest of the compiler's output: each word is computed from one part of it.
pub(crate) fn assemble(middle: &[u64]) -> Vec<u8> {
    let stretches = middle.chunks(middle.len().div_ceil(OBJECT_WORDS).max(1));
    bytes(&stretches.map(|stretch| stretch.iter().fold(0, |sum, word| mix(sum, *word))).collect::<Vec<_>>())
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The words of a file; an incomplete word at the end is left out.
fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect()
}

/// A word computed from two others that resembles neither.
const fn mix(a: u64, b: u64) -> u64 {
    // An odd multiplier with bits all over, and a shift that brings the high ones down.
    let mixed = (a.rotate_left(23) ^ b).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// A directory for this run, removed with its files when the value is dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn create(parent: &Path, process: u32) -> io::Result<Self> {
        let path = parent.join(format!("mixed-{process}"));
        let made = fs::create_dir(&path);
        made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Nothing depends on the removal: the files are in the guest's memory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs all tasks, at most `jobs` at a time. If one fails, those in progress have ended, too.
pub(crate) fn build(directory: &Path, jobs: u64, tasks: u64) -> io::Result<()> {
    let (mut started, mut under_way) = (0, 0);
    let mut result = Ok(());
    loop {
        while result.is_ok() && started < tasks && under_way < jobs {
            match fork(Stage::Drive, directory, started) {
                Ok(_) => under_way += 1,
                Err(error) => result = Err(error),
            }
            started += 1;
        }
        if under_way == 0 {
            return result;
        }
        // Waits for the next process to end.
        if let Some((_, status)) = wait(WaitOptions::empty())? {
            under_way -= 1;
            result = result.and(ended("a task", status));
        }
    }
}

/// The first task with a wrong object, and what is wrong with it.
pub(crate) fn wrong_object(
    directory: &Path,
    header: &Header,
    tasks: u64,
) -> io::Result<Option<(u64, String)>> {
    let text = header.text();
    for task in 0..tasks {
        let found = fs::read(object(directory, task))?;
        let expected = assemble(&compile(&text, &source(task)));
        if let Some(at) = (0..found.len().max(expected.len())).find(|&at| found.get(at) != expected.get(at)) {
            let what =
                format!("the object's byte {at} is {:?} instead of {:?}", found.get(at), expected.get(at));
            return Ok(Some((task, what)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_of_header_and_source_changes_the_object() {
        let header: Vec<_> = (0..HEADER_BYTES as u64 / 8).collect();
        let object = |header: &[u64], source: &[u64]| assemble(&compile(header, source));
        let right = object(&header, &source(1));
        assert_eq!(right.len(), OBJECT_WORDS * 8);
        assert_ne!(right, object(&header, &source(2)));
        for at in [0, header.len() - 1] {
            let mut other = header.clone();
            other[at] += 1;
            assert_ne!(right, object(&other, &source(1)), "header word {at}");
        }
    }

    #[test]
    fn words_survive_a_file() {
        let some = [1, u64::MAX, 0x0123_4567_89ab_cdef];
        assert_eq!(words(&bytes(&some)), some);
        assert_eq!(words(&bytes(&some)[..23]), some[..2]);
    }

    #[test]
    fn a_wrong_object_is_found() {
        let directory = Directory::create(&std::env::temp_dir(), u32::MAX).expect("makes");
        let header = Header::create(directory.path()).expect("writes");
        for task in 0..3 {
            write_source(directory.path(), task).expect("writes");
            run(Stage::Compile, directory.path(), task).expect("compiles");
            run(Stage::Assemble, directory.path(), task).expect("assembles");
        }
        let wrong = || wrong_object(directory.path(), &header, 3).expect("reads");
        assert_eq!(wrong(), None);

        let path = object(directory.path(), 1);
        let mut object = fs::read(&path).expect("reads");
        object[9] ^= 1;
        fs::write(&path, &object).expect("writes");
        assert!(wrong().is_some_and(|(task, what)| task == 1 && what.starts_with("the object's byte 9 is")));
        fs::write(&path, &object[..9]).expect("writes");
        assert!(wrong().is_some_and(|(task, what)| task == 1 && what.contains("None")));
        fs::remove_file(path).expect("removes");
        assert!(wrong_object(directory.path(), &header, 3).is_err());
    }
}
