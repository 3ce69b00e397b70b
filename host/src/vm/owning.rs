//! Guests with devices under KVM, and initial RAM disks for measurements.

use crate::guest::cache::OtherKernel;
use crate::guest::peer::owning::Given;
use crate::guest::peer::{self, Flushes};
use crate::guest::{cpio::Archive, initramfs};
use crate::machine::devices;
use crate::prelude::*;

impl StockGuest {
    /// A machine of one CPU whose kernel runs `guest` under KVM, which may poll before it halts.
    pub(crate) fn with_kvm_and_devices(
        &self,
        kernel: &OtherKernel,
        guest: &Guest,
        polls: bool,
        clock: Clock,
        directory: &Path,
    ) -> Result<Spec> {
        ensure!(self.arch == Arch::X86_64, "KVM gives devices to guests on x86_64 machines only");
        let built = devices::build(guest.platform, [&guest.devices].into_iter(), true)?;
        let names = built.names.concat();
        let functions: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
        // One vCPU flushes nobody: KVM has its own interface, which is its best.
        let inner = guest.under_kvm(Flushes::Paravirtual, false);
        let files = peer::owning::archive(kernel, &inner, &Given { functions: &functions, polls })?;
        let initrd = [self.initramfs.clone(), files].concat();
        let memory = peer::memory(&inner, initrd.len() as u64);
        let kernel = kernel.kernel.clone();
        let host = Guest::new(Platform::X86_64, kernel, Some(initrd), peer::owning::cmdline());
        let spec = Guest { memory, ..host }.on_bare_machine(1, directory)?;
        Ok(Spec { clock, devices: built.args, ..spec })
    }

    /// Runs a command, with the program `phase`, by which the command tells what is counted.
    pub(crate) fn counting_initrd(&self, command: &str) -> Result<Vec<u8>> {
        let path = workspace::build(workspace::PHASE, self.arch)?;
        let program = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut archive = Archive::default();
        archive.file("bin/phase", 0o755, &program);
        Ok([self.initramfs.clone(), archive.finish(), initramfs::command(command)].concat())
    }
}
