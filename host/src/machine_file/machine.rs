//! The `[machine]` of a machine file.

use super::fields::{At, Fields, Key, Source, refuse};
use super::keys;
use crate::cli::Overrides;
use crate::prelude::*;
use clap::ValueEnum;
use hostlink::config::{BootCpu, Console};
use hostlink::cpus::CpuSet;
use toml::de::DeTable;

pub(super) const KEYS: &[Key] = &[
    ("arch", r#"arch = "x86_64""#),
    ("cpu", r#"cpu = "max""#),
    ("cpus", "cpus = 2"),
    ("memory", r#"memory = "2G""#),
    ("slice_us", "slice_us = 5000"),
    ("boot_cpu", r#"boot_cpu = "run""#),
    ("logs", r#"logs = "logs""#),
];

const CPUS: u32 = 2;
/// Most CPUs of a machine, with the one that this tool may add.
const CPUS_MAX: u32 = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) platform: Platform,
    pub(crate) cpus: u32,
    /// `None` if this tool decides, and may add a CPU before those that the file counts.
    pub(crate) boot_cpu: Option<BootCpu>,
    /// Its memory; `None` for as much as the guests need.
    pub(crate) memory: Option<At<u64>>,
    pub(crate) slice_us: Option<u32>,
    pub(crate) logs: PathBuf,
    /// Where the guests' consoles are: the guest that options describe has the machine's.
    pub(crate) console: Console,
}

impl Machine {
    /// Reads the table, if there is one. Options that were given take the place of keys.
    pub(super) fn read(source: &Source, table: &DeTable<'_>, given: Overrides) -> Result<Self> {
        let guests: Vec<Key> = keys::KEYS.iter().map(|key| (key.name, key.example)).collect();
        let others = (&*guests, "is for one guest: write it under its [[guest]]");
        let fields = Fields::new(source, table, "[machine]", KEYS.to_vec(), others)?;
        let platform = platform(source, &fields, given)?;
        let cpus = fields.number("cpus", 1, CPUS_MAX)?.map(|cpus| cpus.value);
        let cpus = given.cpus.or(cpus).unwrap_or(CPUS);
        let boot_cpu = fields.word("boot_cpu", BootCpu::EXPECTED, BootCpu::named)?;
        if let Some(At { value: BootCpu::Serve, line }) = boot_cpu
            && cpus == 1
        {
            refuse!(
                source,
                line,
                "boot_cpu = \"serve\" needs a second CPU to run the guests; write cpus = 2 as well"
            );
        }
        let memory = fields.size("memory")?;
        if let Some(At { line, .. }) = memory.filter(|memory| !memory.value.is_multiple_of(MIB)) {
            return Err(fields.wrong("memory", line, "has to be a multiple of 1 MiB"));
        }
        let stem = source.path().file_stem().unwrap_or_default();
        let logs = fields.text("logs")?.map(|logs| source.resolve(logs.value));
        Ok(Self {
            platform,
            cpus,
            boot_cpu: boot_cpu.map(|role| role.value),
            memory,
            slice_us: fields.number("slice_us", 100, 1_000_000)?.map(|slice| slice.value),
            logs: logs.unwrap_or_else(|| workspace::target_dir("logs").join(stem)),
            console: if source.is_of_options() { Console::Machine } else { Console::Rings },
        })
    }

    /// The CPUs that run vCPUs, as the file counts them.
    pub(super) fn running(&self) -> CpuSet {
        let mut all = CpuSet::below(self.cpus);
        if self.boot_cpu == Some(BootCpu::Serve) {
            all.remove(0);
        }
        all
    }
}

fn platform(source: &Source, fields: &Fields<'_>, given: Overrides) -> Result<Platform> {
    let arch = fields.word("arch", "x86_64 or aarch64", |word| Arch::from_str(word, false).ok())?;
    let models = ArmCpu::ALL.map(ArmCpu::name).join(" or ");
    let model = fields.word("cpu", &models, |word| ArmCpu::from_str(word, false).ok())?;
    let arch = given.platform.arch.or(arch.map(|arch| arch.value)).unwrap_or(Arch::X86_64);
    if let Some(bochs) = given.platform.machine.bochs()? {
        ensure!(arch == Arch::X86_64, "--machine bochs is a PC, and the machine is {}", arch.name());
        return given.platform.accelerated(Platform::Bochs(bochs));
    }
    match (arch, model) {
        (Arch::X86_64, Some(At { line, .. })) => {
            refuse!(
                source,
                line,
                "cpu names a model of aarch64; write arch = \"aarch64\" as well, or leave cpu out"
            )
        }
        (Arch::X86_64, None) => given.platform.accelerated(Platform::X86_64),
        (Arch::Aarch64, model) => {
            let model = given.platform.cpu.or(model.map(|model| model.value));
            given.platform.accelerated(Platform::Aarch64(model.unwrap_or(ArmCpu::Max)))
        }
    }
}
