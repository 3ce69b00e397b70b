//! The configuration of a guest and its machine: lines of `key=value`, empty lines and `#` comments
//! ignored.
//!
//! | key | value | default |
//! |---|---|---|
//! | `name` | the guest's name, as [`Name`] describes | `guest` |
//! | `vcpus` | number of virtual CPUs, 1 to [`MAX_VCPUS`] | 1 |
//! | `memory` | guest memory in bytes, a multiple of 2 MiB, up to [`MEMORY_MAX`] | 256 MiB |
//! | `weight` | the guest's share of the CPUs beside the other guests' weights, 1 to 10,000 | 100 |
//! | `cap` | the most that it gets even if CPUs idle, in percent of one CPU, 1 to 25,600; or `none` | `none` |
//! | `cpus` | the CPUs that its vCPUs may use, as [`CpuSet`] describes; CPU 0 is the boot CPU | `all` |
//! | `start` | `auto`: it starts with the machine; `manual`: it is started by a request | `auto` |
//! | `flush` | `hypercall`: recommend the remote flush hypercalls to the guest; `ipi`: do not | `hypercall` |
//! | `nested` | `on`: the guest may have guests of its own, on AMD64; `off` | `off` |
//! | `slice_us` | longest time slice of a vCPU in microseconds while others wait, 100 to 1,000,000 | 5000 |
//! | `reset` | `reboot`: a guest's reset starts it again; `exit`: it ends the run, or this guest if there are several; `panic`: the hypervisor panics, to try its report | `reboot` |
//! | `boot_cpu` | `run`: the boot CPU runs vCPUs like the others; `serve`: it runs none, only takes the console's interrupts | `run` |
//! | `console` | `rings`: consoles are rings in memory, beside which the guests are listed; `machine`: the only guest has the machine's serial ports, and is not listed | `rings` |
//! | `kernel` | the [bundle](crate::bundle)'s member with the guest's kernel | `kernel` |
//! | `firmware` | on Arm64, instead of a kernel, the member with a flat image of firmware that looks for one itself, such as U-Boot for QEMU's `virt` | none |
//! | `initrd` | the member with its initial RAM disk | none |
//! | `cmdline` | the guest's kernel command line, to the end of the line, up to [`CMDLINE_MAX`] bytes | empty |
//!
//! In addition there are the [switches](Switches), with a key for each field.
//!
//! Each guest has a text of its own, and so has the machine, whose keys are [`MACHINE_KEYS`]; all
//! others are for guests.

mod error;
mod switches;

use crate::cpus::CpuSet;
use crate::name::Name;
use crate::words::{Number, number, on_or_off, words};
pub use error::ConfigError;
pub use switches::{ApicIds, ForeignSwitch, LocalTlbi, NestedPage, Stage2Unmap, Switches, TURN_RUNS, Zap};

use core::fmt;

/// Name of the bundle's member with a guest's kernel whose configuration names none.
pub const KERNEL: &str = "kernel";

/// Most virtual CPUs of one guest: every APIC id must be reachable in x2APIC physical mode without
/// interrupt remapping, and 255 is the broadcast id.
pub const MAX_VCPUS: u32 = 255;

/// Most guests of one machine.
pub const MAX_GUESTS: u32 = 64;

/// Most virtual CPUs of all guests of a machine together.
pub const MAX_TOTAL_VCPUS: u32 = 1024;

/// Guest memory is a multiple of this many bytes.
pub const MEMORY_UNIT: u64 = 2 << 20;

/// The largest memory, and the largest size of anything else that somebody writes: as many bytes as
/// 46 bits address. Sums of all sizes of a machine fit into 64 bits.
pub const MEMORY_MAX: u64 = 1 << 46;

/// The longest command line in bytes. Many kernels take less.
pub const CMDLINE_MAX: usize = 0xffff;

/// The highest weight.
pub const MAX_WEIGHT: u32 = 10_000;

/// The highest cap: 256 CPUs.
pub const MAX_CAP: u32 = 25_600;

/// The keys that are for the whole machine.
pub const MACHINE_KEYS: [&str; 8] =
    ["slice_us", "boot_cpu", "console", "vmid_bits", "vmid_churn", "vpids", "pretend", "defect"];

words! {
    /// The hint that the guest gets about remote TLB flushes.
    FlushMode {
        /// CPUID recommends the flush hypercalls.
        Hypercall = "hypercall",
        /// No hint: the guest flushes remote TLBs by IPI.
        Ipi = "ipi",
    }

    /// The effect of a guest's reset.
    ResetPolicy {
        /// Start the guest again.
        Reboot = "reboot",
        /// End the run.
        Exit = "exit",
        /// Fail as if there were an error in the hypervisor, to test its report.
        Panic = "panic",
    }

    /// When a guest starts.
    Start {
        /// With the machine.
        Auto = "auto",
        /// When it is requested.
        Manual = "manual",
    }

    /// The role of the boot CPU.
    BootCpu {
        /// It runs vCPUs.
        Run = "run",
        /// It leaves them to the others. For QEMU's multi-threaded emulation, in which FPU
        /// instructions on other CPUs damage the SVM state of the first one: see `docs/qemu.md`.
        Serve = "serve",
    }

    /// Where guests' consoles are.
    Console {
        /// In rings in memory, beside the guests' entries, which the host tool reads.
        Rings = "rings",
        /// On the machine's own serial ports, which are the only guest's: no tool is needed.
        Machine = "machine",
    }
}

