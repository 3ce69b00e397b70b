//! Pages with the same contents become one (KSM), and differ again when one of them is stored to.

use crate::{Failure, Found, number, write};
use rustix::mm::Advice;
use serde_json::json;
use std::thread;
use std::time::Duration;
use workloads::mapping::Mapping;

const PAGES: usize = 64;
const AREAS: usize = 3;
/// The kernel merges a page that it has found unchanged once before. This often it looks at most.
const SCANS_MAX: u64 = 50;

const RUN: &str = "/sys/kernel/mm/ksm/run";
const SCANS: &str = "/sys/kernel/mm/ksm/full_scans";
const SHARED: &str = "/sys/kernel/mm/ksm/pages_shared";
const SHARING: &str = "/sys/kernel/mm/ksm/pages_sharing";

pub(crate) fn merges(rounds: u64) -> Found {
    write("/sys/kernel/mm/ksm/pages_to_scan", "1000")?;
    write("/sys/kernel/mm/ksm/sleep_millisecs", "1")?;
    let result = (0..rounds).map(round).sum::<Result<u64, Failure>>();
    // All pages are pages of their own again.
    write(RUN, "2")?;
    Ok(json!({"merged": result?}))
}

fn round(round: u64) -> Result<u64, Failure> {
    let seed = round << 32;
    let mut areas = (0..AREAS).map(|_| Mapping::anonymous(PAGES)).collect::<Result<Vec<_>, _>>()?;
    for area in &mut areas {
        area.fill(area.all(), seed);
        area.advise(area.all(), Advice::LinuxMergeable)?;
    }
    write(RUN, "1")?;
    let merged = until_merged()?;
    for area in &areas {
        area.check(area.all(), seed)?;
    }
    let (first, others) = areas.split_first_mut().ok_or("no area")?;
    first.fill(first.all(), seed + 1);
    for area in others {
        area.check(area.all(), seed)?;
    }
    first.check(first.all(), seed + 1)?;
    write(RUN, "2")?;
    let left = number(SHARED)? + number(SHARING)?;
    if left != 0 {
        return Err(format!("{left} pages are merged after all were to be apart").into());
    }
    for (index, area) in areas.iter().enumerate() {
        area.check(area.all(), if index == 0 { seed + 1 } else { seed })?;
    }
    Ok(merged)
}

/// Waits until of each page with the same contents only one is left.
fn until_merged() -> Result<u64, Failure> {
    let end = number(SCANS)? + SCANS_MAX;
    loop {
        let (scans, merged) = (number(SCANS)?, number(SHARING)?);
        if merged >= ((AREAS - 1) * PAGES) as u64 {
            return Ok(merged);
        }
        if scans > end {
            return Err(format!("{merged} pages are merged after {SCANS_MAX} scans").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
}
