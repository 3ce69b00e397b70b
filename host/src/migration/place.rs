//! Where a machine takes guests: addresses, and sockets that listen there.

use super::wire::is_readable;
use crate::prelude::*;
use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::getuid;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};

/// How often a side that waits looks at what else happens.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// After this time a place in a full queue is tried for again.
const FULL_PERIOD: Duration = Duration::from_millis(1);
/// So many connections wait for a machine that is busy.
const BACKLOG: i32 = 128;

/// Where a machine takes guests: a UNIX socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address(PathBuf);

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix("unix:").filter(|path| !path.is_empty());
        let path = path.and_then(|path| std::path::absolute(path).ok());
        path.map(Self).ok_or_else(|| format!("'{text}' is no address; write unix:PATH"))
    }

    /// Waits for a place in a full queue, for so long or until a signal.
    pub(super) fn connect(&self, signals: &Signals, patience: Duration) -> io::Result<OwnedFd> {
        let begun = Instant::now();
        loop {
            let waits = || begun.elapsed() < patience && signals.caught().is_none();
            match connected(&self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && waits() => thread::sleep(FULL_PERIOD),
                result => return result,
            }
        }
    }
}

fn unix_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn connected(path: &Path) -> io::Result<OwnedFd> {
    let socket = unix_socket(SocketFlags::NONBLOCK)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    unix(UnixStream::from(socket))
}

pub(super) fn unix(stream: UnixStream) -> io::Result<OwnedFd> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(LOOK_PERIOD))?;
    Ok(stream.into())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.0.display())
    }
}

/// The place where a machine takes guests. The emulator inherits it, so it is this machine's for as
/// long as that runs.
#[derive(Clone, Debug)]
pub(crate) struct Listener(Arc<UnixListener>);

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Self> {
        let socket = bound(&address.0).with_context(|| format!("cannot take guests at {address}"))?;
        Ok(Self(Arc::new(socket.into())))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The next connection; `None` at the end.
    pub(super) fn accept(&self, is_over: impl Fn() -> bool) -> Result<Option<OwnedFd>> {
        while !is_over() {
            if !is_readable(&self.0, LOOK_PERIOD)? {
                continue;
            }
            // Whoever has gone meanwhile will come again.
            if let Ok(stream) = self.0.accept().and_then(|(stream, _)| unix(stream)) {
                return Ok(Some(stream));
            }
        }
        Ok(None)
    }
}

/// A socket that only its user may connect to. It takes the place of one that nobody listens at,
/// and of nothing else.
fn bound(path: &Path) -> Result<OwnedFd> {
    let directory = path.parent().context("a socket is in a directory")?;
    let directory = File::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
    // Two that start together: the second one looks when the first one listens. It is unlocked when
    // it is closed.
    flock(&directory, FlockOperation::LockExclusive)?;
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
        Ok(data) => {
            ensure!(data.file_type().is_socket(), "it is there, and is not a socket: name another place");
            ensure!(data.uid() == getuid().as_raw(), "the socket belongs to somebody else");
            match connected(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                _ => bail!("somebody listens there already"),
            }
        }
    }
    let socket = unix_socket(SocketFlags::empty())?;
    // What is bound has the mode of the socket (unix(7), Linux), so it is never open to others.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let address = SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => anyhow!("the path is too long for a socket"),
        other => other.into(),
    })?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}
