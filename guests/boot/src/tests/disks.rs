//! Partition tables, filesystems, and places in memory.

use alloc::rc::Rc;
use alloc::vec;
use core::cell::RefCell;
use std::process::Command;

use bytemuck::bytes_of;
use gpt_disk_types::{GptHeader, GptPartitionEntry, GptPartitionType, LbaLe, U32Le, guid};

use super::*;
use crate::disk::{Disk, Failed, Part, Shared};
use crate::find::find;
use crate::place::{Needs, places};
use crate::table::partitions;
use crate::volume::Volumes;

pub(super) const BLOCK: u32 = 512;

struct Memory(Vec<u8>);

impl Disk for Memory {
    fn block(&self) -> u32 {
        BLOCK
    }

    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), Failed> {
        let from = usize::try_from(from).map_err(|_| Failed)?;
        into.copy_from_slice(self.0.get(from..).and_then(|rest| rest.get(..into.len())).ok_or(Failed)?);
        Ok(())
    }
}

pub(super) fn shared(bytes: Vec<u8>) -> Shared {
    Rc::new(RefCell::new(Memory(bytes)))
}

/// A disk with a GPT: its first partition has these bytes, and begins at 64 KiB.
pub(super) fn with_gpt(contents: &[u8]) -> Vec<u8> {
    const START: usize = 64 << 10;
    let blocks = contents.len().div_ceil(BLOCK as usize) as u64;
    let first = (START / BLOCK as usize) as u64;
    let entry = GptPartitionEntry {
        partition_type_guid: GptPartitionType::BASIC_DATA,
        unique_partition_guid: guid!("01234567-89ab-cdef-0123-456789abcdef"),
        starting_lba: LbaLe::from_u64(first),
        ending_lba: LbaLe::from_u64(first + blocks - 1),
        ..GptPartitionEntry::default()
    };
    let mut header = GptHeader {
        partition_entry_lba: LbaLe::from_u64(2),
        number_of_partition_entries: U32Le::from_u32(128),
        ..GptHeader::default()
    };
    header.update_header_crc32();
    let mut disk = vec![0; START + blocks as usize * BLOCK as usize + (1 << 14)];
    let mut put = |at: usize, bytes: &[u8]| disk[at..at + bytes.len()].copy_from_slice(bytes);
    put(510, &[0x55, 0xaa]);
    put(BLOCK as usize, bytes_of(&header));
    // The second one ends behind the disk.
    let behind = GptPartitionEntry { ending_lba: LbaLe::from_u64(u64::MAX), ..entry };
    put(2 * BLOCK as usize, bytes_of(&entry));
    put(2 * BLOCK as usize + 128, bytes_of(&behind));
    put(START, contents);
    disk
}

/// An ext4 with inodes of so many bytes and these files; nothing where its tools are not installed.
pub(super) fn ext4(inode: &str, files: &[(&str, &str)]) -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().expect("makes");
    let (root, image) = (directory.path().join("root"), directory.path().join("image"));
    for (path, text) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("is in one")).expect("makes");
        std::fs::write(path, text).expect("writes");
    }
    let mut command = Command::new("/sbin/mkfs.ext4");
    command.args(["-q", "-F", "-U", "00000000-0000-0000-0000-000000000001", "-L", "system", "-d"]);
    command.arg(&root).args(["-O", "metadata_csum", "-I", inode]);
    let made = command.arg(&image).arg("4M").status();
    made.ok().filter(|status| status.success())?;
    std::fs::read(&image).ok()
}

#[test]
fn partitions_are_those_of_the_table_that_are_on_the_disk() {
    let disk = with_gpt(&[7; 5000]);
    let found = partitions(&shared(disk.clone())).expect("reads");
    let [one] = &found[..] else { panic!("{} partitions", found.len()) };
    assert_eq!((one.number, one.part.range.clone()), (1, 65536..65536 + 5120));
    assert_eq!(one.name.as_deref(), Some("PARTUUID=01234567-89ab-cdef-0123-456789abcdef"));
    // With a wrong checksum it is none; and that of MBR has no partitions.
    let mut wrong = disk.clone();
    wrong[BLOCK as usize + 16] ^= 1;
    assert_eq!(partitions(&shared(wrong)).expect("reads")[0].number, 0);
    let mut mbr = vec![0; 1 << 20];
    mbr[440..444].copy_from_slice(&0x1234_abcd_u32.to_le_bytes());
    mbr[446 + 16 + 4] = 0x83;
    mbr[446 + 16 + 8..][..8].copy_from_slice(&[8, 0, 0, 0, 16, 0, 0, 0]);
    mbr[446 + 32 + 4] = 0x05;
    mbr[446 + 32 + 8..][..8].copy_from_slice(&[8, 0, 0, 0, 16, 0, 0, 0]);
    mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
    let found = partitions(&shared(mbr)).expect("reads");
    let [one] = &found[..] else { panic!("{} partitions", found.len()) };
    assert_eq!((one.number, one.part.range.clone()), (2, 4096..4096 + 8192));
    assert_eq!(one.name.as_deref(), Some("PARTUUID=1234abcd-02"));
}

