//! A guest in a file. `docs/migration.md` describes the format.
//!
//! [`MAGIC`], a salt, and then [sealed blocks](super::seal): the [`Description`] in JSON, the
//! kernel, the initial RAM disk, frames, and an empty block at the end.

use super::manifest::{Described, Description, Part};
use super::port::Frame;
use super::restored;
use super::seal::{BLOCK_MAX, Opener, Seal, random};
use crate::prelude::*;
use migration::frame::Kind;
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use tempfile::{Builder, TempPath};

const MAGIC: &[u8; 16] = b"quell snapshot 1";
const SALT: usize = 32;
const PURPOSE: &str = "quell 2026-11-27 blocks of a snapshot";
/// With the block of the description, whose length is limited like any block's.
const HEAD: usize = MAGIC.len() + SALT;

/// A file that is being written. It gets its name when it is complete; until then it has none, and
/// ends with its process.
pub(super) struct Writer {
    file: BufWriter<File>,
    /// Where the file system knows no files without names.
    name: Option<TempPath>,
    seal: Seal,
    salt: [u8; SALT],
    path: PathBuf,
}

impl Writer {
    pub(super) fn create(path: &Path, guest: &Described) -> Result<Self> {
        let path = std::path::absolute(path)?;
        // A link leads to the file that is replaced.
        let path = fs::canonicalize(&path).unwrap_or(path);
        let there = fs::metadata(&path);
        let may_be_replaced =
            there.map_or_else(|error| error.kind() == ErrorKind::NotFound, |it| it.is_file());
        ensure!(may_be_replaced, "{} is there, and is not a file: name another place", path.display());
        let directory = path.parent().context("a file is in a directory")?;
        guest.description.check()?;
        let nameless = OpenOptions::new()
            .write(true)
            .mode(0o600)
            .custom_flags(OFlags::TMPFILE.bits().cast_signed())
            .open(directory);
        let (file, name) = match nameless {
            Ok(file) => (file, None),
            Err(_) => {
                let file = Builder::new().prefix(&prefix(&path)).tempfile_in(directory);
                let file = file.with_context(|| format!("cannot write in {}", directory.display()))?;
                let (file, name) = file.into_parts();
                (file, Some(name))
            }
        };
        let salt: [u8; SALT] = random()?;
        let seal = Seal::new(PURPOSE, &salt);
        let mut writer = Self { file: BufWriter::new(file), name, seal, salt, path };
        writer.write(&[&MAGIC[..], &salt].concat())?;
        writer.put(&serde_json::to_vec(&guest.description)?)?;
        for file in [Some(&guest.kernel), guest.initrd.as_ref()].into_iter().flatten() {
            file.chunks(BLOCK_MAX).try_for_each(|block| writer.put(block))?;
        }
        Ok(writer)
    }

