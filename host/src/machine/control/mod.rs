//! The control channel of running machines: its location, and a conversation over it.
//!
//! Each machine with the hypervisor has a UNIX socket in a directory of the user, named after the
//! process that runs it. A process that could write there could answer in a machine's place, so a
//! directory that others may access is neither used nor read. A [`Relay`] takes any number of
//! conversations there. A [`Notice`] beside the socket names the location of the machine's
//! counters.

mod notice;
mod relay;

pub(crate) use notice::Notice;
pub(crate) use relay::Relay;

use crate::machine::own_time::OwnTime;
use crate::prelude::*;
use hostlink::ctl::record::{Added, Deleted, Record, Taken};
use hostlink::ctl::{Access, Answer, Input, Request};
use rustix::process::{Pid, getuid, test_kill_process};
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

const SUFFIX: &str = "ctl";
/// Suffixes of a machine's notice, and of one that is being written.
const NOTICE_SUFFIX: &str = "json";
const PART_SUFFIX: &str = "part";
/// Longest silence of the hypervisor in the middle of an answer, by default.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const POLL_PERIOD: Duration = Duration::from_millis(100);

/// The directory of the sockets. The session's own is used if it belongs to the user: one inherited
/// from another user, as with `sudo -E`, does not.
fn directory() -> PathBuf {
    let uid = getuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match runtime.filter(|path| path.is_absolute() && is_private(path, uid).is_ok()) {
        Some(runtime) => runtime.join("quell"),
        None => std::env::temp_dir().join(format!("quell-{uid}")),
    }
}

/// Whether a path is a directory, not a link to one, of this user and closed to all others. Then no
/// other user changes its contents, or replaces it in a sticky directory such as /tmp.
fn is_private(path: &Path, uid: u32) -> Result<()> {
    let data = fs::symlink_metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    let path = path.display();
    ensure!(data.is_dir(), "{path} is not a directory: remove it");
    ensure!(data.uid() == uid, "{path} belongs to somebody else");
    let mode = data.mode() & 0o777;
    ensure!(mode & 0o077 == 0, "{path} is open to others (mode {mode:o}): remove it, or set its mode to 700");
    Ok(())
}

/// A machine's entry in the directory. When dropped, the machine is no longer found.
#[derive(Debug)]
pub(crate) struct Registration(PathBuf);

impl Registration {
    /// An entry for one more machine of this process.
    pub(crate) fn new() -> Result<Self> {
        static MACHINES: AtomicU32 = AtomicU32::new(0);
        let directory = directory();
        let made = DirBuilder::new().mode(0o700).recursive(true).create(&directory);
        made.with_context(|| format!("cannot make {}", directory.display()))?;
        is_private(&directory, getuid().as_raw())?;
        let name = match MACHINES.fetch_add(1, Ordering::Relaxed) {
            0 => process::id().to_string(),
            more => format!("{}-{more}", process::id()),
        };
        let path = directory.join(name).with_extension(SUFFIX);
        // A process with the same number may have left one.
        let _ = fs::remove_file(&path);
        Ok(Self(path))
    }

    #[cfg(test)]
    pub(crate) fn made_up(machine: &Found) -> Self {
        Self(machine.socket.clone())
    }

    pub(crate) fn machine(&self) -> Found {
        let name = self.0.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        Found { name, socket: self.0.clone() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn publish(&self, notice: &Notice) -> Result<()> {
        notice.write(&self.0.with_extension(NOTICE_SUFFIX))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The relay may have removed it already.
        let _ = fs::remove_file(&self.0);
        // There need not be one.
        let _ = fs::remove_file(self.0.with_extension(NOTICE_SUFFIX));
    }
}

/// A running machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The number of the process that runs it, with `-1` and so on for further ones of it.
    pub(crate) name: String,
    socket: PathBuf,
}

impl Found {
    /// The machine's notice; `None` if it has none, or has ended.
    pub(crate) fn notice(&self) -> Result<Option<Notice>> {
        Notice::read(&self.socket.with_extension(NOTICE_SUFFIX), getuid().as_raw())
    }

