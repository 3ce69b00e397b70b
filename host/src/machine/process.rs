//! A running machine: the QEMU process, the guest's report channel and console, and the end of it all.

use super::console::{Kept, lines_with, read, read_split};
use super::control::{Control, Registration};
use super::counters::{Snapshot, clock_hz, exit_code};
use super::ram::Ram;
use super::signals::Signals;
use super::spec::{Channels, Console, Payload, Spec};
use crate::arch::Arch;
use anyhow::{Context, Result, anyhow};
use hostlink::exit::ExitCode;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How often the process, the deadline and the signals are looked at.
const POLL_PERIOD: Duration = Duration::from_millis(20);
/// Longest log of QEMU's that is looked at.
const QEMU_LOG_BYTES_MAX: u64 = 64 << 10;

/// How a machine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The hypervisor said so.
    Hypervisor(ExitCode),
    /// The guest, directly on the machine, switched it off; or the user left it.
    PowerOff,
    /// The machine's own CPU shut down: the hypervisor is beyond reporting.
    TripleFault,
    /// The observer had seen enough.
    Stopped,
    /// The time was up.
    TimedOut,
    /// This process was told to end by a signal.
    Interrupted(i32),
    /// QEMU failed with this status.
    Failed(ExitStatus),
}

/// What an observer wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Go on.
    Continue,
    /// End the machine.
    Stop,
}

/// What is left of a machine.
pub(crate) struct Outcome {
    /// How it ended.
    pub(crate) end: End,
    /// Wall clock from start to end.
    pub(crate) wall: Duration,
    /// The guest's console, unless it was the terminal.
    pub(crate) console: String,
    /// The hypervisor's log.
    pub(crate) log: String,
    /// What QEMU had to say.
    pub(crate) qemu_messages: String,
    /// Every line of the report channel, in order.
    pub(crate) reports: Vec<Value>,
    /// The counters at the end; `None` without hypervisor, or if it ended before it had any.
    pub(crate) counters: Option<Snapshot>,
}

impl Outcome {
    /// The first report of that event.
    pub(crate) fn report(&self, event: &str) -> Option<&Value> {
        self.reports.iter().find(|report| report["event"] == event)
    }
}

/// A machine that runs. Dropped, it is killed.
pub(crate) struct Machine {
    child: Child,
    started: Instant,
    deadline: Option<Instant>,
    signals: Signals,
    arch: Arch,
    ram: Ram,
    beacon: Option<u64>,
    reports: Receiver<Value>,
    console: Arc<Mutex<Vec<u8>>>,
    stdin: Option<ChildStdin>,
    readers: Vec<JoinHandle<()>>,
    log: PathBuf,
    terminal: Option<SavedTerminal>,
    watch: Option<Watch>,
    /// While the machine is there it can be found.
    control: Option<Registration>,
    files: TempDir,
}

type Watcher = dyn FnMut(&Snapshot) -> Result<()>;

/// Somebody who looks at the counters now and then.
struct Watch {
    period: Duration,
    last: Instant,
    watcher: Box<Watcher>,
}

