//! A machine with two guests: one attacks, and the other one is measured.

use super::{Batches, Latencies, Tally};
use crate::cli::Overrides;
use crate::machine::counters::{clock_hz, cpu_count};
use crate::machine::guests::{Entries, Follower, GuestSeen};
use crate::machine::process::complaint;
use crate::machine::reports::Stream;
use crate::machine::spec::Console;
use crate::machine_file::MachineFile;
use crate::prelude::*;
use crate::vm::Guests;
use hostile::attacks::Attack;
use hostlink::guests::GuestState;
use std::cell::RefCell;
use std::rc::Rc;

const ATTACKER: &str = "attacker";
const BYSTANDER: &str = "bystander";
/// The attacker's disk, if it has one, and its bytes.
const DISK: &str = "attacker.img";
const DISK_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 16 << 10;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) attack: Attack,
    /// The attacker's weight, and the bystander's.
    pub(crate) weights: [u32; 2],
    /// Whether the attacker may run on one CPU only; the bystander may run on both.
    pub(crate) is_pinned: bool,
    pub(crate) seed: u64,
    /// Flushes of a batch, and batches that are measured.
    pub(crate) flushes: u64,
    pub(crate) batches: u64,
}

impl Plan {
    /// The bystander's part of the CPUs: what the attacker's weight and its set leave.
    pub(crate) fn share(&self) -> f64 {
        let [attacker, bystander] = self.weights.map(f64::from);
        let most = if self.is_pinned { 0.5 } else { 1.0 };
        1.0 - (attacker / (attacker + bystander)).min(most)
    }

    pub(super) fn file(&self, platform: Platform) -> String {
        let [attacker, bystander] = self.weights;
        let machine = match platform {
            Platform::X86_64 | Platform::Kvm(_) | Platform::Bochs(_) => "arch = \"x86_64\"".to_owned(),
            Platform::Aarch64(cpu) => format!("arch = \"aarch64\"\ncpu = \"{}\"", cpu.name()),
        };
        let disk = if self.attack.needs_disk() { format!("disks = [\"{DISK}\"]\n") } else { String::new() };
        let set = if self.is_pinned { "cpus = [1]\n" } else { "" };
        let guest = |name: &str, vcpus: u32, weight: u32, words: &str| {
            format!(
                "\n[[guest]]\nname = \"{name}\"\nprogram = \"hostile\"\ncmdline = \"{words}\"\n\
                 vcpus = {vcpus}\nmemory = \"64M\"\nweight = {weight}\nreset = \"reboot\"\n"
            )
        };
        let attack = format!("test=attack attack={} seed={}", self.attack.name(), self.seed);
        let measured = format!("test=bystander count={}", self.flushes);
        [
            format!("[machine]\n{machine}\ncpus = 2\n"),
            guest(ATTACKER, 4, attacker, &attack),
            set.to_owned(),
            disk,
            guest(BYSTANDER, 2, bystander, &measured),
        ]
        .concat()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// The part of the CPUs that the bystander had, and the attacker.
    pub(crate) share: f64,
    pub(crate) attackers_share: f64,
    pub(super) latencies: Latencies,
    pub(super) tally: Tally,
    /// Units of the bystander's work in a second of its CPU time.
    pub(super) speed: f64,
    /// Interrupts that ended the bystander's turns in guest mode, in a second of its CPU time.
    pub(super) interrupts: f64,
    /// The attacker's exits in a second of its CPU time, and its resets.
    pub(super) exits: f64,
    pub(super) resets: u64,
}

struct Moment {
    at: Instant,
    guests: [GuestSeen; 2],
    counters: Snapshot,
}

/// Reads the guests' consoles while they run, and takes the figures.
struct Watcher {
    ram: Arc<Ram>,
    beacon: u64,
    /// The console that reports come by.
    port: usize,
    batches: u64,
    followed: [Option<(Follower, Stream)>; 2],
    is_attacked: bool,
    measured: Batches,
    begin: Option<Moment>,
    /// The end, or why there are no figures.
    end: Option<Result<Moment>>,
}

impl Watcher {
    fn new(machine: &Machine, arch: Arch, plan: &Plan) -> Result<Self> {
        let (ram, beacon) = machine.shared()?;
        Ok(Self {
            ram,
            beacon,
            port: usize::from(!arch.reports_on_console()),
            batches: plan.batches,
            followed: [None, None],
            is_attacked: false,
            measured: Batches::default(),
            begin: None,
            end: None,
        })
    }

    fn look(&mut self) -> bool {
        if self.end.is_none() {
            self.end = self.step().transpose();
        }
        self.end.is_some()
    }

    fn step(&mut self) -> Result<Option<Moment>> {
        // Now, because what follows may take a while.
        let at = Instant::now();
        let Some(guests) = self.guests()? else { return Ok(None) };
        for (index, guest) in guests.iter().enumerate() {
            self.take(index, guest)?;
            let has_ended = matches!(guest.state, GuestState::Off | GuestState::Failed);
            ensure!(!has_ended, "guest {} has ended: {}, {:?}", guest.name, guest.state, guest.exit);
        }
        if !self.is_attacked || self.measured.last.is_none() {
            return Ok(None);
        }
        if self.begin.is_none() {
            self.measured.begin();
            self.begin = Some(self.moment(at, guests)?);
            return Ok(None);
        }
        if self.measured.measured() < self.batches { Ok(None) } else { self.moment(at, guests).map(Some) }
    }

