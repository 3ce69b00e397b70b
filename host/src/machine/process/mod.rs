//! A running machine: the QEMU process, the guest's report channel and console, and their end.

use super::bochs::Messages;
use super::console::Among;
use super::control::{Control, Found, Notice, Registration, Relay};
use super::counters::{clock_hz, exit_code};
use super::emulator::{Prepared, ends, path_in_child, prepare};
use super::log_file::{LogFile, Output, Sink};
use super::own_time::OwnTime;
use super::payload::Payload;
use super::reports::Reports;
use super::spec::{Channels, Console, Spec};
use super::terminal::SavedTerminal;
use crate::prelude::*;
pub(crate) use ended::{OFF, Outcome, complaint};
use ended::{emulator_end, tails};
pub(crate) use monitor::Monitor;
use shown::Stream;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ExitStatus};
#[cfg(test)]
pub(crate) use table::refuses;

mod ended;
mod monitor;
mod shown;
#[cfg(test)]
mod table;

/// How often the process, its time and the signals are checked.
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// At least this much of QEMU's own log is kept, and at most twice as much.
const QEMU_LOG_BYTES: usize = 64 << 10;
/// At least this much of the guest's console is kept, and at most twice as much.
pub(crate) const CONSOLE_BYTES: usize = 64 << 10;
/// The same for the hypervisor's log, and for QEMU's messages.
const LOG_BYTES: usize = 512 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Hypervisor(ExitCode),
    /// The guest, running directly on the machine, switched it off; or the user quit.
    PowerOff,
    /// The machine's own CPU shut down: the hypervisor could not report it.
    TripleFault,
    Stopped,
    /// Its time was up: its own time, which excludes that of other processes.
    TimedOut,
    Interrupted(i32),
    Failed(ExitStatus),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Stop,
}

/// A running machine. Dropping it kills the machine.
pub(crate) struct Machine {
    child: Child,
    started: Instant,
    /// What its CPUs were at when its time was up.
    stuck: Option<String>,
    /// Its own time, and its time limit.
    time: OwnTime,
    limit: Option<Duration>,
    signals: Signals,
    platform: Platform,
    ram: Arc<Ram>,
    beacon: Option<u64>,
    reports: Arc<Reports>,
    /// Waits for the channel of the reports, and reads it.
    listens: Option<JoinHandle<()>>,
    stdin: Option<Box<dyn Write + Send>>,
    /// The guest's console, the hypervisor's log, QEMU's own log, and QEMU's messages.
    console: Stream,
    log: Stream,
    qemu_log: Stream,
    messages: Stream,
    /// What QEMU says of the end on KVM, for which its log has no word.
    events: Option<UnixStream>,
    terminal: Option<SavedTerminal>,
    watch: Option<Watch>,
    ends: Vec<Box<dyn Fn() -> bool>>,
    _relay: Option<Relay>,
    /// While this exists the machine can be found.
    control: Option<Registration>,
    files: TempDir,
}

type Watcher = dyn FnMut(&Snapshot) -> Result<()>;

struct Watch {
    period: Duration,
    last: Instant,
    watcher: Box<Watcher>,
}

