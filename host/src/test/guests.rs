//! Runs the tests that boot guests under QEMU; the table of them is in [`super::cases`].

use super::Tally;
use super::arm;
use super::cases::{
    Body, Case, Expect, FLOOD_CLAIM, FLOOD_REPORTS, Hostile, ProbeEnd, Stock, Talk, TestFile,
};
use super::checks::Check;
use super::progress::ProgressView;
use super::second::SecondTries;
use super::siege::{self, Siege};
use super::stage2;
use super::storm::{self, Requests};
use super::talk;
use crate::arch::{Arch, Platform};
use crate::bench::migrate::writer::{Setup, Writer};
use crate::bench::phases::Phases;
use crate::check::{self, Verdict};
use crate::cli::ImageArgs;
use crate::guest::cache;
use crate::image::{self, Entry};
use crate::machine::emulator;
use crate::machine::process::{CONSOLE_BYTES, End, Flow, Machine, Outcome, describe};
use crate::machine::signals::Signals;
use crate::machine::spec::{Clock, Payload, Spec};
use crate::run::{reporting_console, switches, tail};
use crate::size::MIB;
use crate::vm::{Guest, Hypervisor, StockGuest};
use crate::workspace;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hostlink::config::{FlushMode, ResetPolicy, Switches};
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;
use hostlink::phase::Phase;
use serde_json::Value;
use std::cell::Cell;
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest time for a boot with a short command, and for one that is to search for long.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
const LONG_TIMEOUT: Duration = Duration::from_secs(600);

/// Longest time for a run of tlbcheck, in seconds, and how many of its rows pass at least where all
/// is well.
const CHECK_TIMEOUT: Duration = Duration::from_secs(180);
const ROWS_MIN: usize = 10;

/// Longest log of a run with a bare guest, whose runs are short.
const LOG_BYTES_MAX: usize = 32 << 10;

/// How often CPUs drop everything at least where generations of VMIDs begin all the time.
const GENERATIONS_MIN: u64 = 1000;

/// Status of `quell run` when its time is over.
const TIMED_OUT: i32 = 124;

/// What the guest's shell shows when it takes input, and how long after its announcement at most.
const PROMPT: &str = "# ";
const PROMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// INVLPGAs by which the hypervisor measures what one costs, when it starts.
const MEASURED: u64 = 5 * 64;
/// Fewer pages than this tell nothing.
const PAGES_MIN: u64 = 100;

/// What all labs share. Each part is made when the first case needs it; one that cannot be made
/// fails the cases that need it.
pub(super) struct Parts {
    stock: LazyLock<Result<StockGuest>>,
    usual: LazyLock<Result<Hypervisor>>,
    tested: LazyLock<Result<Hypervisor>>,
    arm_stock: LazyLock<Result<StockGuest>>,
    arm_tested: LazyLock<Result<Hypervisor>>,
    probe: LazyLock<Result<PathBuf>>,
    again: Mutex<SecondTries>,
}

impl Parts {
    /// None is made yet.
    pub(super) fn new() -> Self {
        Self {
            stock: LazyLock::new(|| StockGuest::prepare(Arch::X86_64)),
            usual: LazyLock::new(|| Hypervisor::build(Arch::X86_64)),
            tested: LazyLock::new(|| Hypervisor::for_tests(Arch::X86_64)),
            arm_stock: LazyLock::new(|| StockGuest::prepare(Arch::Aarch64)),
            arm_tested: LazyLock::new(|| Hypervisor::for_tests(Arch::Aarch64)),
            probe: LazyLock::new(|| workspace::build(workspace::PROBE, Arch::X86_64)),
            again: Mutex::new(SecondTries::known()),
        }
    }
}

/// Where cases run, one after the other.
struct Lab<'a> {
    parts: &'a Parts,
    /// For files of this lab's own: others work beside it.
    directory: &'a Path,
    signals: &'a Signals,
    /// Whether searches are to take long.
    long: bool,
    /// Whether the machine that was started last ran into its time limit.
    hung: Cell<bool>,
}

