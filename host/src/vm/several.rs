//! The guests of a machine file, and the machine that runs them.

use super::quell::OnQuell;
use super::{Guest, Hypervisor, StockGuest};
use crate::machine::spec::Spec;
use crate::machine_file::{GuestPlan, MachineFile, Software, shared_config};
use crate::prelude::*;
use hostlink::config::{Config, Shares, Switches};
use hostlink::cpus::CpuSet;

pub(crate) struct Guests<'f> {
    file: &'f MachineFile,
    guests: Vec<Guest>,
    switches: Switches,
}

impl<'f> Guests<'f> {
    /// Fetches and builds what the guests run, and checks that it fits into their memory.
    /// `switches` are the hypervisor's settings for all of them.
    pub(crate) fn prepare(file: &'f MachineFile, switches: Switches) -> Result<Self> {
        let needs_stock = file.guests.iter().any(|guest| guest.software == Software::Stock);
        let arch = file.machine.platform.arch();
        let stock = needs_stock.then(|| StockGuest::prepare(arch)).transpose()?;
        let made = file.guests.iter().map(|plan| {
            made(file, plan, stock.as_ref(), switches).map_err(|error| file.source.about(plan, error))
        });
        Ok(Self { file, guests: made.collect::<Result<_>>()?, switches })
    }

    /// The machine's own numbers of CPUs that the file names: if this tool adds the boot CPU, the
    /// file's CPU 0 is the machine's CPU 1.
    fn physical(&self, cpus: &CpuSet) -> CpuSet {
        if *cpus == CpuSet::ALL || !self.file.adds_cpu() {
            return *cpus;
        }
        let mut shifted = CpuSet::EMPTY;
        cpus.iter().for_each(|cpu| shifted.insert(cpu + 1));
        shifted
    }

    /// The machine. Its bundle is written to `directory`.
    pub(crate) fn on_quell(&self, hypervisor: &Hypervisor, directory: &Path) -> Result<Spec> {
        let Self { file, guests, switches } = self;
        let usual = Config::default();
        let machine = Config {
            boot_cpu: file.boot_cpu(),
            console: file.machine.console,
            slice_us: file.machine.slice_us.unwrap_or(usual.slice_us),
            switches: *switches,
            ..usual
        };
        let devices = guests.iter().map(|guest| &guest.devices);
        let mut quell = OnQuell::new(file.machine.platform, machine, devices)?;
        for (plan, guest) in file.guests.iter().zip(guests) {
            let shared = shared_config(&file.shared, plan.name());
            let shared = Shares::parse(&shared).context("shared memory that was checked is wrong")?;
            let config = Config { cpus: self.physical(&plan.config.cpus), shared, ..plan.config };
            quell.add(guest, &config).map_err(|error| file.source.about(plan, error))?;
        }
        let memory = |bytes| {
            file.check_memory(bytes)?;
            Ok(file.memory(bytes).next_multiple_of(MIB))
        };
        let cpus = file.machine.cpus + u32::from(file.adds_cpu());
        quell.spec(hypervisor, cpus, memory, directory)
    }

    /// A machine that runs the only guest directly.
    pub(crate) fn on_bare_machine(&self, directory: &Path) -> Result<Spec> {
        let [guest] = &self.guests[..] else { bail!("a bare machine runs one guest") };
        guest.on_bare_machine(self.file.machine.cpus, directory)
    }
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
    let (kernel, initrd) = match &plan.software {
        Software::Kernel(kernel) => (kernel.clone(), given),
        Software::Program(program) => {
            let arch = platform.arch();
            (workspace::bootable(workspace::build(program.image(), arch)?, arch)?, None)
        }
        Software::Stock => {
            let stock = stock.context("the stock guest was not prepared")?;
            let initrd = given.unwrap_or_else(|| stock.initrd(plan.exec.as_deref()));
            (stock.kernel(), (!plan.boots_disk()).then_some(initrd))
        }
    };
    let guest = Guest {
        platform,
        kernel,
        initrd,
        cmdline: plan.command_line(&file.machine),
        vcpus: plan.config.vcpus,
        memory: plan.config.memory,
        flush: plan.config.flush,
        reset: plan.config.reset,
        switches,
        devices: plan.devices.clone(),
    };
    guest.check()?;
    Ok(guest)
}
