//! One `[[guest]]` of a machine file.

use super::fields::{Fields, Key};
use super::machine::{self, Machine};
use super::source::{At, Source};
use crate::arch::Arch;
use crate::cli::Program;
use crate::machine::devices::{Devices, Network};
use crate::size::{self, MIB};
use anyhow::Result;
use clap::ValueEnum;
use hostlink::config::{FlushMode, MAX_CAP, MAX_VCPUS, MAX_WEIGHT, MEMORY_UNIT, ResetPolicy, Start};
use hostlink::cpus::CpuSet;
use hostlink::name::Name;
use std::path::PathBuf;
use toml::de::DeTable;

/// The keys of a guest.
pub(super) const KEYS: &[Key] = &[
    ("name", r#"name = "web""#),
    ("kernel", r#"kernel = "bzImage""#),
    ("initrd", r#"initrd = "initrd.img""#),
    ("program", r#"program = "hostile""#),
    ("exec", r#"exec = "nproc""#),
    ("cmdline", r#"cmdline = "quiet""#),
    ("vcpus", "vcpus = 2"),
    ("memory", r#"memory = "256M""#),
    ("cpus", r#"cpus = "0-1" or cpus = [0, 1]"#),
    ("weight", "weight = 100"),
    ("cap", "cap = 50"),
    ("flush", r#"flush = "hypercall""#),
    ("reset", r#"reset = "reboot""#),
    ("console", r#"console = "web.log""#),
    ("start", r#"start = "auto""#),
    ("disks", r#"disks = ["web.img"]"#),
    ("virtio_disks", r#"virtio_disks = ["web.img"]"#),
    ("net", r#"net = "user""#),
    ("devices", r#"devices = ["00:04.0"]"#),
];

/// Memory of a guest for which the file names none.
const MEMORY: u64 = 256 * MIB;
/// Virtual CPUs of a guest for which the file names none.
const VCPUS: u32 = 2;
/// The weight of a guest for which the file names none.
const WEIGHT: u32 = 100;

/// What a guest runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Software {
    /// The stock kernel.
    Stock,
    /// The kernel in this file.
    Kernel(PathBuf),
    /// A bare program of this project.
    Program(Program),
}

/// A guest as the file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestPlan {
    /// The line of its `[[guest]]`.
    pub(crate) line: usize,
    pub(crate) name: Name,
    pub(crate) software: Software,
    /// Its initial RAM disk; for the stock kernel the stock one if there is none.
    pub(crate) initrd: Option<PathBuf>,
    /// The shell command that it runs instead of a shell.
    pub(crate) exec: Option<String>,
    /// Words for the end of its command line.
    pub(crate) cmdline: Option<String>,
    pub(crate) vcpus: u32,
    pub(crate) memory: u64,
    /// The CPUs that it may use, counted as the file counts them.
    pub(crate) cpus: CpuSet,
    pub(crate) weight: u32,
    pub(crate) cap: Option<u32>,
    pub(crate) flush: FlushMode,
    pub(crate) reset: ResetPolicy,
    /// The file for its console.
    pub(crate) console: At<PathBuf>,
    pub(crate) start: Start,
    /// Its disks, network and other PCI functions.
    pub(crate) devices: Devices,
}

impl GuestPlan {
    /// Reads the table that begins in this line.
    pub(super) fn read(source: &Source, table: &DeTable<'_>, line: usize, machine: &Machine) -> Result<Self> {
        let others = (machine::KEYS, "is for the whole machine: write it under [machine]");
        let fields = Fields::new(source, table, "a [[guest]]", KEYS, others)?;
        let name = fields.word("name", Name::EXPECTED, Name::parse)?;
        let Some(At { value: name, .. }) = name else {
            return Err(source.error(line, "this guest has no name; write for example name = \"web\""));
        };
        let software = software(source, &fields, machine)?;
        let exec = fields.text("exec")?.map(|exec| exec.value.to_owned());
        let usual_reset = if exec.is_some() { ResetPolicy::Exit } else { ResetPolicy::Reboot };
        let console = fields.text("console")?.map_or_else(
            || At { value: machine.logs.join(format!("{name}.log")), line },
            |console| At { value: source.resolve(console.value), line: console.line },
        );
        let cmdline = fields.text("cmdline")?.map(|words| words.value.to_owned());
        Ok(Self {
            line,
            name,
            software,
            initrd: file(source, &fields, "initrd")?,
            exec,
            cmdline,
            vcpus: fields.number("vcpus", 1, MAX_VCPUS)?.map_or(VCPUS, |vcpus| vcpus.value),
            memory: memory(&fields)?,
            cpus: cpus(&fields, machine)?,
            weight: fields.number("weight", 1, MAX_WEIGHT)?.map_or(WEIGHT, |weight| weight.value),
            cap: fields.number("cap", 1, MAX_CAP)?.map(|cap| cap.value),
            flush: flush(&fields, machine)?,
            reset: reset(&fields)?.unwrap_or(usual_reset),
            console,
            start: start(&fields)?,
            devices: devices(source, &fields, line)?,
        })
    }
}

/// A file that has to exist.
fn file(source: &Source, fields: &Fields<'_>, key: &str) -> Result<Option<PathBuf>> {
    let Some(At { value, line }) = fields.text(key)? else { return Ok(None) };
    let path = source.resolve(value);
    if !path.is_file() {
        let message = format!(
            "there is no file {} for {key}; write its path relative to this file's directory, \
             or leave {key} out for the stock one",
            path.display()
        );
        return Err(source.error(line, message));
    }
    Ok(Some(path))
}

/// What the guest runs: one of three.
fn software(source: &Source, fields: &Fields<'_>, machine: &Machine) -> Result<Software> {
    for (key, excluded) in
        [("program", ["kernel", "initrd", "exec"].as_slice()), ("exec", &["kernel", "initrd"])]
    {
        let both = excluded.iter().find(|other| fields.has(key) && fields.has(other));
        if let (Some(other), Some(line)) = (both, fields.line(key)) {
            let why = match key {
                "program" => "a bare program has none",
                _ => "exec is for the stock kernel and RAM disk",
            };
            return Err(source.error(line, format!("{key} and {other} exclude each other: {why}")));
        }
    }
    let programs = || Program::value_variants().iter();
    let name = |program: &Program| program.to_possible_value().map(|value| value.get_name().to_owned());
    let words = programs().filter_map(name).collect::<Vec<_>>().join(" or ");
    let program = fields.word("program", &words, |word| Program::from_str(word, false).ok())?;
    if let Some(At { value: program, line }) = program {
        if program == Program::Probe && machine.platform.arch() != Arch::X86_64 {
            return Err(source.error(line, "program \"probe\" is for x86_64; write program = \"hostile\""));
        }
        return Ok(Software::Program(program));
    }
    Ok(file(source, fields, "kernel")?.map_or(Software::Stock, Software::Kernel))
}

fn memory(fields: &Fields<'_>) -> Result<u64> {
    let Some(At { value, line }) = fields.size("memory")? else { return Ok(MEMORY) };
    if !value.is_multiple_of(MEMORY_UNIT) {
        let unit = size::display(MEMORY_UNIT);
        return Err(fields.wrong("memory", line, format!("has to be a multiple of {unit}")));
    }
    Ok(value)
}

/// The CPUs that the guest may use. The machine has to have them, and one of them at least has to
/// run vCPUs.
fn cpus(fields: &Fields<'_>, machine: &Machine) -> Result<CpuSet> {
    let found = fields.list("cpus", "a set of CPUs", CpuSet::parse)?;
    let Some(At { value: set, line }) = found.filter(|set| set.value != CpuSet::ALL) else {
        return Ok(CpuSet::ALL);
    };
    if let Some(missing) = set.iter().find(|cpu| *cpu >= machine.cpus) {
        let last = machine.cpus - 1;
        let what = format!("names CPU {missing}, but the machine has CPUs 0 to {last} only");
        return Err(fields.wrong("cpus", line, what));
    }
    if set.intersection(&machine.running()).is_empty() {
        let what = "leaves this guest no CPU: with boot_cpu = \"serve\" CPU 0 runs no guest";
        return Err(fields.wrong("cpus", line, what));
    }
    Ok(set)
}

fn flush(fields: &Fields<'_>, machine: &Machine) -> Result<FlushMode> {
    let word =
        |word: &str| [FlushMode::Hypercall, FlushMode::Ipi].into_iter().find(|mode| mode.name() == word);
    let found = fields.word("flush", "hypercall or ipi", word)?;
    if let (Some(At { line, .. }), Arch::Aarch64) = (found, machine.platform.arch()) {
        let what = "is for x86_64: leave it out, an aarch64 guest's processors flush each other's TLBs";
        return Err(fields.wrong("flush", line, what));
    }
    Ok(found.map_or(FlushMode::Hypercall, |found| found.value))
}

fn reset(fields: &Fields<'_>) -> Result<Option<ResetPolicy>> {
    let all = [ResetPolicy::Reboot, ResetPolicy::Exit, ResetPolicy::Panic];
    let word = |word: &str| all.into_iter().find(|policy| policy.name() == word);
    Ok(fields.word("reset", "reboot or exit", word)?.map(|found| found.value))
}

/// The devices that the guest owns.
fn devices(source: &Source, fields: &Fields<'_>, line: usize) -> Result<Devices> {
    let images = |key| -> Result<Vec<PathBuf>> {
        let names = fields.texts(key)?.unwrap_or_default();
        Ok(names.iter().map(|name| source.resolve(name)).collect())
    };
    let network = fields.word("net", "user", |word| Network::from_str(word, false).ok())?;
    let devices = Devices {
        disks: images("disks")?,
        virtio_disks: images("virtio_disks")?,
        network: network.map(|network| network.value),
        functions: fields.texts("devices")?.unwrap_or_default(),
    };
    devices.check().map_err(|error| source.error(line, format!("{error:#}")))?;
    Ok(devices)
}

fn start(fields: &Fields<'_>) -> Result<Start> {
    let word = |word: &str| [Start::Auto, Start::Manual].into_iter().find(|start| start.name() == word);
    Ok(fields.word("start", "auto or manual", word)?.map_or(Start::Auto, |found| found.value))
}
