//! The steps for AMD-Vi: devices translate by the machine's nested tables.
//!
//! Source: AMD I/O Virtualization Technology (IOMMU) Specification, 48882, 2.4.

use ::iommu::amd::command::invalidate_device;
use ::iommu::amd::{Depth, device_pages, pages};
use ::iommu::{Command, DomainId, Entry, Port, Queue, Stuck};
use paging::{FlushRange, Invalidation, Level};

use super::{Begun, Device, Domain, finish};
use crate::{Mistake, Mistakes};

/// The most commands by which the IOMMU drops what one change made stale. Ranges that need more
/// have a share of them each: larger blocks, which drop more.
pub const COMMANDS_MAX: usize = 16;

/// All addresses, and all levels.
const EVERYTHING: &[FlushRange] =
    &[FlushRange { start: 0, len: u64::MAX, level: Level::Page4K, tables: true }];

/// Gives the IOMMU the commands to drop what `invalidation` names, and to have the devices drop it.
/// The tables have been changed before.
///
/// # Errors
/// [`Stuck`] if the IOMMU takes no more commands. Nothing may be freed then.
pub fn begin<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    domain: &Domain<'_>,
    invalidation: Invalidation<'_>,
) -> Result<Begun, Stuck> {
    let ranges = match invalidation {
        Invalidation::Nothing => return Ok(Begun(None)),
        Invalidation::Ranges(ranges) if ranges.len() <= COMMANDS_MAX => ranges,
        Invalidation::Ranges(_) | Invalidation::Everything => EVERYTHING,
    };
    let mistakes = queue.port();
    let of_domain = of_domain(mistakes, domain.id, ranges);
    let has_ats = domain.devices.iter().any(|device| device.ats.is_some());
    if !has_ats || mistakes.makes(Mistake::DeviceTlbForgotten) {
        return Ok(Begun(Some(queue.issue(of_domain)?)));
    }
    let of_devices = of_devices(domain.devices, ranges);
    if mistakes.makes(Mistake::DeviceTlbEarly) {
        return Ok(Begun(Some(queue.issue(of_domain.chain(of_devices))?)));
    }
    let _the_next_one_is_behind_it = queue.issue(of_domain)?;
    Ok(Begun(Some(queue.issue(of_devices)?)))
}

/// Changes the devices' entries of the device table by `set`: then the IOMMU goes by them.
///
/// # Errors
/// [`Stuck`] if the IOMMU does not go on. It may still go by the former entries then.
pub fn attach<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    devices: &[Device],
    set: impl FnMut(&Device),
) -> Result<(), Stuck> {
    devices.iter().for_each(set);
    queue.wait(queue.issue(devices.iter().map(|device| invalidate_device(device.id)))?)
}

/// Blocks DMA of all devices of a domain, by their entries, which `block` changes: then nothing of
/// the domain is used any more, and nothing is kept.
///
/// # Errors
/// [`Stuck`] if the IOMMU does not go on. Neither tables nor domain may be given away then.
pub fn detach<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    domain: &Domain<'_>,
    block: impl FnMut(&Device),
) -> Result<(), Stuck> {
    let mistakes = queue.port();
    let everything = || begin(queue, domain, Invalidation::Everything);
    if mistakes.makes(Mistake::DomainDroppedEarly) {
        finish(queue, everything()?)?;
        return attach(queue, domain.devices, block);
    }
    // Waited for first: as long as the IOMMU goes by a former entry, it keeps more translations.
    if mistakes.makes(Mistake::DeviceEntryKept) {
        domain.devices.iter().for_each(block);
    } else {
        attach(queue, domain.devices, block)?;
    }
    if mistakes.makes(Mistake::DomainKept) { Ok(()) } else { finish(queue, everything()?) }
}

/// What the IOMMU has to drop.
fn of_domain(
    mistakes: &impl Mistakes,
    domain: DomainId,
    ranges: &[FlushRange],
) -> impl Iterator<Item = Command> {
    let share = COMMANDS_MAX / ranges.len().max(1);
    let domain = if mistakes.makes(Mistake::WrongDomain) { DomainId(domain.0 + 1) } else { domain };
    ranges.iter().flat_map(move |range| {
        let has_tables = range.tables && !mistakes.makes(Mistake::DmaTablesKept);
        let depth = if has_tables { Depth::Tables } else { Depth::Leaves };
        let addresses = addresses(range);
        if mistakes.makes(Mistake::DmaPageLeftOut) {
            return pages(domain, depth, addresses.start..addresses.end - Level::Page4K.size(), share);
        }
        if mistakes.makes(Mistake::BlockMisaligned) {
            let size = range.len.checked_next_power_of_two().unwrap_or(1 << 63);
            let start = addresses.start & !(size - 1);
            return pages(domain, depth, start..start + size, 1);
        }
        pages(domain, depth, addresses, share)
    })
}

/// What the devices have to drop: a command of each device for each range, since devices answer
/// each.
fn of_devices(devices: &[Device], ranges: &[FlushRange]) -> impl Iterator<Item = Command> {
    devices.iter().filter_map(|device| Some((device.id, device.ats?))).flat_map(move |(id, queue_depth)| {
        ranges.iter().filter_map(move |range| device_pages(id, queue_depth, addresses(range)))
    })
}

const fn addresses(range: &FlushRange) -> core::ops::Range<u64> {
    range.start..range.start.saturating_add(range.len)
}

#[cfg(test)]
mod tests;
