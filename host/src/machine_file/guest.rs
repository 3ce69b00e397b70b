//! One `[[guest]]` of a machine file.

use super::fields::{At, Fields, Source, refuse};
use super::keys::KEYS;
use super::machine::{self, Machine};
use crate::cli::Program;
use crate::debian::boot::ROOT;
use crate::machine::devices::Devices;
use crate::migration::{Arrival, Description};
use crate::prelude::*;
use crate::run::reporting_console;
use hostlink::architecture::Architecture;
use hostlink::config::{Config, Console, ResetPolicy, Start};
use toml::de::DeTable;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Software {
    Stock,
    Kernel(PathBuf),
    Program(Program),
    /// The kernel of a guest that was saved, in that guest's file.
    Saved,
}

impl Software {
    pub(super) fn kernel(&self) -> Option<&PathBuf> {
        if let Self::Kernel(kernel) = self { Some(kernel) } else { None }
    }

    pub(super) fn program(&self) -> Option<Program> {
        if let Self::Program(program) = self { Some(*program) } else { None }
    }
}

impl From<PathBuf> for Software {
    fn from(kernel: PathBuf) -> Self {
        Self::Kernel(kernel)
    }
}

impl From<Program> for Software {
    fn from(program: Program) -> Self {
        Self::Program(program)
    }
}

/// Where the kernel of a guest comes from whose disk is its system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Boot {
    /// The kernel that the disk has, found anew at each reset
    Disk,
    /// Debian's kernel of `./quell fetch`, without an initial RAM disk
    Kernel,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestPlan {
    /// The line of its `[[guest]]`.
    pub(crate) line: usize,
    /// What the hypervisor is told, but for files. CPUs are counted as the file counts them.
    pub(crate) config: Config<'static>,
    pub(crate) software: Software,
    /// Its initial RAM disk; for the stock kernel the stock one if there is none.
    pub(crate) initrd: Option<PathBuf>,
    /// The shell command that it runs instead of a shell.
    pub(crate) exec: Option<String>,
    /// What is asked for.
    pub(super) boot: Option<Boot>,
    pub(crate) cmdline: Option<String>,
    pub(crate) console: At<PathBuf>,
    pub(crate) devices: Devices,
    pub(crate) arrival: Arrival,
}

impl GuestPlan {
    pub(super) fn read(source: &Source, table: &DeTable<'_>, line: usize, machine: &Machine) -> Result<Self> {
        let others = (machine::KEYS, "is for the whole machine: write it under [machine]");
        let names = KEYS.iter().map(|key| (key.name, key.example)).collect();
        let fields = Fields::new(source, table, "a [[guest]]", names, others)?;
        let name = fields.word("name", Name::EXPECTED, Name::parse)?;
        let Some(At { value: name, .. }) = name else {
            refuse!(source, line, "this guest has no name; write for example name = \"web\"");
        };
        refuse_both(source, &fields)?;
        let mut plan = Self {
            line,
            config: Config { name, vcpus: 2, memory: 256 * MIB, ..Config::default() },
            software: Software::Stock,
            initrd: None,
            exec: None,
            boot: None,
            cmdline: None,
            console: At { value: machine.logs.join(format!("{name}.log")), line },
            devices: Devices::default(),
            arrival: Arrival::default(),
        };
        for key in KEYS {
            (key.read)(&mut plan, &fields, key.name, machine)?;
        }
        let is_on_arm = machine.platform.arch() == Arch::Aarch64;
        if let (Some(line), Some(Boot::Disk), true) = (fields.line("cmdline"), plan.boots(), is_on_arm) {
            let why = "on aarch64 the disk's boot loader has the words";
            refuse!(source, line, "cmdline is for a kernel that is given: {why}");
        }
        if plan.exec.is_some() && !fields.has("reset") {
            plan.config.reset = ResetPolicy::Exit;
        }
        if let (Some(line), []) = (fields.line("boot"), &plan.devices.disks[..]) {
            refuse!(source, line, "boot is about a disk, and this guest has none: write disks = …");
        }
        if plan.arrival.incoming.is_some() != plan.arrival.secret.is_some() {
            refuse!(
                source,
                line,
                "incoming and secret belong together: guests are taken from those who know it"
            );
        }
        plan.devices.check().map_err(|error| source.error(line, format!("{error:#}")))?;
        Ok(plan)
    }

    /// What the file of a saved guest says of it; its place among other guests is its own.
    pub(super) fn restore(&mut self, path: PathBuf, description: Description) -> Result<()> {
        let text = description.config();
        let saved = Config::parse_guest(&text, &Config::default()).map_err(|error| anyhow!("{error}"))?;
        let Config { vcpus, memory, flush, reset, .. } = saved;
        self.config = Config { vcpus, memory, flush, reset, start: Start::Manual, ..self.config };
        (self.software, self.cmdline) = (Software::Saved, Some(saved.cmdline.to_owned()));
        self.arrival.restore = Some((path, Box::new(description)));
        Ok(())
    }