/// Runs cases until `next` has no more; `long` as the command line says.
pub(super) fn run_all(
    mut next: impl FnMut() -> Option<&'static Case>,
    parts: &Parts,
    long: bool,
    progress: &ProgressView,
    signals: &Signals,
) -> Result<Tally> {
    let directory = tempfile::Builder::new().prefix("quell-test-").tempdir()?;
    let lab = Lab { parts, directory: directory.path(), signals, long, hung: Cell::new(false) };
    let mut tally = Tally::default();
    while let Some(case) = next() {
        let running = progress.begin(case.name);
        let mut result = lab.run(case);
        let (mut note, mut why) = ("", String::new());
        if lab.hung.replace(false)
            && let Err(error) = result
        {
            // A machine that hangs may be tried once more, and the row says so and shows how the
            // first one ended; a failure of any other kind stands.
            let allowed = parts.again.lock().unwrap_or_else(PoisonError::into_inner).allow(case.name);
            result = match allowed {
                Ok(()) => {
                    note = "second try: the first machine hung";
                    why = format!("{error:#}\n");
                    lab.run(case)
                }
                Err(why) => Err(error.context(why)),
            };
        }
        if let Err(error) = &result {
            why.push_str(&format!("{error:#}"));
        }
        running.end(result.is_ok(), note, &why);
        let second = usize::from(result.is_ok() && !note.is_empty());
        tally.add(Tally {
            passed: usize::from(result.is_ok()),
            failed: usize::from(result.is_err()),
            second,
        });
    }
    Ok(tally)
}

/// The guest has said what time it is, which is so to a day: no test is as slow as that, and no
/// clock that is wrong as right.
fn expect_date(outcome: &Outcome) -> Result<()> {
    const DAY: u64 = 86_400;
    let said = outcome.report("date").and_then(|report| report["unix"].as_u64());
    let said = said.context("the guest did not say what time it is")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    ensure!(said.abs_diff(now) < DAY, "the guest says it is {said}, and it is {now}");
    Ok(())
}

/// A part of the lab, or why it could not be made.
fn made<T>(part: &LazyLock<Result<T>>) -> Result<&T> {
    LazyLock::force(part).as_ref().map_err(|error| anyhow!("{error:#}"))
}

