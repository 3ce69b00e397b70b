//! A disk that firmware boots, and Quell's own loader: a GPT with a partition for EFI, where GRUB
//! is, and the system's partition. The numbers are those of Debian's cloud images.

use super::tree::{LABEL, run};
use crate::guest::cache;
use crate::prelude::*;
use gpt_disk_types::{
    BlockSize, GptHeader, GptPartitionEntry, GptPartitionEntryArray, GptPartitionType, Guid, LbaLe,
    MasterBootRecord, U32Le, guid,
};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The partition of the system, as the kernel calls it.
const SYSTEM: u32 = 1;
const EFI: u32 = 15;
const BLOCK: u64 = 512;
/// Blocks of a table's entries, which are behind its header, or before it at the disk's end.
const TABLE: u64 = 32;
const ENTRIES: u32 = 128;
/// Where the partition for EFI is, in bytes; the system's is behind it.
const EFI_PLACE: Range<u64> = MIB..33 * MIB;
const LINUX: GptPartitionType = GptPartitionType(guid!("0fc63daf-8483-4772-8e79-3d69d8477de4"));

/// What GRUB does: what the system says, if it has a configuration; otherwise it starts the kernel
/// that the links in its root name, as Quell's loader does.
pub(super) const SCRIPT: &str = "\
search --no-floppy --label quell --set=root
set prefix=($root)/boot/grub
if [ -f /boot/grub/grub.cfg ]; then configfile /boot/grub/grub.cfg; fi
linux /vmlinuz root=PARTLABEL=quell rw
if [ -f /initrd.img ]; then initrd /initrd.img; fi
boot
";

/// The range of the system's partition on a disk of so many bytes.
const fn system(bytes: u64) -> Range<u64> {
    EFI_PLACE.end..bytes - MIB
}

/// Makes a disk of `bytes` whose system has the files of a tree. `mkfs` is the command that makes
/// filesystems, to which arguments are added.
pub(crate) fn make(
    (disk, bytes): (&Path, u64),
    arch: Arch,
    (tree, mut mkfs): (&Path, Command),
    work: &Path,
) -> Result<()> {
    let file = File::create(disk).with_context(|| format!("cannot write {}", disk.display()))?;
    file.set_len(bytes).with_context(|| format!("cannot make {} that large", disk.display()))?;
    write_tables(&file, bytes).with_context(|| format!("cannot write {}", disk.display()))?;
    let Range { start, end } = system(bytes);
    mkfs.args(["-q", "-F", "-L", LABEL, "-d"]).arg(tree);
    // Nothing is left for later: the kernel would write it while the disk is measured.
    let options = format!("offset={start},root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0");
    mkfs.args(["-E", &options]).arg(disk).arg(format!("{}k", (end - start) / 1024));
    run(mkfs, work, |_| ()).context("cannot make the filesystem")?;
    let script = work.join("grub.cfg");
    fs::write(&script, SCRIPT)?;
    fill_efi(
        disk,
        &[
            (&cache::grub(arch)?, arch.pick("BOOT/BOOTX64.EFI", "BOOT/BOOTAA64.EFI")),
            (&script, "debian/grub.cfg"),
        ],
        work,
    )
}

/// Makes the FAT, and copies files to its directory `EFI`.
fn fill_efi(disk: &Path, files: &[(&Path, &str)], work: &Path) -> Result<()> {
    let mut image = disk.as_os_str().to_owned();
    image.push(format!("@@{}", EFI_PLACE.start));
    let mtool = |program: &str, args: &[&OsStr]| {
        let mut command = Command::new(program);
        // It is a part of a file, whatever the geometry of that.
        command.env("MTOOLS_SKIP_CHECK", "1").arg("-i").arg(&image).args(args);
        run(command, work, |_| ()).context("cannot make the partition for EFI; this takes mtools")
    };
    let sectors = ((EFI_PLACE.end - EFI_PLACE.start) / BLOCK).to_string();
    mtool("mformat", &["-T", &sectors, "-h", "64", "-s", "32", "-v", "EFI", "::"].map(OsStr::new))?;
    mtool("mmd", &["::EFI", "::EFI/BOOT", "::EFI/debian"].map(OsStr::new))?;
    files
        .iter()
        .try_for_each(|(file, place)| mtool("mcopy", &[file.as_os_str(), format!("::EFI/{place}").as_ref()]))
}

fn write_tables(file: &File, bytes: u64) -> Result<()> {
    let last = bytes / BLOCK - 1;
    let entry = |kind, range: Range<u64>, name: &str| -> Result<_> {
        Ok(GptPartitionEntry {
            partition_type_guid: kind,
            unique_partition_guid: random_guid()?,
            starting_lba: LbaLe::from_u64(range.start / BLOCK),
            ending_lba: LbaLe::from_u64(range.end / BLOCK - 1),
            name: name.parse().map_err(|_| anyhow!("a name is too long"))?,
            ..GptPartitionEntry::default()
        })
    };
    let mut header = GptHeader {
        my_lba: LbaLe::from_u64(1),
        alternate_lba: LbaLe::from_u64(last),
        first_usable_lba: LbaLe::from_u64(2 + TABLE),
        last_usable_lba: LbaLe::from_u64(last - TABLE - 1),
        disk_guid: random_guid()?,
        partition_entry_lba: LbaLe::from_u64(2),
        number_of_partition_entries: U32Le::from_u32(ENTRIES),
        ..GptHeader::default()
    };
    let mut storage = vec![0; (TABLE * BLOCK) as usize];
    let layout = header.get_partition_entry_array_layout()?;
    let mut table = GptPartitionEntryArray::new(layout, BlockSize::BS_512, &mut storage)?;
    for (number, entry) in [
        (SYSTEM, entry(LINUX, system(bytes), LABEL)?),
        (EFI, entry(GptPartitionType::EFI_SYSTEM, EFI_PLACE, "EFI")?),
    ] {
        *table.get_partition_entry_mut(number - 1).context("the table has fewer entries")? = entry;
    }
    header.partition_entry_array_crc32 = table.calculate_crc32();
    let mbr = MasterBootRecord::protective_mbr(last + 1);
    file.write_all_at(bytemuck::bytes_of(&mbr), 0)?;
    let twin = GptHeader {
        my_lba: header.alternate_lba,
        alternate_lba: header.my_lba,
        partition_entry_lba: LbaLe::from_u64(last - TABLE),
        ..header
    };
    for mut header in [header, twin] {
        header.update_header_crc32();
        file.write_all_at(bytemuck::bytes_of(&header), header.my_lba.to_u64() * BLOCK)?;
        file.write_all_at(table.storage(), header.partition_entry_lba.to_u64() * BLOCK)?;
    }
    Ok(())
}

fn random_guid() -> Result<Guid> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(Guid::from_random_bytes(bytes))
}
