//! The steps for AMD-Vi and VT-d: devices translate by the machine's nested tables.
//!
//! Source: AMD I/O Virtualization Technology (IOMMU) Specification, 48882, 2.4; Intel
//! Virtualization Technology for Directed I/O, D51397, 6.5.

use ::iommu::{Command, Depth, DomainId, Entry, Invalidations, Port, Queue, Stuck};
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
    commands: &impl Invalidations,
    domain: &Domain<'_>,
    invalidation: Invalidation<'_>,
) -> Result<Begun, Stuck> {
    let ranges = match invalidation {
        Invalidation::Nothing => return Ok(Begun(None)),
        Invalidation::Ranges(ranges) if ranges.len() <= COMMANDS_MAX => ranges,
        Invalidation::Ranges(_) | Invalidation::Everything => EVERYTHING,
    };
    let mistakes = queue.port();
    let of_domain = of_domain(mistakes, commands, domain.id, ranges);
    let has_ats = domain.devices.iter().any(|device| device.ats.is_some());
    if !has_ats || mistakes.makes(Mistake::DeviceTlbForgotten) {
        return Ok(Begun(Some(queue.issue(of_domain)?)));
    }
    let of_devices = of_devices(commands, domain.devices, ranges);
    if mistakes.makes(Mistake::DeviceTlbEarly) {
        return Ok(Begun(Some(queue.issue(of_domain.chain(of_devices))?)));
    }
    let _the_next_one_is_behind_it = queue.issue(of_domain)?;
    Ok(Begun(Some(queue.issue(of_devices)?)))
}

/// Changes the devices' entries of the device table by `set`: then the IOMMU goes by them. The
/// former ones blocked, or had this domain.
///
/// # Errors
/// [`Stuck`] if the IOMMU does not go on. It may still go by the former entries then.
pub fn attach<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    commands: &impl Invalidations,
    domain: &Domain<'_>,
    set: impl FnMut(&Device),
) -> Result<(), Stuck> {
    domain.devices.iter().for_each(set);
    let is_wrong = queue.port().makes(Mistake::EntryOfOtherDomain);
    let former = if is_wrong { DomainId(domain.id.0 + 1) } else { domain.id };
    queue.wait(queue.issue(domain.devices.iter().map(|device| commands.device(device.id, former)))?)
}

/// Blocks DMA of all devices of a domain, by their entries, which `block` changes: then nothing of
/// the domain is used any more, and nothing is kept.
///
/// # Errors
/// [`Stuck`] if the IOMMU does not go on. Neither tables nor domain may be given away then.
pub fn detach<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    commands: &impl Invalidations,
    domain: &Domain<'_>,
    block: impl FnMut(&Device),
) -> Result<(), Stuck> {
    let mistakes = queue.port();
    let everything = || begin(queue, commands, domain, Invalidation::Everything);
    if mistakes.makes(Mistake::DomainDroppedEarly) {
        finish(queue, everything()?)?;
        return attach(queue, commands, domain, block);
    }
    // Waited for first: as long as the IOMMU goes by a former entry, it keeps more translations.
    if mistakes.makes(Mistake::DeviceEntryKept) {
        domain.devices.iter().for_each(block);
    } else {
        attach(queue, commands, domain, block)?;
    }
    if mistakes.makes(Mistake::DomainKept) { Ok(()) } else { finish(queue, everything()?) }
}

/// What the IOMMU has to drop.
fn of_domain<C: Invalidations>(
    mistakes: &impl Mistakes,
    commands: &C,
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
            return commands.pages(
                domain,
                depth,
                addresses.start..addresses.end - Level::Page4K.size(),
                share,
            );
        }
        if mistakes.makes(Mistake::BlockMisaligned) {
            let size = range.len.checked_next_power_of_two().unwrap_or(1 << 63);
            let start = addresses.start & !(size - 1);
            return commands.pages(domain, depth, start..start + size, 1);
        }
        commands.pages(domain, depth, addresses, share)
    })
}

/// What the devices have to drop: a command of each device for each range, since devices answer
/// each.
fn of_devices(
    commands: &impl Invalidations,
    devices: &[Device],
    ranges: &[FlushRange],
) -> impl Iterator<Item = Command> {
    devices.iter().filter_map(|device| Some((device.id, device.ats?))).flat_map(move |(id, queue_depth)| {
        ranges.iter().filter_map(move |range| commands.device_pages(id, queue_depth, addresses(range)))
    })
}

const fn addresses(range: &FlushRange) -> core::ops::Range<u64> {
    range.start..range.start.saturating_add(range.len)
}

#[cfg(test)]
mod tests;