impl Machine {
    /// The kernel kills QEMU when the thread that started it ends.
    pub(crate) fn start(spec: &Spec, signals: &Signals) -> Result<Self> {
        let files = tempfile::Builder::new().prefix("quell-").tempdir()?;
        let [report, port, monitor] = ["report", "control", monitor::SOCKET].map(|it| files.path().join(it));
        let listener = UnixListener::bind(&report).context("cannot make the report channel")?;
        let log_file = spec.log.as_deref().map(LogFile::create).transpose()?;
        let [log, qemu_log, messages] = [io::pipe()?, io::pipe()?, io::pipe()?];
        let control = match spec.payload {
            Payload::Quell { .. } => Some(Registration::new()?),
            Payload::Bare { .. } | Payload::Xen { .. } | Payload::Disc { .. } => None,
        };
        let arch = spec.platform.arch();
        let ram = Arc::new(Ram::of(arch, spec.memory)?);
        let (beacon, seen) = (spec.payload.beacon(), Arc::clone(&ram));
        // If that cannot be known the hypervisor is asked.
        let has_begun = move || beacon.is_none_or(|beacon| !matches!(clock_hz(&seen, beacon), Ok(None)));
        let relay =
            control.as_ref().map(|public| Relay::start(public.path(), &port, has_begun)).transpose()?;
        let [log_path, qemu_log_path] = [&log.1, &qemu_log.1].map(path_in_child);
        let channels = Channels {
            report: &report,
            log: log_path.as_ref(),
            control: relay.as_ref().map(|_| &*port),
            qemu_log: qemu_log_path.as_ref(),
            monitor: &monitor,
        };
        if let (Some(registration), Some(beacon), Payload::Quell { bundle, .. }) =
            (&control, beacon, &spec.payload)
        {
            registration.publish(&Notice::new(arch, &ram, beacon, bundle)?)?;
        }

        let Prepared { mut command, console, sockets, events } =
            prepare(spec, &ram, &channels, [&log.1, &qemu_log.1], files.path())?;
        command.stderr(messages.1);
        // What the guest shows there may change the terminal. QEMU may be killed before it restores
        // the settings.
        let is_shown = spec.console != Console::Capture;
        let mut terminal = if is_shown { SavedTerminal::save() } else { None };
        let started = Instant::now();
        let program = command.get_program().to_owned();
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        // The pipes end when the emulator does: this process has no writing ends of them.
        drop((command, sockets, log.1, qemu_log.1));
        // QEMU shows its console on the terminal itself.
        let is_echoed = is_shown && (console.is_some() || spec.console == Console::Echo);
        let (mut stdin, stdout) = ends(console, &mut child)?;
        if let Some(terminal) = &mut terminal {
            stdin.take().into_iter().for_each(|stdin| terminal.pass_keys(stdin));
        }

        let reports = Arc::new(Reports::new());
        let among = Among::of(spec, &reports);
        let echo = is_echoed.then(|| shared(Output::new(io::stdout())));
        Ok(Self {
            stdin,
            stuck: None,
            time: OwnTime::new(child.id()),
            child,
            started,
            limit: spec.timeout,
            signals: signals.clone(),
            platform: spec.platform,
            ram,
            beacon,
            listens: Some(Reports::listen(&reports, listener)),
            reports,
            console: Stream::keep(stdout, CONSOLE_BYTES, echo, among),
            log: Stream::keep(log.0, LOG_BYTES, log_file.map(shared), None),
            qemu_log: Stream::keep(qemu_log.0, QEMU_LOG_BYTES, None, None),
            messages: Stream::keep(messages.0, LOG_BYTES, None, None),
            events,
            terminal,
            watch: None,
            ends: Vec::new(),
            _relay: relay,
            control,
            files,
        })
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn counters(&self) -> Result<Option<Snapshot>> {
        self.beacon.map_or(Ok(None), |beacon| Snapshot::read(&self.ram, beacon))
    }

    /// Ticks per second of the hypervisor's clock; `None` without hypervisor, or before it runs.
    pub(crate) fn clock_hz(&self) -> Result<Option<u64>> {
        self.beacon.map_or(Ok(None), |beacon| clock_hz(&self.ram, beacon))
    }

    pub(crate) fn ram(&self) -> &Ram {
        &self.ram
    }

    /// The name by which others find it; `None` without hypervisor.
    pub(crate) fn name(&self) -> Option<String> {
        self.found().map(|machine| machine.name)
    }

    /// The machine's memory, to be read on another thread, and the address of the beacon in it.
    pub(crate) fn shared(&self) -> Result<(Arc<Ram>, u64)> {
        let beacon = self.beacon.ok_or_else(|| anyhow!("the machine has no hypervisor"))?;
        Ok((Arc::clone(&self.ram), beacon))
    }

    /// This machine, as others find it; `None` without hypervisor.
    pub(crate) fn found(&self) -> Option<Found> {
        self.control.as_ref().map(Registration::machine)
    }

    pub(crate) fn end_when(&mut self, ends: impl Fn() -> bool + 'static) {
        self.ends.push(Box::new(ends));
    }

    pub(crate) fn control(&self) -> Result<Control> {
        let registration = self.control.as_ref().ok_or_else(|| anyhow!("there is no hypervisor"))?;
        let control = Control::open(&registration.machine())?;
        Ok(control.in_time_of(self.child.id()).until(&self.signals))
    }

    pub(crate) fn own_time(&self) -> OwnTime {
        OwnTime::new(self.child.id())
    }

    /// How the emulator has ended, if it has.
    pub(crate) fn has_ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// How the machine has ended, if it has, and the emulator's messages. Its connections close
    /// first, so this waits a little.
    pub(crate) fn end_so_far(&mut self) -> Option<(End, String)> {
        for _ in 0..100 {
            if let Some(status) = self.child.try_wait().ok()? {
                return Some((self.end_of(status).ok()?, self.messages.whole().ok()?));
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Makes `watcher` see the counters every `period` while the machine runs, once there are any.
    pub(crate) fn watch(&mut self, period: Duration, watcher: impl FnMut(&Snapshot) -> Result<()> + 'static) {
        self.watch = Some(Watch { period, last: self.started, watcher: Box::new(watcher) });
    }

    fn look(&mut self) -> Result<()> {
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.last.elapsed() >= watch.period) else {
            return Ok(());
        };
        watch.last = Instant::now();
        let Some(beacon) = self.beacon else { return Ok(()) };
        Snapshot::read(&self.ram, beacon)?.map_or(Ok(()), |snapshot| (watch.watcher)(&snapshot))
    }

    /// `observe` sees each report, or misses some if very many come faster than it takes them.
    pub(crate) fn run(
        mut self,
        mut observe: impl FnMut(&Value, &mut Self) -> Result<Flow>,
    ) -> Result<Outcome> {
        let mut next = 0;
        let end = self.wait(&mut next, &mut observe)?;
        let wall = self.started.elapsed();
        // QEMU has ended, so its ends of the channels are closed, and the readers reach end of
        // file. The report channel's reader still waits if QEMU never connected.
        drop(UnixStream::connect(self.files.path().join("report")));
        let listened = self.listens.take().map_or(Ok(()), JoinHandle::join);
        listened.map_err(|_| anyhow!("the reader of the reports panicked"))?;
        self.console.whole()?;
        while let Some((report, behind)) = self.reports.await_one(next, Duration::ZERO) {
            observe(&report, &mut self)?;
            next = behind;
        }
        let (reports, reports_dropped) = (self.reports.all(), self.reports.dropped());
        let (console, log) = (self.shown(), self.log.whole()? + &self.stuck.take().unwrap_or_default());
        let qemu_messages =
            Messages::of(self.messages.whole()?).map_err(|error| error.context(tails(&console, &log)))?;
        Ok(Outcome {
            end,
            wall,
            console,
            log,
            emulator: self.platform.emulator(),
            qemu_messages,
            unwritten: self.unwritten(),
            reports,
            reports_dropped,
            counters: self.counters()?,
        })
    }

    fn wait(
        &mut self,
        next: &mut usize,
        observe: &mut impl FnMut(&Value, &mut Self) -> Result<Flow>,
    ) -> Result<End> {
        loop {
            let reports = Arc::clone(&self.reports);
            if let Some((report, behind)) = reports.await_one(*next, POLL_PERIOD) {
                let flow = observe(&report, self)?;
                *next = behind;
                if flow == Flow::Stop {
                    return self.kill(End::Stopped);
                }
            }
            self.look()?;
            if let Some(status) = self.child.try_wait()? {
                return self.end_of(status);
            }
            if let Some(signal) = self.signals.caught() {
                return self.kill(End::Interrupted(signal));
            }
            if self.ends.iter().any(|ends| ends()) {
                return self.kill(End::Stopped);
            }
            let passed = self.time.passed();
            if self.limit.is_some_and(|limit| passed >= limit) {
                self.stuck = Some(self.processors());
                return self.kill(End::TimedOut);
            }
        }
    }

    fn unwritten(&self) -> Vec<String> {
        [self.console.failure(), self.log.failure()].into_iter().flatten().collect()
    }

    fn kill(&mut self, end: End) -> Result<End> {
        self.child.kill().context("cannot end the emulator")?;
        self.child.wait().context("cannot wait for the emulator")?;
        Ok(end)
    }

    fn end_of(&mut self, status: ExitStatus) -> Result<End> {
        if let Some(signal) = self.signals.caught() {
            return Ok(End::Interrupted(signal));
        }
        let code = match (self.platform.arch(), self.beacon) {
            (Arch::X86_64, _) => status.code().and_then(ExitCode::from_qemu_status),
            (Arch::Aarch64, Some(beacon)) if status.success() => exit_code(&self.ram, beacon)?,
            (Arch::Aarch64, _) => None,
        };
        Ok(match code {
            Some(code) => End::Hypervisor(code),
            None => {
                let mut log = self.qemu_log.whole()?;
                // A kernel without hypervisor may reset its machine, which ends it. QEMU resets the
                // connection if it ends before it has read from it; its messages say why.
                if let (Some(events), Some(_)) = (&mut self.events, self.beacon) {
                    let _ = events.read_to_string(&mut log);
                }
                emulator_end(&log, &self.messages.whole()?, status)
            }
        })
    }
}

fn shared(sink: impl Sink + 'static) -> Arc<Mutex<dyn Sink>> {
    Arc::new(Mutex::new(sink))
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only if the process has ended already and has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        drop(self.terminal.take());
    }
}
