//! A disk, and a part of one.

use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::RefCell;
use core::error::Error;
use core::fmt;
use core::ops::Range;

use ext4_view::Ext4Read;

/// A disk did not give what it was asked for: it failed, or is not that large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the disk cannot be read there")
    }
}

impl Error for Failed {}

/// A disk that can be read.
pub trait Disk {
    /// Bytes of a block, as partition tables count.
    fn block(&self) -> u32;
    /// Its size in bytes.
    fn size(&self) -> u64;
    /// Reads from a byte on. All of that is within the disk.
    ///
    /// # Errors
    ///
    /// The disk fails.
    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), Failed>;
}

/// A disk for all its partitions.
pub type Shared = Rc<RefCell<dyn Disk>>;

/// A part of a disk, in bytes.
#[derive(Clone)]
pub struct Part {
    /// The whole disk.
    pub disk: Shared,
    /// Which part of it, at most up to its end.
    pub range: Range<u64>,
}

impl Part {
    /// All of a disk.
    pub fn whole(disk: &Shared) -> Self {
        let size = disk.borrow().size();
        Self { disk: disk.clone(), range: 0..size }
    }

    /// Reads from a byte of the part on.
    ///
    /// # Errors
    ///
    /// The disk fails, or the part ends before.
    pub fn read_at(&self, from: u64, into: &mut [u8]) -> Result<(), Failed> {
        let start = self.range.start.checked_add(from).ok_or(Failed)?;
        let end = start.checked_add(into.len() as u64).ok_or(Failed)?;
        if end > self.range.end { Err(Failed) } else { self.disk.borrow_mut().read(start, into) }
    }
}

/// Where an ext4's superblock is, and in it, the size of inodes and the second byte of the features
/// that only matter for writing: its bit says that metadata has checksums.
const SUPERBLOCK: u64 = 1024;
const INODE_SIZE: Range<usize> = 0x58..0x5a;
const FEATURES: usize = 0x65;
const CHECKSUMS: u8 = 1 << 2;

impl Ext4Read for Part {
    fn read(&mut self, from: u64, into: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.read_at(from, into)?;
        // `ext4-view` refuses each inode of 128 bytes that has a checksum, because only the lower
        // half of it has room there. Without this feature it looks at none.
        if from == SUPERBLOCK && into.get(INODE_SIZE) == Some(&128_u16.to_le_bytes()) {
            into.get_mut(FEATURES).into_iter().for_each(|features| *features &= !CHECKSUMS);
        }
        Ok(())
    }
}