    fn guests(&self) -> Result<Option<[GuestSeen; 2]>> {
        let Some(entries) = Entries::find(&self.ram, self.beacon)? else { return Ok(None) };
        let all = entries.guests(&self.ram)?;
        let find = |name: &str| all.iter().find(|guest| guest.name.as_str() == name).cloned();
        Ok(find(ATTACKER).zip(find(BYSTANDER)).map(|(attacker, bystander)| [attacker, bystander]))
    }

    fn moment(&self, at: Instant, guests: [GuestSeen; 2]) -> Result<Moment> {
        let counters = Snapshot::read(&self.ram, self.beacon)?.context("there are no counters")?;
        Ok(Moment { at, guests, counters })
    }

    fn take(&mut self, index: usize, guest: &GuestSeen) -> Result<()> {
        let Some(ring) = guest.consoles[self.port] else { return Ok(()) };
        let (follower, stream) =
            self.followed[index].get_or_insert_with(|| (Follower::new(ring), Stream::default()));
        let mut buffer = [0; BUFFER_BYTES];
        for report in stream.feed(follower.read(&self.ram, &mut buffer)?.items) {
            complaint(&report).map_or(Ok(()), |why| bail!("guest {} says: {why}", guest.name))?;
            match (index, report["event"].as_str()) {
                (0, Some("attack")) => self.is_attacked = true,
                (1, Some("batch")) => self.measured.take(&report)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn figures(&self, end: &Moment) -> Result<Figures> {
        let begin = self.begin.as_ref().context("the attack did not begin")?;
        let hz = clock_hz(&self.ram, self.beacon)?.context("the hypervisor has no clock")?;
        let cpus = cpu_count(&self.ram, self.beacon)?;
        let seconds = end.at.duration_since(begin.at).as_secs_f64() * float(cpus);
        let used = [0, 1].map(|index| {
            let ticks = end.guests[index].used_ticks.wrapping_sub(begin.guests[index].used_ticks);
            float(ticks) / float(hz)
        });
        let of = |moment: &Moment, index: usize| {
            let identity = Some(moment.guests[index].identity());
            let mut guests = moment.counters.by_guest().into_iter();
            guests.find(|(guest, _)| *guest == identity).context("a guest has no counters")
        };
        let counted = |index: usize| anyhow::Ok(of(end, index)?.1.since(&of(begin, index)?.1));
        let (attacker, bystander, tally) = (counted(0)?, counted(1)?, self.measured.tally());
        Ok(Figures {
            share: used[1] / seconds,
            attackers_share: used[0] / seconds,
            latencies: self.measured.latencies.clone(),
            tally,
            speed: float(tally.units) / used[1],
            interrupts: float(bystander.get(Counter::ExitInterrupt)) / used[1],
            exits: float(attacker.exits()) / used[0],
            resets: attacker.get(Counter::Resets),
        })
    }
}

pub(crate) fn run(
    hypervisor: &Hypervisor,
    platform: Platform,
    plan: &Plan,
    timeout: Duration,
    directory: &Path,
    signals: &Signals,
) -> Result<Figures> {
    let path = directory.join("pair.toml");
    fs::write(&path, plan.file(platform)).context("cannot write the machine file")?;
    if plan.attack.needs_disk() {
        fs::write(directory.join(DISK), vec![0xa5; DISK_BYTES]).context("cannot write a disk")?;
    }
    let file = MachineFile::read(&path, Overrides::default())?;
    let mut spec = Guests::prepare(&file, Switches::default())?.on_quell(hypervisor, directory)?;
    (spec.console, spec.timeout) = (Console::Capture, Some(timeout));
    let mut machine = Machine::start(&spec, signals)?;
    let watcher = Rc::new(RefCell::new(Watcher::new(&machine, platform.arch(), plan)?));
    let watching = Rc::clone(&watcher);
    machine.end_when(move || watching.borrow_mut().look());
    let outcome = machine.run(|_, _| Ok(Flow::Continue))?;
    let mut watcher = watcher.borrow_mut();
    let end = watcher.end.take();
    match (end, outcome.end) {
        (Some(Ok(end)), End::Stopped) => watcher.figures(&end),
        (Some(Err(error)), _) => Err(error.context(log_of(&outcome.log))),
        (_, End::TimedOut) => {
            let (done, all, seconds) = (watcher.measured.measured(), plan.batches, timeout.as_secs());
            Err(anyhow!("only {done} of {all} batches were done in {seconds} s; {}", log_of(&outcome.log)))
        }
        (_, End::Interrupted(signal)) => Err(anyhow!("interrupted by signal {signal}")),
        (_, end) => Err(anyhow!("the machine ended with {end:?}; {}", log_of(&outcome.log))),
    }
}

fn log_of(log: &str) -> String {
    format!("the hypervisor's log ends with:\n{}", tail(log))
}
