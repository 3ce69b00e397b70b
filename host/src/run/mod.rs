//! `quell run`: the guests of a machine file; or one, which options describe, with its console on
//! the terminal.

mod several;

use crate::arch::PlatformArgs;
use crate::cli::RunArgs;
use crate::machine::emulator::describe;
use crate::machine::process::Outcome;
use crate::machine::spec::Console;
use crate::machine_file::MachineFile;
use crate::migration::Arrivals;
use crate::prelude::*;
use crate::results::Writer;
use crate::trace::{self, collect::Collector};
use crate::vm::Guests;
use hostlink::config::Console::Rings;
use several::show;
use signal_hook::consts::SIGINT;
use std::rc::Rc;

/// The console of a Linux guest whose reports are read. If it has one serial port for both, its
/// programs are told to report there.
pub(crate) fn reporting_console(arch: Arch) -> String {
    let word = if arch.reports_on_console() { " quell.report" } else { "" };
    format!("{}{word}", arch.console())
}

/// Time between two reads of the counters while the guest runs.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// Lines of the hypervisor's log that are shown after a failure other than its own.
const LOG_TAIL_LINES: usize = 30;

/// The guest that options describe has a machine file of its own, which nobody writes.
pub(crate) fn run(args: &RunArgs, signals: &Signals) -> Result<u8> {
    let file = match &args.file {
        Some(path) => MachineFile::read(path, args.overrides())?,
        None => of_options(args)?,
    };
    if args.check {
        show(&file, args.json.as_deref())?;
        return Ok(0);
    }
    let platform = file.machine.platform;
    let arch = platform.arch();
    let guests = Guests::prepare(&file, switches_for(args, platform)?)?;
    let mut arrivals = Arrivals::prepare(&file)?;
    let directory = tempfile::Builder::new().prefix("quell-run-").tempdir()?;
    let mut spec = if args.bare {
        guests.on_bare_machine(directory.path())?
    } else {
        let hypervisor = hypervisor(args, arch)?;
        guests.on_quell(&hypervisor, directory.path())?
    };
    spec.memory += args.spare.unwrap_or(0).next_multiple_of(MIB);
    spec.timeout = args.timeout.map(Duration::from_secs);
    spec.qemu_args.clone_from(&args.qemu_arg);
    spec.log.clone_from(&args.log);
    spec.keeps = arrivals.listeners();
    if file.machine.console == Rings {
        return several::run(&file, spec, arrivals, args, signals);
    }
    spec.console = if args.guest.has("exec") { Console::Echo } else { Console::Terminal };
    let mut machine = Machine::start(&spec, signals)?;
    arrivals.begin(&mut machine)?;
    let recorder = Recorder::start(args, &mut machine)?;
    let outcome = machine.run(|_, _| Ok(Flow::Continue))?;
    arrivals.finish()?;
    let status = conclude(&outcome, args.bare || spec.console == Console::Terminal);
    recorder.finish(&outcome)?;
    Ok(status)
}

fn of_options(args: &RunArgs) -> Result<MachineFile> {
    PlatformArgs { accel: None, ..args.platform }.platform()?;
    let mut keys = args.guest.keys.clone();
    if !args.guest.has("memory") && !args.guest.has("restore") {
        keys.push(("memory", "\"512M\"".to_owned()));
    }
    MachineFile::of_options(&keys, args.overrides())
}

/// What is recorded of a run: counters and a trace, if options ask for them.
struct Recorder<'a> {
    writer: Option<Rc<Writer>>,
    trace: Option<(&'a Path, Collector)>,
}

impl<'a> Recorder<'a> {
    fn start(args: &'a RunArgs, machine: &mut Machine) -> Result<Self> {
        let writer = args.json.clone().map(|path| Rc::new(Writer::new(path, "run", None)));
        if let Some(writer) = writer.clone() {
            machine.watch(WATCH_PERIOD, move |counters| writer.write(samples(counters).rows(), &[]));
        }
        let collect = |path: &'a PathBuf| Ok::<_, Error>((path.as_path(), Collector::of(machine)?));
        Ok(Self { writer, trace: args.trace.as_ref().map(collect).transpose()? })
    }

    fn finish(self, outcome: &Outcome) -> Result<()> {
        if let (Some(writer), Some(counters)) = (self.writer, &outcome.counters) {
            writer.write(samples(counters).rows(), &[])?;
        }
        if let Some((path, collector)) = self.trace {
            trace::summarise(path, &trace::write(path, &collector.finish()?)?);
        }
        Ok(())
    }
}

