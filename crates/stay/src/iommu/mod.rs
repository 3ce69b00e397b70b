//! Devices with DMA: what an IOMMU keeps of a machine's translations, and how it drops it.
//!
//! The devices of a machine translate by its nested tables. They are one *domain* of the IOMMU, and
//! its number is the tag of what the IOMMU keeps. A device with ATS keeps translations itself.
//!
//! ```text
//! changing processor                            IOMMU and devices
//! A  entries changed                            P  walk the tables, keep what was found
//! B  begin: pages of the domain, a sync         Q  the IOMMU drops them; accesses by them complete
//! C  begin: pages of devices with ATS, a sync   R  the devices drop them
//! D  finish: the last sync is complete          S  report the sync
//! E  free what was unmapped
//! ```
//!
//! * A before B: a walk after Q finds the change. `iommu::Port::set_tail` orders them.
//! * Q before R: until Q the IOMMU may answer a device with what is stale. The sync between B and C
//!   holds the commands behind it back, so no processor waits for it.
//! * S before D before E: `coherence::DeviceTlbs`, which a hypervisor implements by [`begin`] and
//!   [`finish`].
//!
//! A machine's devices are taken away in this order: their entries of the device table block DMA;
//! [`detach`]; then the tables may be returned, and the domain may be given to another machine.
//!
//! AMD-Vi. Source: AMD I/O Virtualization Technology (IOMMU) Specification, 48882, 2.4.

use ::iommu::amd::command::invalidate_device;
use ::iommu::amd::{Depth, device_pages, pages};
use ::iommu::{Command, Entry, Port, Queue, Stuck, Ticket};
use ::iommu::{DeviceId, DomainId};
use paging::{FlushRange, Invalidation, Level};

use crate::{Mistake, Mistakes};

/// The most commands by which the IOMMU drops what one change made stale. Ranges that need more
/// have a share of them each: larger blocks, which drop more.
pub const COMMANDS_MAX: usize = 16;

/// All addresses, and all levels.
const EVERYTHING: &[FlushRange] =
    &[FlushRange { start: 0, len: u64::MAX, level: Level::Page4K, tables: true }];

/// A device behind the IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub id: DeviceId,
    /// It uses ATS, with this queue depth in its ATS capability.
    pub ats: Option<u8>,
}

/// The devices of one machine. Their entries of the device table name the machine's nested tables,
/// and this domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain<'a> {
    /// Its number. No other machine has it before [`detach`] has returned.
    pub id: DomainId,
    /// The devices that are attached, or that were since the last [`detach`].
    pub devices: &'a [Device],
}

/// Commands that the IOMMU was given, and that are waited for by [`finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing may be freed before it is finished"]
pub struct Begun(Option<Ticket>);

impl Begun {
    /// Nothing was to be dropped.
    pub const NOTHING: Self = Self(None);

    /// For an IOMMU with other commands, which were put in by [`Queue::issue`].
    pub const fn with(ticket: Ticket) -> Self {
        Self(Some(ticket))
    }
}

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

/// Waits until what was begun is complete: nothing stale is used any more, and accesses by it are
/// visible.
///
/// # Errors
/// [`Stuck`] if the IOMMU does not go on. Nothing may be freed then.
pub fn finish<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    Begun(ticket): Begun,
) -> Result<(), Stuck> {
    match ticket {
        Some(ticket) if !queue.port().makes(Mistake::IommuNotWaited) => queue.wait(ticket),
        _ => Ok(()),
    }
}

/// The devices' entries of the device table were changed: from now on the IOMMU goes by them.
///
/// # Errors
/// [`Stuck`] if the IOMMU does not go on. It may still go by the former entries then.
pub fn attach<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    devices: &[Device],
) -> Result<(), Stuck> {
    queue.wait(queue.issue(entries_of(devices))?)
}

/// The entries of all devices of a domain block DMA now: nothing of the domain is used any more,
/// and nothing is kept.
///
/// # Errors
/// [`Stuck`] if the IOMMU does not go on. Neither tables nor domain may be given away then.
pub fn detach<P: Port + Mistakes, E: AsRef<[Entry]>>(
    queue: &Queue<P, E>,
    domain: &Domain<'_>,
) -> Result<(), Stuck> {
    let mistakes = queue.port();
    let everything = || begin(queue, domain, Invalidation::Everything);
    if mistakes.makes(Mistake::DomainDroppedEarly) {
        finish(queue, everything()?)?;
        return attach(queue, domain.devices);
    }
    // Waited for first: as long as the IOMMU goes by a former entry, it keeps more translations.
    if !mistakes.makes(Mistake::DeviceEntryKept) {
        attach(queue, domain.devices)?;
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

fn entries_of(devices: &[Device]) -> impl Iterator<Item = Command> {
    devices.iter().map(|device| invalidate_device(device.id))
}

const fn addresses(range: &FlushRange) -> core::ops::Range<u64> {
    range.start..range.start.saturating_add(range.len)
}

#[cfg(test)]
mod tests;
