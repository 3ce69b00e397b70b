//! A machine with several guests, and what a row does with them: consoles, keys, requests.

use super::heard::Heard;
use super::*;
use crate::cli::Overrides;
use crate::machine::control::Refused;
use crate::machine::guests::GuestSeen;
use crate::machine::own_time::OwnTime;
use crate::machine::ram::Ram;
use crate::machine::spec::Console;
use crate::machine_file::MachineFile;
use crate::migration::{Arrivals, Origin};
use crate::run::tail;
pub(super) use crate::test::room::Room;
use crate::vm::Guests;
use anyhow::Error;
use hostlink::ctl::record::{self, Record};
use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

/// The time between two reads of the consoles.
const PERIOD: Duration = Duration::from_millis(5);
/// An answer of the hypervisor takes a second at most, for a guest whose memory is zeroed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Of a CPU's stack of 96 KiB, so many bytes are never used.
const STACK_LEFT: u64 = 32 << 10;

impl<'a> Room<'a> {
    pub(super) fn write(&self, text: &str) -> Result<PathBuf> {
        let path = self.directory.join("machine.toml");
        fs::write(&path, text).context("cannot write the machine file")?;
        Ok(path)
    }

    pub(super) fn read(&self, file: &Path) -> Result<MachineFile> {
        MachineFile::read(file, Overrides { platform: self.platform.arguments(), cpus: None })
    }

    /// Writes a disk of these bytes.
    pub(super) fn disk(&self, name: &str, contents: &[u8]) -> Result<()> {
        fs::write(self.directory.join(name), contents).context("cannot write a disk")
    }

    /// Starts the guests of a machine file with this text, and does with them what `script` does.
    /// `limit` is for all of that, in the machine's own time.
    pub(super) fn play(
        &self,
        text: &str,
        limit: Duration,
        script: impl FnOnce(&mut Stage<'a>) -> Result<()>,
    ) -> Result<Stage<'a>> {
        self.play_file(&self.write(text)?, limit, &[], script)
    }

    /// The same of a file, with more arguments for QEMU.
    pub(super) fn play_file(
        &self,
        file: &Path,
        limit: Duration,
        args: &[&str],
        script: impl FnOnce(&mut Stage<'a>) -> Result<()>,
    ) -> Result<Stage<'a>> {
        let file = self.read(file)?;
        let guests = Guests::prepare(&file, self.switches)?;
        let mut spec = guests.on_quell(self.hypervisor()?, self.directory)?;
        let log = self.directory.join("hypervisor.log");
        spec.clock = self.clock;
        spec.console = Console::Capture;
        spec.log = Some(log.clone());
        spec.timeout = Some(limit);
        spec.qemu_args.extend(args.iter().map(|&arg| arg.to_owned()));
        let mut arrivals = Arrivals::prepare(&file)?;
        spec.keeps = arrivals.listeners();
        let mut machine = Machine::start(&spec, self.signals)?;
        arrivals.begin(&mut machine)?;
        let (ram, beacon) = machine.shared()?;
        let mut stage = Stage {
            time: machine.own_time(),
            machine,
            heard: Rc::new(RefCell::new(Heard::new(Arc::clone(&ram), beacon))),
            ram,
            limit,
            signals: self.signals.clone(),
            hung: self.hung,
            log,
            _arrivals: arrivals,
        };
        let played =
            stage.until("the hypervisor begins", |stage| stage.heard().entries().map(|all| all.map(drop)));
        match played.and_then(|()| script(&mut stage)) {
            Ok(()) => Ok(stage),
            Err(error) => Err(stage.explain(error)),
        }
    }
}

/// A running machine with several guests.
pub(super) struct Stage<'a> {
    pub(super) machine: Machine,
    heard: Rc<RefCell<Heard>>,
    ram: Arc<Ram>,
    time: OwnTime,
    limit: Duration,
    signals: Signals,
    hung: &'a Cell<bool>,
    log: PathBuf,
    _arrivals: Arrivals,
}

pub(super) struct Ended {
    pub(super) outcome: Outcome,
    heard: Rc<RefCell<Heard>>,
}