impl Machine {
    /// Starts the machine. Call it from a thread that outlives the machine: the kernel kills QEMU when
    /// the thread that started it ends.
    pub(crate) fn start(spec: &Spec, signals: &Signals) -> Result<Self> {
        let files = tempfile::Builder::new().prefix("quell-").tempdir()?;
        let report = files.path().join("report");
        let listener = UnixListener::bind(&report).context("cannot make the report channel")?;
        let log = spec.log.clone().unwrap_or_else(|| files.path().join("hypervisor.log"));
        File::create(&log).with_context(|| format!("cannot write the log {}", log.display()))?;
        let control = match spec.payload {
            Payload::Quell { .. } => Some(Registration::new()?),
            Payload::Bare { .. } | Payload::Disc { .. } => None,
        };
        let channels = Channels {
            report: &report,
            log: &log,
            control: control.as_ref().map(Registration::path),
            qemu_log: &files.path().join("qemu.log"),
        };
        let arch = spec.platform.arch();
        let ram = match arch {
            Arch::X86_64 => Ram::of_q35(spec.memory)?,
            Arch::Aarch64 => Ram::new(spec.memory, arch.ram_base())?,
        };

        let interactive = spec.console == Console::Terminal;
        let mut command = command(spec, &ram, &channels);
        command.stderr(File::create(files.path().join("qemu.err"))?);
        let terminal = if interactive { SavedTerminal::save() } else { None };
        let started = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot start {}", arch.qemu()))?;

        let console = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        let (sender, reports) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            let kept = Kept { console: Arc::clone(&console), echo: spec.console == Console::Echo };
            let splits = if arch.reports_on_console() {
                // QEMU may be writing there, too.
                Some((sender.clone(), OpenOptions::new().append(true).open(&log)?))
            } else {
                None
            };
            readers.push(thread::spawn(move || match splits {
                Some((sender, log)) => read_split(stdout, &kept, &sender, log),
                None => read(stdout, |bytes| kept.take(bytes)),
            }));
        }
        readers.push(thread::spawn(move || read_reports(&listener, &sender)));
        let beacon = match spec.payload {
            Payload::Quell { beacon, .. } => beacon,
            Payload::Bare { .. } | Payload::Disc { .. } => None,
        };
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            started,
            deadline: spec.timeout.map(|timeout| started + timeout),
            signals: signals.clone(),
            arch,
            ram,
            beacon,
            reports,
            console,
            readers,
            log,
            terminal,
            watch: None,
            control,
            files,
        })
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The hypervisor's counters at this moment.
    pub(crate) fn counters(&self) -> Result<Option<Snapshot>> {
        self.beacon.map_or(Ok(None), |beacon| Snapshot::read(&self.ram, beacon))
    }

    /// Ticks per second of the clock that the hypervisor measures by; `None` without hypervisor, or before it runs.
    pub(crate) fn clock_hz(&self) -> Result<Option<u64>> {
        self.beacon.map_or(Ok(None), |beacon| clock_hz(&self.ram, beacon))
    }

    /// The machine's memory.
    pub(crate) fn ram(&self) -> &Ram {
        &self.ram
    }

    /// Begins a conversation with the hypervisor.
    pub(crate) fn control(&self) -> Result<Control> {
        let registration = self.control.as_ref().ok_or_else(|| anyhow!("there is no hypervisor"))?;
        Ok(Control::open(&registration.machine())?.until(&self.signals))
    }

    /// Types on the guest's console; with [`Console::Capture`] only.
    pub(crate) fn type_text(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().ok_or_else(|| anyhow!("the console takes no input"))?;
        stdin.write_all(text.as_bytes()).context("cannot type on the guest's console")
    }

    /// Waits until the console shows `text` behind its first `from` bytes; returns where that ends.
    /// With [`Console::Capture`] only; fails after `timeout`.
    pub(crate) fn await_console(&self, text: &str, from: usize, timeout: Duration) -> Result<usize> {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline && self.signals.caught().is_none() {
            let console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
            let shown = console.get(from..).unwrap_or_default();
            let found = shown.windows(text.len()).position(|window| window == text.as_bytes());
            if let Some(at) = found {
                return Ok(from + at + text.len());
            }
            drop(console);
            thread::sleep(POLL_PERIOD);
        }
        Err(anyhow!("the guest's console did not show '{text}'"))
    }

    /// Waits for the first whole line with `text` in it behind the console's first `from` bytes; returns it and where it ends. As
    /// [`Self::await_console`] otherwise.
    pub(crate) fn await_line(&self, text: &str, from: usize, timeout: Duration) -> Result<(String, usize)> {
        let found = self.await_console(text, from, timeout)?;
        self.await_console("\n", found, timeout)?;
        let line = self.lines(text, from).into_iter().next();
        line.ok_or_else(|| anyhow!("the guest's console shows no line with '{text}'"))
    }

    /// The whole lines with `text` in them that the console has shown behind its first `from` bytes, and where each ends.
    pub(crate) fn lines(&self, text: &str, from: usize) -> Vec<(String, usize)> {
        let console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        lines_with(text, console.get(from..).unwrap_or_default(), from)
    }

    /// What the guest's console has shown so far.
    pub(crate) fn shown(&self) -> String {
        let console = self.console.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&console).replace('\r', "")
    }

    /// Has `watcher` see the counters every `period` while the machine runs, once there are any.
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

    /// Waits for the end; `observe` sees each line of the report channel as it arrives.
    pub(crate) fn run(
        mut self,
        mut observe: impl FnMut(&Value, &mut Self) -> Result<Flow>,
    ) -> Result<Outcome> {
        let mut seen = Vec::new();
        let end = self.wait(&mut seen, &mut observe)?;
        let wall = self.started.elapsed();
        // QEMU is gone, so its ends of the channels are closed, and the readers come to theirs. The
        // report channel's reader still waits if QEMU never connected.
        drop(std::os::unix::net::UnixStream::connect(self.files.path().join("report")));
        for reader in self.readers.drain(..) {
            reader.join().map_err(|_| anyhow!("a reader of the machine's output panicked"))?;
        }
        let late: Vec<Value> = self.reports.try_iter().collect();
        for report in late {
            observe(&report, &mut self)?;
            seen.push(report);
        }
        let console = std::mem::take(&mut *self.console.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Outcome {
            end,
            wall,
            console: String::from_utf8_lossy(&console).replace('\r', ""),
            log: lossy(&self.log),
            qemu_messages: lossy(&self.files.path().join("qemu.err")),
            reports: seen,
            counters: self.counters()?,
        })
    }

    fn wait(
        &mut self,
        seen: &mut Vec<Value>,
        observe: &mut impl FnMut(&Value, &mut Self) -> Result<Flow>,
    ) -> Result<End> {
        loop {
            match self.reports.recv_timeout(POLL_PERIOD) {
                Ok(report) => {
                    let flow = observe(&report, self)?;
                    seen.push(report);
                    if flow == Flow::Stop {
                        return self.kill(End::Stopped);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(POLL_PERIOD),
            }
            self.look()?;
            if let Some(status) = self.child.try_wait()? {
                return self.end_of(status);
            }
            if let Some(signal) = self.signals.caught() {
                return self.kill(End::Interrupted(signal));
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return self.kill(End::TimedOut);
            }
        }
    }

    fn kill(&mut self, end: End) -> Result<End> {
        self.child.kill().context("cannot end QEMU")?;
        self.child.wait().context("cannot wait for QEMU")?;
        Ok(end)
    }

    /// What QEMU's exit status means.
    fn end_of(&self, status: ExitStatus) -> Result<End> {
        if let Some(signal) = self.signals.caught() {
            return Ok(End::Interrupted(signal));
        }
        let code = match (self.arch, self.beacon) {
            (Arch::X86_64, _) => status.code().and_then(ExitCode::from_qemu_status),
            (Arch::Aarch64, Some(beacon)) if status.success() => exit_code(&self.ram, beacon)?,
            (Arch::Aarch64, _) => None,
        };
        Ok(match (code, status.success()) {
            (Some(code), _) => End::Hypervisor(code),
            (None, true) if self.triple_faulted()? => End::TripleFault,
            (None, true) => End::PowerOff,
            (None, false) => End::Failed(status),
        })
    }

    /// Whether QEMU's log says so; its status is that of an orderly end.
    fn triple_faulted(&self) -> Result<bool> {
        let mut text = Vec::new();
        let log = File::open(self.files.path().join("qemu.log"));
        if let Ok(log) = log {
            log.take(QEMU_LOG_BYTES_MAX).read_to_end(&mut text)?;
        }
        Ok(String::from_utf8_lossy(&text).contains("Triple fault"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only if the process has ended already and has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        drop(self.terminal.take());
    }
}

/// The call of QEMU: its standard streams, its memory, and its death with this process's.
fn command(spec: &Spec, ram: &Ram, channels: &Channels<'_>) -> Command {
    let mut command = Command::new(spec.platform.arch().qemu());
    command.args(spec.arguments(ram, channels));
    match spec.console {
        Console::Terminal => command.stdin(Stdio::inherit()).stdout(Stdio::inherit()),
        Console::Echo => command.stdin(Stdio::null()).stdout(Stdio::piped()),
        Console::Capture => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
    };
    // On the terminal QEMU has to be in the foreground group; elsewhere Ctrl-C is this process's.
    if spec.console != Console::Terminal {
        command.process_group(0);
    }
    let ram_fd = ram.fd().as_raw_fd();
    // SAFETY: the closure runs between fork and exec and makes two system calls, nothing else. The
    // descriptor is open there: the child has a copy of every one that the parent holds, and the parent
    // holds this one until the machine has ended.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            fcntl_setfd(BorrowedFd::borrow_raw(ram_fd), FdFlags::empty())?;
            Ok(())
        });
    }
    command
}

/// The terminal's settings as they were; put back when dropped, for QEMU may be killed before it does.
struct SavedTerminal {
    settings: Termios,
}

impl SavedTerminal {
    fn save() -> Option<Self> {
        tcgetattr(io::stdin()).ok().map(|settings| Self { settings })
    }
}

impl Drop for SavedTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no settings.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.settings);
    }
}

fn lossy(path: &std::path::Path) -> String {
    fs::read(path).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Passes on the JSON lines of the first connection; lines that are none are skipped: the guest's
/// kernel may print there too.
fn read_reports(listener: &UnixListener, sender: &Sender<Value>) {
    let Ok((stream, _)) = listener.accept() else { return };
    for line in BufReader::new(stream).split(b'\n') {
        let Ok(line) = line else { return };
        let text = String::from_utf8_lossy(&line);
        let value = serde_json::from_str::<Value>(text.trim()).ok().filter(Value::is_object);
        if let Some(value) = value
            && sender.send(value).is_err()
        {
            return;
        }
    }
}

/// A one-line description of an exit status.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
