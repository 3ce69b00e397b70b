//! Linux with KVM inside the emulated machine, and in it a small monitor of our own, kvmslots, in
//! place of QEMU: it measures what KVM pays to remove memory and to log stores.

use super::cache::GuestFiles;
use super::cpio::Archive;
use super::peer;
use crate::prelude::*;

/// Memory for the kernel itself and its tables, beyond what the monitor gives its guest.
const KERNEL_MEMORY: u64 = 384 * MIB;

/// The part of the initial RAM disk that loads KVM and runs the monitor, whose status it has.
pub(crate) fn archive(
    files: &GuestFiles,
    platform: Platform,
    program: &Path,
    arguments: &str,
) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let load = peer::add_kvm(&mut archive, files, platform, false)?;
    archive.add("bin/kvmslots", program)?;
    archive.file("command", 0o644, format!("{load} && {}", line(arguments)).as_bytes());
    Ok(archive.finish())
}

/// The initial RAM disk exists twice while the kernel unpacks it.
pub(crate) fn memory(guest_bytes: u64, initrd_bytes: u64) -> u64 {
    guest_bytes + KERNEL_MEMORY + 2 * initrd_bytes.next_multiple_of(MIB)
}

pub(crate) fn line(arguments: &str) -> String {
    format!("kvmslots {arguments} --report /dev/report")
}

#[cfg(test)]
mod tests {
    use super::peer::STARTS;
    use super::*;
    use crate::guest::cache::{KVM_MODULES, KVM_ON_INTEL, Versions};
    use crate::machine::bochs::Bochs;

    fn files(modules: &Path) -> GuestFiles {
        let versions = Versions { kernel: "linux-image-0".into(), busybox: "busybox".into() };
        GuestFiles { kernel: "/k".into(), busybox: "/b".into(), modules: modules.to_owned(), versions }
    }

    #[test]
    fn the_archive_has_the_vendors_modules_and_loads_them_before_the_monitor_starts() {
        let directory = tempfile::tempdir().expect("makes");
        let program = directory.path().join("program");
        fs::write(&program, "the monitor").expect("writes");
        let files = files(directory.path());
        let made = |platform| archive(&files, platform, &program, "--mib 1");
        let error = made(Platform::X86_64).expect_err("is refused").to_string();
        assert_eq!(error, "the kernel's package (linux-image-0) has no irqbypass.ko");
        for module in KVM_MODULES.into_iter().chain([KVM_ON_INTEL]) {
            fs::write(directory.path().join(module), module).expect("writes");
        }
        let [amd, ryzen] = [Platform::X86_64, Platform::Bochs(Bochs::RYZEN)].map(|on| made(on).expect("is"));
        assert_eq!(amd, ryzen);
        let intel = made(Platform::Bochs(Bochs::SKYLAKE)).expect("is made");
        for (bytes, vendors) in [(amd, "kvm-amd.ko"), (intel, "kvm-intel.ko enable_apicv=0")] {
            let at = |text: &str| bytes.windows(text.len()).position(|window| window == text.as_bytes());
            assert!(at("bin/kvmslots\0").is_some() && at("the monitor").is_some());
            let steps =
                ["irqbypass.ko", "kvm.ko", vendors].map(|module| at(&format!("insmod /modules/{module}")));
            let rest = [STARTS, "kvmslots --mib 1 --report /dev/report"].map(at);
            let order = [&steps[..], &rest].concat();
            assert!(order.is_sorted() && order[0].is_some(), "{order:?}");
        }
    }

    #[test]
    fn the_machine_has_room_for_the_guest_and_the_kernel() {
        assert!(memory(1024 * MIB, 7 * MIB + 1) >= (1024 + 256 + 2 * 8) * MIB);
    }
}