impl Lab<'_> {
    fn run(&self, case: &Case) -> Result<()> {
        let told = |usual| case.long.filter(|_| self.long).unwrap_or(usual);
        match &case.body {
            Body::Stock(stock) => self.stock(case, stock, told(stock.command), None),
            Body::Newer(stock) => {
                let kernel = cache::newer_kernel()?;
                self.stock(case, stock, told(stock.command), Some(kernel))
            }
            Body::Check(check) => self.check(case, check),
            Body::Stage2(test) => {
                let hypervisor = self.hypervisor(Arch::Aarch64)?;
                stage2::run(case, test, hypervisor, self.directory, self.signals)
            }
            Body::Counts => arm::counts(case.platform, self.directory, self.signals),
            Body::Disc { entry, uefi, shows } => self.disc(*entry, *uefi, shows),
            Body::Bzimage { cmdline } => self.bzimage(cmdline),
            Body::Talk { command, about } => self.talk(case, command, *about),
            Body::Own(act) => act(tempfile::tempdir_in(self.directory)?.path()),
            Body::Typed(texts) => self.typed(case.platform, texts),
            Body::Probe(test, end) => self.probe(case, told(test), *end),
            Body::Invalidations(test) => self.invalidations(case, test),
            Body::Hostile(test) => self.hostile(case, test, told(test.test)),
            Body::Migrate => self.migrate(case),
            Body::Siege(siege) => self.siege(case, siege),
            Body::Tool { args, file, status, message } => self.tool(args, *file, *status, message),
        }
    }

    fn check(&self, case: &Case, check: &Check) -> Result<()> {
        let switches = switches(case.settings)?;
        let switches = Switches { defect: check.defect.or(switches.defect), ..switches };
        let is_wrong = switches.defect.is_some() || check.omission.is_some();
        let run = check::Run {
            platform: case.platform,
            on: check.on,
            cpus: check.cpus,
            vcpus: check.vcpus,
            switches,
            only: check.rows,
            omission: check.omission,
            timeout: CHECK_TIMEOUT,
        };
        let (rows, outcome) = run.start(self.signals, |_| {})?;
        self.hung.set(matches!(outcome.end, End::TimedOut));
        check::ended(&outcome)?;
        let of = |verdict| rows.iter().filter(move |row| row.result == verdict);
        if let Some(may_skip) = check.may_skip {
            let may = |row: &check::Row| may_skip.iter().any(|beginning| row.row.starts_with(beginning));
            let skipped: Vec<_> = of(Verdict::Skip).filter(|row| !may(row)).map(|row| &*row.row).collect();
            ensure!(skipped.is_empty(), "these are skipped: {}", skipped.join(", "));
        }
        match (check.rows, is_wrong) {
            (Some(wanted), true) => {
                ensure!(of(Verdict::Fail).next().is_some(), "none of the rows {wanted} fails");
            }
            (wanted, _) => {
                let failed: Vec<_> =
                    of(Verdict::Fail).map(|row| format!("{}: {}", row.row, row.why)).collect();
                ensure!(failed.is_empty(), "these fail:\n{}", failed.join("\n"));
                let least = if wanted.is_some() { 1 } else { ROWS_MIN };
                ensure!(of(Verdict::Pass).count() >= least, "only {} rows pass", of(Verdict::Pass).count());
            }
        }
        Ok(())
    }

    /// Starts a CD with this entry for default.
    fn disc(&self, entry: Entry, uefi: bool, shows: &str) -> Result<()> {
        let args = ImageArgs {
            output: self.directory.join("quell.iso"),
            default: entry,
            timeout: 0,
            exec: Some(format!("echo {shows}")),
            // The machine has one CPU (docs/qemu.md), on which vCPUs that spin would wait for each
            // other's turns.
            vcpus: 1,
            memory: 512 * MIB,
            bzimage: None,
        };
        image::make(&args, None)?;
        let mut spec = image::spec(&args.output, uefi)?;
        spec.timeout = Some(BOOT_TIMEOUT);
        let outcome = Machine::start(&spec, self.signals)?.run(|_, _| Ok(Flow::Continue))?;
        self.hung.set(matches!(outcome.end, End::TimedOut));
        with_console(&outcome, || {
            ensure!(outcome.console.contains(shows), "the console does not show '{shows}'");
            match outcome.end {
                End::PowerOff | End::Hypervisor(ExitCode::GuestPowerOff) => Ok(()),
                end => bail!("the machine ended with {end:?}"),
            }
        })
    }

    /// Starts tlbcheck's bzImage by QEMU's loader for Linux kernels.
    fn bzimage(&self, cmdline: &str) -> Result<()> {
        let kernel = self.directory.join("tlbcheck.bzimage");
        image::write_bzimage(&workspace::build(workspace::TLBCHECK, Arch::X86_64)?, &kernel)?;
        let payload = Payload::Bare { kernel, initrd: None, cmdline: cmdline.to_owned() };
        let mut spec = Spec::new(Platform::X86_64, payload, 2, 256 * MIB);
        spec.timeout = Some(BOOT_TIMEOUT);
        let outcome = Machine::start(&spec, self.signals)?.run(|_, _| Ok(Flow::Continue))?;
        self.hung.set(matches!(outcome.end, End::TimedOut));
        check::ended(&outcome)?;
        with_console(&outcome, || {
            let said =
                |event: &str, key: &str| outcome.report(event).map_or(Value::Null, |said| said[key].clone());
            ensure!(said("start", "protocol") == "linux", "the protocol is {}", said("start", "protocol"));
            ensure!(
                said("start", "processors") == 2,
                "{} processors were found",
                said("start", "processors")
            );
            ensure!(said("end", "failed") == 0, "{} rows fail", said("end", "failed"));
            ensure!(said("end", "passed").as_u64() > Some(0), "no row passes");
            ensure!(outcome.end == End::PowerOff, "the machine ended with {:?}", outcome.end);
            Ok(())
        })
    }

    fn talk(&self, case: &Case, command: &str, about: Talk) -> Result<()> {
        let mut guest = self.stock_guest(case.platform, Some(command))?;
        (guest.vcpus, guest.memory) = (4, talk::GUEST_MEMORY);
        guest.switches = switches(case.settings)?;
        let mut said = Err(anyhow!("the guest did not begin to work"));
        let outcome = self.boot(&guest, 2, |report, machine| {
            if report["event"] != "ready" {
                return Ok(Flow::Continue);
            }
            said = talk::talk(machine, case.platform.arch(), about);
            Ok(Flow::Stop)
        })?;
        with_console(&outcome, || {
            said?;
            ensure!(outcome.end == End::Stopped, "the machine ended with {:?}", outcome.end);
            ensure!(outcome.report("wrong").is_none(), "the guest's ROM has changed");
            // What is refused for the devices' sake is over before the ROM need have come and gone.
            if case.platform.arch() == Arch::X86_64 && !matches!(about, Talk::Devices) {
                let counters = outcome.counters.as_ref().context("there are no counters")?;
                let changes = counters.get(Counter::SlotChanges);
                ensure!(changes > 4, "the guest's ROM came and went {changes} times");
            }
            Ok(())
        })
    }

    fn migrate(&self, case: &Case) -> Result<()> {
        let setup = Setup {
            hypervisor: self.hypervisor(case.platform.arch())?,
            platform: case.platform,
            switches: switches(case.settings)?,
            clock: Clock::Wall,
            size: talk::MIGRATED,
            spare: 2 * talk::MIGRATED,
            timeout: BOOT_TIMEOUT,
        };
        let mut writer = Writer::start(&setup, self.signals)?;
        talk::migrate(&mut writer).with_context(|| writer.console())?;
        writer.finish()
    }

    fn stock(&self, case: &Case, test: &Stock, command: &str, kernel: Option<PathBuf>) -> Result<()> {
        let mut guest = self.stock_guest(case.platform, Some(command))?;
        if let Some(kernel) = kernel {
            guest.kernel = kernel;
        }
        guest.vcpus = test.vcpus;
        guest.cmdline = format!("{} {}", guest.cmdline, case.words).trim_end().to_owned();
        guest.memory = case.memory;
        guest.switches = switches(case.settings)?;
        guest.flush = test.flush;
        let clock = if case.is_counted { Clock::Instructions } else { Clock::Wall };
        let outcome = self.boot_by(clock, &guest, test.cpus, |_, _| Ok(Flow::Continue))?;
        with_console(&outcome, || {
            let end = match test.expect {
                Expect::Panic(_) => ExitCode::Panic,
                _ => ExitCode::GuestPowerOff,
            };
            expect_end(&outcome, end)?;
            match test.expect {
                Expect::Panic(says) => ensure!(outcome.log.contains(says), "it does not say {says:?}"),
                Expect::Success => expect_status(&outcome, 0)?,
                Expect::Date => expect_date(&outcome)?,
                Expect::PowerOff => {
                    ensure!(outcome.report("exit").is_none(), "the command ended before the guest");
                }
                Expect::FewLost => {
                    expect_tlb_ipis(&outcome, false)?;
                    expect_few_lost(&outcome)?;
                }
                Expect::TlbIpis(expected) => expect_tlb_ipis(&outcome, expected)?,
                Expect::NothingStale => {
                    expect_status(&outcome, 0)?;
                    expect_a_search(&outcome)?;
                    if guest.switches.vmid_churn.is_some() {
                        expect_generations(&outcome)?;
                    }
                }
                Expect::Intact => {
                    expect_status(&outcome, 0)?;
                    expect_toggles(&outcome)?;
                }
                Expect::Flood => {
                    expect_status(&outcome, 0)?;
                    expect_bounds(&outcome)?;
                }
                Expect::WithoutCpus(missing) => {
                    expect_status(&outcome, 0)?;
                    expect_without_cpus(&outcome, missing)?;
                }
                Expect::Stale => {
                    ensure!(outcome.report("stale").is_some(), "nothing stale was found");
                    expect_status(&outcome, 1)?;
                }
            }
            Ok(())
        })
    }

    fn typed(&self, platform: Platform, texts: &[&str]) -> Result<()> {
        let mut guest = self.stock_guest(platform, None)?;
        guest.reset = ResetPolicy::Reboot;
        let mut left = texts.iter();
        let mut read = 0;
        let outcome = self.boot(&guest, 2, |report, machine| {
            if report["event"] == "shell" {
                let Some(text) = left.next() else { return Ok(Flow::Stop) };
                read = machine.await_console(PROMPT, read, PROMPT_TIMEOUT)?;
                machine.type_text(text)?;
            }
            Ok(Flow::Continue)
        })?;
        with_console(&outcome, || {
            ensure!(
                left.next().is_none(),
                "ended by {:?} before the shell had come up often enough",
                outcome.end
            );
            expect_end(&outcome, ExitCode::GuestPowerOff)
        })
    }

    /// The bare guest that does the things of this name.
    fn probe_guest(&self, case: &Case, name: &str, vcpus: u32) -> Result<Guest> {
        let guest = Guest {
            kernel: made(&self.parts.probe)?.clone(),
            initrd: None,
            cmdline: format!("test={name}"),
            vcpus,
            memory: 64 * MIB,
            flush: FlushMode::Hypercall,
            platform: Platform::X86_64,
            reset: ResetPolicy::Exit,
            switches: switches(case.settings)?,
        };
        guest.check()?;
        Ok(guest)
    }

    fn probe(&self, case: &Case, name: &str, end: ProbeEnd) -> Result<()> {
        let (processors, cpus) = match end {
            ProbeEnd::AllPassed | ProbeEnd::SecondPassed => (2, 2),
            ProbeEnd::SharedPassed => (2, 1),
            ProbeEnd::Passed | ProbeEnd::TripleFault => (1, 1),
        };
        let guest = self.probe_guest(case, name, processors)?;
        let clock = if case.is_counted { Clock::Instructions } else { Clock::Wall };
        let outcome = self.boot_by(clock, &guest, cpus, |_, _| Ok(Flow::Continue))?;
        with_console(&outcome, || check_log(&outcome))?;
        with_console(&outcome, || match end {
            ProbeEnd::TripleFault => {
                expect_end(&outcome, ExitCode::GuestTripleFault)?;
                ensure!(outcome.log.to_lowercase().contains("rip"), "the log has no registers");
                Ok(())
            }
            ProbeEnd::Passed | ProbeEnd::SecondPassed | ProbeEnd::SharedPassed => {
                expect_end(&outcome, ExitCode::GuestPowerOff)?;
                let test = name.split(' ').next().unwrap_or(name);
                let is_report = |report: &&Value| report["test"] == test && report["result"].is_string();
                let report = outcome.reports.iter().find(is_report);
                let report = report.with_context(|| format!("no report of {name}"))?;
                ensure!(report["result"] == "pass", "the guest says: {}", report["why"]);
                Ok(())
            }
            ProbeEnd::AllPassed => {
                let reports = || outcome.reports.iter().filter(|report| report["test"].is_string());
                let failures: Vec<_> = reports()
                    .filter(|report| report["result"] != "pass")
                    .map(|report| format!("fail {}: {}", report["test"], report["why"]))
                    .collect();
                ensure!(failures.is_empty(), "the guest says:\n{}", failures.join("\n"));
                expect_end(&outcome, ExitCode::GuestPowerOff)?;
                ensure!(reports().next().is_some(), "the guest ran no test");
                Ok(())
            }
        })
    }

    /// An emulator forgets all translations at each VMRUN, so that a page which is left out goes
    /// unnoticed: it is counted.
    fn invalidations(&self, case: &Case, test: &str) -> Result<()> {
        let guest = self.probe_guest(case, test, 2)?;
        let hypervisor = self.hypervisor(Arch::X86_64)?;
        let mut spec = guest.on_quell(hypervisor, 2, Clock::Instructions, self.directory)?;
        let counting = Phases::counting(self.directory)?;
        spec.counting = Some(counting.clone());
        spec.timeout = Some(BOOT_TIMEOUT);
        let outcome = Machine::start(&spec, self.signals)?.run(|_, _| Ok(Flow::Continue))?;
        with_console(&outcome, || {
            expect_end(&outcome, ExitCode::GuestPowerOff)?;
            let pages = outcome.counters.as_ref().context("there are no counters")?.get(Counter::FlushPages);
            ensure!(pages >= PAGES_MIN, "{pages} pages are too few to tell anything");
            let executed = Phases::read(&counting)?.of(Phase::None)?.of_kind("invlpga");
            let expected = pages + MEASURED;
            ensure!(
                executed == expected,
                "{executed} INVLPGA for {pages} pages, and {MEASURED} at the start"
            );
            Ok(())
        })
    }

    fn siege(&self, case: &Case, siege: &Siege) -> Result<()> {
        let guest = Guest {
            kernel: made(&self.parts.probe)?.clone(),
            initrd: None,
            cmdline: format!("test={}", siege.test),
            vcpus: siege.vcpus,
            memory: siege.memory,
            flush: FlushMode::Hypercall,
            platform: case.platform,
            reset: ResetPolicy::Reboot,
            switches: switches(case.settings)?,
        };
        guest.check()?;
        let mut said = None;
        let outcome = self.boot(&guest, siege.cpus, |report, machine| {
            if report["event"] != "ready" || said.is_some() {
                return Ok(Flow::Continue);
            }
            said = Some(siege::talk(machine));
            Ok(Flow::Stop)
        })?;
        with_console(&outcome, || {
            said.context("the guest did not begin")??;
            let counters = outcome.counters.as_ref().context("there are no counters")?;
            for &(counter, least) in siege.least {
                let counted = counters.get(counter);
                ensure!(counted >= least, "{} is {counted}, below {least}", counter.name());
            }
            check_log(&outcome)?;
            ensure!(outcome.end == End::Stopped, "the machine ended with {:?}", outcome.end);
            Ok(())
        })
    }

    fn hostile(&self, case: &Case, test: &Hostile, words: &str) -> Result<()> {
        let arch = case.platform.arch();
        let guest = Guest {
            kernel: workspace::bootable(workspace::build(workspace::HOSTILE, arch)?, arch)?,
            initrd: None,
            cmdline: format!("test={words}"),
            vcpus: test.vcpus,
            memory: 64 * MIB,
            flush: FlushMode::Hypercall,
            platform: case.platform,
            reset: ResetPolicy::Exit,
            switches: switches(case.settings)?,
        };
        guest.check()?;
        let (mut said, mut storm, mut sent, mut seed) = (Ok(()), None, 0, storm::SEED);
        let outcome = self.boot(&guest, test.cpus, |report, machine| {
            let turned = match report["event"].as_str() {
                Some("storm") => Requests::begin(machine, seed).map(|begun| storm = Some(begun)),
                Some("calm") => {
                    seed += 1;
                    let ended = storm.take().context("a storm ends that has not begun");
                    ended.and_then(|requests| requests.end(machine)).map(|count| sent += count)
                }
                _ => return Ok(Flow::Continue),
            };
            said = turned.and_then(|()| machine.type_text("\n"));
            Ok(if said.is_ok() { Flow::Continue } else { Flow::Stop })
        })?;
        with_console(&outcome, || {
            said.with_context(|| format!("seed {:#x} of the requests, {sent} were answered before", seed))?;
            expect_verdict(&outcome, test)?;
            check_log(&outcome)?;
            expect_end(&outcome, test.end)
        })
    }

    fn tool(&self, args: &[&str], file: TestFile, status: i32, message: &str) -> Result<()> {
        let path = self.directory.join("argument");
        match file {
            TestFile::None => {}
            TestFile::Text => fs::write(&path, "This is no kernel.\n".repeat(1000))?,
            TestFile::Zeroes(mebibytes) => File::create(&path)?.set_len(mebibytes * MIB)?,
        }
        let path = path.to_string_lossy();
        let args = args.iter().map(|arg| if *arg == "{}" { &path } else { *arg });
        let args: Vec<_> = args.collect();
        let mut command = Command::new(env::current_exe()?);
        if !args.contains(&"--qemu") {
            command.args(emulator::wanted().arguments());
        }
        let output = command.args(args).stdin(Stdio::null()).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(status) {
            self.hung.set(output.status.code() == Some(TIMED_OUT));
            let said = String::from_utf8_lossy(&output.stdout);
            let ended = describe(output.status);
            bail!("ended with {ended} instead of status {status}:\n{}\n{}", tail(&said), tail(&errors));
        }
        ensure!(errors.contains(message), "the message is not '{message}' but:\n{}", tail(&errors));
        Ok(())
    }

    fn stock_guest(&self, platform: Platform, command: Option<&str>) -> Result<Guest> {
        let stock = made(match platform.arch() {
            Arch::X86_64 => &self.parts.stock,
            Arch::Aarch64 => &self.parts.arm_stock,
        })?;
        Ok(Guest {
            kernel: stock.kernel(),
            initrd: Some(stock.initrd(command)),
            cmdline: format!("{} panic=-1", reporting_console(platform.arch())),
            vcpus: 2,
            memory: 512 * MIB,
            flush: FlushMode::Hypercall,
            platform,
            reset: ResetPolicy::Exit,
            switches: Switches::default(),
        })
    }

    /// Guests run with the auditor, mistake or not.
    fn hypervisor(&self, arch: Arch) -> Result<&Hypervisor> {
        made(match arch {
            Arch::X86_64 => &self.parts.tested,
            Arch::Aarch64 => &self.parts.arm_tested,
        })
    }

    fn boot(
        &self,
        guest: &Guest,
        cpus: u32,
        observe: impl FnMut(&Value, &mut Machine) -> Result<Flow>,
    ) -> Result<Outcome> {
        self.boot_by(Clock::Wall, guest, cpus, observe)
    }

    fn boot_by(
        &self,
        clock: Clock,
        guest: &Guest,
        cpus: u32,
        observe: impl FnMut(&Value, &mut Machine) -> Result<Flow>,
    ) -> Result<Outcome> {
        let hypervisor = match (clock, guest.platform.arch()) {
            // Where time is counted it is that of the image for users.
            (Clock::Instructions, Arch::X86_64) => made(&self.parts.usual)?,
            (_, arch) => self.hypervisor(arch)?,
        };
        let mut spec = guest.on_quell(hypervisor, cpus, clock, self.directory)?;
        spec.timeout = Some(match (storm::is_one(&guest.cmdline), self.long) {
            (true, long) => storm::timeout(long),
            (false, true) => LONG_TIMEOUT,
            (false, false) => BOOT_TIMEOUT,
        });
        let outcome = Machine::start(&spec, self.signals)?.run(observe)?;
        self.hung.set(matches!(outcome.end, End::TimedOut));
        Ok(outcome)
    }
}

