//! Runs one case in one way: makes the guest, puts it on its hypervisor, and follows it to its end.

use super::cases::{CASES, Case, Linux, Tlbcheck, Work};
use super::nested;
use super::own::{Measure, Own};
use super::record::Number;
use super::slots::Operator;
use super::watch::Watch;
use super::way::{FlushWay, ON_ARM};
use crate::bench::lab::{self, BARE_MEMORY};
use crate::cli::{AllArgs, SizeArgs};
use crate::guest::cache::Xen;
use crate::guest::peer::Flushes;
use crate::guest::peer::arm::Outer;
use crate::guest::{cache, peer, vmm};
use crate::machine::process::Outcome;
use crate::prelude::*;
use crate::results::Facts;
use hostlink::config::NestedPage;

/// The number of deaths of machines without Quell after which a run has failed.
pub(crate) const DEATHS_MAX: usize = 3;
/// The guest reports how its kernel flushes before it does anything else.
const SAYS_HOW: &str = "says() { dmesg | grep -q \"$1\" && echo true || echo false; }\n\
    echo \"{\\\"event\\\":\\\"flushes\\\",\\\"hyperv\\\":$(says 'Using hypercall for remote TLB flush'),\
    \\\"own\\\":$(says 'KVM setup pv remote TLB flush\\|Hypervisor detected: Xen PV')}\" >/dev/report\n";

pub(crate) struct Runner<'a> {
    pub(crate) lab: lab::Lab<'a>,
    pub(crate) args: &'a AllArgs,
}

pub(crate) struct Trial {
    /// The measured numbers, or the reason why the run failed.
    pub(crate) numbers: Result<Vec<Number>, String>,
    /// How machines without Quell ended that died or hung, so that the run was repeated.
    pub(crate) deaths: Vec<String>,
    pub(crate) wall: Duration,
}

enum Ended {
    /// The guest finished, with numbers or with an error.
    Over(Result<Vec<Number>, String>),
    /// The machine ended before that.
    Died { how: String, last_words: String },
    /// This process was told to end.
    Interrupted,
}

/// Runs machines until a guest finishes. If a machine without Quell dies, the run is repeated:
/// under QEMU's emulation KVM and the bare machine occasionally die. Quell has no such known
/// problem, so its death is a failure.
fn trial(may_die: bool, mut run: impl FnMut() -> Result<(Ended, Duration)>) -> Result<Option<Trial>> {
    let (mut deaths, mut wall) = (Vec::new(), Duration::ZERO);
    loop {
        let (ended, took) = run()?;
        wall += took;
        let numbers = match ended {
            Ended::Interrupted => return Ok(None),
            Ended::Over(numbers) => numbers,
            Ended::Died { how, last_words } if !may_die => Err(format!("{how}\n{last_words}")),
            Ended::Died { how, last_words } => {
                deaths.push(how);
                if deaths.len() < DEATHS_MAX {
                    continue;
                }
                Err(format!("{DEATHS_MAX} machines died or hung; the last one's end:\n{last_words}"))
            }
        };
        return Ok(Some(Trial { numbers, deaths, wall }));
    }
}

/// How a machine is made, so that it can be made again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) case: String,
    pub(crate) subject: Subject,
    pub(crate) way: String,
    /// CPUs of the emulated machine; its memory; whether its clock counts instructions.
    machine: String,
    pub(crate) guest: String,
    cmdline: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    /// For the peer: QEMU's command line, or a domain's configuration; and the command line of the
    /// kernel around it, or of Xen.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_qemu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_cmdline: Option<String>,
    /// The package of that kernel, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_kernel: Option<String>,
}

