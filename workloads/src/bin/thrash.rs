//! Thrash: threads of one process map a large part of a shared file, read its first page, and unmap
//! it again, over and over. Each unmapping makes the kernel flush the TLBs of all CPUs on which the
//! process runs, so the program measures little but remote TLB flushes.
//!
//! It reports JSON lines: `begin`, then `progress` periodically, then `end` with the results.

use serde_json::json;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{error, fs, io, thread};
use workloads::mapping::{Mapping, page_bytes};
use workloads::options::{Program, Report, cpus};
use workloads::times::{IpiCounts, Stopwatch, Times};

const PROGRESS_PERIOD: Duration = Duration::from_millis(500);

const USAGE: &str = "\
usage: thrash [--threads N] [--rounds N] [--pages N] [--chunks N] [--file F]

  --threads N  threads that map and unmap [one per CPU]
  --rounds N   rounds of each thread [1000]
  --pages N    pages mapped in a round [16384]
  --chunks N   different offsets in the file, a page apart, used in turn [10]
  --file F     the shared file; created if missing, removed afterwards [/tmp/thrash.data]";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    threads: u64,
    rounds: u64,
    pages: u64,
    chunks: u64,
    file: PathBuf,
}

impl Options {
    fn program() -> Program<Self> {
        let options = Self {
            threads: cpus(),
            rounds: 1000,
            pages: 16384,
            chunks: 10,
            file: PathBuf::from("/tmp/thrash.data"),
        };
        Program::new("thrash", USAGE, options, |options, given| {
            match given.name {
                "--threads" => options.threads = given.number(1, 4096)?,
                "--rounds" => options.rounds = given.number(1, 1 << 32)?,
                "--pages" => options.pages = given.number(1, 1 << 28)?,
                "--chunks" => options.chunks = given.number(1, 1 << 16)?,
                "--file" => options.file = given.path(),
                _ => return Err(given.unknown()),
            }
            Ok(())
        })
    }

    fn rounds_total(&self) -> u64 {
        self.threads.saturating_mul(self.rounds)
    }
}

/// The shared file: sparse, and removed when the value is dropped.
struct SharedFile {
    path: PathBuf,
    file: File,
}

impl SharedFile {
    fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(bytes)?;
        Ok(Self { path: path.to_owned(), file })
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // Nothing depends on the removal: the file is in the guest's memory.
        let _ = fs::remove_file(&self.path);
    }
}

/// One round: map `pages` pages of `file` from page `first` on, read the first one, unmap.
fn round(file: &File, page_bytes: usize, pages: u64, first: u64) -> io::Result<u64> {
    let pages = usize::try_from(pages).map_err(io::Error::other)?;
    let seen = Mapping::of_file_by(page_bytes, file, first, pages)?;
    let word = seen.read(0, 0);
    seen.unmap()?;
    Ok(word)
}

#[derive(Default)]
struct Shared {
    rounds_done: AtomicU64,
    failed: AtomicBool,
}

fn worker(options: &Options, file: &File, shared: &Shared) -> io::Result<()> {
    let page_bytes = page_bytes();
    for index in 0..options.rounds {
        if shared.failed.load(Ordering::Relaxed) {
            break;
        }
        if let Err(error) = round(file, page_bytes, options.pages, index % options.chunks) {
            shared.failed.store(true, Ordering::Relaxed);
            return Err(error);
        }
        shared.rounds_done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn thrash(options: &Options, file: &File, report: &mut Report) -> io::Result<()> {
    let shared = Shared::default();
    thread::scope(|scope| {
        // Each thread holds a sender and never sends: the channel closes when the last one ends.
        let (running, ended) = mpsc::channel::<()>();
        let mut threads = Vec::new();
        for _ in 0..options.threads {
            let (shared, running) = (&shared, running.clone());
            let work = move || {
                let _running = running;
                worker(options, file, shared)
            };
            threads.push(thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, work)?);
        }
        drop(running);
        while ended.recv_timeout(PROGRESS_PERIOD) == Err(RecvTimeoutError::Timeout) {
            let done = shared.rounds_done.load(Ordering::Relaxed);
            report.line(&json!({"event": "progress", "done": done, "total": options.rounds_total()}))?;
        }
        for thread in threads {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
        }
        Ok(())
    })
}

fn run(options: &Options, report: &mut Report) -> Result<bool, Box<dyn error::Error>> {
    let bytes = (options.pages + options.chunks) * page_bytes() as u64;
    let shared = SharedFile::create(&options.file, bytes)?;
    report.settle(&json!({
        "event": "begin", "workload": "thrash", "threads": options.threads,
        "rounds": options.rounds, "pages": options.pages, "chunks": options.chunks,
    }))?;

    let ipis_before = IpiCounts::now()?;
    let watch = Stopwatch::start()?;
    thrash(options, &shared.file, report)?;
    let Times { real, user, sys, .. } = watch.elapsed()?;
    let ipis = IpiCounts::now()?.since(ipis_before);

    report.settle(&json!({
        "event": "end", "workload": "thrash", "rounds_total": options.rounds_total(),
        "real": real.as_secs_f64(), "user": user.as_secs_f64(), "sys": sys.as_secs_f64(),
        "tlb_ipis": ipis.tlb, "call_ipis": ipis.call,
    }))?;
    Ok(true)
}

fn main() -> ExitCode {
    Options::program().main(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use workloads::options::reported;

    #[test]
    fn every_round_of_every_thread_is_made() {
        let file = std::env::temp_dir().join(format!("thrash-test-{}", std::process::id()));
        let args = ["--threads", "3", "--rounds", "20", "--pages", "64"];
        let mut options = Options::program().parse(args).expect("parses");
        options.file = file.clone();
        let (done, lines) = reported(|report| run(&options, report));
        assert!(done.expect("runs"));
        let last = lines.last().expect("has lines");
        assert_eq!(last["event"], "end");
        assert_eq!(last["rounds_total"], 60);
        assert!(last["real"].as_f64().is_some_and(|secs| secs > 0.0));
        assert!(!file.exists(), "the shared file is removed");
    }

    #[test]
    fn a_mapping_past_the_end_of_the_offsets_is_an_error() {
        let path = std::env::temp_dir().join(format!("thrash-round-{}", std::process::id()));
        // Of a kernel with larger pages, too.
        for page_bytes in [page_bytes(), 16 << 10] {
            let shared = SharedFile::create(&path, 2 * page_bytes as u64).expect("creates");
            shared.file.write_all_at(b"x", page_bytes as u64).expect("writes");
            assert_eq!(round(&shared.file, page_bytes, 1, 1).expect("maps").to_ne_bytes()[0], b'x');
            assert!(round(&shared.file, page_bytes, 0, 0).is_err(), "the kernel refuses an empty mapping");
        }
    }
}