fn expect_end(outcome: &Outcome, expected: ExitCode) -> Result<()> {
    match outcome.end {
        End::Hypervisor(code) if code == expected => Ok(()),
        End::Failed(status) => {
            bail!("QEMU failed ({}): {}", describe(status), outcome.qemu_messages.trim())
        }
        end => bail!("ended by {end:?} instead of {expected:?}"),
    }
}

/// Whatever a guest does, the hypervisor's log stays short.
fn check_log(outcome: &Outcome) -> Result<()> {
    let length = outcome.log.len();
    ensure!(length <= LOG_BYTES_MAX, "the hypervisor's log has {length} bytes");
    Ok(())
}

/// The guest's report, if it lives to make one.
fn expect_verdict(outcome: &Outcome, test: &Hostile) -> Result<()> {
    let name = test.test.split(' ').next().unwrap_or(test.test);
    let reports = || outcome.reports.iter().filter(|report| report["result"].is_string());
    if let Some(failure) = reports().find(|report| report["result"] != "pass") {
        bail!("the guest says: {}", failure["why"]);
    }
    let has_passed = reports().any(|report| report["test"] == name);
    ensure!(has_passed || test.end != ExitCode::GuestPowerOff, "no report of {name}");
    Ok(())
}

fn expect_status(outcome: &Outcome, expected: i32) -> Result<()> {
    let exit = outcome.report("exit").context("the command did not come to its end")?;
    ensure!(exit["status"] == expected, "the command's status is {}", exit["status"]);
    Ok(())
}

