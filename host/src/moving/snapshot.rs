//! A guest in a file. `docs/moving.md` describes the format.
//!
//! [`MAGIC`], a salt, and then [sealed blocks](super::seal): the [`Description`] in JSON, the
//! kernel, the initial RAM disk, frames, and an empty block at the end.

use super::described::{Described, Description, Part};
use super::port::Frame;
use super::seal::{BLOCK_MAX, Opener, Seal, random};
use crate::prelude::*;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use tempfile::NamedTempFile;
use transfer::frame::Kind;

const MAGIC: &[u8; 16] = b"quell snapshot 1";
const SALT: usize = 32;
const PURPOSE: &str = "quell 2026-11-27 blocks of a snapshot";
/// With the block of the description, whose length is limited like any block's.
const HEAD: usize = MAGIC.len() + SALT;

/// A file that is being written. It has its name when it is complete.
pub(super) struct Writer {
    file: BufWriter<NamedTempFile>,
    seal: Seal,
    path: PathBuf,
}

impl Writer {
    pub(super) fn create(path: &Path, guest: &Described) -> Result<Self> {
        let path = std::path::absolute(path)?;
        let directory = path.parent().context("a file is in a directory")?;
        ensure!(!path.is_dir(), "{} is a directory", path.display());
        let named = path.file_name().context("a file has a name")?.to_string_lossy();
        let file = tempfile::Builder::new().prefix(&format!(".{named}.")).tempfile_in(directory);
        let file = file.with_context(|| format!("cannot write in {}", directory.display()))?;
        let salt: [u8; SALT] = random()?;
        let seal = Seal::new(PURPOSE, &salt);
        let mut writer = Self { file: BufWriter::new(file), seal, path };
        writer.write(&[&MAGIC[..], &salt].concat())?;
        writer.put(&serde_json::to_vec(&guest.description)?)?;
        for file in [Some(&guest.kernel), guest.initrd.as_ref()].into_iter().flatten() {
            file.chunks(BLOCK_MAX).try_for_each(|block| writer.put(block))?;
        }
        Ok(writer)
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
        let Self { file, path, .. } = self;
        let keep = || -> Result<()> {
            let file = file.into_inner().map_err(|error| error.into_error())?;
            file.as_file().sync_all()?;
            // The error would keep the file.
            file.persist(&path).map_err(|error| error.error)?;
            Ok(File::open(path.parent().context("a file is in a directory")?)?.sync_all()?)
        };
        keep().with_context(|| format!("cannot complete {}", path.display()))
    }
}

/// A file that is being read. Whatever is wrong with it is an error that names file and place.
pub(crate) struct Snapshot {
    file: File,
    path: PathBuf,
    opener: Opener,
    pub(crate) description: Description,
    has_ended: bool,
}

impl Snapshot {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = path.display();
        let mut file = File::open(path).with_context(|| format!("cannot open the snapshot {name}"))?;
        let mut head = [0; HEAD];
        let is_one = file.read_exact(&mut head).is_ok() && head.starts_with(MAGIC);
        let is_other = head.starts_with(&MAGIC[..MAGIC.len() - 1]);
        ensure!(!is_other || is_one, "{name} is a snapshot of another version: this tool reads version 1");
        ensure!(is_one, "{name} is not a snapshot: ./quell ctl guest save makes one");
        let opener = Opener::new(Seal::new(PURPOSE, &head[MAGIC.len()..]), HEAD as u64);
        let (path, description) = (path.to_owned(), Description::default());
        let mut snapshot = Self { file, path, opener, description, has_ended: false };
        let block = snapshot.next()?.context("it has no description")?;
        let description: Result<Description> = serde_json::from_slice(&block).map_err(Error::from);
        snapshot.description =
            description.and_then(|it| it.check().map(|()| it)).with_context(|| snapshot.wrong())?;
        Ok(snapshot)
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
