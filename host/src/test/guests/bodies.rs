//! Guests on Quell.

use super::expect::*;
use super::{BOOT_TIMEOUT, Lab};
use crate::bench::load::Setup;
use crate::bench::migrate::Writer;
use crate::bench::phases::Phases;
use crate::migration::Arrivals;
use crate::test::cases::{Hostile, ProbeEnd, Stock};
use crate::test::prelude::*;
use crate::test::siege::{self, Siege};
use crate::test::storm::{self, Requests};
use crate::test::talk;

/// The prompt of the guest's shell, and how long after its announcement it appears at most.
const PROMPT: &str = "# ";
const PROMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// INVLPGAs by which the hypervisor measures their cost when it starts.
const MEASURED: u64 = 5 * 64;
/// Fewer pages than this prove nothing.
const PAGES_MIN: u64 = 100;

impl Lab<'_> {
    pub(super) fn talk(&self, case: &Case, command: &str, about: Talk) -> Result<()> {
        let mut said = Err(anyhow!("the guest did not begin to work"));
        let outcome = self.run_stock(case, 2, command, |report, machine| {
            if report["event"] != "ready" {
                return Ok(Flow::Continue);
            }
            said = talk::talk(machine, case.platform.arch(), about);
            Ok(Flow::Stop)
        })?;
        with_console(&outcome, || {
            said?;
            // Refusals for devices may be over before the ROM has been added and removed.
            let is_short = matches!(about, Talk::Devices | Talk::Watch);
            judge_talk(&outcome, case.platform.arch() == Arch::X86_64 && !is_short)
        })
    }

    pub(in crate::test) fn migrate(&self, case: &Case) -> Result<()> {
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
        talk::migrate(&mut writer).with_context(|| writer.load.console())?;
        writer.load.finish().map(drop)
    }

    pub(super) fn stock(&self, case: &Case, test: &Stock, command: &str) -> Result<()> {
        let mut hz = None;
        let outcome = self.run_stock(case, test.cpus, command, |report, machine| {
            hz = machine.clock_hz()?;
            talk::wake(report, machine)
        })?;
        with_console(&outcome, || judge_stock(&outcome, test.expect, &switches(case.settings)?, hz))
    }

    /// Types in a stock guest's shell: on each line of the report channel with event `shell` the
    /// next text. The guest has to switch itself off after the last.
    pub(in crate::test) fn typed(&self, platform: Platform, texts: &[&str]) -> Result<()> {
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
            ensure!(left.next().is_none(), "ended by {:?} with too few shells", outcome.end);
            outcome.ended_by(&[OFF])
        })
    }

    fn probe_guest(&self, case: &Case, name: &str, vcpus: u32) -> Result<Guest> {
        let words = if name.starts_with("bench=") { name.to_owned() } else { format!("test={name}") };
        let guest = Guest::bare(workspace::PROBE, case.platform, words, vcpus, 64 * MIB)?;
        Ok(Guest { switches: switches(case.settings)?, nested: case.is_nested, ..guest })
    }

    pub(super) fn probe(&self, case: &Case, name: &str, end: ProbeEnd) -> Result<()> {
        let (processors, cpus) = match end {
            ProbeEnd::AllPassed | ProbeEnd::AllPassedOnKvm | ProbeEnd::SecondPassed => (2, 2),
            ProbeEnd::SharedPassed | ProbeEnd::WithinBudgetsOnKvm => (2, 1),
            ProbeEnd::Failed(processors, cpus) => (processors, cpus),
            ProbeEnd::Passed | ProbeEnd::Ended(_) => (1, 1),
        };
        let guest = self.probe_guest(case, name, processors)?;
        let clock = if case.is_counted { Clock::Instructions } else { Clock::Wall };
        let outcome = if case.is_bare {
            let spec = guest.on_bare_machine(cpus, self.directory)?;
            self.alone(&Spec { timeout: Some(BOOT_TIMEOUT), ..spec })?
        } else if case.is_on_kvm {
            self.on_kvm(&guest, cpus, BOOT_TIMEOUT)?
        } else {
            self.boot_by(clock, &guest, cpus, Arrivals::default(), |_, _| Ok(Flow::Continue))?
        };
        with_console(&outcome, || judge_probe(&outcome, name, end))
    }

    /// QEMU's plugin counts each INVLPGA while the bare guest runs a test; the count must match the
    /// hypervisor's. An emulator drops all translations at each VMRUN: a skipped page goes
    /// unnoticed.
    pub(in crate::test) fn invalidations(&self, case: &Case, test: &str) -> Result<()> {
        let guest = self.probe_guest(case, test, 2)?;
        let hypervisor = self.hypervisor(Arch::X86_64)?;
        let mut spec = guest.on_quell(hypervisor, 2, Clock::Instructions, self.directory)?;
        let counting = Phases::counting(self.directory)?;
        spec.counting = Some(counting.clone());
        spec.timeout = Some(BOOT_TIMEOUT);
        let outcome = self.alone(&spec)?;
        with_console(&outcome, || {
            outcome.ended_by(&[OFF])?;
            let pages = count(&outcome, Counter::FlushPages)?;
            ensure!(pages >= PAGES_MIN, "{pages} pages are too few to tell anything");
            let executed = Phases::read(&counting)?.of(Phase::None)?.of_kind("invlpga");
            let expected = pages + MEASURED;
            ensure!(executed == expected, "{executed} INVLPGA for {pages} pages and {MEASURED} before");
            Ok(())
        })
    }

    pub(in crate::test) fn siege(&self, case: &Case, siege: &Siege) -> Result<()> {
        let words = format!("test={}", siege.test);
        let guest = Guest {
            reset: ResetPolicy::Reboot,
            switches: switches(case.settings)?,
            ..Guest::bare(workspace::PROBE, case.platform, words, siege.vcpus, siege.memory)?
        };
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
            judge_siege(&outcome, siege.least)
        })
    }

    pub(super) fn hostile(&self, case: &Case, test: &Hostile, words: &str) -> Result<()> {
        let words = format!("test={words}");
        let guest = Guest {
            switches: switches(case.settings)?,
            ..Guest::bare(workspace::HOSTILE, case.platform, words, test.vcpus, 64 * MIB)?
        };
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
            judge_hostile(&outcome, test)
        })
    }
}
