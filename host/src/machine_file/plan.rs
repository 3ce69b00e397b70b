//! What would be built from a machine file, as a table and as JSON.

use super::{GuestPlan, MachineFile, SharedPlan, Software};
use crate::arch::Arch;
use crate::size;
use crate::table::table;
use clap::ValueEnum;
use comfy_table::CellAlignment;
use hostlink::config::BootCpu;
use hostlink::cpus::CpuSet;
use hostlink::name::Name;
use serde_json::{Value, json};
use std::env;
use std::path::{Path, PathBuf};

impl MachineFile {
    /// Whether this tool adds a CPU, the boot CPU, before those that the file counts: see
    /// `docs/qemu.md`.
    pub(crate) fn adds_cpu(&self) -> bool {
        let is_x86 = self.machine.platform.arch() == Arch::X86_64;
        self.machine.boot_cpu.is_none() && is_x86 && self.machine.cpus > 1
    }

    /// The role of the boot CPU.
    pub(crate) fn boot_cpu(&self) -> BootCpu {
        let usual = if self.adds_cpu() { BootCpu::Serve } else { BootCpu::Run };
        self.machine.boot_cpu.unwrap_or(usual)
    }

    /// The path of the hypervisor's log, if no option names another.
    pub(crate) fn hypervisor_log(&self) -> PathBuf {
        self.machine.logs.join(super::checks::HYPERVISOR_LOG)
    }

    /// The machine's memory, with a bundle of this size.
    pub(crate) fn memory(&self, bundle_bytes: u64) -> u64 {
        self.machine.memory.map_or_else(|| self.memory_needed(bundle_bytes), |memory| memory.value)
    }

    fn weights(&self) -> u32 {
        self.guests.iter().map(|guest| guest.weight).sum()
    }

    /// The part of the CPUs that a guest gets if all guests want all of them.
    fn share(&self, guest: &GuestPlan) -> f64 {
        f64::from(guest.weight) / f64::from(self.weights())
    }

    /// The CPUs that may run a guest, as the file counts them.
    fn cpus_of(&self, guest: &GuestPlan) -> CpuSet {
        guest.cpus.intersection(&self.machine.running())
    }

    /// The most CPUs that a guest can use at one time.
    fn cpus_at_most(&self, guest: &GuestPlan) -> f64 {
        let cap = guest.cap.map_or(f64::INFINITY, |percent| f64::from(percent) / 100.0);
        f64::from(self.cpus_of(guest).len().min(guest.vcpus)).min(cap)
    }

    /// A table of what would be built.
    pub(crate) fn table(&self) -> String {
        let rows = self.guests.iter().map(|guest| {
            [
                guest.name.to_string(),
                guest.vcpus.to_string(),
                size::display(guest.memory),
                guest.cpus.to_string(),
                guest.weight.to_string(),
                format!("{:.1} %", 100.0 * self.share(guest)),
                guest.cap.map_or_else(|| "none".to_owned(), |cap| format!("{cap} %")),
                format!("{}", self.cpus_at_most(guest)),
                self.flush(guest).to_owned(),
                guest.start.to_string(),
                shown(&guest.console.value).display().to_string(),
            ]
        });
        let header = [
            "guest",
            "vCPUs",
            "memory",
            "CPUs",
            "weight",
            "share",
            "cap",
            "CPUs at most",
            "flush",
            "start",
            "console",
        ];
        let mut table = table(header, rows);
        if let Some(console) = table.column_iter_mut().last() {
            console.set_cell_alignment(CellAlignment::Left);
        }
        let shared = |region: &SharedPlan| {
            let names: Vec<_> = region.guests.iter().map(Name::as_str).collect();
            format!(
                "{} share {} of memory, '{}'\n",
                names.join(", "),
                size::display(region.size),
                region.name
            )
        };
        let shared: String = self.shared.iter().map(shared).collect();
        format!("{}\n{table}\n{shared}{NOTES}", self.headline())
    }

    /// How a guest flushes remote TLBs.
    fn flush(&self, guest: &GuestPlan) -> &'static str {
        match self.machine.platform.arch() {
            Arch::X86_64 => guest.flush.name(),
            Arch::Aarch64 => "hardware",
        }
    }

    /// The machine in one line.
    fn headline(&self) -> String {
        let (guests, cpus) = (self.guests.len(), self.machine.cpus);
        let vcpus: u32 = self.guests.iter().map(|guest| guest.vcpus).sum();
        let role = match (self.adds_cpu(), self.boot_cpu()) {
            (true, _) => ", and one more that runs no guest",
            (false, BootCpu::Serve) => ", of which CPU 0 runs no guest",
            (false, BootCpu::Run) => "",
        };
        format!(
            "{}: {guests} guest{}, {vcpus} vCPUs in total, on {} with {cpus} CPU{}{role}; about {} of memory",
            self.source.path().display(),
            if guests == 1 { "" } else { "s" },
            self.machine.platform.arch().name(),
            if cpus == 1 { "" } else { "s" },
            size::display(self.memory(self.bundle_estimate()))
        )
    }

    /// The same as JSON.
    pub(crate) fn json(&self) -> Value {
        let guests: Vec<_> = self.guests.iter().map(|guest| self.guest_json(guest)).collect();
        let shared: Vec<_> = self.shared.iter().map(shared_json).collect();
        json!({
            "file": self.source.path(),
            "arch": self.machine.platform.arch().name(),
            "cpus": self.machine.cpus,
            "cpus_added": u32::from(self.adds_cpu()),
            "boot_cpu": self.boot_cpu().name(),
            "memory_bytes": self.memory(self.bundle_estimate()),
            "slice_us": self.machine.slice_us,
            "logs": self.machine.logs,
            "guests": guests,
            "shared": shared,
        })
    }

    fn guest_json(&self, guest: &GuestPlan) -> Value {
        let (kernel, program) = match &guest.software {
            Software::Stock => (None, None),
            Software::Kernel(kernel) => (Some(kernel), None),
            Software::Program(program) => (None, program.to_possible_value()),
        };
        json!({
            "name": guest.name.as_str(),
            "kernel": kernel,
            "program": program.map(|value| value.get_name().to_owned()),
            "initrd": guest.initrd,
            "exec": guest.exec,
            "cmdline": guest.cmdline,
            "vcpus": guest.vcpus,
            "memory_bytes": guest.memory,
            "cpus": self.cpus_of(guest).iter().collect::<Vec<_>>(),
            "weight": guest.weight,
            "share": self.share(guest),
            "cap_percent": guest.cap,
            "cpus_at_most": self.cpus_at_most(guest),
            "flush": self.flush(guest),
            "reset": guest.reset.name(),
            "console": guest.console.value,
            "start": guest.start.name(),
        })
    }
}

/// A region as JSON.
fn shared_json(region: &SharedPlan) -> Value {
    let guests: Vec<_> = region.guests.iter().map(Name::as_str).collect();
    json!({ "name": region.name.as_str(), "size_bytes": region.size, "guests": guests })
}

/// A path as it is short to show: relative if it is below the current directory.
fn shown(path: &Path) -> &Path {
    let here = env::current_dir().ok();
    here.and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path)
}

/// What two columns mean.
const NOTES: &str = "share: of the CPUs, by its weight, if every guest wants more than it gets. What a \
guest leaves, others get.\nCPUs at most: by its vCPUs, its CPUs and its cap. Nothing was started.";
