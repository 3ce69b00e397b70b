//! The time that a process has had to do its work.

use crate::prelude::*;
use std::collections::HashMap;

/// How often the process is looked at: a few time slices.
const PERIOD: Duration = Duration::from_millis(500);
/// However busy the computer is, a process gets one second in this many.
const SLOWEST: u32 = 10;

/// The nanoseconds that a thread ran, and those that it was ready and waited for a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stat {
    ran: u64,
    waited: u64,
}

impl Stat {
    /// Of `/proc/PID/task/TID/schedstat` (Linux, Documentation/scheduler/sched-stats.rst).
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().map(str::parse);
        Some(Self { ran: words.next()?.ok()?, waited: words.next()?.ok()? })
    }
}

type Stats = HashMap<OsString, Stat>;

/// Time from the process's point of view.
///
/// It advances like any clock while the process runs or sleeps. While its threads are ready but
/// other processes have the CPUs, it advances more slowly: by the share of a CPU that a thread
/// gets, but at most ten times more slowly. So a limit means the same on a busy computer as on a
/// quiet one. If the kernel provides no statistics (without `CONFIG_SCHED_INFO`), it is the clock's
/// time.
pub(crate) struct OwnTime {
    threads: PathBuf,
    stats: Stats,
    looked: Instant,
    passed: Duration,
}

impl OwnTime {
    pub(crate) fn new(process: u32) -> Self {
        Self::of(PathBuf::from(format!("/proc/{process}/task")))
    }

    pub(crate) fn of_the_clock() -> Self {
        Self::of(PathBuf::new())
    }

    fn of(threads: PathBuf) -> Self {
        Self { stats: read(&threads), threads, looked: Instant::now(), passed: Duration::ZERO }
    }

    /// The time so far; updated twice a second.
    pub(crate) fn passed(&mut self) -> Duration {
        let wall = self.looked.elapsed();
        if wall >= PERIOD {
            self.looked += wall;
            let now = read(&self.threads);
            self.passed += share(wall, between(&self.stats, &now));
            self.stats = now;
        }
        self.passed
    }
}

fn read(threads: &PathBuf) -> Stats {
    let entries = fs::read_dir(threads).into_iter().flatten().flatten();
    let stats = entries.filter_map(|entry| {
        let line = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        Some((entry.file_name(), Stat::parse(&line)?))
    });
    stats.collect()
}

/// The total for all threads between two samples; a thread that has ended counts as 0.
fn between(before: &Stats, now: &Stats) -> Stat {
    now.iter().fold(Stat::default(), |sum, (thread, now)| {
        let before = before.get(thread).copied().unwrap_or_default();
        Stat {
            ran: sum.ran + now.ran.saturating_sub(before.ran),
            waited: sum.waited + now.waited.saturating_sub(before.waited),
        }
    })
}

fn share(wall: Duration, did: Stat) -> Duration {
    let wanted = did.ran + did.waited;
    if wanted == 0 {
        return wall;
    }
    wall.mul_f64(did.ran as f64 / wanted as f64).max(wall / SLOWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn stats(of: &[(&str, u64, u64)]) -> Stats {
        of.iter().map(|&(thread, ran, waited)| (thread.into(), Stat { ran, waited })).collect()
    }

    #[test]
    fn a_process_that_sleeps_or_runs_has_all_of_its_time() {
        assert_eq!(share(SECOND, Stat::default()), SECOND);
        assert_eq!(share(SECOND, Stat { ran: 2_000_000_000, waited: 0 }), SECOND);
    }

    #[test]
    fn a_process_that_waits_for_cpus_has_its_share_and_never_nothing() {
        assert_eq!(share(SECOND, Stat { ran: 250, waited: 750 }), SECOND / 4);
        assert_eq!(share(SECOND, Stat { ran: 0, waited: 1 }), SECOND / 10);
    }

    #[test]
    fn threads_come_and_go() {
        let before = stats(&[("1", 100, 10), ("2", 50, 50)]);
        let now = stats(&[("1", 160, 30), ("3", 5, 6)]);
        assert_eq!(between(&before, &now), Stat { ran: 65, waited: 26 });
    }

    #[test]
    fn the_kernels_line_is_understood_and_this_process_has_one() {
        assert_eq!(Stat::parse("1436457 9906500 3\n"), Some(Stat { ran: 1_436_457, waited: 9_906_500 }));
        assert_eq!(Stat::parse(""), None);
        if PathBuf::from("/proc/self/schedstat").exists() {
            let threads = format!("/proc/{}/task", std::process::id());
            assert!(read(&PathBuf::from(threads)).values().any(|stat| stat.ran > 0));
        }
    }

    #[test]
    fn a_process_that_is_not_there_has_the_clocks_time() {
        for mut time in [OwnTime::new(u32::MAX), OwnTime::of_the_clock()] {
            time.looked -= 4 * PERIOD;
            assert!(time.passed() >= 4 * PERIOD);
        }
    }
}
