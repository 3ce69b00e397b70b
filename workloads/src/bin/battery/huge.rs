//! Huge pages (THP) are made by a first access, split, and made again by khugepaged.

use crate::{Failure, Found, number, read, write};
use rustix::mm::Advice;
use rustix::param::page_size;
use serde_json::json;
use std::ops::Range;
use std::thread;
use std::time::Duration;
use workloads::mapping::Mapping;

/// Bytes at least, of one huge page or several.
const BYTES: usize = 8 << 20;
/// Khugepaged looks this often at most.
const SCANS_MAX: u64 = 100;

const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage";
const SCANS: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/full_scans";

pub(crate) fn splits_and_collapses(rounds: u64) -> Found {
    for (name, value) in [
        ("enabled", "madvise"),
        ("defrag", "madvise"),
        ("khugepaged/scan_sleep_millisecs", "1"),
        ("khugepaged/alloc_sleep_millisecs", "1"),
        ("khugepaged/pages_to_scan", "16384"),
    ] {
        write(&format!("{SETTINGS}/{name}"), value)?;
    }
    let huge = number(&format!("{SETTINGS}/hpage_pmd_size"))? as usize / page_size();
    let count = (BYTES / page_size()).div_ceil(huge);
    let mut made = 0;
    for round in 0..rounds {
        // One more, so that the rest is aligned.
        let mut area = Mapping::anonymous((count + 1) * huge)?;
        let page = area.address() / page_size();
        let first = page.next_multiple_of(huge) - page;
        made += one(&mut area, first..first + count * huge, huge, round << 32)?;
    }
    Ok(json!({"huge": made, "bytes": huge * page_size()}))
}

/// One round with these pages, which are aligned; how many huge pages were made.
fn one(area: &mut Mapping, pages: Range<usize>, huge: usize, seed: u64) -> Result<u64, Failure> {
    area.advise(pages.clone(), Advice::LinuxHugepage)?;
    area.fill(pages.clone(), seed);
    let all = (pages.len() / huge) as u64;
    let at = area.address() + pages.start * page_size()..area.address() + pages.end * page_size();
    let count = || huge_pages(&at, huge);
    if count()? != all {
        return Err(format!("{} of {all} huge pages at the first access", count()?).into());
    }
    area.check(pages.clone(), seed)?;
    let before = splits()?;
    // A small page of each loses its contents, and another one may not be written to meanwhile.
    for first in pages.clone().step_by(huge) {
        let (lost, kept) = (first + 3..first + 4, first + 7..first + 8);
        area.protect_some(kept.clone(), false)?;
        area.advise(lost.clone(), Advice::LinuxDontNeed)?;
        area.check(first..lost.start, seed)?;
        area.check_zero(lost.clone())?;
        area.check(lost.end..first + huge, seed)?;
        area.protect_some(kept, true)?;
        area.fill(lost, seed);
    }
    // What is split now may be one page again: khugepaged does not wait.
    let split = splits()? - before;
    if split < all {
        return Err(format!("{split} of {all} huge pages were split").into());
    }
    area.check(pages.clone(), seed)?;
    let end = number(SCANS)? + SCANS_MAX;
    while count()? != all {
        if number(SCANS)? > end {
            return Err(format!("{} of {all} huge pages after {SCANS_MAX} scans", count()?).into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    area.check(pages.clone(), seed)?;
    area.fill(pages.clone(), seed + 1);
    area.check(pages, seed + 1)?;
    Ok(2 * all)
}

/// Huge pages that the kernel has split.
fn splits() -> Result<u64, Failure> {
    let counts = read("/proc/vmstat")?;
    let count = counts.lines().find_map(|line| line.strip_prefix("thp_split_pmd ")?.parse().ok());
    Ok(count.ok_or("the kernel does not count what it splits")?)
}

fn huge_pages(at: &Range<usize>, huge: usize) -> Result<u64, Failure> {
    let kib = kib_between(&read("/proc/self/smaps")?, at);
    Ok(kib * 1024 / (huge * page_size()) as u64)
}

/// What `smaps` says of huge pages in mappings between two addresses.
fn kib_between(smaps: &str, at: &Range<usize>) -> u64 {
    let (mut is_inside, mut sum) = (false, 0);
    for line in smaps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let hex = |text| usize::from_str_radix(text, 16).ok();
        if let Some((first, end)) = range.and_then(|(first, end)| Some((hex(first)?, hex(end)?))) {
            is_inside = at.start < end && first < at.end;
        } else if let Some(value) = line.strip_prefix("AnonHugePages:").filter(|_| is_inside) {
            sum += value.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_of_other_mappings_do_not_count() {
        let smaps = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \nAnonHugePages:      4096 kB\n\
            7f0000400000-7f0000800000 rw-p 00000000 00:00 0 \nRss: 5 kB\nAnonHugePages:      2048 kB\n\
            7fff00000000-7fff00001000 r--p 00000000 00:00 0 [x]\nAnonHugePages:         0 kB\n";
        assert_eq!(kib_between(smaps, &(0x7f00_0050_0000..0x7f00_0060_0000)), 2048);
        assert_eq!(kib_between(smaps, &(0x7f00_0000_0000..0x7f00_0080_0000)), 6144);
        assert_eq!(kib_between(smaps, &(0..1)), 0);
    }
}
