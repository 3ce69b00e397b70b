//! A guest and the way it is put into the machine: on Quell by a bundle, or directly.

use crate::guest::cache;
use crate::guest::kernel::{self, KernelInfo};
use crate::guest::peer;
use crate::machine::bundle::{self, Symbols, memory_around};
use crate::machine::devices::{self, Devices};
use crate::machine::payload::Payload;
use crate::prelude::*;
use crate::workspace::Image;
use hostlink::config::{BootCpu, Config, Console, FlushMode, MEMORY_UNIT, ResetPolicy, Start};
use hostlink::cpus::CpuSet;
use hostlink::trace::RING_BYTES_MAX;
pub(crate) use quell::Guests;
use quell::OnQuell;
pub(crate) use stock::StockGuest;

mod quell;
mod stock;

/// Guest memory below this is used by firmware tables and the like, not by kernel and initrd.
const LOW_MEMORY_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) platform: Platform,
    pub(crate) kernel: PathBuf,
    /// Whether that is firmware, which looks for a kernel itself.
    pub(crate) is_firmware: bool,
    pub(crate) initrd: Option<Vec<u8>>,
    pub(crate) cmdline: String,
    pub(crate) vcpus: u32,
    /// Its memory in bytes.
    pub(crate) memory: u64,
    /// Its hint about remote flushes.
    pub(crate) flush: FlushMode,
    /// Whether it may have guests.
    pub(crate) nested: bool,
    pub(crate) reset: ResetPolicy,
    /// Hypervisor settings that tests change.
    pub(crate) switches: Switches,
    pub(crate) devices: Devices,
    /// Whether it is restored instead of being started.
    pub(crate) arrives: bool,
}

impl Guest {
    /// A guest without devices, whose reset ends it.
    pub(crate) fn new(platform: Platform, kernel: PathBuf, initrd: Option<Vec<u8>>, cmdline: String) -> Self {
        Self {
            platform,
            kernel,
            is_firmware: false,
            initrd,
            cmdline,
            vcpus: 1,
            memory: 512 * size::MIB,
            flush: FlushMode::Hypercall,
            nested: false,
            reset: ResetPolicy::Exit,
            switches: Switches::default(),
            devices: Devices::default(),
            arrives: false,
        }
    }

    /// A program for bare machines, with these words on its command line.
    pub(crate) fn bare(
        image: Image,
        platform: Platform,
        words: impl Into<String>,
        vcpus: u32,
        memory: u64,
    ) -> Result<Self> {
        let arch = platform.arch();
        let kernel = workspace::bootable(workspace::build(image, arch)?, arch)?;
        let guest = Self { vcpus, memory, ..Self::new(platform, kernel, None, words.into()) };
        guest.check()?;
        Ok(guest)
    }

    pub(crate) fn load(platform: Platform, vcpus: u32, memory: u64, switches: Switches) -> Result<Self> {
        Ok(Self { switches, ..Self::bare(workspace::LOAD, platform, "", vcpus, memory)? })
    }

    pub(crate) fn check(&self) -> Result<()> {
        let initrd_bytes = self.initrd.as_ref().map_or(0, Vec::len) as u64;
        let arch = self.platform.arch();
        let kernel = (!self.is_firmware).then(|| kernel::inspect_file(arch, &self.kernel)).transpose()?;
        check_fit(kernel, initrd_bytes, self.memory)?;
        self.devices.check()?;
        ensure!(!self.cmdline.contains('\n'), "the kernel's command line has to be one line");
        Ok(())
    }

    /// A machine with `cpus` CPUs for vCPUs that runs this guest on Quell.
    pub(crate) fn on_quell(
        &self,
        hypervisor: &Hypervisor,
        cpus: u32,
        clock: Clock,
        directory: &Path,
    ) -> Result<Spec> {
        let (boot_cpu, added) = match clock == Clock::Wall && self.platform.adds_cpu(cpus) {
            true => (BootCpu::Serve, 1),
            false => (BootCpu::Run, 0),
        };
        let memory = |bundle_bytes| Ok(memory_around(self.memory, bundle_bytes));
        let spec = self.alone(boot_cpu, CpuSet::ALL)?.spec(hypervisor, cpus + added, memory, directory)?;
        Ok(Spec { clock, ..spec })
    }

    fn alone(&self, boot_cpu: BootCpu, cpus: CpuSet) -> Result<OnQuell> {
        let (console, switches) = (Console::Machine, self.switches);
        let start = if self.arrives { Start::Manual } else { Start::Auto };
        let machine = Config { boot_cpu, console, switches, start, cpus, ..Config::default() };
        let mut quell = OnQuell::new(self.platform, machine, [&self.devices].into_iter())?;
        quell.add(self, &machine)?;
        Ok(quell)
    }

