//! The machine's memory: anonymous shared memory that QEMU uses as RAM and this tool reads.
//!
//! It has no name in any file system, so nothing is left behind however a run ends, and it is not
//! limited by the size of `/dev/shm`.

use anyhow::{Context, Result, anyhow};
use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of a machine.
pub(crate) struct Ram {
    file: File,
    map: MmapRaw,
}

impl Ram {
    /// Makes `bytes` of zeroed memory; a page takes room once it is written.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let make = || -> std::io::Result<File> {
            let file = File::from(memfd_create("quell-ram", MemfdFlags::CLOEXEC)?);
            file.set_len(bytes)?;
            Ok(file)
        };
        let file = make().context("cannot make the machine's memory")?;
        let map = MmapRaw::map_raw(&file).context("cannot map the machine's memory")?;
        Ok(Self { file, map })
    }

    /// The descriptor, for the child's inheritance.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The path by which a process that has inherited the descriptor opens the memory.
    pub(crate) fn path_in_child(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// The 64-bit word at `offset`, which other processes may be writing; acquires what the writer
    /// released with it. Fails where the memory has no whole word.
    pub(crate) fn load(&self, offset: u64) -> Result<u64> {
        let index = usize::try_from(offset).ok().filter(|at| at.is_multiple_of(size_of::<u64>()));
        let index =
            index.filter(|at| at.checked_add(size_of::<u64>()).is_some_and(|end| end <= self.map.len()));
        let index = index.ok_or_else(|| anyhow!("no word at {offset:#x} of the machine's memory"))?;
        // SAFETY: the word is inside the mapping and aligned (the mapping is by page), the mapping lives
        // as long as `self`, and this process accesses it by atomic loads only.
        let word = unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(index).cast()) };
        Ok(u64::from_le(word.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn words_outside_or_across_the_end_are_errors() {
        let ram = Ram::new(4096).expect("makes");
        for offset in [4096, 4089, 4, u64::MAX, u64::MAX - 7] {
            assert!(ram.load(offset).is_err(), "{offset:#x}");
        }
        assert_eq!(ram.load(4088).expect("is inside"), 0);
    }

    #[test]
    fn what_another_writes_is_seen() {
        let ram = Ram::new(8192).expect("makes");
        ram.file.write_all_at(&0x1122_3344_5566_7788u64.to_le_bytes(), 4096).expect("writes");
        assert_eq!(ram.load(4096).expect("reads"), 0x1122_3344_5566_7788);
    }
}
