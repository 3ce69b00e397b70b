//! What starts a disk's kernel outside of Quell's own loader: U-Boot, which is the firmware of
//! guests on Arm64, and GRUB as firmware starts it.

use super::{Apt, New, Unpacked, kept};
use crate::prelude::*;

/// A flat image for QEMU's `virt` board, of which guests have a part. It runs at any page, and
/// boots `EFI/BOOT/BOOTAA64.EFI` from a disk.
pub(crate) fn u_boot() -> Result<PathBuf> {
    part_of(Arch::Aarch64, "u-boot-qemu", "usr/lib/u-boot/qemu_arm64/u-boot.bin")
}

/// GRUB with all of its modules. It reads `EFI/debian/grub.cfg` on the partition that it is from.
pub(crate) fn grub(arch: Arch) -> Result<PathBuf> {
    let (package, cpu) = arch.pick(("grub-efi-amd64-bin", "x86_64"), ("grub-efi-arm64-bin", "arm64"));
    let name = arch.pick("x64", "aa64");
    part_of(arch, package, &format!("usr/lib/grub/{cpu}-efi/monolithic/grub{name}.efi"))
}

/// A file of a package.
fn part_of(arch: Arch, package: &str, path: &str) -> Result<PathBuf> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let fetch = |new: &New| -> Result<()> {
        eprintln!("quell: fetching {package}");
        let architecture = arch.debian();
        let apt = Apt::foreign(architecture, &new.cache.join(format!("apt-{architecture}")))?;
        apt.run("apt-get", &["update"], new.work.path()).context("apt-get update failed")?;
        let Unpacked { root, .. } = apt.unpacked(package, new)?;
        fs::rename(root.join(path), new.kept.join(name)).with_context(|| format!("it has no {path}"))
    };
    let why = || format!("cannot fetch {package}; this needs apt and, once, network access");
    Ok(kept(package, &[name], false, |new| fetch(new).with_context(why))?.join(name))
}
