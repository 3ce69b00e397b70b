//! The configuration of a run: lines of `key=value`, empty lines and `#` comments ignored.
//!
//! | key | value | default |
//! |---|---|---|
//! | `vcpus` | number of virtual CPUs, 1 to [`MAX_VCPUS`] | 1 |
//! | `memory` | guest memory in bytes, a multiple of 2 MiB | 256 MiB |
//! | `flush` | `hypercall`: recommend the remote flush hypercalls to the guest; `ipi`: do not | `hypercall` |
//! | `slice_us` | longest time slice of a vCPU in microseconds while others wait, 100 to 1,000,000 | 5000 |
//! | `reset` | `reboot`: a guest's reset starts it again; `exit`: it ends the run; `panic`: the hypervisor panics, to try its report | `reboot` |
//! | `boot_cpu` | `run`: the boot CPU runs vCPUs like the others; `serve`: it runs none, only takes the console's interrupts | `run` |
//! | `cmdline` | the guest's kernel command line, to the end of the line | empty |
//!
//! In addition there are the [switches](Switches), with a key for each field.

mod switches;

use crate::words::words;
pub use switches::{ApicIds, Architecture, ForeignSwitch, LocalTlbi, NestedPage, Stage2Unmap, Switches, Zap};

use core::fmt;

/// Most virtual CPUs of one guest: every APIC id must be reachable in x2APIC physical mode without
/// interrupt remapping, and 255 is the broadcast id.
pub const MAX_VCPUS: u32 = 255;

/// Guest memory is a multiple of this many bytes.
pub const MEMORY_UNIT: u64 = 2 << 20;

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

    /// The role of the boot CPU.
    BootCpu {
        /// It runs vCPUs.
        Run = "run",
        /// It leaves them to the others. For QEMU's multi-threaded emulation, in which FPU
        /// instructions on other CPUs damage the SVM state of the first one: see `docs/qemu.md`.
        Serve = "serve",
    }
}

/// A checked configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config<'a> {
    /// Number of virtual CPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u32,
    /// Guest memory in bytes, a multiple of [`MEMORY_UNIT`].
    pub memory: u64,
    /// The CPUID recommendation for remote flushes.
    pub flush: FlushMode,
    /// Longest time slice in microseconds while other vCPUs wait for the CPU.
    pub slice_us: u32,
    /// The effect of a guest's reset.
    pub reset: ResetPolicy,
    /// The role of the boot CPU.
    pub boot_cpu: BootCpu,
    /// Behaviour that tests change.
    pub switches: Switches,
    /// The guest's kernel command line.
    pub cmdline: &'a str,
}

impl Default for Config<'_> {
    fn default() -> Self {
        Self {
            vcpus: 1,
            memory: 256 << 20,
            flush: FlushMode::Hypercall,
            slice_us: 5000,
            reset: ResetPolicy::Reboot,
            boot_cpu: BootCpu::Run,
            switches: Switches::default(),
            cmdline: "",
        }
    }
}

/// An error in a configuration. Lines count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError<'a> {
    /// The line has no `=`.
    NoValue {
        /// Its number.
        line: usize,
    },
    /// No such key.
    UnknownKey {
        /// The line.
        line: usize,
        /// The key.
        key: &'a str,
    },
    /// The value does not parse or is out of range.
    BadValue {
        /// The line.
        line: usize,
        /// The key.
        key: &'a str,
        /// The given value.
        value: &'a str,
        /// The expected value.
        expected: &'static str,
    },
}

impl fmt::Display for ConfigError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValue { line } => write!(f, "config line {line}: expected key=value"),
            Self::UnknownKey { line, key } => write!(f, "config line {line}: unknown key '{key}'"),
            Self::BadValue { line, key, value, expected } => {
                write!(f, "config line {line}: {key}={value}: expected {expected}")
            }
        }
    }
}

impl core::error::Error for ConfigError<'_> {}