fn hypervisor(args: &RunArgs, arch: Arch) -> Result<Hypervisor> {
    if args.trace.is_some() { Hypervisor::with_trace(arch) } else { Hypervisor::build(arch) }
}

fn samples(counters: &Snapshot) -> Samples {
    let mut samples = Samples::default();
    for (name, value) in counters.iter() {
        samples.add_count("run", Subject::Quell, name, value);
    }
    for (owner, vcpu) in counters.owners().iter().zip(counters.each()) {
        let case = owner.case();
        for (name, value) in vcpu.iter().filter(|(_, value)| *value != 0) {
            samples.add_count(&case, Subject::Quell, name, value);
        }
    }
    samples
}

/// The hypervisor's settings, which have a meaning on the architecture.
fn switches_for(args: &RunArgs, platform: Platform) -> Result<Switches> {
    let mut switches = switches(&args.set)?;
    switches.paranoid |= args.paranoid;
    refuse_foreign(args, platform)?;
    refuse_foreign_defect(switches, platform)?;
    Ok(switches)
}

/// Refuses a defect that has no meaning on the machine's architecture.
pub(crate) fn refuse_foreign_defect(switches: Switches, platform: Platform) -> Result<()> {
    let Some(defect) = switches.defect else { return Ok(()) };
    let (name, whose) = (defect.name(), defect.architectures());
    let is_here = whose.include(platform.architecture());
    ensure!(is_here, "the defect {name} is one of {whose} alone: leave it out here");
    Ok(())
}

/// Refuses switches that have no meaning on the machine's architecture, whatever their value.
fn refuse_foreign(args: &RunArgs, platform: Platform) -> Result<()> {
    for setting in &args.set {
        let key = setting.split_once('=').map_or(setting.as_str(), |(key, _)| key);
        let here = platform.architecture();
        if let Some(foreign) = Switches::only(key).filter(|foreign| !foreign.only.include(here)) {
            bail!("--set {setting}: {foreign}");
        }
    }
    Ok(())
}

pub(crate) fn switches<T: AsRef<str>>(settings: &[T]) -> Result<Switches> {
    let mut switches = Switches::default();
    for setting in settings {
        let setting = setting.as_ref();
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let known = switches.set(key, value).map_err(|expected| anyhow!("{setting}: expected {expected}"))?;
        ensure!(
            known,
            "{setting}: there is no such switch; there are {}, and crates/hostlink/src/config/switches.rs says what they do",
            Switches::KEYS.join(", ")
        );
    }
    Ok(switches)
}

/// Prints how the run ended unless it succeeded. `may_leave`: whether an end without the
/// hypervisor's report is an orderly one.
pub(crate) fn conclude(outcome: &Outcome, may_leave: bool) -> u8 {
    let (status, said) = concluded(outcome, may_leave);
    said.iter().for_each(|said| eprintln!("\nquell: {said}"));
    status
}

/// The status of a run, and what is to be said of it. One some of whose output is lost has failed.
fn concluded(outcome: &Outcome, may_leave: bool) -> (u8, Vec<String>) {
    let (status, how) = concluded_machine(outcome, may_leave);
    let dropped = (outcome.reports_dropped != 0).then(|| {
        format!("{} reports of the guest's were too many, or too long, to keep", outcome.reports_dropped)
    });
    let lost = outcome.unwritten.iter().map(|what| format!("some output is lost: {what}"));
    let status = if status == 0 { u8::from(!outcome.unwritten.is_empty()) } else { status };
    (status, dropped.into_iter().chain(how).chain(lost).collect())
}