    pub(crate) fn name(&self) -> Name {
        self.config.name
    }

    /// The way in which its first disk is its system, if it is.
    pub(crate) fn boots(&self) -> Option<Boot> {
        let is_stock = self.software == Software::Stock && self.initrd.is_none() && self.exec.is_none();
        (is_stock && !self.devices.disks.is_empty()).then(|| self.boot.unwrap_or(Boot::Disk))
    }

    pub(crate) fn command_line(&self, machine: &Machine) -> String {
        if self.software == Software::Saved {
            return self.cmdline.clone().unwrap_or_default();
        }
        let arch = machine.platform.arch();
        // The reports of a guest in a machine of its own are read: its command's status.
        let reports = self.exec.is_some() && machine.console == Console::Machine;
        let mut words = vec![if reports { reporting_console(arch) } else { arch.console().to_owned() }];
        if self.exec.is_some() {
            // A guest that panics ends instead of waiting for an administrator.
            words.push("panic=-1".to_owned());
        }
        if self.boots() == Some(Boot::Kernel) {
            words.push(ROOT.to_owned());
        }
        words.extend(self.cmdline.clone());
        words.join(" ")
    }
}

fn refuse_both(source: &Source, fields: &Fields<'_>) -> Result<()> {
    for (key, (excluded, why)) in KEYS.iter().map(|key| (key.name, key.excludes)) {
        let both = excluded.split_whitespace().find(|other| fields.has(key) && fields.has(other));
        if let (Some(other), Some(line)) = (both, fields.line(key)) {
            refuse!(source, line, "{key} and {other} exclude each other: {why}");
        }
    }
    Ok(())
}

/// Reads whether the guest may have guests, which need SVM.
pub(super) fn nested(
    guest: &mut GuestPlan,
    of: &Fields<'_>,
    key: &'static str,
    machine: &Machine,
) -> Result<()> {
    let Some(At { value, line }) = of.flag(key)? else { return Ok(()) };
    if value && machine.platform.architecture() != Architecture::Amd64 {
        return Err(of.wrong(key, line, "is for AMD64 alone: leave it out, the guest's guests need SVM"));
    }
    guest.config.nested = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Overrides;
    use crate::machine_file::MachineFile;
    use hostlink::config::BootCpu;

    #[test]
    fn options_are_a_machine_of_one_guest_with_its_console() {
        let with = |keys: &[(&str, &str)]| {
            let keys: Vec<_> = keys.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
            MachineFile::of_options(&keys, Overrides::default())
        };
        let file =
            with(&[("vcpus", "8"), ("memory", "\"512M\""), ("exec", r#""echo a\nb""#)]).expect("is one");
        assert_eq!(
            (file.machine.console, file.boot_cpu(), file.guests.len()),
            (Console::Machine, BootCpu::Serve, 1)
        );
        let guest = &file.guests[0];
        assert_eq!((guest.name().as_str(), guest.config.vcpus, guest.config.memory), ("guest", 8, 512 * MIB));
        assert_eq!((guest.exec.as_deref(), guest.config.reset), (Some("echo a\nb"), ResetPolicy::Exit));
        assert_eq!(guest.command_line(&file.machine), "console=ttyS0 panic=-1");
        let arm = Overrides { platform: Arch::Aarch64.usual().arguments(), cpus: None };
        let on_arm = MachineFile::of_options(&[("exec", "\"true\"".to_owned())], arm).expect("is one");
        assert_eq!(on_arm.guests[0].command_line(&on_arm.machine), "console=ttyAMA0 quell.report panic=-1");
        let refused = |key, value| with(&[(key, value)]).expect_err("is refused").to_string();
        assert!(refused("boot", "\"disk\"").contains("this guest has none"));
        assert_eq!(refused("memory", "\"3M\""), "--memory has to be a multiple of 2 MiB");
        assert!(refused("disks", "\"/nowhere.img\"").starts_with("there is no disk at /nowhere.img"));
    }

    #[test]
    fn a_disk_is_the_system_unless_something_else_is_given() {
        let disk = format!("{:?}", workspace::root().join("Cargo.toml"));
        let boots = |more: Option<(&'static str, String)>| {
            let keys: Vec<_> = [("disks", disk.clone())].into_iter().chain(more).collect();
            MachineFile::of_options(&keys, Overrides::default()).expect("is one").guests[0].boots()
        };
        assert_eq!(boots(None), Some(Boot::Disk));
        assert_eq!(boots(Some(("boot", "\"kernel\"".to_owned()))), Some(Boot::Kernel));
        for other in ["exec", "initrd", "kernel"] {
            let given = format!("{:?}", workspace::root().join("README.md"));
            assert_eq!(boots(Some((other, given))), None, "{other}");
        }
        let none = MachineFile::of_options(&[], Overrides::default()).expect("is one");
        assert_eq!(none.guests[0].boots(), None, "it has no disk");
    }
}
