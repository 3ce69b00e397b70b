//! The peer on Arm: KVM is part of the kernel, and QEMU with its libraries comes from packages for
//! Arm64. Guests flush by their own instructions, which reach all processors.

use super::{Around, Inner, STARTS};
use crate::guest::cache::{self, LinkedProgram};
use crate::guest::cpio::Archive;
use crate::machine::payload::Payload;
use crate::prelude::*;

/// The command line of the hypervisor's kernel. Its reports are on its console, as its guest's are.
/// It is at the same addresses each time, so that instructions can be counted.
pub(crate) const CMDLINE: &str = "console=ttyAMA0 quiet panic=-1 quell.report nokaslr";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Stock,
    Newer,
}

impl Kernel {
    /// Its name in results, as the way in which the peer is run.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock-kernel",
            Self::Newer => "newer-kernel",
        }
    }

    /// The name of its version in results.
    pub(crate) const fn version_name(self) -> &'static str {
        match self {
            Self::Stock => "peer_kernel",
            Self::Newer => "peer_newer_kernel",
        }
    }

    /// Its file, and its package with the version.
    pub(crate) fn file(self, stock: &StockGuest) -> Result<(PathBuf, String)> {
        Ok(match self {
            Self::Stock => (stock.kernel(), stock.versions().kernel.clone()),
            Self::Newer => {
                let newer = cache::newer_kernel(Arch::Aarch64)?;
                (newer.kernel, newer.version)
            }
        })
    }
}

/// A machine in which Linux with KVM runs: its CPUs are entered at EL2.
pub(crate) struct Outer<'a> {
    pub(crate) stock: &'a StockGuest,
    pub(crate) kernel: Kernel,
    pub(crate) cpu: ArmCpu,
    pub(crate) cpus: u32,
    pub(crate) clock: Clock,
    /// Its memory without what its files take.
    pub(crate) memory: u64,
}

impl Outer<'_> {
    pub(crate) fn spec(&self, files: &[u8], directory: &Path) -> Result<Spec> {
        ensure!(
            self.clock == Clock::Wall || self.cpus == 1,
            "where instructions are counted KVM has 1 CPU: with more it stands still"
        );
        let (kernel, _) = self.kernel.file(self.stock)?;
        let initrd = [&self.stock.initrd(None), files].concat();
        let memory = super::with_files(self.memory, initrd.len() as u64);
        let path = directory.join("initrd");
        fs::write(&path, initrd).context("cannot write the initial RAM disk")?;
        let payload = Payload::Bare { kernel, initrd: Some(path), cmdline: CMDLINE.into() };
        let spec = Spec::new(Platform::Aarch64(self.cpu), payload, self.cpus, memory);
        Ok(Spec { clock: self.clock, has_el2: true, ..spec })
    }
}

pub(crate) fn archive(qemu: &LinkedProgram, inner: &Inner<'_>, cpus: u32) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.add("bin/qemu", &qemu.program)?;
    qemu.add_libraries(&mut archive)?;
    super::finish_with(archive, inner, &command(inner, cpus))
}

/// The shell command that starts the machine: QEMU's command line. The kernel's own is in a file.
pub(crate) fn qemu(inner: &Inner<'_>) -> String {
    let initrd = if inner.initrd.is_some() { " -initrd /initrd" } else { "" };
    format!(
        "qemu -accel kvm -machine virt,gic-version=3 -cpu {} -smp {} -m {} -nodefaults -no-user-config \
         -no-reboot -display none -monitor none -serial stdio -kernel /kernel{initrd} \
         -append \"$(cat /cmdline)\"",
        inner.flushes.cpu(),
        inner.vcpus,
        inner.memory / MIB
    )
}

fn command(inner: &Inner<'_>, cpus: u32) -> String {
    let mask = Around { cpus, has_first: false }.mask();
    format!("echo '{{\"event\":\"{STARTS}\"}}' >/dev/report && taskset {mask} {} </dev/null", qemu(inner))
}

#[cfg(test)]
mod tests {
    use super::super::Flushes;
    use super::*;

    #[test]
    fn the_guest_reports_on_the_console_of_the_kernel_around() {
        let (kernel, flushes) = (Path::new("/k"), Flushes::Own);
        let inner = Inner {
            kernel,
            initrd: Some(b"x"),
            cmdline: "check",
            vcpus: 2,
            memory: 512 * MIB,
            flushes,
            has_rom: false,
            is_quell: false,
            devices: (&[], &[]),
        };
        let words = command(&inner, 2);
        assert!(words.contains("taskset 0x3 qemu "), "{words}");
        assert!(words.contains("-smp 2 -m 512 ") && words.contains("-cpu host "), "{words}");
        assert!(words.contains("-kernel /kernel -initrd /initrd -append"), "{words}");
        assert!(words.contains("-serial stdio") && CMDLINE.contains("quell.report"), "{words}");
        let bare = Inner { initrd: None, ..inner };
        assert!(!qemu(&bare).contains("-initrd"), "{}", qemu(&bare));
    }

    #[test]
    fn the_program_goes_with_its_libraries() {
        let directory = tempfile::tempdir().expect("makes");
        let file = |name: &str| {
            let path = directory.path().join(name);
            fs::write(&path, name).expect("writes");
            path
        };
        let qemu =
            LinkedProgram { program: file("q"), libraries: vec![file("libx.so.1")], version: "q 1".into() };
        let kernel = file("image");
        let inner = Inner {
            kernel: &kernel,
            initrd: None,
            cmdline: "check",
            vcpus: 1,
            memory: 64 * MIB,
            flushes: Flushes::Own,
            has_rom: false,
            is_quell: false,
            devices: (&[], &[]),
        };
        let bytes = archive(&qemu, &inner, 1).expect("packs");
        for name in [&b"bin/qemu\0"[..], b"lib/libx.so.1\0", b"kernel\0", b"cmdline\0", b"command\0"] {
            assert!(bytes.windows(name.len()).any(|window| window == name), "{name:?}");
        }
    }

    #[test]
    fn kernels_have_names_and_versions_of_their_own() {
        assert_ne!(Kernel::Stock.name(), Kernel::Newer.name());
        assert_ne!(Kernel::Stock.version_name(), Kernel::Newer.version_name());
    }
}
