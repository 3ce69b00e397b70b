//! Several guests of a machine file, and the machine that runs them on Quell.

use super::{Hypervisor, StockGuest, check_fit, words};
use crate::arch::Arch;
use crate::debian::boot::ROOT;
use crate::machine::bundle::Bundle;
use crate::machine::devices::{self, Built};
use crate::machine::spec::{Payload, Spec};
use crate::machine_file::{GuestPlan, MachineFile, Software, shared_config};
use crate::size::MIB;
use crate::workspace;
use anyhow::{Context, Result};
use hostlink::bundle::Member;
use hostlink::config::{Config, Shares, Switches};
use hostlink::cpus::CpuSet;
use std::fs;
use std::path::Path;

/// The files of a bundle, each once.
#[derive(Default)]
struct Files {
    contents: Vec<Vec<u8>>,
}

impl Files {
    /// The member with these contents.
    fn member(&mut self, contents: Vec<u8>) -> String {
        let index = self.contents.iter().position(|known| *known == contents).unwrap_or_else(|| {
            self.contents.push(contents);
            self.contents.len() - 1
        });
        Member::File(u32::try_from(index).unwrap_or(u32::MAX)).to_string()
    }
}

/// The guests' configurations, and the files that they name.
pub(crate) struct Guests<'f> {
    file: &'f MachineFile,
    files: Files,
    configs: Vec<String>,
    machine: String,
    devices: Built,
}

impl<'f> Guests<'f> {
    /// Fetches and builds what the guests run, and checks that it fits into their memory.
    /// `switches` are the hypervisor's settings for all of them.
    pub(crate) fn prepare(file: &'f MachineFile, switches: Switches) -> Result<Self> {
        let machine = Config { boot_cpu: file.boot_cpu(), switches, ..Config::default() };
        let machine = Config { slice_us: file.machine.slice_us.unwrap_or(machine.slice_us), ..machine };
        let text = machine.of_machine().to_string();
        let devices =
            devices::build(file.machine.platform, file.guests.iter().map(|guest| &guest.devices), true)?;
        let mut guests = Self { file, files: Files::default(), configs: Vec::new(), machine: text, devices };
        let needs_stock = file.guests.iter().any(|guest| guest.software == Software::Stock);
        let arch = file.machine.platform.arch();
        let stock = needs_stock.then(|| StockGuest::prepare(arch)).transpose()?;
        for guest in &file.guests {
            let added = guests.add(guest, stock.as_ref(), &machine);
            added.map_err(|error| file.source.error(guest.line, format!("{}: {error:#}", guest.name)))?;
        }
        Ok(guests)
    }

    fn add(&mut self, guest: &GuestPlan, stock: Option<&StockGuest>, machine: &Config<'_>) -> Result<()> {
        let arch = self.file.machine.platform.arch();
        let given = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let given = guest.initrd.as_deref().map(given).transpose()?;
        let (kernel, initrd) = match (&guest.software, stock) {
            (Software::Kernel(kernel), _) => (kernel.clone(), given),
            (Software::Program(program), _) => {
                (workspace::bootable(workspace::build(program.image(), arch)?, arch)?, None)
            }
            (Software::Stock, stock) => {
                let stock = stock.context("the stock guest was not prepared")?;
                let initrd = given.unwrap_or_else(|| stock.initrd(guest.exec.as_deref()));
                (stock.kernel(), (!boots_disk(guest)).then_some(initrd))
            }
        };
        check_fit(arch, &kernel, initrd.as_ref().map_or(0, Vec::len) as u64, guest.memory)?;
        let contents = fs::read(&kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
        let kernel = self.files.member(contents);
        let initrd = initrd.map(|contents| self.files.member(contents));
        let cmdline = cmdline(guest, arch);
        words::check(arch, &cmdline)?;
        let shared = shared_config(&self.file.shared, guest.name);
        let config = Config {
            name: guest.name,
            vcpus: guest.vcpus,
            memory: guest.memory,
            weight: guest.weight,
            cap: guest.cap,
            cpus: self.physical(&guest.cpus),
            start: guest.start,
            flush: guest.flush,
            reset: guest.reset,
            kernel: &kernel,
            initrd: initrd.as_deref(),
            cmdline: &cmdline,
            shared: Shares::parse(&shared).context("shared memory that was checked is wrong")?,
            devices: self.devices.names.get(self.configs.len()).map_or("", String::as_str),
            ..*machine
        };
        self.configs.push(config.of_guest().to_string());
        Ok(())
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
        let path = directory.join("bundle.tar");
        let symbols = &hypervisor.symbols.table;
        Bundle::of_several(&self.machine, &self.configs, &self.files.contents, symbols).write(&path)?;
        let bytes = fs::metadata(&path)?.len();
        self.file.check_memory(bytes)?;
        let payload = Payload::Quell {
            hypervisor: hypervisor.image.clone(),
            bundle: path,
            beacon: hypervisor.symbols.beacon,
        };
        let memory = self.file.memory(bytes).next_multiple_of(MIB) + hypervisor.extra_memory;
        let cpus = self.file.machine.cpus + u32::from(self.file.adds_cpu());
        let devices = self.devices.args.clone();
        Ok(Spec { devices, ..Spec::new(self.file.machine.platform, payload, cpus, memory) })
    }
}

/// Whether the stock kernel boots from a disk of the guest's.
fn boots_disk(guest: &GuestPlan) -> bool {
    guest.software == Software::Stock && guest.devices.boot(guest.initrd.is_some(), guest.exec.is_some())
}

/// The command line of a guest: its console, and after it the file's words.
fn cmdline(guest: &GuestPlan, arch: Arch) -> String {
    let mut words = vec![arch.console()];
    if guest.exec.is_some() {
        // A guest that panics ends instead of waiting for an administrator.
        words.push("panic=-1");
    }
    if boots_disk(guest) {
        words.push(ROOT);
    }
    words.extend(guest.cmdline.as_deref());
    words.join(" ")
}
