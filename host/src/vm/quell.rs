//! Guests on Quell: the bundle that passes them to the hypervisor, and the machine around them.

use crate::machine::bundle::Bundle;
use crate::machine::devices::{self, Built, Devices};
use crate::machine::payload::Payload;
use crate::machine_file::{Boot, GuestPlan, MachineFile, Software};
use crate::migration::Snapshot;
use crate::prelude::*;
use crate::vm::disk_loader;
use hostlink::bundle::Member;
use hostlink::config::{BootCpu, Config};
use hostlink::cpus::CpuSet;

/// Guests for one machine: their configurations, and the files that these name, each once.
pub(super) struct OnQuell {
    platform: Platform,
    machine: Config<'static>,
    configs: Vec<String>,
    files: Vec<Vec<u8>>,
    devices: Built,
}

impl OnQuell {
    /// No guests yet. `machine` is for all of them, `devices` are those of each.
    pub(super) fn new<'d>(
        platform: Platform,
        machine: Config<'static>,
        devices: impl Iterator<Item = &'d Devices>,
    ) -> Result<Self> {
        let devices = devices::build(platform, devices, true)?;
        Ok(Self { platform, machine, configs: Vec::new(), files: Vec::new(), devices })
    }

    /// Adds the next guest. `config` has what is about its place among the others.
    pub(super) fn add(&mut self, guest: &Guest, config: &Config<'_>) -> Result<()> {
        check_words(self.platform.arch(), &guest.cmdline)?;
        let kernel = fs::read(&guest.kernel)
            .with_context(|| format!("cannot read the kernel {}", guest.kernel.display()))?;
        let kernel = self.member(&kernel);
        let initrd = guest.initrd.as_deref().map(|initrd| self.member(initrd));
        let config = Config {
            vcpus: guest.vcpus,
            memory: guest.memory,
            flush: guest.flush,
            nested: guest.nested,
            reset: guest.reset,
            switches: guest.switches,
            kernel: &kernel,
            is_firmware: guest.is_firmware,
            initrd: initrd.as_deref(),
            devices: self.devices.names.get(self.configs.len()).map_or("", String::as_str),
            cmdline: &guest.cmdline,
            ..*config
        };
        self.configs.push(config.of_guest().to_string());
        Ok(())
    }

    fn member(&mut self, contents: &[u8]) -> String {
        let index = self.files.iter().position(|known| known == contents).unwrap_or_else(|| {
            self.files.push(contents.to_owned());
            self.files.len() - 1
        });
        Member::File(u32::try_from(index).unwrap_or(u32::MAX)).to_string()
    }

    /// Writes the bundle; returns its size.
    pub(super) fn write(&self, hypervisor: &Hypervisor, path: &Path) -> Result<u64> {
        let machine = self.machine.of_machine().to_string();
        Bundle::new(&machine, &self.configs, &self.files, &hypervisor.symbols.table).write(path)?;
        Ok(fs::metadata(path)?.len())
    }

    /// With as much memory as `memory` says for a bundle, which is written to `directory`.
    pub(super) fn spec(
        &self,
        hypervisor: &Hypervisor,
        cpus: u32,
        memory: impl FnOnce(u64) -> Result<u64>,
        directory: &Path,
    ) -> Result<Spec> {
        ensure!(
            hypervisor.arch == self.platform.arch(),
            "the hypervisor and its guest are of different architectures"
        );
        let bundle = directory.join("bundle.tar");
        let memory = memory(self.write(hypervisor, &bundle)?)? + hypervisor.extra_memory;
        let payload = Payload::Quell {
            hypervisor: hypervisor.image.clone(),
            bundle,
            beacon: hypervisor.symbols.beacon,
        };
        let devices = self.devices.args.clone();
        Ok(Spec { devices, ..Spec::new(self.platform, payload, cpus, memory) })
    }
}

pub(crate) struct Guests<'f> {
    file: &'f MachineFile,
    guests: Vec<Guest>,
    switches: Switches,
    /// Kernels of guests that were saved.
    _kernels: TempDir,
}

impl<'f> Guests<'f> {
    pub(crate) fn prepare(file: &'f MachineFile, switches: Switches) -> Result<Self> {
        let needs_stock = file
            .guests
            .iter()
            .any(|guest| guest.software == Software::Stock && guest.boots() != Some(Boot::Disk));
        let arch = file.machine.platform.arch();
        let stock = needs_stock.then(|| StockGuest::prepare(arch)).transpose()?;
        let kernels = tempfile::tempdir()?;
        let made = file.guests.iter().map(|plan| match &plan.arrival.restore {
            Some((path, _)) => saved(file, plan, path, switches, kernels.path()),
            None => made(file, plan, stock.as_ref(), switches),
        });
        let made = file.guests.iter().zip(made);
        let made = made.map(|(plan, made)| made.map_err(|error| file.source.about(plan, error)));
        Ok(Self { file, guests: made.collect::<Result<_>>()?, switches, _kernels: kernels })
    }

    /// If this tool adds the boot CPU, the file's CPU 0 is the machine's CPU 1.
    fn physical(cpus: &CpuSet, adds_cpu: bool) -> CpuSet {
        if *cpus == CpuSet::ALL || !adds_cpu {
            return *cpus;
        }
        let mut shifted = CpuSet::EMPTY;
        cpus.iter().for_each(|cpu| shifted.insert(cpu + 1));
        shifted
    }

    /// Writes their bundle, for a machine that exists: no CPU is added.
    pub(crate) fn write_bundle(&self, hypervisor: &Hypervisor, path: &Path) -> Result<()> {
        self.bundle(BootCpu::Run, false)?.write(hypervisor, path).map(drop)
    }

