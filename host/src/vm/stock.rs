//! The stock Linux guest, and what its kernel runs as a hypervisor.

use super::{Guest, Hypervisor};
use crate::guest::cache::{self, GuestFiles, OtherKernel};
use crate::guest::{initramfs, peer, peer::owning::Given, vmm};
use crate::machine::devices;
use crate::machine::kvm::{self, Vendor};
use crate::machine::payload::Payload;
use crate::prelude::*;

/// The stock Linux guest: the distribution's kernel with our initial RAM disk.
pub(crate) struct StockGuest {
    arch: Arch,
    files: GuestFiles,
    initramfs: Vec<u8>,
}

impl StockGuest {
    pub(crate) fn prepare(arch: Arch) -> Result<Self> {
        let files = cache::guest_files(arch, false)?;
        let mut workloads = vec![
            ("phase", workspace::PHASE),
            ("thrash", workspace::THRASH),
            ("stale", workspace::STALE),
            ("mmtest", workspace::MMTEST),
            ("loops", workspace::LOOPS),
            ("mixed", workspace::MIXED),
        ];
        if arch == Arch::Aarch64 {
            workloads.push(("occupy", workspace::OCCUPY));
        }
        let build = |(name, image)| Ok((name, workspace::build(image, arch)?));
        let programs = workloads.into_iter().map(build).collect::<Result<Vec<_>>>()?;
        let initramfs = initramfs::base(&files, &programs)?;
        Ok(Self { arch, files, initramfs })
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.files.kernel.clone()
    }

    /// The packages that it is made from.
    pub(crate) fn versions(&self) -> &cache::Versions {
        &self.files.versions
    }

    /// A machine whose stock kernel runs `inner` under KVM, on CPUs as Quell has for its vCPUs.
    pub(crate) fn with_kvm(
        &self,
        platform: Platform,
        inner: &peer::Inner<'_>,
        cpus: u32,
        clock: Clock,
        directory: &Path,
    ) -> Result<Spec> {
        let is_counted = clock != Clock::Wall;
        ensure!(
            cpus == 1 || !is_counted,
            "where instructions are counted KVM has 1 CPU: with more it stands still"
        );
        let has_first = platform == Platform::X86_64 && !is_counted;
        let around = peer::Around { cpus, has_first };
        let host = self.around(platform, inner, around)?;
        Ok(Spec { clock, ..host.on_bare_machine(around.all(), directory)? })
    }

    /// The same, but that kernel is a guest of Quell, with as many vCPUs: `inner` is its guest.
    pub(crate) fn with_kvm_on_quell(
        &self,
        platform: Platform,
        inner: &peer::Inner<'_>,
        hypervisor: &Hypervisor,
        switches: Switches,
        (cpus, clock): (u32, Clock),
        directory: &Path,
    ) -> Result<Spec> {
        let host = Guest { switches, ..self.kvm_as_guest(platform, inner, cpus)? };
        host.on_quell(hypervisor, cpus, clock, directory)
    }

    /// That kernel as a guest of Quell.
    pub(crate) fn kvm_as_guest(
        &self,
        platform: Platform,
        inner: &peer::Inner<'_>,
        vcpus: u32,
    ) -> Result<Guest> {
        let host = self.around(platform, inner, peer::Around { cpus: vcpus, has_first: false })?;
        // Quell says the TSC's frequency.
        Ok(Guest { nested: true, vcpus, cmdline: peer::CMDLINE.to_owned(), ..host })
    }

    /// The same, but that kernel is a guest of KVM, as KVM itself offers it, with 1 vCPU.
    pub(crate) fn with_kvm_on_kvm(
        &self,
        platform: Platform,
        inner: &peer::Inner<'_>,
        directory: &Path,
    ) -> Result<Spec> {
        let host = self.around(platform, inner, peer::Around { cpus: 1, has_first: false })?;
        let host = host.under_kvm(peer::Flushes::Paravirtual, false);
        self.with_kvm(platform, &host, 1, Clock::Wall, directory)
    }

    fn around(&self, platform: Platform, inner: &peer::Inner<'_>, around: peer::Around) -> Result<Guest> {
        ensure!(self.arch == Arch::X86_64, "KVM runs on x86_64 machines only");
        let initrd = [self.initramfs.clone(), peer::archive(&self.files, inner, platform, around)?].concat();
        let memory = peer::memory(inner, initrd.len() as u64);
        Ok(Guest { memory, ..self.host(platform, initrd) })
    }

    /// A machine whose stock kernel runs Quell under KVM, which runs `guest`.
    pub(crate) fn with_quell_on_kvm(
        &self,
        guest: &Guest,
        hypervisor: &Hypervisor,
        cpus: u32,
        directory: &Path,
    ) -> Result<Spec> {
        let vendor = Vendor::of(guest.platform.architecture()).context(kvm::NOT_ON_ARM)?;
        let quell = Guest { platform: Platform::Kvm(vendor), ..guest.clone() };
        let quell = quell.on_quell(hypervisor, cpus, Clock::Wall, directory)?;
        let Payload::Quell { hypervisor, bundle, .. } = &quell.payload else {
            bail!("Quell's machine has no Quell");
        };
        let inner = peer::Inner {
            kernel: hypervisor,
            initrd: Some(&fs::read(bundle).context("cannot read the bundle")?),
            cmdline: "",
            vcpus: quell.cpus,
            memory: quell.memory,
            flushes: peer::Flushes::Own,
            has_rom: false,
            is_quell: true,
            devices: (&quell.devices, &guest.devices.disks),
        };
        self.with_kvm(guest.platform, &inner, cpus, Clock::Wall, directory)
    }

    /// A machine that counts instructions. Its kernel runs kvmslots, whose guest has `memory`.
    pub(crate) fn with_kvmslots(
        &self,
        platform: Platform,
        arguments: &str,
        memory: u64,
        directory: &Path,
    ) -> Result<Spec> {
        ensure!(self.arch == Arch::X86_64, "KVM runs on x86_64 machines only");
        let program = workspace::build(workspace::KVMSLOTS, self.arch)?;
        let initrd =
            [self.initramfs.clone(), vmm::archive(&self.files, platform, &program, arguments)?].concat();
        let memory = vmm::memory(memory, initrd.len() as u64);
        let host = Guest { memory, ..self.host(platform, initrd) };
        Ok(Spec { clock: Clock::Instructions, ..host.on_bare_machine(1, directory)? })
    }

    fn host(&self, platform: Platform, initrd: Vec<u8>) -> Guest {
        Guest::new(platform, self.kernel(), Some(initrd), peer::cmdline(platform))
    }

    /// The initial RAM disk; with a command it runs that, otherwise a shell.
    pub(crate) fn initrd(&self, command: Option<&str>) -> Vec<u8> {
        let mut bytes = self.initramfs.clone();
        if let Some(command) = command {
            bytes.extend(initramfs::command(command));
        }
        bytes
    }

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
        let inner = guest.under_kvm(peer::Flushes::Paravirtual, false);
        let files = peer::owning::archive(kernel, &inner, &Given { functions: &functions, polls })?;
        let initrd = [self.initramfs.clone(), files].concat();
        let memory = peer::memory(&inner, initrd.len() as u64);
        let kernel = kernel.kernel.clone();
        let host = Guest::new(Platform::X86_64, kernel, Some(initrd), peer::owning::cmdline());
        let spec = Guest { memory, ..host }.on_bare_machine(1, directory)?;
        Ok(Spec { clock, devices: built.args, ..spec })
    }
}
