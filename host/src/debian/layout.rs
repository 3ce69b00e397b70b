//! A disk that firmware boots, and Quell's own loader: a GPT with a partition for EFI, where GRUB
//! is, and the system's partition.

use super::tree::{LABEL, run};
use crate::guest::cache;
use crate::prelude::*;
use gpt::mbr::ProtectiveMBR;
use gpt::{GptConfig, partition_types};
use std::fs::File;

/// The partition of the system, as the kernel calls it.
const SYSTEM: u32 = 1;
const EFI: u32 = 2;
const BLOCK: u64 = 512;
/// Where the partition for EFI is, in bytes; the system's is behind it.
const EFI_PLACE: Range<u64> = MIB..33 * MIB;
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
    write_tables(disk, bytes).with_context(|| format!("cannot write {}", disk.display()))?;
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

fn write_tables(disk: &Path, bytes: u64) -> Result<()> {
    let blocks = u32::try_from(bytes / BLOCK - 1).unwrap_or(u32::MAX);
    let mut table = GptConfig::new().writable(true).create(disk)?;
    ProtectiveMBR::with_lb_size(blocks).overwrite_lba0(table.device_mut())?;
    for (number, place, name, kind) in [
        (SYSTEM, system(bytes), LABEL, partition_types::LINUX_FS),
        (EFI, EFI_PLACE, "EFI", partition_types::EFI),
    ] {
        let (first, count) = (place.start / BLOCK, (place.end - place.start) / BLOCK);
        table.add_partition_at(name, number, first, count, kind, 0)?;
    }
    table.write()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_have_the_partitions() {
        let directory = tempfile::tempdir().expect("makes");
        let disk = directory.path().join("disk");
        File::create(&disk).and_then(|file| file.set_len(64 * MIB)).expect("makes");
        write_tables(&disk, 64 * MIB).expect("writes");
        // Refuses a disk on which one of the tables is wrong.
        let table = GptConfig::new().only_valid_headers(true).open(&disk).expect("is one");
        let place = |number| {
            let partition = &table.partitions()[&number];
            (partition.name.as_str(), partition.first_lba * BLOCK..(partition.last_lba + 1) * BLOCK)
        };
        assert_eq!((place(SYSTEM), place(EFI)), ((LABEL, system(64 * MIB)), ("EFI", EFI_PLACE)));
        assert_eq!(fs::read(&disk).expect("reads")[510..512], [0x55, 0xaa]);
    }
}
