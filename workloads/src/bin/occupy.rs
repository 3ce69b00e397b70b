//! Uses memory that is added and removed, to measure the cost of the removal.
//!
//! In each round it reports that it waits, and reads a line; then memory has been added at a
//! physical address that is unknown to the kernel. It maps that memory through `/dev/mem`, writes
//! to each page, and reports that. While the memory is removed, a thread that does not use it reads
//! the clock without a pause: the longest time between two readings is how long its processor was
//! stopped. The next line ends the round. The program ends with its input, or at the line `end`.

use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use workloads::mapping::{Mapping, page_bytes};
use workloads::options::{Program, Report};

const USAGE: &str = "usage: occupy --at ADDRESS --mib N";
/// The maximum address of a mapping of `/dev/mem`, and the maximum size mapped.
const AT_MAX: u64 = 1 << 47;
const MIB_MAX: u64 = 1 << 20;

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    at: u64,
    bytes: usize,
}

impl Options {
    fn program() -> Program<Self> {
        let options = Self::default();
        Program::new("occupy", USAGE, options, |options, given| {
            match given.name {
                "--at" => options.at = given.number(1, AT_MAX)?,
                "--mib" => options.bytes = (given.number(1, MIB_MAX)? as usize) << 20,
                _ => return Err(given.unknown()),
            }
            Ok(())
        })
        .checked(Self::check)
    }

    fn check(&mut self) -> Result<(), String> {
        if self.at == 0 || self.bytes == 0 {
            return Err("an address and a size are needed".to_owned());
        }
        if !self.at.is_multiple_of(page_bytes() as u64) {
            return Err(format!("--at {}: not a multiple of {}", self.at, page_bytes()));
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    Options::program().main(|options, report| run(options, report).map(|()| true))
}

fn run(options: &Options, report: &mut Report) -> io::Result<()> {
    let memory = OpenOptions::new().read(true).write(true).open("/dev/mem")?;
    let mut lines = io::stdin().lock().lines();
    loop {
        report.line(&json!({"event": "waiting"}))?;
        if is_end(lines.next().transpose()?) {
            return report.settle(&json!({"event": "end"}));
        }
        let touched = touch(&memory, options.at, options.bytes)?;
        let stop = AtomicBool::new(false);
        let (stalled, ended) = thread::scope(|scope| -> io::Result<_> {
            let looker = scope.spawn(|| longest_stall(&stop));
            let ended = report
                .line(&json!({"event": "touched", "us": micros(touched)}))
                .and_then(|()| lines.next().transpose());
            stop.store(true, Ordering::Relaxed);
            let stalled = looker.join().map_err(|_| io::Error::other("a thread panicked"))?;
            Ok((stalled, ended?))
        })?;
        report.line(&json!({"event": "round", "stall_us": micros(stalled)}))?;
        if is_end(ended) {
            return report.settle(&json!({"event": "end"}));
        }
    }
}

fn is_end(line: Option<String>) -> bool {
    line.is_none_or(|line| line.trim() == "end")
}

/// Microseconds; the type holds years of them.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn touch(memory: &File, at: u64, bytes: usize) -> io::Result<Duration> {
    let page = page_bytes();
    let mut map = Mapping::shared(memory, at / page as u64, bytes / page)?;
    let begin = Instant::now();
    map.all().for_each(|number| map.write(number, 0, (number * page) as u64 + 1));
    let time = begin.elapsed();
    map.unmap()?;
    Ok(time)
}

/// The longest time between two readings of the clock until `stop` is set.
fn longest_stall(stop: &AtomicBool) -> Duration {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn an_address_and_a_size_are_needed() {
        for args in [
            &[][..],
            &["--at", "4096"],
            &["--mib", "1"],
            &["--at", "0", "--mib", "1"],
            &["--at", "4097", "--mib", "1"],
            &["--at", "4096", "--mib", "1", "--more", "1"],
        ] {
            assert!(Options::program().parse(args.iter().copied()).is_err(), "{args:?}");
        }
        let options = Options::program().parse(["--at", "8192", "--mib", "2"]).expect("parses");
        assert_eq!(options, Options { at: 8192, bytes: 2 << 20 });
    }

    #[test]
    fn each_page_is_written_once() {
        let path = std::env::temp_dir().join(format!("quell-occupy-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.expect("makes");
        let page = page_bytes();
        file.set_len(4 * page as u64).expect("grows");
        touch(&file, page as u64, 2 * page).expect("writes");
        let mut contents = vec![0; 4 * page];
        file.read_exact_at(&mut contents, 0).expect("reads");
        std::fs::remove_file(&path).expect("removes");
        let words: Vec<_> = contents.chunks(page).map(|page| page[..8].iter().any(|b| *b != 0)).collect();
        assert_eq!(words, [false, true, true, false]);
    }

    #[test]
    fn a_stall_is_as_long_as_nobody_looked() {
        let stop = AtomicBool::new(true);
        assert_eq!(longest_stall(&stop), Duration::ZERO);
        assert!(is_end(None) && is_end(Some("end\n".to_owned())) && !is_end(Some(String::new())));
    }
}
