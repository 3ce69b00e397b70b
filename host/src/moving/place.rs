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
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};

/// How often a side that waits looks at what else happens.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// In this time a port has to accept a connection, or to refuse it.
const CONNECTED_MAX: Duration = Duration::from_secs(5);
/// After this time a place in a full queue is tried for again.
const FULL_PERIOD: Duration = Duration::from_millis(1);
/// So many connections wait for a machine that is busy.
const BACKLOG: i32 = 128;

/// Where a machine takes guests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("'{text}' is no address; write unix:PATH or tcp:127.0.0.1:PORT");
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => {
                Ok(Self::Unix(std::path::absolute(path).map_err(|_| expected())?))
            }
            Some(("tcp", place)) => {
                let place = place.replace("localhost:", "127.0.0.1:");
                let place: SocketAddr = place.parse().map_err(|_| expected())?;
                if place.ip().is_loopback() {
                    return Ok(Self::Tcp(place));
                }
                Err(format!(
                    "{place} is not on the loopback: a guest's memory would cross the network for all to \
                     read. Write tcp:127.0.0.1:{}, and forward that port by a tunnel such as ssh -L",
                    place.port()
                ))
            }
            _ => Err(expected()),
        }
    }

    /// Waits for a place in a full queue, for so long or until a signal.
    pub(super) fn connect(&self, signals: &Signals, patience: Duration) -> io::Result<OwnedFd> {
        let path = match self {
            Self::Unix(path) => path,
            Self::Tcp(place) => return tcp(TcpStream::connect_timeout(place, CONNECTED_MAX)?),
        };
        let begun = Instant::now();
        loop {
            let waits = || begun.elapsed() < patience && signals.caught().is_none();
            match connected(path) {
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

fn unix(stream: UnixStream) -> io::Result<OwnedFd> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(LOOK_PERIOD))?;
    Ok(stream.into())
}

fn tcp(stream: TcpStream) -> io::Result<OwnedFd> {
    stream.set_write_timeout(Some(LOOK_PERIOD))?;
    stream.set_nodelay(true)?;
    Ok(stream.into())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(place) => write!(f, "tcp:{place}"),
        }
    }
}

/// The place where a machine takes guests. The emulator inherits it, so it is this machine's for as
/// long as that runs.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    socket: Arc<OwnedFd>,
    is_unix: bool,
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Self> {
        let context = || format!("cannot take guests at {address}");
        Ok(match address {
            Address::Unix(path) => {
                Self { socket: Arc::new(bound(path).with_context(context)?), is_unix: true }
            }
            Address::Tcp(place) => {
                let socket = TcpListener::bind(place).with_context(context)?;
                Self { socket: Arc::new(socket.into()), is_unix: false }
            }
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The next connection; `None` at the end.
    pub(super) fn accept(&self, is_over: impl Fn() -> bool) -> Result<Option<OwnedFd>> {
        let socket = File::from(self.socket.try_clone()?);
        while !is_over() {
            if !is_readable(&socket, LOOK_PERIOD)? {
                continue;
            }
            let accepted = if self.is_unix {
                UnixListener::from(self.socket.try_clone()?).accept().and_then(|(stream, _)| unix(stream))
            } else {
                TcpListener::from(self.socket.try_clone()?).accept().and_then(|(stream, _)| tcp(stream))
            };
            // Whoever has gone meanwhile will come again.
            if let Ok(stream) = accepted {
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