impl Runner<'_> {
    /// Measures a case, again if a machine without Quell dies or hangs. `None` if the process is
    /// told to end.
    pub(crate) fn measure(&self, case: &Case, way: FlushWay) -> Result<Option<Trial>> {
        let timeout = self.args.output.timeout.map(Duration::from_secs);
        self.lab.timeout.set(timeout.unwrap_or_else(|| case.work.timeout(way)));
        let may_die = way.subject() != Subject::Quell;
        trial(may_die, || {
            if let Work::Own(Own { measure, .. }) = case.work {
                return self.own(measure, way, may_die);
            }
            let (outcome, watch) = self.run(case, way)?;
            let wall = outcome.wall;
            let ended = match outcome.end {
                End::Interrupted(_) => Ended::Interrupted,
                _ if watch.is_over() => Ended::Over(watch.result()),
                end => Ended::Died { how: ended(end), last_words: last_words(&outcome) },
            };
            Ok((ended, wall))
        })
    }

    fn size(&self, &Linux { vcpus, cpus, memory, .. }: &Linux) -> SizeArgs {
        self.args.size.unwrap_or(SizeArgs { vcpus, cpus, memory })
    }

    fn tlbcheck(&self, own: &Tlbcheck) -> Tlbcheck {
        let [cpus, samples] = self.args.tlbcheck.unwrap_or([own.cpus, own.samples]);
        Tlbcheck { cpus, samples, ..*own }
    }

    fn own(&self, measure: Measure, way: FlushWay, may_die: bool) -> Result<(Ended, Duration)> {
        let begun = Instant::now();
        let ended = match measure(self, way) {
            _ if self.lab.signals.caught().is_some() => Ended::Interrupted,
            Err(error) if may_die => Ended::Died { how: error.to_string(), last_words: format!("{error:#}") },
            numbers => Ended::Over(numbers.map_err(|error| format!("{error:#}"))),
        };
        Ok((ended, begun.elapsed()))
    }

    fn setup(&self, case: &Case, way: FlushWay) -> Result<Setup> {
        if let Work::Own(Own { machines, .. }) = case.work {
            let (machine, peer_kernel) = (machines(self.args), self.peer_kernel(way)?);
            let (case, way, subject) = (case.name.to_owned(), way.flushes().to_owned(), way.subject());
            return Ok(Setup { case, subject, way, machine, peer_kernel, ..Setup::default() });
        }
        let guest = self.guest(case, way)?;
        let spec = self.spec(case, way, &guest)?;
        let (peer_qemu, peer_cmdline) = Self::peer(case, way, &guest);
        let peer_domain = match way {
            FlushWay::Xen(flushes) => Some(peer::xen::domain(&guest, flushes, spec.cpus - 1)),
            _ => None,
        };
        let clock = if spec.clock == Clock::Instructions { ", counting instructions" } else { "" };
        Ok(Setup {
            case: case.name.to_owned(),
            subject: way.subject(),
            way: way.flushes().to_owned(),
            machine: format!("{} CPUs{}, {} MiB{clock}", spec.cpus, model(way), spec.memory / MIB),
            guest: guest_text(&guest, case, way),
            // kvmslots' guest has no kernel.
            cmdline: match case.work {
                Work::Slots(_) if way.is_peer() => String::new(),
                _ => guest.cmdline.clone(),
            },
            command: self.command(case, way),
            peer_qemu,
            peer_domain,
            peer_cmdline,
            peer_kernel: self.peer_kernel(way)?,
        })
    }

    pub(crate) fn setups(&self, is_meant: impl Fn(&Case, FlushWay) -> bool) -> Result<Vec<Setup>> {
        let all = CASES.iter().flat_map(|case| case.ways.iter().map(move |way| (case, *way)));
        all.filter(|(case, way)| is_meant(case, *way)).map(|(case, way)| self.setup(case, way)).collect()
    }

    fn run<'c>(&self, case: &'c Case, way: FlushWay) -> Result<(Outcome, Watch<'c>)> {
        let guest = self.guest(case, way)?;
        let spec = self.spec(case, way, &guest)?;
        let mut watch = Watch::new(&case.work, way);
        let mut operator = Operator::default();
        let outcome = self.lab.start(spec)?.run(|report, machine| {
            if let (Work::Slots(_), Subject::Quell) = (&case.work, way.subject())
                && let Err(error) = operator.take(report, machine)
            {
                // If this process was told to end, the machine is ended for that.
                watch.fail(format!("{error:#}"));
                return Ok(if self.lab.signals.caught().is_some() { Flow::Continue } else { Flow::Stop });
            }
            Ok(watch.take(report, machine.elapsed()))
        })?;
        Ok((outcome, watch))
    }

    /// The peer's command lines: QEMU's, if there is one, and its kernel's.
    fn peer(case: &Case, way: FlushWay, guest: &Guest) -> (Option<String>, Option<String>) {
        let of_pc = || Some(peer::cmdline(way.platform()));
        match (way.under_kvm(), &case.work) {
            (None, _) if way.subject() == Subject::Xen => (None, Some(peer::xen::cmdline())),
            (Some(_), Work::Slots(_)) => (None, of_pc()),
            (Some(flushes), work) => (Some(peer::qemu(&guest.under_kvm(flushes, has_rom(work)))), of_pc()),
            (None, _) if way.is_peer() => (
                Some(peer::arm::qemu(&guest.under_kvm(Flushes::Own, false))),
                Some(peer::arm::CMDLINE.into()),
            ),
            (None, _) => (None, None),
        }
    }

    /// The versions of everything that runs in these ways.
    pub(super) fn versions(&self, ways: &[FlushWay]) -> Result<Facts> {
        let mut versions = self.lab.versions(ways)?;
        if ways.iter().any(|way| way.subject() == Subject::Xen) {
            let Xen { kernel, xl, .. } = cache::xen(self.args.xen.unwrap_or_default())?;
            let both = [("peer_xen", xl.version), ("peer_first_domain", kernel.version)];
            versions.extend(both.map(|(name, version)| (name.to_owned(), version)));
        }
        Ok(versions)
    }

    fn peer_kernel(&self, way: FlushWay) -> Result<Option<String>> {
        let FlushWay::KvmOnArm(kernel) = way else { return Ok(None) };
        Ok(Some(kernel.file(self.lab.stock(Arch::Aarch64)?)?.1))
    }

    /// The command that the guest runs; that of the kernel around it if its monitor is measured.
    fn command(&self, case: &Case, way: FlushWay) -> Option<String> {
        match &case.work {
            Work::Linux(linux) => Some(linux.command.replace("{rounds}", &self.args.rounds.to_string())),
            Work::Slots(slots) => way.is_peer().then(|| vmm::line(&slots.arguments())),
            Work::Probe { .. } | Work::Tlbcheck(_) | Work::Own(_) => None,
        }
    }

    fn guest(&self, case: &Case, way: FlushWay) -> Result<Guest> {
        let platform = way.platform();
        let bare = |image, words: &str, vcpus| lab::bare(platform, image, words, vcpus);
        let guest = match &case.work {
            Work::Linux(linux) => {
                let command = self.command(case, way).map(|command| format!("{SAYS_HOW}{command}"));
                let stock = self.lab.stock(platform.arch())?;
                let SizeArgs { vcpus, memory, .. } = self.size(linux);
                let guest = lab::linux(stock, platform, stock.initrd(command.as_deref()), vcpus);
                let guest = if let FlushWay::Xen(_) = way { peer::xen::guest(guest) } else { guest };
                let words = [Some(guest.cmdline.as_str()), self.args.append.as_deref()];
                let cmdline = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
                Guest { memory, cmdline, ..guest }
            }
            Work::Probe { cmdline, vcpus } => {
                let is_direct = way == FlushWay::Direct;
                let words = if is_direct { nested::DIRECT_WORDS } else { cmdline };
                let guest = Guest { nested: is_direct, ..bare(workspace::PROBE, words, *vcpus)? };
                Guest { memory: nested::memory(way).unwrap_or(guest.memory), ..guest }
            }
            Work::Slots(slots) => {
                // Then memory has the most entries.
                let switches = Switches { nested_page: NestedPage::Small, ..Switches::default() };
                Guest { memory: slots.memory(), switches, ..bare(workspace::PROBE, &slots.cmdline(), 1)? }
            }
            Work::Own(_) => bail!("it makes its guests itself"),
            Work::Tlbcheck(own) => {
                let Tlbcheck { cpus, samples, targets } = self.tlbcheck(own);
                let words = format!("bench json report=com2 rounds={samples} targets={targets}");
                Guest { memory: 4 * BARE_MEMORY, ..bare(workspace::TLBCHECK, &words, cpus)? }
            }
        };
        let flush = if let FlushWay::Quell(flush) = way { flush } else { guest.flush };
        let guest = Guest { flush, ..guest };
        guest.check().map(|()| guest)
    }

    fn spec(&self, case: &Case, way: FlushWay, guest: &Guest) -> Result<Spec> {
        let (cpus, clock) = match &case.work {
            Work::Linux(linux) => (self.size(linux).cpus, Clock::Wall),
            Work::Tlbcheck(own) => (self.tlbcheck(own).cpus, Clock::Wall),
            Work::Probe { .. } if case.is_timed() => (1, Clock::Wall),
            Work::Probe { .. } | Work::Slots(_) | Work::Own(_) => (1, Clock::Instructions),
        };
        let (directory, stock) = (self.lab.directory(), || self.lab.stock(way.platform().arch()));
        match (&case.work, way) {
            (Work::Slots(slots), FlushWay::Kvm(_) | FlushWay::KvmOn(_)) => {
                let (arguments, memory) = (slots.arguments(), slots.monitor_memory());
                stock()?.with_kvmslots(way.platform(), &arguments, memory, directory)
            }
            (_, FlushWay::Inner(around, clock)) => nested::spec(&self.lab, around, clock, guest),
            (work, FlushWay::Quell(_) | FlushWay::QuellOn(_) | FlushWay::Direct) => {
                let spec = self.lab.on_quell(guest, cpus, clock)?;
                let added = if let Work::Slots(slots) = work { slots.added() } else { 0 };
                Ok(Spec { memory: spec.memory + added, ..spec })
            }
            (_, FlushWay::Bare(_)) => self.lab.on_bare_machine(guest, cpus, clock),
            (_, FlushWay::Kvm(_) | FlushWay::KvmOn(_)) => {
                let flushes = way.under_kvm().unwrap_or(Flushes::HyperV);
                let inner = guest.under_kvm(flushes, has_rom(&case.work));
                stock()?.with_kvm(way.platform(), &inner, cpus, clock, directory)
            }
            (_, FlushWay::Xen(flushes)) => Ok(Spec {
                clock,
                ..peer::xen::spec(self.args.xen.unwrap_or_default(), guest, flushes, cpus, directory)?
            }),
            (_, FlushWay::KvmOnArm(kernel)) => {
                let inner = guest.under_kvm(Flushes::Own, false);
                let memory = peer::without_files(&inner);
                let outer = Outer { stock: stock()?, kernel, cpu: ON_ARM, cpus, clock, memory };
                outer.spec(&peer::arm::archive(&cache::foreign_qemu()?, &inner, cpus)?, directory)
            }
        }
    }
}

