//! Processors go offline and come back while others work, and do so themselves.

use crate::{Failure, Found, during, list, maps, read, write};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use serde_json::json;

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// In each round each processor but the first one goes alone, and then all at the same time.
pub(crate) fn go_and_come_back(rounds: u64) -> Found {
    let cpus = list(&read(ONLINE)?)?;
    let ((), worked) = during(|| {
        for _ in 0..rounds {
            for &cpu in &cpus[1..] {
                switch(cpu, false)?;
                switch(cpu, true)?;
            }
            for &cpu in &cpus[1..] {
                switch(cpu, false)?;
            }
            for &cpu in &cpus[1..] {
                switch(cpu, true)?;
            }
        }
        visit(&cpus)
    })?;
    Ok(json!({"switched": rounds * 4 * (cpus.len() as u64 - 1), "rounds": worked}))
}

/// Switches a processor on or off, and checks that it is.
fn switch(cpu: usize, is_on: bool) -> Result<(), Failure> {
    write(&format!("/sys/devices/system/cpu/cpu{cpu}/online"), if is_on { "1" } else { "0" })?;
    let online = read(ONLINE)?;
    if list(&online)?.contains(&cpu) != is_on {
        return Err(format!("processor {cpu} was switched, and online are {}", online.trim()).into());
    }
    if is_on { visit(&[cpu]) } else { Ok(()) }
}

/// Works on each of these processors, and may run on all of them afterwards.
fn visit(cpus: &[usize]) -> Result<(), Failure> {
    let before = rustix::thread::sched_getaffinity(None)?;
    for &cpu in cpus {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only)?;
        if sched_getcpu() != cpu {
            return Err(format!("this is to run on processor {cpu}, and is on {}", sched_getcpu()).into());
        }
        maps::round(cpu as u64)?;
    }
    let mut all = before;
    for &cpu in cpus {
        all.set(cpu);
    }
    Ok(sched_setaffinity(None, &all)?)
}
