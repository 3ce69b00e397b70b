//! The output of `time`: wall clock, CPU time in user mode and in the kernel, and page faults.

use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

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
}
