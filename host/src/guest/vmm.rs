//! Linux with KVM inside the emulated machine, and in it a small monitor of our own, kvmslots, in
//! place of QEMU: it measures what KVM pays to remove memory and to log stores.

use super::cache::{GuestFiles, KVM_MODULES};
use super::cpio::Archive;
use super::peer::STARTS;
use crate::prelude::*;

/// Memory for the kernel itself and its tables, beyond what the monitor gives its guest.
const KERNEL_MEMORY: u64 = 384 * MIB;

/// The part of the initial RAM disk that loads KVM and runs the monitor, whose status it has.
pub(crate) fn archive(files: &GuestFiles, program: &Path, arguments: &str) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for module in KVM_MODULES {
        archive.add(&format!("modules/{module}"), &files.module(module)?)?;
    }
    archive.add("bin/kvmslots", program)?;
    archive.file("command", 0o644, command(arguments).as_bytes());
    Ok(archive.finish())
}

/// The initial RAM disk exists twice while the kernel unpacks it.
pub(crate) fn memory(guest_bytes: u64, initrd_bytes: u64) -> u64 {
    guest_bytes + KERNEL_MEMORY + 2 * initrd_bytes.next_multiple_of(MIB)
}

fn command(arguments: &str) -> String {
    let load = KVM_MODULES.map(|module| format!("insmod /modules/{module}")).join(" && ");
    format!("{load} && echo '{{\"event\":\"{STARTS}\"}}' >/dev/report && {}", line(arguments))
}

pub(crate) fn line(arguments: &str) -> String {
    format!("kvmslots {arguments} --report /dev/report")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::cache::Versions;

    fn files(modules: &Path) -> GuestFiles {
        let versions = Versions { kernel: "linux-image-0".into(), busybox: "busybox".into() };
        GuestFiles { kernel: "/k".into(), busybox: "/b".into(), modules: modules.to_owned(), versions }
    }

    #[test]
    fn kvm_is_loaded_before_the_monitor_starts() {
        let words = command("--mib 1");
        let at = |text: &str| words.find(text).unwrap_or_else(|| panic!("no {text} in {words}"));
        assert!(at("irqbypass.ko") < at("kvm.ko") && at("kvm.ko") < at("kvm-amd.ko"), "{words}");
        assert!(at("kvm-amd.ko") < at(STARTS) && at(STARTS) < at("kvmslots --mib 1 --report /dev/report"));
    }

    #[test]
    fn the_archive_has_the_modules_and_the_monitor() {
        let directory = tempfile::tempdir().expect("makes");
        let program = directory.path().join("program");
        fs::write(&program, "the monitor").expect("writes");
        let files = files(directory.path());
        let error = archive(&files, &program, "").expect_err("is refused").to_string();
        assert_eq!(error, "the kernel's package (linux-image-0) has no irqbypass.ko");
        for module in KVM_MODULES {
            fs::write(directory.path().join(module), module).expect("writes");
        }
        let bytes = archive(&files, &program, "--mib 1").expect("is made");
        let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(has("bin/kvmslots\0") && has("the monitor") && has("modules/kvm.ko\0") && has("--mib 1"));
    }

    #[test]
    fn the_machine_has_room_for_the_guest_and_the_kernel() {
        assert!(memory(1024 * MIB, 7 * MIB + 1) >= (1024 + 256 + 2 * 8) * MIB);
    }
}