fn model(way: FlushWay) -> String {
    match way.platform() {
        Platform::X86_64 => String::new(),
        Platform::Kvm(_) => " (kvm)".to_owned(),
        Platform::Bochs(bochs) => format!(" ({})", bochs.name()),
        Platform::Aarch64(cpu) => format!(" ({})", cpu.name()),
    }
}

fn guest_text(guest: &Guest, case: &Case, way: FlushWay) -> String {
    let own = format!("{} vCPUs, {} MiB", guest.vcpus, guest.memory / MIB);
    match (&case.work, way.is_peer()) {
        (Work::Slots(slots), true) => format!("{} vCPUs, {} MiB", guest.vcpus, slots.monitor_memory() / MIB),
        (Work::Slots(slots), false) if slots.added() != 0 => {
            format!("{own} and {} MiB that are added", slots.added() / MIB)
        }
        _ => own,
    }
}

fn has_rom(work: &Work) -> bool {
    matches!(work, Work::Linux(Linux { has_rom: true, .. }))
}

fn ended(end: End) -> String {
    match end {
        End::TimedOut => "it hung, and was ended".to_owned(),
        End::PowerOff | End::Hypervisor(ExitCode::GuestPowerOff) => {
            "it was switched off too early".to_owned()
        }
        End::TripleFault => "it shut down by triple fault".to_owned(),
        end => format!("it ended with {end:?}"),
    }
}

