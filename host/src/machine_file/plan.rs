//! What would be built from a machine file, as a table and as JSON.

use super::keys::{KEYS, Shown};
use super::{GuestPlan, MachineFile};
use crate::prelude::*;
use comfy_table::CellAlignment;
use hostlink::config::BootCpu;
use hostlink::cpus::CpuSet;

impl MachineFile {
    /// Whether this tool adds the boot CPU before those that the file counts: see `docs/qemu.md`.
    pub(crate) fn adds_cpu(&self) -> bool {
        self.machine.boot_cpu.is_none() && self.machine.platform.adds_cpu(self.machine.cpus)
    }

    pub(crate) fn boot_cpu(&self) -> BootCpu {
        let usual = if self.adds_cpu() { BootCpu::Serve } else { BootCpu::Run };
        self.machine.boot_cpu.unwrap_or(usual)
    }

    pub(crate) fn hypervisor_log(&self) -> PathBuf {
        self.machine.logs.join(super::checks::HYPERVISOR_LOG)
    }

    pub(crate) fn memory(&self, bundle_bytes: u64) -> u64 {
        self.machine.memory.map_or_else(|| self.memory_needed(bundle_bytes), |memory| memory.value)
    }

    fn weights(&self) -> u32 {
        self.guests.iter().map(|guest| guest.config.weight).sum()
    }

    /// The part of the CPUs that a guest gets if all guests want all of them.
    pub(super) fn share(&self, guest: &GuestPlan) -> f64 {
        f64::from(guest.config.weight) / f64::from(self.weights())
    }

    /// The CPUs that may run a guest, as the file counts them.
    pub(super) fn cpus_of(&self, guest: &GuestPlan) -> CpuSet {
        guest.config.cpus.intersection(&self.machine.running())
    }

    /// The most CPUs that a guest can use at one time.
    pub(super) fn cpus_at_most(&self, guest: &GuestPlan) -> f64 {
        let cap = guest.config.cap.map_or(f64::INFINITY, |percent| f64::from(percent) / 100.0);
        f64::from(self.cpus_of(guest).len().min(guest.config.vcpus)).min(cap)
    }

    pub(crate) fn table(&self) -> String {
        let cell = |(_, _, value, text): &Shown, guest| text(&value(self, guest));
        let has_cells = |shown: &&Shown| self.guests.iter().any(|guest| !cell(shown, guest).is_empty());
        let columns = KEYS.iter().flat_map(|key| key.shown).filter(|(header, ..)| !header.is_empty());
        let columns: Vec<_> = columns.filter(has_cells).collect();
        let rows = self.guests.iter().map(|guest| columns.iter().map(move |shown| cell(shown, guest)));
        let mut table = table(columns.iter().map(|(header, ..)| *header), rows);
        let first_text = columns.iter().position(|(header, ..)| *header == "console");
        for column in table.column_iter_mut().skip(first_text.unwrap_or(0)) {
            column.set_cell_alignment(CellAlignment::Left);
        }
        let warnings = self.guests.iter().filter_map(|guest| guest.arrival.warning.as_ref());
        let warnings: String = warnings.map(|warning| format!("warning: {warning}\n")).collect();
        format!("{}\n{table}\n{warnings}{NOTES}", self.headline())
    }

    pub(super) fn flush(&self, guest: &GuestPlan) -> &'static str {
        self.machine.platform.arch().pick(guest.config.flush.name(), "hardware")
    }

    fn headline(&self) -> String {
        let (guests, cpus) = (self.guests.len(), self.machine.cpus);
        let vcpus: u32 = self.guests.iter().map(|guest| guest.config.vcpus).sum();
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

    pub(crate) fn json(&self) -> Value {
        let guests: Vec<_> = self.guests.iter().map(|guest| self.guest_json(guest)).collect();
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
        })
    }

    fn guest_json(&self, guest: &GuestPlan) -> Value {
        let members = KEYS.iter().flat_map(|key| key.shown).filter(|(_, name, ..)| !name.is_empty());
        members.map(|(_, name, value, _)| ((*name).to_owned(), value(self, guest))).collect()
    }
}

/// A path as it is short to show: relative if it is below the current directory.
pub(super) fn shown(path: &Path) -> &Path {
    let here = env::current_dir().ok();
    here.and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path)
}

const NOTES: &str = "share: of the CPUs, by its weight, if every guest wants more than it gets. What a \
guest leaves, others get.\nCPUs at most: by its vCPUs, its CPUs and its cap. Nothing was started.";

#[cfg(test)]
mod tests {
    use crate::machine_file::tests::read;
    use crate::workspace;

    #[test]
    fn what_would_be_built_is_shown() {
        let text = "[machine]\nlogs = \"l\"\n[[guest]]\nname = \"web\"\ncap = 50\n\n[[guest]]\nname = \"db\"\nweight = 300\ncpus = [1]\n";
        let file = read(text).expect("is right");
        let table = file.table();
        let row = |name: &str| table.lines().find(|line| line.contains(name)).expect("has a row").to_owned();
        for word in [
            "web",
            "256 MiB",
            "all",
            "100",
            "25.0 %",
            "50 %",
            "0.5",
            "hypercall",
            "auto",
            "/nowhere/l/web.log",
        ] {
            assert!(row("web").contains(word), "{word}: {table}");
        }
        for word in ["300", "75.0 %", "none"] {
            assert!(row("db").contains(word), "{word}: {table}");
        }
        assert!(
            table.starts_with(
                "/nowhere/m.toml: 2 guests, 4 vCPUs in total, on x86_64 with 2 CPUs, and one more"
            ),
            "{table}"
        );
        let json = file.json();
        assert_eq!(
            (&json["cpus"], &json["cpus_added"], &json["boot_cpu"]),
            (&2.into(), &1.into(), &"serve".into())
        );
        let (web, db) = (&json["guests"][0], &json["guests"][1]);
        assert_eq!(
            (&web["share"], &web["cap_percent"], &web["cpus_at_most"]),
            (&0.25.into(), &50.into(), &0.5.into())
        );
        assert_eq!((&db["cpus"], &db["cpus_at_most"]), (&serde_json::json!([1]), &1.0.into()));
        assert_eq!(web["console"], "/nowhere/l/web.log");
    }

    #[test]
    fn devices_are_shown_where_a_guest_has_some() {
        let disk = workspace::root().join("Cargo.toml");
        let text = format!(
            "[[guest]]\nname = \"web\"\ndisks = [{disk:?}]\nnet = \"user\"\ndevices = [\"nvme\", \"00:04.0\"]\n\
             [[guest]]\nname = \"db\"\n"
        );
        let file = read(&text).expect("is right");
        let table = file.table();
        for word in ["disks", "Cargo.toml", "network", "user", "devices", "nvme 00:04.0"] {
            assert!(table.contains(word), "{word}: {table}");
        }
        assert!(!table.contains("virtio"), "no guest has one: {table}");
        let web = &file.json()["guests"][0];
        assert_eq!(
            (&web["disks"][0], &web["virtio_disks"], &web["net"], &web["devices"][1]),
            (&disk.to_string_lossy().into(), &serde_json::json!([]), &"user".into(), &"00:04.0".into())
        );
    }
}