    /// The session in which a guest is given to this file, and which it is recognised by.
    pub(super) fn session(&self) -> u64 {
        session_of(&self.salt)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// The next block.
    pub(super) fn put(&mut self, block: &[u8]) -> Result<()> {
        let sealed = self.seal.seal(block);
        self.write(&sealed)
    }

    /// All is written: the file is complete, and stays so.
    pub(super) fn finish(mut self) -> Result<()> {
        self.put(&[])?;
        let Self { file, name, path, .. } = self;
        let keep = || -> Result<()> {
            let file = file.into_inner().map_err(|error| error.into_error())?;
            file.sync_all()?;
            let directory = path.parent().context("a file is in a directory")?;
            let linked = |name: &Path| {
                let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
                Ok(linkat(CWD, nameless, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
            };
            let name = match name {
                Some(name) => name,
                None => Builder::new().prefix(&prefix(&path)).make_in(directory, linked)?.into_temp_path(),
            };
            // The error would keep the file.
            name.persist(&path).map_err(|error| error.error)?;
            Ok(File::open(directory)?.sync_all()?)
        };
        keep().with_context(|| format!("cannot complete {}", path.display()))
    }
}

fn session_of(salt: &[u8]) -> u64 {
    salt.first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// What a file's name begins with for the time until it has its own.
fn prefix(path: &Path) -> String {
    format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy())
}

/// The bytes of a file that is complete, and to which a guest was given in this session.
pub(super) fn is_whole(path: &Path, session: u64) -> Result<u64> {
    let mut snapshot = Snapshot::begin(path)?;
    ensure!(session_of(&snapshot.salt) == session, "{} is of another time", path.display());
    while snapshot.next()?.is_some() {}
    Ok(snapshot.file.metadata()?.len())
}

/// A file that is being read. Whatever is wrong with it is an error that names file and place.
pub(crate) struct Snapshot {
    file: File,
    path: PathBuf,
    salt: [u8; SALT],
    opener: Opener,
    pub(crate) description: Description,
    has_ended: bool,
}

impl Snapshot {
    /// A file whose description was not read yet.
    fn begin(path: &Path) -> Result<Self> {
        let name = path.display();
        let mut file = File::open(path).with_context(|| format!("cannot open the snapshot {name}"))?;
        let mut head = [0; HEAD];
        let is_one = file.read_exact(&mut head).is_ok() && head.starts_with(MAGIC);
        let is_other = head.starts_with(&MAGIC[..MAGIC.len() - 1]);
        ensure!(!is_other || is_one, "{name} is a snapshot of another version: this tool reads version 1");
        ensure!(is_one, "{name} is not a snapshot: ./quell ctl guest save makes one");
        let salt = *head.last_chunk().context("a head ends with its salt")?;
        let opener = Opener::new(Seal::new(PURPOSE, &salt), HEAD as u64);
        let (path, description) = (path.to_owned(), Description::default());
        Ok(Self { file, path, salt, opener, description, has_ended: false })
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut snapshot = Self::begin(path)?;
        let block = snapshot.next()?.context("it has no description")?;
        let description: Result<Description> = serde_json::from_slice(&block).map_err(Error::from);
        snapshot.description =
            description.and_then(|it| it.check().map(|()| it)).with_context(|| snapshot.wrong())?;
        Ok(snapshot)
    }

    /// What is to be known of it if a guest was restored from it before.
    pub(crate) fn warning(&self) -> Option<String> {
        restored::last(&self.path, &self.salt).map(|at| restored::warning(&self.path, &at))
    }

    /// Notes that a guest is being restored from it.
    pub(super) fn note_restored(&self) -> Result<()> {
        restored::note(&self.path, &self.salt)
    }

    fn wrong(&self) -> String {
        format!("the snapshot {} cannot be restored", self.path.display())
    }

    /// The next block; `None` at the end mark, behind which there is nothing.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let block = self.next_block().with_context(|| {
            format!("{}; it was damaged: take another one, nothing was started", self.wrong())
        })?;
        self.has_ended = block.is_empty();
        Ok((!self.has_ended).then_some(block))
    }

    fn next_block(&mut self) -> Result<Vec<u8>> {
        ensure!(!self.has_ended, "{} is wanted behind the end mark", self.opener.place());
        loop {
            if let Some(block) = self.opener.open()? {
                if block.is_empty() {
                    let is_last = self.opener.is_at_a_border() && self.opener.read_from(&mut self.file)? == 0;
                    ensure!(is_last, "something follows the end mark, from {} on", self.opener.place());
                }
                return Ok(block);
            }
            let count = self.opener.read_from(&mut self.file)?;
            ensure!(count != 0, "it ends in {}", self.opener.place());
        }
    }

    /// Kernel and initial RAM disk. They are read once, before frames.
    pub(crate) fn files(&mut self) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
        let kernel = self.part(&self.description.kernel.clone(), "kernel")?;
        let initrd = self.description.initrd.clone();
        Ok((kernel, initrd.map(|part| self.part(&part, "initial RAM disk")).transpose()?))
    }

    fn part(&mut self, part: &Part, what: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < part.bytes {
            // No more is allocated than the file has.
            bytes.extend(self.next()?.with_context(|| format!("{}: its {what} is missing", self.wrong()))?);
        }
        let is_right = bytes.len() as u64 == part.bytes && blake3::hash(&bytes).to_string() == part.digest;
        ensure!(is_right, "{}: its {what} is not the one that it names", self.wrong());
        Ok(bytes)
    }

    /// The next frames; `None` at the end mark, when all of the file was as it was written.
    pub(super) fn frames(&mut self) -> Result<Option<Vec<Frame>>> {
        let Some(block) = self.next()? else { return Ok(None) };
        let frames = Frame::of_block(&block);
        let frames = frames.with_context(|| format!("{}: {}", self.wrong(), self.opener.place()))?;
        let strange = frames.iter().find(|frame| !is_of_a_guest(frame.kind));
        ensure!(strange.is_none(), "{}: it has a frame that is no guest's", self.wrong());
        Ok(Some(frames))
    }
}

/// Whether a source sends such a frame for the guest itself.
pub(super) const fn is_of_a_guest(kind: Kind) -> bool {
    use Kind::{Clock, End, Hello, Pages, Round, Slot, State, Zeros};
    matches!(kind, Hello | Slot | Zeros | Pages | Round | Clock | State | End)
}
