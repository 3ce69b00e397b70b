//! The output of `time`: wall clock, CPU time in user mode and in the kernel, and page faults; and
//! rows of `/proc/interrupts`.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};
use std::{fs, io};

/// A running clock.
pub struct Stopwatch {
    wall: Instant,
    used: Times,
}

/// A measured period of the process's life.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Wall clock.
    pub real: Duration,
    /// CPU time in user mode, of all threads and of the processes that were waited for.
    pub user: Duration,
    /// The same in the kernel.
    pub sys: Duration,
    /// Page faults of all threads that needed no I/O.
    pub faults: u64,
}

impl Stopwatch {
    /// Starts measuring.
    pub fn start() -> io::Result<Self> {
        Ok(Self { used: used_by_all()?, wall: Instant::now() })
    }

    /// The times since the start.
    pub fn elapsed(&self) -> io::Result<Times> {
        let (real, now) = (self.wall.elapsed(), used_by_all()?);
        Ok(Times {
            real,
            user: now.user.saturating_sub(self.used.user),
            sys: now.sys.saturating_sub(self.used.sys),
            faults: now.faults.saturating_sub(self.used.faults),
        })
    }
}

/// What this process and the ones that it has waited for have used.
fn used_by_all() -> io::Result<Times> {
    let (own, others) = (used(libc::RUSAGE_SELF)?, used(libc::RUSAGE_CHILDREN)?);
    Ok(Times {
        user: own.user + others.user,
        sys: own.sys + others.sys,
        faults: own.faults.saturating_add(others.faults),
        ..own
    })
}

fn used(whom: libc::c_int) -> io::Result<Times> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is valid for a write of one `rusage`.
    if unsafe { libc::getrusage(whom, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled in the whole structure.
    let usage = unsafe { usage.assume_init() };
    Ok(Times {
        real: Duration::ZERO,
        user: duration(usage.ru_utime),
        sys: duration(usage.ru_stime),
        // Also never negative.
        faults: u64::try_from(usage.ru_minflt).unwrap_or(0),
    })
}

/// The kernel never reports a negative time; it would count as 0.
fn duration(time: libc::timeval) -> Duration {
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(secs) + Duration::from_micros(micros)
}

/// IPIs that the kernel has sent, summed over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpiCounts {
    /// Row `TLB`: remote TLB flushes requested by IPI.
    pub tlb: u64,
    /// Row `CAL`: function calls on other CPUs; the kernel counts those for TLB flushes in `TLB`
    /// only.
    pub call: u64,
}

impl IpiCounts {
    /// The counts at this moment.
    pub fn now() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/interrupts")?))
    }

    /// The counts in the text of `/proc/interrupts`; a row that is absent counts as 0.
    pub fn parse(text: &str) -> Self {
        Self { tlb: row_sum(text, "TLB"), call: row_sum(text, "CAL") }
    }

    /// The increase since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self { tlb: self.tlb.saturating_sub(earlier.tlb), call: self.call.saturating_sub(earlier.call) }
    }
}

/// Sum over the CPUs of the row labelled `label`: the numbers up to the first word that is not one.
fn row_sum(text: &str, label: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.trim_start().split_once(':'))
        .filter(|(name, _)| *name == label)
        .flat_map(|(_, counts)| counts.split_whitespace().map_while(|word| word.parse::<u64>().ok()))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_up_as_cpu_time_and_sleep_does_not() {
        let watch = Stopwatch::start().expect("starts");
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_millis(200));
        let times = watch.elapsed().expect("reads");
        assert!(times.real >= Duration::from_millis(250), "{times:?}");
        assert!(times.user + times.sys > Duration::ZERO, "{times:?}");
        assert!(times.user + times.sys < times.real, "{times:?}");
    }

    const TEXT: &str = "           CPU0       CPU1
  4:        120          7   IO-APIC   4-edge      ttyS0
LOC:       1000       2000   Local timer interrupts
CAL:        300         40   Function call interrupts
TLB:         11         31   TLB shootdowns
";

    #[test]
    fn rows_are_summed_over_cpus_without_their_description() {
        for (text, tlb, call) in [
            (TEXT, 42, 340),
            ("           CPU0\nLOC: 5 Local timer interrupts\n", 0, 0),
            // A label inside another row does not count.
            ("XTLB: 9 other\n 1: 3 edge TLB: 4\n", 0, 0),
        ] {
            assert_eq!(IpiCounts::parse(text), IpiCounts { tlb, call }, "{text}");
        }
    }

    #[test]
    fn a_difference_never_wraps() {
        let low = IpiCounts { tlb: 1, call: 5 };
        let high = IpiCounts { tlb: 3, call: 4 };
        assert_eq!(high.since(low), IpiCounts { tlb: 2, call: 0 });
    }
}
