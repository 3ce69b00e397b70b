//! A connection between two tools: where, with whom, and what is said before frames are.
//!
//! Each side says [`MAGIC`] and a nonce. From then on all is in [sealed blocks](super::seal), with
//! a key for each direction, made of the secret and both nonces. The first block of the side that
//! has connected is an [`Opening`], that of the other an [`Answer`], both in JSON.

use super::described::Description;
use super::seal::{Opener, Seal, random};
use crate::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::getuid;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

const MAGIC: &[u8; 16] = b"quell moving 1\n\n";
const NONCE: usize = 32;
/// In this time a side has to have said what comes before frames.
pub(super) const GREETING_MAX: Duration = Duration::from_secs(10);
/// How often a side that waits looks at what else happens.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

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
                // The same path has to be the same address wherever a tool was started.
                let path = std::path::absolute(path).map_err(|_| expected())?;
                let real = path.parent().and_then(|parent| fs::canonicalize(parent).ok());
                Ok(Self::Unix(
                    real.zip(path.file_name()).map_or(path.clone(), |(real, name)| real.join(name)),
                ))
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

    /// A session's number begins with it, so that nobody is asked about a session of another.
    pub(super) fn tag(&self) -> u32 {
        let hash = blake3::hash(self.to_string().as_bytes());
        hash.as_bytes().first_chunk().copied().map_or(0, u32::from_le_bytes)
    }

    fn stream(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_write_timeout(Some(LOOK_PERIOD))?;
                stream.into()
            }
            Self::Tcp(place) => tcp(TcpStream::connect(place)?)?,
        })
    }
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

/// What both sides know, and nobody else.
#[derive(Clone)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// Reads a file that is its user's alone.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let make = "make one by: (umask 077; head -c 32 /dev/urandom > FILE)";
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.with_context(|| format!("cannot open the secret {name}; {make}"))?;
        let data = file.metadata().with_context(|| format!("cannot look at {name}"))?;
        ensure!(data.is_file(), "the secret {name} is not a file; {make}");
        ensure!(data.uid() == getuid().as_raw(), "the secret {name} belongs to somebody else");
        let mode = data.mode() & 0o777;
        ensure!(
            mode & 0o077 == 0,
            "the secret {name} is open to others (mode {mode:o}): set its mode to 600"
        );
        let mut bytes = Vec::new();
        file.take(*SECRET_BYTES.end() as u64 + 1).read_to_end(&mut bytes)?;
        ensure!(
            SECRET_BYTES.contains(&bytes.len()),
            "the secret {name} has to have {} to {} bytes; {make}",
            SECRET_BYTES.start(),
            SECRET_BYTES.end()
        );
        Ok(Self(bytes))
    }

    #[cfg(test)]
    pub(super) fn made_up(bytes: &[u8]) -> Self {
        Self(bytes.to_owned())
    }
}

/// The first block of the side that has connected.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Opening {
    /// This guest is to come.
    Offer { session: u64, guest: Box<Description> },
    /// What came of that session?
    Ask { session: u64 },
}

/// The first block of the other side.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    Accepted,
    Refused(String),
    /// What came of the session.
    Runs,
    Absent,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Target,
}

/// The other side is no process any more, and its machine is gone.
#[derive(Debug)]
pub(super) struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody listens there")
    }
}

impl std::error::Error for Gone {}

/// A connection to somebody who knows the secret.
pub(super) struct Link {
    socket: File,
    seals: Seal,
    opens: Opener,
    signals: Signals,
}

impl Link {
    pub(super) fn connect(address: &Address, secret: &Secret, signals: &Signals) -> Result<Self> {
        let socket = address.stream().map_err(|error| match error.kind() {
            // Whoever listens there would be in a queue: nobody has the socket.
            ErrorKind::ConnectionRefused => Error::new(Gone),
            _ => error.into(),
        });
        let socket = socket.with_context(|| format!("cannot connect to {address}"))?;
        Self::greet(socket, secret, Side::Source, signals).with_context(|| format!("at {address}"))
    }