    fn bundle(&self, boot_cpu: BootCpu, adds_cpu: bool) -> Result<OnQuell> {
        let Self { file, guests, switches, .. } = self;
        let usual = Config::default();
        let machine = Config {
            boot_cpu,
            console: file.machine.console,
            slice_us: file.machine.slice_us.unwrap_or(usual.slice_us),
            switches: *switches,
            ..usual
        };
        let devices = guests.iter().map(|guest| &guest.devices);
        let mut quell = OnQuell::new(file.machine.platform, machine, devices)?;
        for (plan, guest) in file.guests.iter().zip(guests) {
            let config = Config { cpus: Self::physical(&plan.config.cpus, adds_cpu), ..plan.config };
            quell.add(guest, &config).map_err(|error| file.source.about(plan, error))?;
        }
        Ok(quell)
    }

    pub(crate) fn on_quell(&self, hypervisor: &Hypervisor, directory: &Path) -> Result<Spec> {
        let file = self.file;
        let quell = self.bundle(file.boot_cpu(), file.adds_cpu())?;
        let memory = |bytes| {
            file.check_memory(bytes)?;
            Ok(file.memory(bytes).next_multiple_of(MIB))
        };
        let cpus = file.machine.cpus + u32::from(file.adds_cpu());
        quell.spec(hypervisor, cpus, memory, directory)
    }

    pub(crate) fn on_bare_machine(&self, directory: &Path) -> Result<Spec> {
        let [guest] = &self.guests[..] else { bail!("a bare machine runs one guest") };
        guest.on_bare_machine(self.file.machine.cpus, directory)
    }
}

/// A guest that was saved, whose kernel is written to a directory.
fn saved(
    file: &MachineFile,
    plan: &GuestPlan,
    path: &Path,
    switches: Switches,
    directory: &Path,
) -> Result<Guest> {
    let mut saved = Snapshot::open(path)?;
    let text = saved.description.config();
    let config = Config::parse_guest(&text, &Config { switches, ..Config::default() });
    let config = config.map_err(|error| anyhow!("{error}"))?;
    let (bytes, initrd) = saved.files()?;
    let kernel = directory.join(plan.name().as_str());
    fs::write(&kernel, bytes).context("cannot write the guest's kernel")?;
    let guest = Guest {
        vcpus: config.vcpus,
        memory: config.memory,
        flush: config.flush,
        nested: config.nested,
        reset: config.reset,
        switches: config.switches,
        ..Guest::new(file.machine.platform, kernel, initrd, plan.command_line(&file.machine))
    };
    guest.check()?;
    Ok(guest)
}

fn made(
    file: &MachineFile,
    plan: &GuestPlan,
    stock: Option<&StockGuest>,
    switches: Switches,
) -> Result<Guest> {
    let platform = file.machine.platform;
    let given = |path: &Path| {
        ensure!(path.exists(), "there is no initial RAM disk at {}", path.display());
        fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let given = plan.initrd.as_deref().map(given).transpose()?;
    let (kernel, is_firmware, initrd) = match &plan.software {
        Software::Kernel(kernel) => (kernel.clone(), false, given),
        Software::Program(program) => {
            let arch = platform.arch();
            (workspace::bootable(workspace::build(program.image(), arch)?, arch)?, false, None)
        }
        Software::Stock if plan.boots() == Some(Boot::Disk) => {
            let (loader, is_firmware) = disk_loader(platform.arch())?;
            (loader, is_firmware, None)
        }
        Software::Saved => bail!("a guest that was saved is restored"),
        Software::Stock => {
            let stock = stock.context("the stock guest was not prepared")?;
            let initrd = given.unwrap_or_else(|| stock.initrd(plan.exec.as_deref()));
            (stock.kernel(), false, plan.boots().is_none().then_some(initrd))
        }
    };
    let guest = Guest {
        is_firmware,
        vcpus: plan.config.vcpus,
        memory: plan.config.memory,
        flush: plan.config.flush,
        nested: plan.config.nested,
        reset: plan.config.reset,
        switches,
        devices: plan.devices.clone(),
        ..Guest::new(platform, kernel, initrd, plan.command_line(&file.machine))
    };
    guest.check()?;
    Ok(guest)
}

/// With these Linux wants a PC's legacy interrupt controller, which guests have not. It would boot,
/// and show nothing of its programs, or wait for its timer for ever.
const LEGACY_INTERRUPTS: [&str; 8] =
    ["noapic", "nosmp", "maxcpus=0", "nolapic", "disableapic", "acpi=off", "acpi=noirq", "pci=noacpi"];

/// The kernel's words end with `--`; the rest is its first program's.
fn check_words(arch: Arch, cmdline: &str) -> Result<()> {
    let mut words = cmdline.split_ascii_whitespace().take_while(|word| *word != "--");
    match words.find(|word| LEGACY_INTERRUPTS.contains(word)) {
        Some(word) if arch == Arch::X86_64 => {
            bail!("'{word}' wants a PC's 8259 interrupt controller, which guests do not have")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u60_words_that_want_an_8259_are_refused_and_no_others() {
        for word in LEGACY_INTERRUPTS {
            for cmdline in [word.to_owned(), format!("console=ttyS0 {word} quiet"), format!("a  {word} -- b")]
            {
                let why = format!("{:#}", check_words(Arch::X86_64, &cmdline).expect_err(&cmdline));
                assert!(why.contains(&format!("'{word}'")), "{why}");
                check_words(Arch::Aarch64, &cmdline).expect("there is another controller");
            }
        }
        for cmdline in ["", "test=noapic", "reboot=k panic=1 pci=off", "noapictimer acpi=force", "-- nosmp"] {
            check_words(Arch::X86_64, cmdline).expect(cmdline);
        }
    }
}
