//! `quell console` in a terminal, beside `quell run` in another process: what is typed reaches one
//! guest, and leaving ends nothing.

use super::*;
use crate::machine::emulator::describe;
use crate::machine::terminal::pseudo_terminal;
use crate::test::room::tool;
use rustix::termios::{Termios, tcgetattr};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// The machine's time limit in seconds, in its own time. All else ends with the machine.
const TIMEOUT: &str = "120";
const PERIOD: Duration = Duration::from_millis(10);

/// Ctrl-A d, and Ctrl-C with the end of a line.
const LEAVE: &str = "\x01d";
const CTRL_C: &str = "\x03\r";

/// A process, which is killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.spawn().context("cannot start the tool")?))
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.0.try_wait().context("cannot wait for a process")
    }
}

fn until<T>(mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        thread::sleep(PERIOD);
    }
}

struct Machine {
    process: Process,
    directory: PathBuf,
}

impl Machine {
    fn start(directory: &Path) -> Result<Self> {
        let [one, two] = ["one", "two"].map(|name| bare(name, 1, "32M", ""));
        let text = format!("[machine]\nlogs = \"logs\"\n{one}{two}");
        let file = directory.join("machine.toml");
        fs::write(&file, text)?;
        let mut command = tool(&["run", "--timeout", TIMEOUT])?;
        let output = File::create(directory.join("output"))?;
        command.arg(&file).stdout(output.try_clone()?).stderr(output);
        let mut machine = Self { process: Process::start(&mut command)?, directory: directory.to_owned() };
        for name in ["one", "two"] {
            until(|| machine.goes_on().map(|()| machine.log(name).contains(READY).then_some(())))?;
        }
        Ok(machine)
    }

    /// The name by which other processes find it.
    fn name(&self) -> String {
        self.process.0.id().to_string()
    }

    fn log(&self, name: &str) -> String {
        let bytes = fs::read(self.directory.join("logs").join(name).with_extension("log"));
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    fn output(&self) -> String {
        let bytes = fs::read(self.directory.join("output")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn goes_on(&mut self) -> Result<()> {
        let ended = self.process.ended()?;
        ended.map_or(Ok(()), |status| bail!("the run ended with {}:\n{}", describe(status), self.output()))
    }
}

/// A terminal in which a console is attached to.
struct Terminal {
    process: Process,
    own: File,
    before: Termios,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    fn attach(machine: &Machine, guest: &str) -> Result<Self> {
        let (own, other) = pseudo_terminal()?;
        let before = tcgetattr(&own)?;
        let mut command = tool(&["console", guest, "--vm", &machine.name()])?;
        command.stdin(other.try_clone()?).stdout(other.try_clone()?).stderr(other);
        let process = Process::start(&mut command)?;
        let (own, shown) = (File::from(own), Arc::new(Mutex::new(Vec::new())));
        let (mut reads, shows) = (own.try_clone()?, Arc::clone(&shown));
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            // There is an error when the last process has closed the terminal.
            while let Ok(count @ 1..) = reads.read(&mut buffer) {
                shows.lock().unwrap_or_else(PoisonError::into_inner).extend(&buffer[..count]);
            }
        });
        Ok(Self { process, own, before, shown, reader: Some(reader) })
    }

    fn shown(&self) -> String {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&shown).into_owned()
    }

    fn type_text(&mut self, text: &str) -> Result<()> {
        self.own.write_all(text.as_bytes()).context("cannot type")
    }

    fn until_shown(&mut self, text: &str) -> Result<()> {
        until(|| {
            // Looked at before what it has shown.
            let ended = self.process.ended()?;
            match (self.shown().contains(text), ended) {
                (true, _) => Ok(Some(())),
                (false, None) => Ok(None),
                (false, Some(status)) => {
                    bail!("it ended with {} before '{text}':\n{}", describe(status), self.shown())
                }
            }
        })
    }

    /// Waits for its end with status 0, and for all that it has shown; the terminal is as before.
    fn finish(&mut self) -> Result<()> {
        let status = until(|| self.process.ended())?;
        self.reader.take().into_iter().for_each(|reader| drop(reader.join()));
        ensure!(status.success(), "it ended with {}:\n{}", describe(status), self.shown());
        let (before, now) = (&self.before, tcgetattr(&self.own)?);
        let is_same = before.local_modes == now.local_modes && before.input_modes == now.input_modes;
        ensure!(is_same, "the terminal was left in another mode: {now:?} after {before:?}");
        Ok(())
    }
}

/// Attaches to a guest, types a command, and returns when its answer was shown.
fn type_command(machine: &Machine, guest: &str, command: &str) -> Result<Terminal> {
    let mut terminal = Terminal::attach(machine, guest)?;
    // What the console has shown before comes first, after the terminal's mode was changed.
    terminal.until_shown(READY)?;
    terminal.type_text(&format!("{command}\r"))?;
    terminal.until_shown(&format!("done: {command} "))?;
    Ok(terminal)
}

fn leave(machine: &mut Machine, mut terminal: Terminal) -> Result<()> {
    terminal.type_text(LEAVE)?;
    terminal.finish()?;
    ensure!(terminal.shown().contains("which goes on"), "it ended differently:\n{}", terminal.shown());
    machine.goes_on()
}

pub(super) fn attach(room: &Room<'_>) -> Result<()> {
    let mut machine = Machine::start(room.directory)?;
    let mut terminal = type_command(&machine, "one", "spin=1")?;
    terminal.type_text(CTRL_C)?;
    terminal.until_shown("no command")?;
    leave(&mut machine, terminal)?;
    let terminal = type_command(&machine, "two", "spin=2")?;
    leave(&mut machine, terminal)?;
    for (name, own, other) in [("one", "spin=1", "spin=2"), ("two", "spin=2", "spin=1")] {
        until(|| machine.goes_on().map(|()| machine.log(name).contains(own).then_some(())))?;
        ensure!(!machine.log(name).contains(other), "{name} was given '{other}':\n{}", machine.log(name));
    }
    // What was shown before the terminal was attached comes again.
    let mut terminal = type_command(&machine, "one", "spin=3")?;
    ensure!(terminal.shown().contains("done: spin=1"), "it begins too late:\n{}", terminal.shown());
    terminal.type_text("poweroff\r")?;
    terminal.until_shown("[one is off]")?;
    leave(&mut machine, terminal)?;
    let mut terminal = type_command(&machine, "two", "spin=4")?;
    terminal.type_text("poweroff\r")?;
    // As long as nobody has waited for the run it looks alive.
    let status = until(|| machine.process.ended())?;
    ensure!(status.success(), "the run ended with {}:\n{}", describe(status), machine.output());
    terminal.finish()?;
    ensure!(terminal.shown().contains("has ended"), "it ended differently:\n{}", terminal.shown());
    Ok(())
}
