//! A disk's partitions. Source: UEFI Specification 2.10, chapter 5 (GPT, and MBR in 5.2).

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use bytemuck::pod_read_unaligned;
use gpt_disk_types::{GptHeader, GptPartitionEntry, MasterBootRecord};

use crate::disk::{Failed, Part, Shared};

/// The most entries of a table that are read, and bytes of one.
const ENTRIES_MAX: u32 = 256;
const ENTRY_MAX: u32 = 4096;
/// Types of MBR's partitions that are none: extended ones, and that of a GPT.
const NO_FILESYSTEM: [u8; 4] = [0x00, 0x05, 0x0f, 0xee];

/// A partition, or all of a disk without any.
pub struct Partition {
    /// As Linux and GRUB count, from 1; 0 for the whole disk.
    pub number: u32,
    /// Its name for Linux's `root=`, if it has one that is the same on every machine.
    pub name: Option<String>,
    /// Where it is.
    pub part: Part,
}

/// The partitions of a disk; the whole disk if it has no table.
///
/// # Errors
///
/// The disk cannot be read.
pub fn partitions(disk: &Shared) -> Result<Vec<Partition>, Failed> {
    let (whole, block) = (Part::whole(disk), u64::from(disk.borrow().block()));
    let mut sector = [0; size_of::<MasterBootRecord>()];
    whole.read_at(0, &mut sector)?;
    let mbr: MasterBootRecord = pod_read_unaligned(&sector);
    let mut header = [0; size_of::<GptHeader>()];
    whole.read_at(block, &mut header)?;
    let header: GptHeader = pod_read_unaligned(&header);
    let found = if header.is_signature_valid() && header.calculate_header_crc32() == header.header_crc32 {
        of_gpt(&whole, &header, block)?
    } else if mbr.signature == [0x55, 0xaa] {
        of_mbr(&whole, &mbr, block)
    } else {
        Vec::new()
    };
    // A boot sector looks like an MBR, and a filesystem may have one.
    Ok(if found.is_empty() { vec![Partition { number: 0, name: None, part: whole }] } else { found })
}

/// From the first block up to before the last one; nothing if it is not on the disk.
fn part(whole: &Part, first: u64, end: u64, block: u64) -> Option<Part> {
    let range = first.checked_mul(block)?..end.checked_mul(block)?;
    let is_there = range.start < range.end && range.end <= whole.range.end;
    is_there.then(|| Part { range, ..whole.clone() })
}

fn of_gpt(whole: &Part, header: &GptHeader, block: u64) -> Result<Vec<Partition>, Failed> {
    let size = header.size_of_partition_entry.to_u32().min(ENTRY_MAX);
    let count = header.number_of_partition_entries.to_u32().min(ENTRIES_MAX);
    let first = header.partition_entry_lba.to_u64().checked_mul(block).ok_or(Failed)?;
    let mut entry = [0; size_of::<GptPartitionEntry>()];
    let mut found = Vec::new();
    for index in 0..count {
        whole.read_at(first.saturating_add(u64::from(index * size)), &mut entry)?;
        let entry: GptPartitionEntry = pod_read_unaligned(&entry);
        let last = entry.ending_lba.to_u64();
        let part = part(whole, entry.starting_lba.to_u64(), last.saturating_add(1), block);
        if let Some(part) = part.filter(|_| entry.is_used()) {
            let name = Some(format!("PARTUUID={}", { entry.unique_partition_guid }));
            found.push(Partition { number: index + 1, name, part });
        }
    }
    Ok(found)
}

fn of_mbr(whole: &Part, mbr: &MasterBootRecord, block: u64) -> Vec<Partition> {
    let disk = u32::from_le_bytes(mbr.unique_mbr_disk_signature);
    let one = |(number, record): (u32, &gpt_disk_types::MbrPartitionRecord)| {
        let first = u64::from(record.starting_lba.to_u32());
        let part = part(whole, first, first + u64::from(record.size_in_lba.to_u32()), block)?;
        let name = Some(format!("PARTUUID={disk:08x}-{number:02x}"));
        (!NO_FILESYSTEM.contains(&record.os_indicator)).then_some(Partition { number, name, part })
    };
    (1..).zip(&mbr.partitions).filter_map(one).collect()
}