/// A checked configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config<'a> {
    /// The guest's name.
    pub name: Name,
    /// Number of virtual CPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// Guest memory in bytes, a multiple of [`MEMORY_UNIT`].
    pub memory: u64,
    /// Its share of the CPUs beside the other guests' weights, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// The most that it gets, in percent of one CPU, 1 to [`MAX_CAP`].
    pub cap: Option<u32>,
    /// The CPUs that its vCPUs may use. The boot CPU has number 0, even if it runs no vCPUs.
    pub cpus: CpuSet,
    /// When it starts.
    pub start: Start,
    /// The CPUID recommendation for remote flushes.
    pub flush: FlushMode,
    /// Whether the guest may have guests of its own.
    pub nested: bool,
    /// Longest time slice in microseconds while other vCPUs wait for the CPU.
    pub slice_us: u32,
    /// The effect of a guest's reset.
    pub reset: ResetPolicy,
    /// The role of the boot CPU.
    pub boot_cpu: BootCpu,
    /// Where guests' consoles are.
    pub console: Console,
    /// Behaviour that tests change.
    pub switches: Switches,
    /// The bundle's member with its kernel.
    pub kernel: &'a str,
    /// Whether that is firmware, and no kernel.
    pub is_firmware: bool,
    /// The member with its initial RAM disk.
    pub initrd: Option<&'a str>,
    /// The PCI functions of the machine that the guest owns: addresses (`00:04.0`) or kinds
    /// (`nvme`), separated by spaces. Nothing for none.
    pub devices: &'a str,
    /// The guest's kernel command line.
    pub cmdline: &'a str,
}

impl Default for Config<'_> {
    fn default() -> Self {
        Self {
            name: Name::GUEST,
            vcpus: 1,
            memory: 256 << 20,
            weight: 100,
            cap: None,
            cpus: CpuSet::ALL,
            start: Start::Auto,
            flush: FlushMode::Hypercall,
            nested: false,
            slice_us: 5000,
            reset: ResetPolicy::Reboot,
            boot_cpu: BootCpu::Run,
            console: Console::Rings,
            switches: Switches::default(),
            kernel: KERNEL,
            is_firmware: false,
            initrd: None,
            devices: "",
            cmdline: "",
        }
    }
}