    pub(super) fn greet(socket: OwnedFd, secret: &Secret, side: Side, signals: &Signals) -> Result<Self> {
        let mut socket = File::from(socket);
        let own: [u8; NONCE] = random()?;
        socket.write_all(&[&MAGIC[..], &own].concat()).context("the connection was cut")?;
        let mut said = [0; MAGIC.len() + NONCE];
        let begun = Instant::now();
        let mut filled = 0;
        while filled < said.len() {
            ensure!(signals.caught().is_none(), "ended by a signal");
            ensure!(begun.elapsed() < GREETING_MAX, "the other side says nothing");
            if is_readable(&socket, LOOK_PERIOD)? {
                let count = socket.read(&mut said[filled..]).context("the connection was cut")?;
                ensure!(count != 0, "the other side has ended the connection");
                filled += count;
            }
        }
        let (magic, other) = said.split_at(MAGIC.len());
        ensure!(magic == MAGIC, "the other side is not a Quell of this version");
        let (source, target) = match side {
            Side::Source => (&own[..], other),
            Side::Target => (other, &own[..]),
        };
        let keys = [&secret.0[..], source, target].concat();
        let there = Seal::new("quell 2026-11-27 guests that move: from source to target", &keys);
        let back = Seal::new("quell 2026-11-27 guests that move: from target to source", &keys);
        let (seals, opens) = if side == Side::Source { (there, back) } else { (back, there) };
        let opens = Opener::new(opens, said.len() as u64);
        Ok(Self { socket, seals, opens, signals: signals.clone() })
    }

    pub(super) fn send(&mut self, block: &[u8]) -> Result<()> {
        let sealed = self.seals.seal(block);
        let mut left = &sealed[..];
        while !left.is_empty() {
            match self.socket.write(left) {
                Ok(count) => left = &left[count..],
                // The other side is slow.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    ensure!(self.signals.caught().is_none(), "ended by a signal");
                }
                Err(error) => return Err(error).context("the connection was cut"),
            }
        }
        Ok(())
    }

    /// The next block, if it comes in this time.
    pub(super) fn receive(&mut self, within: Duration) -> Result<Option<Vec<u8>>> {
        let begun = Instant::now();
        loop {
            if let Some(block) = self.opens.open()? {
                return Ok(Some(block));
            }
            let left = within.saturating_sub(begun.elapsed());
            if !is_readable(&self.socket, left.min(LOOK_PERIOD))? {
                if left.is_zero() || self.signals.caught().is_some() {
                    return Ok(None);
                }
                continue;
            }
            let count = self.opens.read_from(&mut self.socket).context("the connection was cut")?;
            ensure!(count != 0, "the other side has ended the connection");
        }
    }

    pub(super) fn say(&mut self, what: &impl Serialize) -> Result<()> {
        self.send(&serde_json::to_vec(what)?)
    }

    pub(super) fn hear<T: for<'d> Deserialize<'d>>(&mut self, within: Duration) -> Result<T> {
        let block = self.receive(within);
        let block = block.context("the first block is not as expected: have both sides the same secret?")?;
        ensure!(self.signals.caught().is_none() || block.is_some(), "ended by a signal");
        let block = block.context("the other side says nothing")?;
        serde_json::from_slice(&block).context("the other side is not a Quell of this version")
    }
}

fn is_readable(socket: &File, within: Duration) -> Result<bool> {
    let within = Timespec::try_from(within)?;
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&within)) {
        Ok(count) => Ok(count != 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The place where a machine takes guests. The emulator inherits it: while it runs, those who
/// connect are not refused.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    socket: Arc<OwnedFd>,
    is_unix: bool,
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Self> {
        let context = || format!("cannot take guests at {address}");
        let (socket, is_unix): (OwnedFd, _) = match address {
            Address::Unix(path) => {
                if matches!(UnixStream::connect(path), Err(error) if error.kind() == ErrorKind::ConnectionRefused)
                {
                    // Of a machine that is gone.
                    fs::remove_file(path).with_context(context)?;
                }
                (UnixListener::bind(path).with_context(context)?.into(), true)
            }
            Address::Tcp(place) => (TcpListener::bind(place).with_context(context)?.into(), false),
        };
        Ok(Self { socket: Arc::new(socket), is_unix })
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
                UnixListener::from(self.socket.try_clone()?).accept().and_then(|(stream, _)| {
                    stream.set_write_timeout(Some(LOOK_PERIOD))?;
                    Ok(stream.into())
                })
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