/// The hunter remapped in every way it knows, and its readers saw pages change.
fn expect_a_search(outcome: &Outcome) -> Result<()> {
    let end = outcome.report("end").context("the hunter did not come to its end")?;
    let remaps = end["remaps"].as_object().context("the hunter did not count its remappings")?;
    ensure!(!remaps.is_empty() && remaps.values().all(|count| *count != 0), "not all ways were tried: {end}");
    ensure!(end["changes"].as_u64().is_some_and(|changes| changes > 0), "the readers saw no change: {end}");
    Ok(())
}

/// What the guest said is kept within bounds, its end is there, and none of it is taken for the
/// hypervisor's.
fn expect_bounds(outcome: &Outcome) -> Result<()> {
    let shown = outcome.console.len();
    ensure!(
        shown <= 2 * CONSOLE_BYTES + "(100000 bytes before this are not kept)\n".len(),
        "{shown} bytes of the console are kept"
    );
    ensure!(outcome.console.contains("before this are not kept"), "it is not said that some are missing");
    ensure!(outcome.console.contains(FLOOD_CLAIM), "the guest's last line is not on its console");
    ensure!(!outcome.log.contains(FLOOD_CLAIM), "the guest's line is in the hypervisor's log");
    let (kept, dropped) = (outcome.reports.len(), outcome.reports_dropped);
    ensure!(dropped > 0 && kept < FLOOD_REPORTS, "{kept} reports are kept, and {dropped} are not");
    ensure!(
        kept + dropped >= FLOOD_REPORTS,
        "{kept} reports are kept, {dropped} are not, and some are not counted"
    );
    Ok(())
}