    /// `flush`, `reset` and `switches` concern only Quell.
    pub(crate) fn under_kvm(&self, flushes: peer::Flushes, has_rom: bool) -> peer::Inner<'_> {
        peer::Inner {
            kernel: &self.kernel,
            initrd: self.initrd.as_deref(),
            cmdline: &self.cmdline,
            vcpus: self.vcpus,
            memory: self.memory,
            flushes,
            has_rom,
            is_quell: false,
            devices: (&[], &[]),
        }
    }

    /// Writes its bundle. Of the machine it may use these CPUs.
    pub(crate) fn write_bundle(&self, hypervisor: &Hypervisor, cpus: CpuSet, path: &Path) -> Result<()> {
        self.alone(BootCpu::Run, cpus)?.write(hypervisor, path).map(drop)
    }

    /// A machine with `cpus` CPUs that runs this guest directly, its initrd written to `directory`.
    pub(crate) fn on_bare_machine(&self, cpus: u32, directory: &Path) -> Result<Spec> {
        let initrd = self.initrd.as_ref().map(|bytes| {
            let path = directory.join("initrd");
            fs::write(&path, bytes).context("cannot write the initial RAM disk").map(|()| path)
        });
        let initrd = initrd.transpose()?;
        ensure!(!self.is_firmware, "--bare starts a kernel: give one, or --boot kernel");
        let payload = Payload::Bare { kernel: self.kernel.clone(), initrd, cmdline: self.cmdline.clone() };
        let devices = devices::build(self.platform, [&self.devices].into_iter(), false)?.args;
        Ok(Spec { devices, ..Spec::new(self.platform, payload, cpus, self.memory) })
    }
}

/// What is given to a guest as its kernel so that its disk's own is started, and whether that is
/// firmware.
pub(crate) fn disk_loader(arch: Arch) -> Result<(PathBuf, bool)> {
    match arch {
        Arch::X86_64 => Ok((workspace::build(workspace::BOOT, arch)?, false)),
        Arch::Aarch64 => Ok((cache::u_boot()?, true)),
    }
}

/// Checks that kernel and initial RAM disk fit into a guest's memory.
fn check_fit(kernel: Option<KernelInfo>, initrd_bytes: u64, guest_bytes: u64) -> Result<()> {
    let memory_end = kernel.map_or(0, |kernel| kernel.memory_end);
    ensure!(
        guest_bytes.is_multiple_of(MEMORY_UNIT),
        "guest memory has to be a multiple of {}",
        size::display(MEMORY_UNIT)
    );
    let memory = size::display(guest_bytes);
    ensure!(
        initrd_bytes < guest_bytes,
        "the initial RAM disk ({}) is larger than the guest's memory ({memory})",
        size::display(initrd_bytes)
    );
    ensure!(
        memory_end.max(LOW_MEMORY_BYTES).saturating_add(initrd_bytes) <= guest_bytes,
        "the kernel (memory up to {}) and the initial RAM disk ({}) do not fit into {memory}",
        size::display(memory_end),
        size::display(initrd_bytes)
    );
    Ok(())
}

pub(crate) struct Hypervisor {
    arch: Arch,
    image: PathBuf,
    symbols: Symbols,
    /// Memory that it takes beyond what every image takes.
    extra_memory: u64,
}

impl Hypervisor {
    pub(crate) fn build(arch: Arch) -> Result<Self> {
        Self::of(workspace::HYPERVISOR, arch)
    }

    /// The image for tests, which can inject defects and audits its entries.
    pub(crate) fn for_tests(arch: Arch) -> Result<Self> {
        Self::of(workspace::HYPERVISOR_FOR_TESTS, arch)
    }

    /// The image that can inject defects, and does not notice them itself.
    pub(crate) fn with_defects(arch: Arch) -> Result<Self> {
        Self::of(workspace::HYPERVISOR_WITH_DEFECTS, arch)
    }

    /// The image that records what each CPU does.
    pub(crate) fn with_trace(arch: Arch) -> Result<Self> {
        let hypervisor = Self::of(workspace::HYPERVISOR_WITH_TRACE, arch)?;
        Ok(Self { extra_memory: RING_BYTES_MAX, ..hypervisor })
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    fn of(image: workspace::Image, arch: Arch) -> Result<Self> {
        let elf = workspace::build(image, arch)?;
        let symbols = bundle::read_symbols(&elf)?;
        let image = workspace::bootable(elf, arch)?;
        Ok(Self { arch, image, symbols, extra_memory: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::kernel::tests::bzimage;

    fn guest(directory: &Path) -> Guest {
        let kernel = directory.join("kernel");
        fs::write(&kernel, bzimage()).expect("writes");
        let initrd = Some(vec![0; 1 << 20]);
        Guest { memory: 64 * MIB, ..Guest::new(Platform::X86_64, kernel, initrd, "console=ttyS0".into()) }
    }

    #[test]
    fn what_cannot_start_is_refused_before_the_machine_is() {
        let directory = tempfile::tempdir().expect("makes");
        let good = guest(directory.path());
        good.check().expect("fits");
        let reason = |guest: &Guest| format!("{:#}", guest.check().expect_err("is refused"));

        let missing = Guest { kernel: "/nowhere/vmlinuz".into(), ..good.clone() };
        assert!(reason(&missing).contains("no kernel at"), "{}", reason(&missing));
        let odd = Guest { memory: 64 * MIB + 4096, ..good.clone() };
        assert!(reason(&odd).contains("multiple of"));
        let huge = Guest { initrd: Some(vec![0; 65 << 20]), ..good.clone() };
        assert!(reason(&huge).contains("larger than the guest's memory"));
        let tight = Guest { initrd: Some(vec![0; 20 << 20]), ..good.clone() };
        assert!(reason(&tight).contains("do not fit"), "{}", reason(&tight));
        let broken = Guest { cmdline: "a\nvcpus=9".into(), ..good };
        assert!(reason(&broken).contains("one line"));
    }
}
