//! Mappings are made, changed, moved and removed, and copied on write.

use crate::{Failure, Found, all_threads};
use rustix::mm::Advice;
use rustix::process::{Pid, WaitOptions, waitpid};
use serde_json::json;
use std::ops::Range;
use workloads::mapping::{Mapping, memory_file};

const PAGES: usize = 24;
const SOME: Range<usize> = 8..16;
const CHILDREN: u64 = 4;

/// Each processor's thread makes this many rounds.
pub(crate) fn mappings(rounds: u64) -> Found {
    let made = all_threads(|index| {
        for number in 0..rounds * 4 {
            round(u64::from(index) << 32 | number)?;
        }
        Ok(rounds * 4)
    })?;
    Ok(json!({"rounds": made}))
}

/// One round of everything that is done with mappings.
pub(crate) fn round(seed: u64) -> Result<(), Failure> {
    let mut area = Mapping::anonymous(PAGES)?;
    area.check_zero(area.all())?;
    area.fill(area.all(), seed);
    area.protect_some(SOME, false)?;
    area.check(area.all(), seed)?;
    area.protect_some(SOME, true)?;
    area.fill(SOME, seed + 1);
    area.relocate()?;
    area.check(0..SOME.start, seed)?;
    area.check(SOME, seed + 1)?;
    area.advise(SOME, Advice::LinuxDontNeed)?;
    area.check_zero(SOME)?;
    area.check(SOME.end..PAGES, seed)?;

    let file = memory_file(PAGES)?;
    let mut shared = Mapping::shared(&file, 0, PAGES)?;
    shared.fill(shared.all(), seed + 2);
    let mut copy = Mapping::copy_of(&file, PAGES)?;
    copy.check(copy.all(), seed + 2)?;
    copy.fill(SOME, seed + 3);
    shared.check(shared.all(), seed + 2)?;
    copy.check(SOME, seed + 3)?;
    // Without its copy it has what the file has meanwhile.
    shared.fill(SOME, seed + 4);
    copy.check(SOME, seed + 3)?;
    copy.advise(SOME, Advice::LinuxDontNeed)?;
    copy.check(SOME, seed + 4)?;
    Ok(copy.check(0..SOME.start, seed + 2)?)
}

/// Processes have memory in common until they store to it.
pub(crate) fn forks(rounds: u64) -> Found {
    let mut area = Mapping::anonymous(PAGES)?;
    for round in 0..rounds {
        let seed = round << 32;
        area.fill(area.all(), seed);
        let children =
            (1..=CHILDREN).map(|child| fork(&mut area, seed, child)).collect::<Result<Vec<_>, _>>()?;
        area.fill(SOME, seed + 100);
        for child in children {
            let ended = waitpid(Some(child), WaitOptions::empty())?;
            let status = ended.and_then(|(_, status)| status.exit_status());
            if status != Some(0) {
                return Err(format!("a child's memory is damaged: its status is {status:?}").into());
            }
        }
        area.check(0..SOME.start, seed)?;
        area.check(SOME, seed + 100)?;
        area.check(SOME.end..PAGES, seed)?;
    }
    Ok(json!({"children": rounds * CHILDREN}))
}

/// Starts a child, whose status is 0 if its memory is as it must be.
fn fork(area: &mut Mapping, seed: u64, child: u64) -> Result<Pid, Failure> {
    // SAFETY: what the child calls is safe in one of several threads: only damage allocates.
    match unsafe { libc::fork() } {
        0 => {
            let is_intact = area.check(0..PAGES, seed).is_ok() && {
                area.fill(0..PAGES, seed + child);
                area.check(0..PAGES, seed + child).is_ok()
            };
            // SAFETY: the child ends at once, without the parent's destructors.
            unsafe { libc::_exit(i32::from(!is_intact)) }
        }
        pid => Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(|| std::io::Error::last_os_error().into()),
    }
}