#[test]
fn a_part_is_not_read_beyond_its_end() {
    let part = Part { range: 512..1024, ..Part::whole(&shared(vec![1; 2048])) };
    assert_eq!(part.read_at(0, &mut [0; 512]), Ok(()));
    for (from, count) in [(1, 512), (512, 1), (u64::MAX, 1), (u64::MAX - 512, 512)] {
        assert_eq!(part.read_at(from, &mut vec![0; count]), Err(Failed));
    }
}

#[test]
fn a_kernel_on_a_partition_is_found_by_the_filesystems_identifier_and_label() {
    let script = "search --fs-uuid --set=root 00000000-0000-0000-0000-000000000001\n\
        menuentry a {\nsearch --label --set=x system\nlinux ($x)/vmlinuz root=LABEL=system\n}\n";
    // Debian 10 and 11 make small filesystems with inodes of 128 bytes.
    for inode in ["128", "256"] {
        let files = [("boot/grub/grub.cfg", script), ("vmlinuz", "kernel")];
        let Some(image) = ext4(inode, &files) else { return };
        let mut volumes = Volumes::default();
        volumes.add(0, &shared(vec![0; 1 << 16]));
        volumes.add(1, &shared(with_gpt(&image)));
        assert_eq!(volumes.seen.len(), 2);
        let choice = find(&volumes).expect("there is one");
        assert_eq!(
            (choice.kernel, choice.words.as_str()),
            ((0, "/vmlinuz".to_string()), "root=LABEL=system")
        );
        assert_eq!(volumes.names(0, "/boot/grub").len(), 3, "with itself and its parent");
        assert!(volumes.text(0, "/boot").is_none() && volumes.text(0, "nothing").is_none());
        assert_eq!(volumes.text(0, "/vmlinuz").as_deref(), Some("kernel"));
    }
}

#[test]
fn what_cannot_be_read_is_named_with_the_reason() {
    let files = [("boot/grub/grub.cfg", ""), ("boot/vmlinuz-1", "kernel")];
    let Some(image) = ext4("256", &files) else { return };
    let is_said = |image: &[u8], begins: &str, reason: &str| {
        let mut volumes = Volumes::default();
        volumes.add(0, &shared(with_gpt(image)));
        assert!(find(&volumes).is_err());
        let lines = volumes.unreadable.borrow().join("\n");
        let is_it = |line: &str| line.starts_with(begins) && line.contains(reason);
        assert!(lines.lines().any(is_it), "{lines}");
    };
    let with = |at: usize, byte: u8| {
        let mut image = image.clone();
        image[at] = byte;
        image
    };
    let name = image.windows(9).position(|text| text == b"vmlinuz-1").expect("is in its directory");
    is_said(&with(name, b'V'), "disk 1, partition 1: /boot cannot be read: ", "checksum");
    // A feature that is not known.
    is_said(&with(1024 + 0x60, 0xff), "disk 1, partition 1: its ext4 cannot be read: ", "feature");
    let long = " ".repeat((1 << 20) + 1);
    let image = ext4("256", &[("boot/grub/grub.cfg", &long)]).expect("as above");
    is_said(&image, "disk 1, partition 1: /boot/grub/grub.cfg cannot be read: ", "too long");
}

#[test]
fn kernel_and_ram_disk_are_in_memory_and_beside_each_other() {
    const MIB: u64 = 1 << 20;
    let needs = Needs {
        preferred: 16 * MIB,
        alignment: Some(2 * MIB),
        before: 5000,
        size: 40 * MIB,
        initrd_last: 0x7fff_ffff,
    };
    let ram = |end: u64| [0..MIB, MIB..end].into_iter();
    assert_eq!(places(ram(256 * MIB), 33 * MIB, &needs, 5 * MIB), Some((34 * MIB, 251 * MIB)));
    assert_eq!(places(ram(3072 * MIB), 33 * MIB, &needs, MIB + 1), Some((34 * MIB, 2047 * MIB - 4096)));
    assert_eq!(places(ram(74 * MIB), 33 * MIB, &needs, 0), Some((34 * MIB, 74 * MIB)));
    assert_eq!(places(ram(74 * MIB), 33 * MIB, &needs, 1), None);
    let fixed = Needs { alignment: None, ..needs };
    assert_eq!(places(ram(256 * MIB), 33 * MIB, &fixed, 0), None);
    assert_eq!(places(ram(256 * MIB), 2 * MIB, &fixed, 0), Some((16 * MIB, 256 * MIB)));
    let high =
        Needs { preferred: u64::MAX, alignment: Some(u64::MAX), before: u64::MAX, size: u64::MAX, ..needs };
    assert_eq!(places(ram(256 * MIB), 2 * MIB, &high, u64::MAX), None);
}