fn concluded_machine(outcome: &Outcome, may_leave: bool) -> (u8, Option<String>) {
    let Outcome { log, qemu_messages, emulator, .. } = outcome;
    let log_ends = || format!("the hypervisor's log ends with:\n{}", tail(log));
    let (status, how) = match outcome.end {
        End::Hypervisor(ExitCode::GuestPowerOff) => return (command_status(outcome), None),
        End::PowerOff if may_leave => return (command_status(outcome), None),
        End::Stopped => return (0, None),
        End::Hypervisor(ExitCode::Panic) => {
            (tool_status(ExitCode::Panic), format!("the hypervisor panicked; its log:\n{log}"))
        }
        End::TripleFault | End::PowerOff => {
            let how = format!("the hypervisor ended without a word; its log:\n{log}\n{}", &**qemu_messages);
            (tool_status(ExitCode::Panic), how)
        }
        End::Hypervisor(code) => {
            let reason = match code {
                ExitCode::GuestStalled => "a processor did not leave the guest, which was ended",
                ExitCode::GuestOutOfTables => "there was no page left for a nested page table",
                ExitCode::GuestInvalid => "the processor refuses the guest's state",
                ExitCode::BadConfig => "the guest cannot be started",
                ExitCode::Unsupported => "the machine lacks what the hypervisor needs",
                ExitCode::GuestReset => "the guest asked for a reset, and resets end this run",
                ExitCode::Panic | ExitCode::GuestPowerOff => "",
            };
            (tool_status(code), format!("{reason}; {}", log_ends()))
        }
        End::TimedOut => (124, format!("stopped after {} s; {}", outcome.wall.as_secs(), log_ends())),
        End::Interrupted(signal) => {
            // Who presses Ctrl-C knows it.
            let said = (signal != SIGINT).then(|| format!("signal {signal} has ended this run"));
            return (u8::try_from(128 + signal).unwrap_or(128), said);
        }
        End::Failed(status) => {
            let log = if log.is_empty() { String::new() } else { log_ends() };
            let messages = qemu_messages.trim_end();
            (1, format!("{emulator} failed ({}):\n{messages}\n{log}", describe(status)))
        }
    };
    (status, Some(how))
}

/// The status of the guest's command; 0 if there was none, or if it ended the machine itself.
fn command_status(outcome: &Outcome) -> u8 {
    let status = outcome.report("exit").and_then(|report| report["status"].as_u64());
    status.map_or(0, |status| u8::try_from(status).unwrap_or(u8::MAX))
}

fn tool_status(code: ExitCode) -> u8 {
    u8::try_from(code.tool_status()).unwrap_or(u8::MAX)
}

pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::machine::process::refuses;

    #[test]
    fn a_run_has_succeeded_only_if_its_guest_has_and_nothing_is_lost() {
        let judged = |outcome: &Outcome| {
            let (status, said) = concluded(outcome, false);
            ensure!(status == 0, "{status}: {}", said.join("; "));
            Ok(())
        };
        let wrong = "
            0.status=7 => 7:
            0.status=256 => 255:
            lost log => 1: some output is lost: log
            end Panic => 70: the hypervisor panicked
            end GuestReset => 71: the guest asked for a reset
            end BadConfig => 66: the guest cannot be started
            end bare => 70: the hypervisor ended without a word
            end fault => 70: the hypervisor ended without a word
            end late => 124: stopped after 0 s
            end signal 15 => 143: signal 15 has ended this run
            end signal 2 => 130:
            end failed => 1: QEMU failed (status 1)";
        refuses(judged, "+event=exit status=0", wrong);
        assert_eq!(["end bare", "end stopped"].map(|end| concluded(&Outcome::of(end), true).0), [0, 0]);
    }

    #[test]
    fn what_means_nothing_on_the_architecture_is_refused() {
        let refusal = |words: &[&str]| {
            let args: RunArgs = cli::arguments(words).expect("parses");
            let platform = args.platform.platform().expect("a machine");
            refuse_foreign(&args, platform).err().map(|error| error.to_string())
        };
        let arm = ["--arch", "aarch64"];
        let on_arm = |words: &[&str]| refusal(&[&arm, words].concat());
        assert_eq!(refusal(&["--set", "apic_ids=reversed", "--set", "zap=slot"]), None);
        assert_eq!(on_arm(&["--set", "vmid_bits=2", "--set", "zap=slot"]), None);
        for words in [["--set", "apic_ids=ascending"], ["--set", "pretend"]] {
            let error = on_arm(&words).unwrap_or_else(|| panic!("{words:?} is taken"));
            assert!(error.contains("x86_64"), "{error}");
        }
        let args = cli::arguments(&["--flush", "ipi", arm[0], arm[1]]).expect("parses");
        let error = of_options(&args).expect_err("is refused").to_string();
        assert!(error.starts_with("--flush is for x86_64"), "{error}");
        let error = refusal(&["--set", "local_tlbi=arrival"]).expect("is refused");
        assert_eq!(
            error,
            "--set local_tlbi=arrival: the switch local_tlbi means something on aarch64 alone: leave it out here"
        );
    }
}