impl Stage<'_> {
    fn heard(&self) -> RefMut<'_, Heard> {
        self.heard.borrow_mut()
    }

    /// Waits until `look` finds something, and reads the consoles meanwhile.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            // Before it is read for the last time.
            let has_ended = self.machine.has_ended()?;
            self.heard().read()?;
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if let Some(status) = has_ended {
                bail!("the machine ended, the emulator with {status}, before this: {what}");
            }
            if let Some(signal) = self.signals.caught() {
                bail!("signal {signal} came before this: {what}");
            }
            if self.time.passed() >= self.limit {
                self.hung.set(true);
                bail!("in {} s this has not come: {what}", self.limit.as_secs());
            }
            thread::sleep(PERIOD);
        }
    }

    pub(super) fn guest(&self, name: &str) -> Result<Option<GuestSeen>> {
        let entries = self.heard().entries()?.context("the hypervisor has not begun")?;
        Ok(entries.guests(&self.ram)?.into_iter().find(|guest| guest.name.as_str() == name))
    }

    pub(super) fn until_it_is(&mut self, name: &str, state: GuestState) -> Result<GuestSeen> {
        self.until(&format!("{name} is {state}"), |stage| {
            Ok(stage.guest(name)?.filter(|guest| guest.state == state))
        })
    }

    /// Bytes that a guest's console has shown so far.
    pub(super) fn length(&self, name: &str) -> Result<usize> {
        self.heard().read()?;
        let guest = self.guest(name)?.with_context(|| format!("there is no guest {name}"))?;
        Ok(self.heard().text(guest.identity(), 0).map_or(0, <[u8]>::len))
    }

    /// Waits until a console shows `text` after its first `from` bytes; returns where it ends.
    pub(super) fn until_shown(&mut self, name: &str, text: &str, from: usize) -> Result<usize> {
        self.until(&format!("{name} shows '{}'", text.trim()), |stage| stage.find(name, text, from))
    }

    /// Whether a guest's console has shown `text` after its first `from` bytes.
    pub(super) fn has_shown(&self, name: &str, text: &str, from: usize) -> Result<bool> {
        Ok(self.find(name, text, from)?.is_some())
    }

    /// Whether the hypervisor has logged this.
    pub(super) fn has_logged(&self, text: &str) -> Result<bool> {
        Ok(fs::read_to_string(&self.log)?.contains(text))
    }

    /// Where that ends.
    pub(super) fn find(&self, name: &str, text: &str, from: usize) -> Result<Option<usize>> {
        let Some(guest) = self.guest(name)? else { return Ok(None) };
        let heard = self.heard();
        let Some(shown) = heard.text(guest.identity(), 0).and_then(|all| all.get(from..)) else {
            return Ok(None);
        };
        let found = shown.windows(text.len()).position(|window| window == text.as_bytes());
        Ok(found.map(|at| from + at + text.len()))
    }

    pub(super) fn type_text(&mut self, name: &str, text: &str) -> Result<()> {
        let guest = named(name)?;
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let taken = self.machine.control()?.with_patience(PATIENCE).type_some(guest, 0, rest);
            rest = &rest[taken.with_context(|| format!("typing '{}' to {name}", text.trim_end()))?..];
            self.heard().read()?;
        }
        Ok(())
    }

    /// Types what switches a guest off. The last one's machine may end before it has answered.
    pub(super) fn type_end(&mut self, name: &str, text: &str) -> Result<()> {
        match self.type_text(name, text) {
            Err(error) if !error.is::<Refused>() => {
                let ends = |stage: &mut Self| Ok(stage.machine.has_ended()?.map(drop));
                self.until("the machine ends", ends).context(error)
            }
            result => result,
        }
    }

    /// Where a guest is that is to be saved or moved.
    pub(super) fn origin(&self, name: &str) -> Result<Origin> {
        Origin::find(&self.machine.found().context("it has no hypervisor")?, named(name)?)
    }

    pub(super) fn passed(&mut self) -> Duration {
        self.time.passed()
    }

    pub(super) fn ask(&mut self, request: &Request) -> Result<Vec<String>> {
        let mut control = self.machine.control()?.with_patience(PATIENCE);
        let answer = control.ask(request).with_context(|| format!("'{request}'"));
        self.heard().read()?;
        answer
    }

    pub(super) fn ask_one<R: Record>(&mut self, request: &Request) -> Result<R> {
        let mut control = self.machine.control()?.with_patience(PATIENCE);
        control.ask_one(request).with_context(|| format!("'{request}'"))
    }

    pub(super) fn refused(&mut self, request: &Request, reason: &str) -> Result<()> {
        match self.ask(request) {
            Ok(_) => bail!("'{request}' was not refused"),
            Err(error) if error.is::<Refused>() => {
                let said = format!("{error:#}");
                ensure!(said.contains(reason), "'{request}' was refused for another reason: {said}");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn memory(&mut self) -> Result<Memory> {
        self.ask_one(&Request::Memory)
    }

    /// Checks that they are as they were, and that no CPU has come near the end of its stack.
    pub(super) fn has_memory(&mut self, before: &Memory) -> Result<()> {
        let now = self.memory()?;
        let is_same = (now.free, now.heap) == (before.free, before.heap);
        ensure!(is_same, "memory is not as before: {now:?} after {before:?}");
        ensure!(now.stack >= STACK_LEFT, "a CPU had {} bytes of its stack left", now.stack);
        Ok(())
    }

    pub(super) fn start(&mut self, name: &str) -> Result<()> {
        let guest = named(name)?;
        self.ask(&Request::Create { guest })?;
        self.ask(&Request::Start { guest }).map(drop)
    }

    pub(super) fn destroy(&mut self, name: &str) -> Result<()> {
        self.ask(&Request::Destroy { guest: named(name)? }).map(drop)
    }

    /// Waits until a guest has shown `text` so many times more.
    pub(super) fn goes_on(&mut self, name: &str, text: &str, times: u32) -> Result<()> {
        let mut from = self.length(name)?;
        for _ in 0..times {
            from = self.until_shown(name, text, from)?;
        }
        Ok(())
    }

    /// Types a command to a bare guest, which has to succeed; returns where its answer ends.
    pub(super) fn command(&mut self, name: &str, command: &str, from: usize) -> Result<usize> {
        self.type_text(name, &format!("{command}\n"))?;
        let done = format!("load: done: {command} ");
        self.until(&format!("{name} shows '{done}'"), |stage| {
            for wrong in ["load: error: ", "load: panic: "] {
                ensure!(!stage.has_shown(name, wrong, from)?, "'{command}' fails");
            }
            stage.find(name, &done, from)
        })
    }

    /// Types what switches the last guest off, which ends the run.
    pub(super) fn end(mut self, name: &str, text: &str) -> Result<Ended> {
        self.type_end(name, text)?;
        let ended = self.finish()?;
        ended.ended_by(ExitCode::GuestPowerOff)?;
        Ok(ended)
    }

    /// Ticks for which a guest's vCPUs have had CPUs so far.
    pub(super) fn used(&mut self, name: &str) -> Result<u64> {
        let guests: Vec<record::Guest> =
            self.machine.control()?.with_patience(PATIENCE).ask_for(&Request::Guests)?;
        let guest = guests.into_iter().find(|guest| guest.guest.as_str() == name);
        Ok(guest.with_context(|| format!("guest {name} is not listed"))?.used)
    }

    /// Waits until a guest has had more CPU time than `used`: a turn counts when it ends.
    pub(super) fn until_it_had_more(&mut self, name: &str, used: u64) -> Result<()> {
        self.until(&format!("{name} has had a CPU for more than {used} ticks"), |stage| {
            Ok((stage.used(name)? > used).then_some(()))
        })
    }

    /// A counter, summed over a guest's vCPUs.
    pub(super) fn count(&self, name: &str, counter: Counter) -> Result<u64> {
        let all = self.machine.counters()?.context("there are no counters")?.by_guest();
        let of = all.into_iter().find(|(guest, _)| guest.is_some_and(|guest| guest.name.as_str() == name));
        Ok(of.with_context(|| format!("guest {name} has no counters"))?.1.get(counter))
    }

    /// Ticks of the hypervisor's clock per second.
    pub(super) fn clock_hz(&self) -> Result<u64> {
        self.machine.clock_hz()?.context("the hypervisor has not begun")
    }

    /// Adds to an error what the consoles and the log end with, and how the machine has ended.
    pub(super) fn explain(&mut self, error: Error) -> Error {
        let end = self.machine.end_so_far();
        let end = end.map(|(end, messages)| format!("the machine has ended: {end:?}\n{messages}\n"));
        let heard = self.heard();
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let processors = if self.hung.get() { self.machine.processors() } else { String::new() };
        error.context(format!(
            "{}the hypervisor's log ends with:\n{}\n{}{processors}",
            heard.ends(),
            tail(&log),
            end.unwrap_or_default()
        ))
    }

    pub(super) fn finish(self) -> Result<Ended> {
        let Self { mut machine, heard, hung, .. } = self;
        let reads = Rc::clone(&heard);
        machine.watch(PERIOD, move |_| reads.borrow_mut().read());
        let outcome = machine.run(|_, _| Ok(Flow::Continue))?;
        hung.set(outcome.end == End::TimedOut);
        heard.borrow_mut().read()?;
        Ok(Ended { outcome, heard })
    }
}

impl Ended {
    pub(super) fn ended_by(&self, code: ExitCode) -> Result<()> {
        let ended = self.outcome.ended_by(&[End::Hypervisor(code)]);
        ended
            .with_context(|| format!("{}\nthe log:\n{}", self.heard.borrow().ends(), tail(&self.outcome.log)))
    }

    /// What the console of the last guest of this name has shown.
    pub(super) fn shown(&self, name: &str) -> String {
        self.heard.borrow().shown(name)
    }
}

pub(super) fn named(name: &str) -> Result<Name> {
    Name::parse(name).with_context(|| format!("'{name}' is no name of a guest"))
}