/// These of the machine's CPUs were given up, and no others.
fn expect_without_cpus(outcome: &Outcome, missing: &[u32]) -> Result<()> {
    let given_up: Vec<&str> = outcome.log.lines().filter(|line| line.contains("is not used")).collect();
    let is_said = |cpu: &u32| given_up.iter().any(|line| line.contains(&format!("CPU {cpu} ")));
    ensure!(
        given_up.len() == missing.len() && missing.iter().all(is_said),
        "CPUs {missing:?} come late, and the log says {given_up:?}"
    );
    Ok(())
}

/// Generations of VMIDs have begun all the time: a CPU's first entry alone counts as one.
fn expect_generations(outcome: &Outcome) -> Result<()> {
    let counters = outcome.counters.as_ref().context("there are no counters")?;
    let flushes = counters.get(Counter::VmidFlushes);
    ensure!(flushes >= GENERATIONS_MIN, "CPUs dropped everything {flushes} times only");
    Ok(())
}

/// Mmtest has made all its toggles, each of which has added memory to the guest and taken it away.
fn expect_toggles(outcome: &Outcome) -> Result<()> {
    let begin = outcome.report("begin").context("mmtest did not begin")?;
    let end = outcome.report("end").context("mmtest did not come to its end")?;
    ensure!(end["toggles"] == begin["toggles"], "{} toggles instead of {}", end["toggles"], begin["toggles"]);
    let passes =
        begin["threads"].as_u64().zip(begin["passes"].as_u64()).map(|(threads, each)| threads * each);
    ensure!(end["passes"].as_u64() >= passes, "{} passes instead of {passes:?}", end["passes"]);
    for errors in ["rom_errors", "canary_errors"] {
        ensure!(end[errors] == 0, "{} {errors}", end[errors]);
    }
    let counters = outcome.counters.as_ref().context("there are no counters")?;
    let changes = counters.get(Counter::SlotChanges);
    let expected = end["toggles"].as_u64().map(|toggles| 2 * toggles);
    ensure!(Some(changes) >= expected, "{changes} changes of the guest's memory instead of {expected:?}");
    Ok(())
}

