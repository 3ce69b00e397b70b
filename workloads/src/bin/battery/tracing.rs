//! The kernel patches its own code while all processors execute it (ftrace).

use crate::{Failure, Found, during, list, read, write};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use serde_json::json;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const ROOT: &str = "/sys/kernel/tracing";
/// A function that each of our reads calls once, and functions that are called all the time.
const COUNTED: &str = "vfs_read";
const MANY: &str = "*page*";
/// Reads on each processor.
const READS: usize = 20;

fn set(name: &str, value: &str) -> Result<(), Failure> {
    write(&format!("{ROOT}/{name}"), value)
}

pub(crate) fn counts(rounds: u64) -> Found {
    let cpus = list(&read("/sys/devices/system/cpu/online")?)?;
    let file = File::open("/proc/version")?;
    set("set_ftrace_pid", &gettid().as_raw_nonzero().to_string())?;
    let mut calls = 0;
    let counted = during(|| {
        for _ in 0..rounds {
            calls += count(&file, &cpus)?;
        }
        patch_many()
    });
    set("current_tracer", "nop")?;
    set("set_ftrace_filter", "")?;
    set("set_ftrace_pid", "")?;
    let (functions, rounds) = counted?;
    Ok(json!({"calls": calls, "functions": functions, "rounds": rounds}))
}

/// Traces one function while this thread calls it on each processor; all calls have to be found.
fn count(file: &File, cpus: &[usize]) -> Result<usize, Failure> {
    set("set_ftrace_filter", COUNTED)?;
    set("current_tracer", "function")?;
    let called = call(file, cpus);
    set("tracing_on", "0")?;
    called?;
    let trace = read(&format!("{ROOT}/trace"))?;
    let found = trace.lines().filter(|line| line.contains(&format!(": {COUNTED} <-"))).count();
    set("current_tracer", "nop")?;
    set("tracing_on", "1")?;
    let expected = READS * cpus.len();
    if found != expected {
        return Err(format!("{found} calls of {COUNTED} are in the trace instead of {expected}").into());
    }
    Ok(found)
}

fn call(file: &File, cpus: &[usize]) -> io::Result<()> {
    let mut all = CpuSet::new();
    for &cpu in cpus {
        let mut only = CpuSet::new();
        only.set(cpu);
        all.set(cpu);
        sched_setaffinity(None, &only)?;
        for _ in 0..READS {
            file.read_at(&mut [0; 8], 0)?;
        }
    }
    Ok(sched_setaffinity(None, &all)?)
}

/// Patches many functions, and back; how many.
fn patch_many() -> Result<usize, Failure> {
    set("set_ftrace_filter", MANY)?;
    let functions = read(&format!("{ROOT}/set_ftrace_filter"))?.lines().count();
    set("current_tracer", "function")?;
    set("current_tracer", "nop")?;
    Ok(functions)
}