impl<'a> Config<'a> {
    /// Reads the keys of a machine and of a guest from one text, for tests; missing keys keep their
    /// defaults.
    ///
    /// # Errors
    ///
    /// The first line that is wrong.
    pub fn parse(text: &'a str) -> Result<Self, ConfigError<'a>> {
        Self::default().with(text, Keys::All)
    }

    /// Reads the configuration of a machine.
    ///
    /// # Errors
    ///
    /// The first line that is wrong, or has a key that is for one guest.
    pub fn parse_machine(text: &'a str) -> Result<Self, ConfigError<'a>> {
        Self::default().with(text, Keys::Machine)
    }

    /// Reads the configuration of a guest. What is for the whole machine it has from `machine`.
    ///
    /// # Errors
    ///
    /// The first line that is wrong, or has a key that is for the whole machine.
    pub fn parse_guest(text: &'a str, machine: &Config<'_>) -> Result<Self, ConfigError<'a>> {
        let defaults = Self {
            slice_us: machine.slice_us,
            boot_cpu: machine.boot_cpu,
            console: machine.console,
            switches: machine.switches,
            ..Self::default()
        };
        defaults.with(text, Keys::Guest)
    }

    fn with(mut self, text: &'a str, keys: Keys) -> Result<Self, ConfigError<'a>> {
        for (index, raw) in text.lines().enumerate() {
            let line = index + 1;
            let entry = raw.trim();
            if entry.is_empty() || entry.starts_with('#') {
                continue;
            }
            let (key, value) = entry.split_once('=').ok_or(ConfigError::NoValue { line })?;
            let (key, value) = (key.trim(), value.trim());
            self.set(line, key, value)?;
            // After it was read, so that an unknown key is called unknown.
            let of_machine = MACHINE_KEYS.contains(&key);
            match keys {
                Keys::Machine if !of_machine => return Err(ConfigError::OfGuest { line, key }),
                Keys::Guest if of_machine => return Err(ConfigError::OfMachine { line, key }),
                _ => {}
            }
        }
        Ok(self)
    }

    fn set(&mut self, line: usize, key: &'a str, value: &'a str) -> Result<(), ConfigError<'a>> {
        let bad = |expected| ConfigError::BadValue { line, key, value, expected };
        match key {
            "name" => self.name = Name::parse(value).ok_or(bad(Name::EXPECTED))?,
            "vcpus" => {
                let count = value.parse().ok().filter(|n| (1..=MAX_VCPUS).contains(n));
                self.vcpus = count.ok_or(bad("a number from 1 to 255"))?;
            }
            "memory" => {
                let bytes = value.parse().ok().filter(|n| (MEMORY_UNIT..=MEMORY_MAX).contains(n));
                let bytes = bytes.filter(|n: &u64| n.is_multiple_of(MEMORY_UNIT));
                self.memory = bytes.ok_or(bad("bytes, a multiple of 2 MiB, at most 2^46"))?;
            }
            "weight" => {
                let weight = value.parse().ok().filter(|n| (1..=MAX_WEIGHT).contains(n));
                self.weight = weight.ok_or(bad("a number from 1 to 10000"))?;
            }
            "cap" => {
                let cap = number(value, 1..=MAX_CAP, "none");
                self.cap = cap.ok_or(bad("percent of one CPU, from 1 to 25600, or none"))?;
            }
            "cpus" => self.cpus = CpuSet::parse(value).ok_or(bad(CpuSet::EXPECTED))?,
            "start" => self.start = Start::named(value).ok_or(bad(Start::EXPECTED))?,
            "flush" => self.flush = FlushMode::named(value).ok_or(bad(FlushMode::EXPECTED))?,
            "nested" => self.nested = on_or_off(value).ok_or(bad("on or off"))?,
            "slice_us" => {
                let us = value.parse().ok().filter(|n| (100..=1_000_000).contains(n));
                self.slice_us = us.ok_or(bad("microseconds from 100 to 1000000"))?;
            }
            "reset" => self.reset = ResetPolicy::named(value).ok_or(bad(ResetPolicy::EXPECTED))?,
            "boot_cpu" => self.boot_cpu = BootCpu::named(value).ok_or(bad(BootCpu::EXPECTED))?,
            "console" => self.console = Console::named(value).ok_or(bad(Console::EXPECTED))?,
            "kernel" | "firmware" => {
                self.kernel = member(value).ok_or(bad(MEMBER))?;
                self.is_firmware = key == "firmware";
            }
            "initrd" => self.initrd = Some(member(value).ok_or(bad(MEMBER))?),
            "devices" => self.devices = value,
            "cmdline" if value.len() > CMDLINE_MAX => {
                let (value, expected) = ("…", "at most 65535 bytes");
                return Err(ConfigError::BadValue { line, key, value, expected });
            }
            "cmdline" => self.cmdline = value,
            _ => {
                if !self.switches.set(key, value).map_err(bad)? {
                    return Err(ConfigError::UnknownKey { line, key });
                }
            }
        }
        Ok(())
    }
}

/// The keys that a text may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    All,
    Machine,
    Guest,
}

/// The expected value for a member.
const MEMBER: &str = "the name of a member of the bundle";

/// The name of a member.
fn member(value: &str) -> Option<&str> {
    (!value.is_empty()).then_some(value)
}

impl fmt::Display for Config<'_> {
    /// Writes the form that [`Config::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, Keys::All)
    }
}

impl Config<'_> {
    /// The form that [`Config::parse_machine`] reads.
    pub fn of_machine(&self) -> impl fmt::Display {
        Part(self, Keys::Machine)
    }

    /// The form that [`Config::parse_guest`] reads.
    pub fn of_guest(&self) -> impl fmt::Display {
        Part(self, Keys::Guest)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, keys: Keys) -> fmt::Result {
        if keys != Keys::Guest {
            writeln!(f, "slice_us={}\nboot_cpu={}\nconsole={}", self.slice_us, self.boot_cpu, self.console)?;
        }
        self.switches.write(f, |key| match keys {
            Keys::All => true,
            Keys::Machine => MACHINE_KEYS.contains(&key),
            Keys::Guest => !MACHINE_KEYS.contains(&key),
        })?;
        if keys == Keys::Machine {
            return Ok(());
        }
        writeln!(f, "name={}\nvcpus={}\nmemory={}", self.name, self.vcpus, self.memory)?;
        writeln!(f, "weight={}\ncap={}\ncpus={}", self.weight, Number(self.cap, "none"), self.cpus)?;
        writeln!(f, "start={}\nflush={}\nreset={}", self.start, self.flush, self.reset)?;
        if self.nested {
            writeln!(f, "nested=on")?;
        }
        writeln!(f, "{}={}", if self.is_firmware { "firmware" } else { KERNEL }, self.kernel)?;
        if let Some(initrd) = self.initrd {
            writeln!(f, "initrd={initrd}")?;
        }
        if !self.devices.is_empty() {
            writeln!(f, "devices={}", self.devices)?;
        }
        writeln!(f, "cmdline={}", self.cmdline)
    }
}

/// Some keys of a configuration.
struct Part<'c, 't>(&'c Config<'t>, Keys);

impl fmt::Display for Part<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, self.1)
    }
}

#[cfg(test)]
mod tests;