impl<'a> Config<'a> {
    /// Reads a configuration; missing keys keep their defaults.
    pub fn parse(text: &'a str) -> Result<Self, ConfigError<'a>> {
        let mut config = Self::default();
        for (index, raw) in text.lines().enumerate() {
            let line = index + 1;
            let entry = raw.trim();
            if entry.is_empty() || entry.starts_with('#') {
                continue;
            }
            let (key, value) = entry.split_once('=').ok_or(ConfigError::NoValue { line })?;
            config.set(line, key.trim(), value.trim())?;
        }
        Ok(config)
    }

    fn set(&mut self, line: usize, key: &'a str, value: &'a str) -> Result<(), ConfigError<'a>> {
        let bad = |expected| ConfigError::BadValue { line, key, value, expected };
        match key {
            "vcpus" => {
                let count = value.parse().ok().filter(|n| (1..=MAX_VCPUS).contains(n));
                self.vcpus = count.ok_or(bad("a number from 1 to 255"))?;
            }
            "memory" => {
                let bytes = value.parse().ok().filter(|n: &u64| *n != 0 && n.is_multiple_of(MEMORY_UNIT));
                self.memory = bytes.ok_or(bad("bytes, a multiple of 2 MiB"))?;
            }
            "flush" => self.flush = FlushMode::named(value).ok_or(bad(FlushMode::EXPECTED))?,
            "slice_us" => {
                let us = value.parse().ok().filter(|n| (100..=1_000_000).contains(n));
                self.slice_us = us.ok_or(bad("microseconds from 100 to 1000000"))?;
            }
            "reset" => self.reset = ResetPolicy::named(value).ok_or(bad(ResetPolicy::EXPECTED))?,
            "boot_cpu" => self.boot_cpu = BootCpu::named(value).ok_or(bad(BootCpu::EXPECTED))?,
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

impl fmt::Display for Config<'_> {
    /// Writes the form that [`Config::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "vcpus={}\nmemory={}\nflush={}", self.vcpus, self.memory, self.flush)?;
        writeln!(f, "slice_us={}\nreset={}\nboot_cpu={}", self.slice_us, self.reset, self.boot_cpu)?;
        self.switches.fmt(f)?;
        writeln!(f, "cmdline={}", self.cmdline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defect::Defect;
    use std::string::ToString;

    #[test]
    fn what_is_written_is_read_back() {
        let config = Config {
            vcpus: 8,
            memory: 1 << 30,
            flush: FlushMode::Ipi,
            slice_us: 2500,
            reset: ResetPolicy::Exit,
            boot_cpu: BootCpu::Serve,
            switches: Switches {
                apic_ids: ApicIds::Reversed,
                flush_pages: Some(64),
                zap: Zap::Everything,
                nested_page: NestedPage::Small,
                paranoid: true,
                tables: Some(100),
                stage2_unmap: Stage2Unmap::Page,
                local_tlbi: LocalTlbi::Broadcast,
                vmid_bits: Some(8),
                vmid_churn: Some(7),
                pretend: true,
                defect: Some(Defect::BankRank),
            },
            cmdline: "console=ttyS0 quiet a=b # not a comment",
        };
        assert_eq!(Config::parse(&config.to_string()), Ok(config));
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, line) in [
            ("vcpus=0", 1),
            ("vcpus=256", 1),
            ("\nmemory=12345", 2),
            ("memory=0", 1),
            ("flush=maybe", 1),
            ("# fine\n\nslice_us=1", 3),
            ("reset=never", 1),
            ("boot_cpu=rest", 1),
            ("kick=off", 1),
            ("zap=some", 1),
            ("nested_page=3M", 1),
            ("paranoid=a bit", 1),
            ("tables=0", 1),
            ("tables=some", 1),
            ("stage2_unmap=leaf", 1),
            ("local_tlbi=remote", 1),
            ("vmid_bits=0", 1),
            ("vmid_bits=17", 1),
            ("vmid_bits=-1", 1),
            ("vmid_churn=0", 1),
            ("vmid_churn=1000001", 1),
            ("vmid_churn=on", 1),
            ("pretend=yes", 1),
            ("defect=many", 1),
            ("apic_ids=shuffled", 1),
            ("flush_pages=15", 1),
            ("flush_pages=all", 1),
            ("nonsense", 1),
            ("colour=blue", 1),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&std::format!("config line {line}:")), "{text}: {error}");
        }
    }
}