fn expect_tlb_ipis(outcome: &Outcome, expected: bool) -> Result<()> {
    let end = outcome.report("end").context("thrash did not come to its end")?;
    let ipis = end["tlb_ipis"].as_u64().context("thrash did not count TLB IPIs")?;
    let counters = outcome.counters.as_ref().context("there are no counters")?;
    let requests = counters.flush_requests();
    if expected {
        ensure!(ipis > 0, "no TLB IPIs were sent");
        ensure!(requests == 0, "{requests} flush hypercalls in spite of the missing hint");
    } else {
        ensure!(ipis == 0, "{ipis} TLB IPIs in spite of the hypercalls");
        ensure!(requests > 0, "no flush hypercalls either");
    }
    Ok(())
}

/// How many wake-ups may be lost, for a million exits: kicks that the tick brought, with work that
/// it found; and kicks sent again.
const LATE_MAX: u64 = 300;
const AGAIN_MAX: u64 = 1000;

/// QEMU may lose what announces an interrupt (`docs/qemu.md`), which the hypervisor makes good.
/// That is not to hide that it forgets to kick, or kicks the wrong CPU.
fn expect_few_lost(outcome: &Outcome) -> Result<()> {
    let counters = outcome.counters.as_ref().context("there are no counters")?;
    let exits = counters.exits();
    ensure!(exits > 10_000, "{exits} exits tell nothing");
    let per_million = |counted: u64| counted * 1_000_000 / exits;
    let (late, missing) = (counters.get(Counter::KickLate), counters.get(Counter::KickMissing));
    let again = counters.get(Counter::KickAgain);
    ensure!(
        per_million(late + missing) <= LATE_MAX,
        "in {exits} exits the tick brought {late} kicks and found work {missing} times"
    );
    ensure!(per_million(again) <= AGAIN_MAX, "in {exits} exits all CPUs were kicked again {again} times");
    Ok(())
}

/// Adds the ends of console and log to an error.
fn with_console(outcome: &Outcome, check: impl FnOnce() -> Result<()>) -> Result<()> {
    check().map_err(|error| {
        let (console, log) = (tail(&outcome.console), tail(&outcome.log));
        anyhow!("{error:#}\nthe guest's console:\n{console}\nthe hypervisor's log:\n{log}")
    })
}
