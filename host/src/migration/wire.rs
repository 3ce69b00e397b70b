//! A connection between two tools: with whom, and what is said before frames are.
//!
//! Each side says [`MAGIC`] and a nonce. From then on all is in [sealed blocks](super::seal), with
//! a key for each direction, made of the secret and both nonces. The first block of the side that
//! has connected is an [`Opening`], that of the other an [`Answer`], both in JSON. After that a
//! block without bytes says that its side is there.

use super::manifest::Description;
use super::place::{Address, LOOK_PERIOD};
use super::seal::{Opener, Seal, random};
use crate::prelude::*;
use migration::handover::SessionStatus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::getuid;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

const MAGIC: &[u8; 16] = b"quell moving 2\n\n";
const NONCE: usize = 32;
/// In this time a side has to have said what comes before frames.
pub(super) const GREETING_MAX: Duration = Duration::from_secs(10);
/// A side that says nothing, or takes nothing, for so long is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// A side that has nothing to say shows that it is there.
pub(super) const SIGN_PERIOD: Duration = Duration::from_secs(1);
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

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
    #[serde(rename = "told")]
    SessionStatus(SessionStatus),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Target,
}

/// A connection to somebody who knows the secret.
pub(super) struct Link {
    socket: File,
    seals: Seal,
    opens: Opener,
    signals: Signals,
    patience: Duration,
    sent: Instant,
}

impl Link {
    pub(super) fn connect(
        address: &Address,
        secret: &Secret,
        signals: &Signals,
        patience: Duration,
    ) -> Result<Self> {
        let socket = address.connect(signals, patience);
        let socket = socket.with_context(|| format!("cannot connect to {address}"))?;
        let greeted = Self::greet(socket, secret, Side::Source, signals, patience);
        greeted.with_context(|| format!("at {address}"))
    }

    pub(super) fn greet(
        socket: OwnedFd,
        secret: &Secret,
        side: Side,
        signals: &Signals,
        patience: Duration,
    ) -> Result<Self> {
        let mut socket = File::from(socket);
        let own: [u8; NONCE] = random()?;
        socket.write_all(&[&MAGIC[..], &own].concat()).context("the connection was cut")?;
        let mut said = [0; MAGIC.len() + NONCE];
        let begun = Instant::now();
        let mut filled = 0;
        while filled < said.len() {
            ensure!(signals.caught().is_none(), "ended by a signal");
            ensure!(begun.elapsed() < patience.min(GREETING_MAX), "the other side says nothing");
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
        Ok(Self { socket, seals, opens, signals: signals.clone(), patience, sent: Instant::now() })
    }

    /// Both ends of a connection that has been greeted on, that of the source first. From then on
    /// they have this patience.
    #[cfg(test)]
    pub(super) fn pair(patience: Duration) -> [Self; 2] {
        let (there, here) = std::os::unix::net::UnixStream::pair().expect("connects");
        let secret = Secret::made_up(b"that of both");
        let greet = |socket, side| {
            let socket = super::place::unix(socket).expect("can be set");
            let greeted = Self::greet(socket, &secret, side, &Signals::default(), PATIENCE);
            Self { patience, ..greeted.expect("greets") }
        };
        thread::scope(|scope| {
            let there = scope.spawn(|| greet(there, Side::Source));
            let here = greet(here, Side::Target);
            [there.join().expect("ends"), here]
        })
    }

    pub(super) fn send(&mut self, block: &[u8]) -> Result<()> {
        let sealed = self.seals.seal(block);
        let mut left = &sealed[..];
        self.sent = Instant::now();
        while !left.is_empty() {
            match self.socket.write(left) {
                Ok(count) => (left, self.sent) = (&left[count..], Instant::now()),
                // The other side is slow.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    ensure!(self.signals.caught().is_none(), "ended by a signal");
                    let silence = self.sent.elapsed();
                    ensure!(silence < self.patience, "the other side has taken nothing for {silence:.0?}");
                }
                Err(error) => return Err(error).context("the connection was cut"),
            }
        }
        Ok(())
    }

    /// Shows that this side is there, if it has said nothing for a while.
    pub(super) fn give_sign(&mut self) -> Result<()> {
        if self.sent.elapsed() < SIGN_PERIOD.min(self.patience / 4) { Ok(()) } else { self.send(&[]) }
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
        let block = self.hear_block(within)?;
        serde_json::from_slice(&block).context("the other side is not a Quell of this version")
    }

    /// The first block, which somebody with the secret has said.
    pub(super) fn hear_block(&mut self, within: Duration) -> Result<Vec<u8>> {
        loop {
            let block = self.receive(within);
            let block =
                block.context("the first block is not as expected: have both sides the same secret?")?;
            ensure!(self.signals.caught().is_none() || block.is_some(), "ended by a signal");
            let block = block.context("the other side says nothing")?;
            if !block.is_empty() {
                return Ok(block);
            }
        }
    }
}

pub(super) fn is_readable(socket: &impl AsFd, within: Duration) -> Result<bool> {
    let within = Timespec::try_from(within)?;
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&within)) {
        Ok(count) => Ok(count != 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