fn last_words(outcome: &Outcome) -> String {
    let parts = [&*outcome.console, &outcome.log, &outcome.qemu_messages];
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty()).map(tail);
    parts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn died() -> Ended {
        Ended::Died { how: "it hung".to_owned(), last_words: "help".to_owned() }
    }

    /// A trial of machines that end like this, each after a second, and the number of machines run.
    fn tried(is_peer: bool, ends: Vec<Ended>) -> (Option<Trial>, usize) {
        let (total, mut ends) = (ends.len(), ends.into_iter());
        let trial = trial(is_peer, || Ok((ends.next().expect("it tries too often"), SECOND)));
        (trial.expect("starts"), total - ends.count())
    }

    #[test]
    fn a_peer_that_dies_is_repeated_and_counted() {
        let good = || Ended::Over(Ok(Vec::new()));
        let (trial, count) = tried(true, vec![died(), died(), good(), good()]);
        let trial = trial.expect("is over");
        assert!(trial.numbers.is_ok());
        assert_eq!((count, trial.deaths, trial.wall), (3, vec!["it hung".to_owned(); 2], 3 * SECOND));
        let (trial, count) = tried(true, (0..DEATHS_MAX + 1).map(|_| died()).collect());
        let trial = trial.expect("is over");
        assert_eq!((count, trial.deaths.len()), (DEATHS_MAX, DEATHS_MAX));
        assert!(trial.numbers.expect_err("is given up").contains("help"));
    }

    #[test]
    fn nothing_else_is_repeated() {
        let (trial, count) = tried(false, vec![died(), died()]);
        let trial = trial.expect("is over");
        assert_eq!((count, trial.deaths.len(), trial.numbers.is_err()), (1, 0, true), "Quell has failed");
        let (trial, count) = tried(true, vec![Ended::Over(Err("damage".to_owned())), died()]);
        assert_eq!((count, trial.expect("is over").numbers), (1, Err("damage".to_owned())));
        let (trial, count) = tried(true, vec![died(), Ended::Interrupted, died()]);
        assert!(trial.is_none() && count == 2);
    }
}
