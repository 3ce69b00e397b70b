//! The kernel that a guest's disk has, and not one from outside.

use crate::debian::layout;
use crate::guest::cache;
use crate::machine::devices::Devices;
use crate::run::reporting_console;
use crate::test::guests::expect::with_console;
use crate::test::prelude::*;
use crate::vm::disk_loader;

pub(super) const ACTS: &[Named] = &[
    ("a_new_kernel_runs_after_a_reboot", upgrade),
    ("a_disk_without_a_kernel_is_told", nothing),
    ("bochs_a_disks_kernel_runs_behind_vtd_on_vmx_on_kvm", on_kvm),
];

const MEMORY: u64 = 512 * MIB;
const DISK: u64 = 256 * MIB;
const TIMEOUT: Duration = Duration::from_secs(120);
/// The same in memory of a machine that emulates each instruction, three levels deep.
const DEEP_DISK: u64 = 64 * MIB;
const DEEP_TIMEOUT: Duration = Duration::from_secs(900);
/// What GRUB's configuration has, and what the guest makes of it.
const DEFAULT: &str = "set timeout=0\nset default=0\n";
const ENTRIES: [&str; 2] = ["old", "new"];

/// A guest that starts what is on a disk.
fn guest(room: &Room<'_>, disk: PathBuf) -> Result<Guest> {
    let arch = room.platform.arch();
    let (kernel, is_firmware) = disk_loader(arch)?;
    Ok(Guest {
        vcpus: 2,
        memory: MEMORY,
        is_firmware,
        reset: ResetPolicy::Reboot,
        devices: Devices { disks: vec![disk], ..Devices::default() },
        switches: room.switches,
        ..Guest::new(room.platform, kernel, None, arch.console().to_owned())
    })
}

fn run(room: &Room<'_>, disk: PathBuf) -> Result<Outcome> {
    let spec = room.on_quell(&guest(room, disk)?, 2, TIMEOUT)?;
    Machine::start(&spec, room.signals)?.run(|_, _| Ok(Flow::Continue))
}

/// A disk of this size whose system has these files.
fn disk(room: &Room<'_>, size: u64, files: &[(&str, &[u8])]) -> Result<PathBuf> {
    let (tree, disk) = (room.directory.join("tree"), room.directory.join("disk.img"));
    for (path, contents) in files {
        let path = tree.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, contents)?;
    }
    let mkfs = Command::new("/sbin/mkfs.ext4");
    layout::make((&disk, size), room.platform.arch(), (&tree, mkfs), room.directory)?;
    Ok(disk)
}

fn upgrade(room: &Room<'_>) -> Result<()> {
    let arch = room.platform.arch();
    // The first boot leaves the name of its kernel, the second one finds another.
    let command = "mkdir -p /mnt && mount -t ext4 /dev/nvme0n1p1 /mnt || exit 3; cd /mnt; \
        echo \"this is $(uname -r)\"; \
        [ -e first ] && { [ \"$(cat first)\" != $(uname -r) ]; exit; }; \
        uname -r > first; sed -i s/default=0/default=new/ boot/grub/grub.cfg; cd /; umount /mnt && reboot -f";
    let stock = room.lab.stock_guest(room.platform, Some(command))?;
    let [old, new] = [stock.kernel, cache::newer_kernel(arch)?.kernel].map(fs::read);
    let console = reporting_console(arch);
    let entry = |name: &str| {
        format!(
            "menuentry '{name} one' --id {name} {{\n\
             search --set=root --file /boot/vmlinuz-{name}\n\
             linux /boot/vmlinuz-{name} {console} panic=-1\ninitrd /boot/initrd.img\n}}\n"
        )
    };
    let configuration = [DEFAULT.to_owned(), ENTRIES.map(entry).concat()].concat();
    let disk = disk(
        room,
        DISK,
        &[
            ("boot/grub/grub.cfg", configuration.as_bytes()),
            ("boot/initrd.img", &stock.initrd.unwrap_or_default()),
            ("boot/vmlinuz-old", &old?),
            ("boot/vmlinuz-new", &new?),
        ],
    )?;
    let outcome = run(room, disk)?;
    with_console(&outcome, || {
        ensure!(crate::run::conclude(&outcome, false) == 0, "the second boot has failed");
        if arch == Arch::Aarch64 {
            let started = outcome.console.matches("Linux version").count();
            ensure!(started == 2, "{started} kernels have started");
            return Ok(());
        }
        let said: Vec<_> = outcome.console.lines().filter_map(|line| line.strip_prefix("boot: ")).collect();
        let of = |name: &str| said.iter().any(|line| line.starts_with(&format!("/boot/vmlinuz-{name}, by")));
        ensure!(said.len() == 2 && ENTRIES.iter().all(|name| of(name)), "the boot loader says {said:?}");
        Ok(())
    })
}

/// A system on its own disk where KVM emulates VMX for Quell, and QEMU a VT-d: three levels deep,
/// because no emulator has both.
fn on_kvm(room: &Room<'_>) -> Result<()> {
    let command = "mkdir -p /mnt && mount -t ext4 /dev/nvme0n1p1 /mnt || exit 3; cd /mnt/boot; \
        cp initrd.img copy && sync || exit 4; echo 3 >/proc/sys/vm/drop_caches; \
        cmp initrd.img copy || exit 5; \
        [ $(grep nvme /proc/interrupts | wc -l) -ge 2 ] && echo the copy is the same";
    let stock = room.lab.stock_guest(room.platform, Some(command))?;
    let console = reporting_console(room.platform.arch());
    let entry =
        format!("menuentry one {{\nlinux /boot/vmlinuz {console} panic=-1\ninitrd /boot/initrd.img\n}}\n");
    let files: &[(&str, &[u8])] = &[
        ("boot/grub/grub.cfg", entry.as_bytes()),
        ("boot/initrd.img", &stock.initrd.unwrap_or_default()),
        ("boot/vmlinuz", &fs::read(stock.kernel)?),
    ];
    let guest = Guest { memory: MEMORY / 2, ..guest(room, disk(room, DEEP_DISK, files)?)? };
    let outcome = room.lab.on_kvm(&guest, 2, DEEP_TIMEOUT)?;
    with_console(&outcome, || {
        let said = ["boot: /boot/vmlinuz, by", "the copy is the same"];
        ensure!(said.iter().all(|said| outcome.console.contains(said)), "it has not come to its end");
        Ok(())
    })
}

fn nothing(room: &Room<'_>) -> Result<()> {
    let outcome = run(room, disk(room, DISK, &[("etc/fstab", b"")])?)?;
    with_console(&outcome, || {
        ensure!(crate::run::conclude(&outcome, false) == 66, "it has not failed");
        for said in ["disk 1, partition 1: ext4 ", "no /boot/grub/grub.cfg", "/boot/vmlinuz-*"] {
            ensure!(outcome.console.contains(said), "the console has no '{said}'");
        }
        Ok(())
    })
}
