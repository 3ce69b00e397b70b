//! A Linux with KVM inside the emulated machine, and QEMU in it: a hypervisor to compare ours with.
//!
//! Its kernel is the stock guest's. QEMU is this system's own, with the libraries and firmware that
//! it uses, put into an initial RAM disk; nothing is installed anywhere.

use super::cache::{GuestFiles, KVM_MODULES};
use super::cpio::Archive;
use crate::arch::Arch;
use crate::size::MIB;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Firmware that QEMU needs to start a PVH kernel on a machine without graphics.
const FIRMWARE: [&str; 4] = ["bios-256k.bin", "kvmvapic.bin", "pvh.bin", "linuxboot_dma.bin"];

/// The Hyper-V interface as far as QEMU 7.2 can request it from KVM 6.1.
const CPU: &str = "host,kvm=off,hv-relaxed,hv-vpindex,hv-synic,hv-stimer,hv-time,hv-frequencies,hv-runtime,\
                   hv-tlbflush,hv-ipi,hv-xmm-input";

/// The command line of the kernel that is the hypervisor. With a clock other than the TSC its
/// guests' vCPUs lock up.
pub(crate) const CMDLINE: &str = "console=ttyS0 quiet panic=-1 tsc=reliable clocksource=tsc";
/// Memory for that kernel itself.
const KERNEL_MEMORY: u64 = 256 * MIB;

/// A virtual machine under KVM.
pub(crate) struct Inner<'a> {
    /// Its kernel: an ELF file with a PVH entry.
    pub(crate) kernel: &'a Path,
    /// Its command line.
    pub(crate) cmdline: &'a str,
    pub(crate) vcpus: u32,
    pub(crate) memory_mib: u64,
}

/// The part of the initial RAM disk after [`initramfs::base`](super::initramfs::base): it loads KVM
/// and runs the machine, whose second serial port is the report channel. The command's status is
/// QEMU's.
///
/// The outer machine has one CPU more than there are vCPUs: KVM dies occasionally if vCPUs run on
/// QEMU's first CPU.
pub(crate) fn archive(files: &GuestFiles, inner: &Inner<'_>) -> Result<Vec<u8>> {
    let mut tree = Tree::default();
    for module in KVM_MODULES {
        let path = files.modules.join(module);
        ensure!(path.is_file(), "the kernel's package ({}) has no {module}", files.versions.kernel);
        tree.add(&format!("modules/{module}"), &path)?;
    }
    let qemu = program(Arch::X86_64.qemu())?;
    tree.add("bin/qemu", &qemu)?;
    for library in libraries(&qemu)? {
        let name = library.to_string_lossy();
        tree.add(name.trim_start_matches('/'), &library)?;
    }
    let directories = data_directories(&qemu)?;
    for name in FIRMWARE {
        let path = directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file());
        tree.add(&format!("firmware/{name}"), &path.with_context(|| format!("QEMU has no {name}"))?)?;
    }
    tree.add("kernel", inner.kernel)?;
    tree.archive.file("cmdline", 0o644, inner.cmdline.as_bytes());
    tree.archive.file("command", 0o644, command(inner).as_bytes());
    Ok(tree.archive.finish())
}

/// Memory of the outer machine: the initial RAM disk exists twice while the kernel unpacks it.
pub(crate) fn memory(inner: &Inner<'_>, initrd_bytes: u64) -> u64 {
    inner.memory_mib * MIB + (2 * initrd_bytes).next_multiple_of(MIB) + KERNEL_MEMORY
}

fn command(inner: &Inner<'_>) -> String {
    let load = KVM_MODULES.map(|module| format!("insmod /modules/{module}")).join(" && ");
    let cpus = ((1_u64 << inner.vcpus) - 1) << 1;
    format!(
        "{load} && taskset {cpus:#x} qemu -L /firmware -accel kvm -machine q35 -cpu {CPU} -smp {} -m {} \
         -nodefaults -no-user-config -no-reboot -display none -monitor none -serial stdio -serial /dev/ttyS1 \
         -kernel /kernel -append \"$(cat /cmdline)\" </dev/null",
        inner.vcpus, inner.memory_mib
    )
}

/// An archive, and the directories that it already has.
#[derive(Default)]
struct Tree {
    archive: Archive,
    directories: BTreeSet<PathBuf>,
}

impl Tree {
    /// Adds a file under another name, and the directories on the way to it.
    fn add(&mut self, name: &str, file: &Path) -> Result<()> {
        let mut directories: Vec<_> = Path::new(name).ancestors().skip(1).collect();
        directories.reverse();
        for directory in directories.into_iter().filter(|directory| *directory != Path::new("")) {
            if self.directories.insert(directory.to_owned()) {
                self.archive.directory(&directory.to_string_lossy());
            }
        }
        let data = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        self.archive.file(name, 0o755, &data);
        Ok(())
    }
}

/// A program on the path.
fn program(name: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("there is no {name}"))
}

/// The shared libraries that a program is linked with, including its loader.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let found: Vec<_> = output(Command::new("ldd").arg(program))?.lines().filter_map(library).collect();
    ensure!(!found.is_empty(), "ldd found no libraries of {}", program.display());
    Ok(found)
}

/// The path in a line of ldd's output: `name => path (address)`, or `path (address)`.
fn library(line: &str) -> Option<PathBuf> {
    let path = line.split_once(" => ").map_or(line, |(_, path)| path).trim();
    let path = path.split_once(" (").map_or(path, |(path, _)| path);
    path.starts_with('/').then(|| PathBuf::from(path))
}

/// Where QEMU looks for firmware.
fn data_directories(qemu: &Path) -> Result<Vec<PathBuf>> {
    Ok(output(Command::new(qemu).args(["-L", "help"]))?.lines().map(PathBuf::from).collect())
}

fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_lines_of_ldd() {
        for (line, path) in [
            (
                "\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)",
                Some("/lib/x86_64-linux-gnu/libz.so.1"),
            ),
            ("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)", Some("/lib64/ld-linux-x86-64.so.2")),
            ("\tlinux-vdso.so.1 (0x00007ffd)", None),
            ("\tlibgone.so => not found", None),
        ] {
            assert_eq!(library(line).as_deref(), path.map(Path::new), "{line}");
        }
    }

    #[test]
    fn vcpus_are_kept_off_the_first_cpu() {
        let inner = Inner { kernel: Path::new("/k"), cmdline: "check", vcpus: 3, memory_mib: 256 };
        let command = command(&inner);
        assert!(command.contains("taskset 0xe qemu"), "{command}");
        assert!(command.starts_with("insmod /modules/irqbypass.ko && insmod /modules/kvm.ko"), "{command}");
    }

    #[test]
    fn directories_come_once_and_before_what_is_in_them() {
        let directory = tempfile::tempdir().expect("makes");
        let file = directory.path().join("file");
        fs::write(&file, "x").expect("writes");
        let mut tree = Tree::default();
        tree.add("lib/a/one", &file).expect("adds");
        tree.add("lib/a/two", &file).expect("adds");
        let directories: Vec<_> =
            tree.directories.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        assert_eq!(directories, ["lib", "lib/a"]);
        let bytes = tree.archive.finish();
        let at = |name: &[u8]| bytes.windows(name.len()).position(|window| window == name);
        assert!(at(b"lib\0") < at(b"lib/a\0") && at(b"lib/a\0") < at(b"lib/a/one\0"));
    }
}