    /// A process may run several machines, and exists until its parent has seen its end.
    pub(crate) fn is_alive(&self) -> bool {
        self.socket.exists() && is_alive(&self.name)
    }

    #[cfg(test)]
    pub(crate) fn made_up(name: &str, directory: &Path) -> Self {
        let socket = directory.join(name).with_extension(SUFFIX);
        // Where the directory is made up, too, nothing is looked at.
        let _ = fs::write(&socket, "");
        Self { name: name.to_owned(), socket }
    }
}

pub(crate) fn choose(name: Option<&str>, machines: &[Found]) -> Result<Found> {
    let names = || machines.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, machines) {
        (_, []) => bail!("no machine is running; start one with ./quell run"),
        (None, [machine]) => Ok(machine.clone()),
        (None, _) => bail!("several machines are running: say which by --vm: {}", names()),
        (Some(name), all) => match all.iter().find(|machine| machine.name == name) {
            Some(machine) => Ok(machine.clone()),
            None => bail!("there is no machine {name}; running: {}", names()),
        },
    }
}

pub(crate) fn running() -> Result<Vec<Found>> {
    running_in(&directory(), getuid().as_raw())
}

fn running_in(directory: &Path, uid: u32) -> Result<Vec<Found>> {
    if matches!(fs::symlink_metadata(directory), Err(error) if error.kind() == ErrorKind::NotFound) {
        return Ok(Vec::new());
    }
    is_private(directory, uid)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).context("cannot look for running machines")? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
        if ![SUFFIX, NOTICE_SUFFIX, PART_SUFFIX].contains(&suffix) {
            continue;
        }
        if !is_alive(&name) {
            // Left by a process that was killed. Another process may be removing it, too.
            let _ = fs::remove_file(&path);
        } else if suffix == SUFFIX {
            found.push(Found { name, socket: path });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn is_alive(name: &str) -> bool {
    let pid = name.split('-').next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// The hypervisor's reason for refusing a request.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

pub(crate) struct Control {
    stream: BufReader<UnixStream>,
    asked: u64,
    /// The guest that requests are about; the first one if there is none.
    guest: Option<Name>,
    silence_max: Duration,
    /// The machine's process, if it is one of ours: the silence is in its own time.
    process: Option<u32>,
    /// Signals that end the conversation; without them they have their default effect.
    signals: Option<Signals>,
}

impl Control {
    pub(crate) fn open(machine: &Found) -> Result<Self> {
        let stream = UnixStream::connect(&machine.socket)
            .with_context(|| format!("machine {} does not listen", machine.name))?;
        stream.set_read_timeout(Some(POLL_PERIOD))?;
        // Another user's unfinished line must not become the beginning of ours.
        (&stream).write_all(b"\n").context("the machine has gone")?;
        let asked = u64::from(process::id()) << 20;
        Ok(Self {
            stream: BufReader::new(stream),
            asked,
            guest: None,
            silence_max: SILENCE_MAX,
            process: None,
            signals: None,
        })
    }

    /// The same with another longest silence, for requests that take long.
    pub(crate) fn with_patience(self, silence_max: Duration) -> Self {
        Self { silence_max, ..self }
    }

    /// Counts silence in the time of a process, which may just have few turns.
    pub(crate) fn in_time_of(self, process: u32) -> Self {
        Self { process: Some(process), ..self }
    }

    pub(crate) fn about(self, guest: Option<Name>) -> Self {
        Self { guest, ..self }
    }

    pub(crate) fn until(self, signals: &Signals) -> Self {
        Self { signals: Some(signals.clone()), ..self }
    }

    /// Sends bytes that are not a request, as a line. The next request skips the answer.
    pub(crate) fn noise(&mut self, bytes: &[u8]) -> Result<()> {
        let line = [bytes, b"\n"].concat();
        self.stream.get_mut().write_all(&line).context("the machine has gone")
    }

    /// Sends a request, and returns the records of the answer. A refusal is [`Refused`].
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Vec<String>> {
        self.ask_each(request, |_| Ok(()))
    }

    pub(crate) fn ask_for<R: Record>(&mut self, request: &Request) -> Result<Vec<R>> {
        self.ask(request)?.iter().map(|fields| read(fields)).collect()
    }

    pub(crate) fn ask_one<R: Record>(&mut self, request: &Request) -> Result<R> {
        let mut records = self.ask_for(request)?;
        ensure!(records.len() == 1, "the hypervisor's answer has {} records instead of one", records.len());
        records.pop().context("there is one")
    }

    /// Types the first of these bytes on a guest's console; returns how many were taken.
    pub(crate) fn type_some(&mut self, guest: Name, port: u16, bytes: &[u8]) -> Result<usize> {
        let first = &bytes[..bytes.len().min(Input::BYTES_MAX)];
        let bytes = Input::new(first).context("there is nothing to type")?;
        let taken: Taken = self.ask_one(&Request::Input { guest, port, bytes })?;
        Ok((taken.taken as usize).min(first.len()))
    }

    /// Adds memory that the guest may write; returns the slot's number.
    pub(crate) fn add(&mut self, gpa: u64, size: u64) -> Result<u16> {
        let Added { slot } = self.ask_one(&Request::Add { gpa, size, access: Access::ReadWrite })?;
        Ok(slot)
    }

    pub(crate) fn delete(&mut self, slot: u16) -> Result<Deleted> {
        self.ask_one(&Request::Delete { slot })
    }

    /// Lets `observe` see each record when it comes. If that fails, the request continues, and its
    /// result is not reported.
    pub(crate) fn ask_each(
        &mut self,
        request: &Request,
        mut observe: impl FnMut(&str) -> Result<()>,
    ) -> Result<Vec<String>> {
        self.asked += 1;
        let about = self.guest.map(|guest| format!("@{guest} ")).unwrap_or_default();
        let line = format!("{} {about}{request}\n", self.asked);
        self.stream.get_mut().write_all(line.as_bytes()).context("the machine has gone")?;
        let mut records = Vec::new();
        loop {
            let line = self.line()?;
            match Answer::parse(&String::from_utf8_lossy(&line), self.asked) {
                Some(Answer::Record(fields)) => {
                    observe(fields)?;
                    records.push(fields.to_owned());
                }
                Some(Answer::Ok) => return Ok(records),
                Some(Answer::Error(message)) => return Err(Refused(message.to_owned()).into()),
                // The end of an answer whose requester did not wait for it.
                None => {}
            }
        }
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        let begun = Instant::now();
        let mut silence = None;
        let mut line = Vec::new();
        loop {
            if let Some(signal) = self.signals.as_ref().and_then(Signals::caught) {
                bail!("ended by signal {signal} before the hypervisor had answered");
            }
            // Bytes that arrived before the period was over stay in the line.
            match self.stream.read_until(b'\n', &mut line) {
                Ok(0) => bail!("the machine ended before it had answered"),
                Ok(_) => return Ok(line),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    let time = || self.process.map_or_else(OwnTime::of_the_clock, OwnTime::new);
                    let patience = self.silence_max;
                    ensure!(
                        silence.get_or_insert_with(time).passed() < patience,
                        "the hypervisor has not answered for {} s of its own time, and {} s by the clock",
                        patience.as_secs(),
                        begun.elapsed().as_secs()
                    );
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The machine had not read everything that was sent.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    bail!("the machine ended before it had answered")
                }
                Err(error) => return Err(error).context("the machine has gone"),
            }
        }
    }
}

pub(crate) fn read<R: Record>(fields: &str) -> Result<R> {
    R::parse(fields)
        .map_err(|name| anyhow!("{name} is missing or wrong in the hypervisor's answer '{fields}'"))
}

#[cfg(test)]
mod tests;
