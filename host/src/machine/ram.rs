//! The machine's memory: anonymous shared memory that QEMU uses as RAM and this tool reads.
//!
//! It has no name in any file system, so nothing is left behind however a run ends, and it is not
//! limited by the size of `/dev/shm`.

use crate::prelude::*;
use baremetal::pages::PAGE as PAGE_SIZE;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::process::getuid;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{Ordering, fence};

const NAME: &str = "quell-ram";
const LINK: &str = "/memfd:quell-ram (deleted)";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Gap {
    start: u64,
    end: u64,
}

/// The information by which another process of the same user finds a machine's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Whereabouts {
    fd: RawFd,
    /// Its inode number, which shows whether the descriptor is another file's by now.
    inode: u64,
    bytes: u64,
    base: u64,
    gap: Option<Gap>,
}

pub(crate) struct Ram {
    base: u64,
    gap: Option<Gap>,
    file: File,
    map: MmapRaw,
    /// Whether it is mapped for writing, too.
    writes: bool,
}

impl Ram {
    /// Zeroed memory at `base`, a multiple of the page size, which never changes its size. It uses
    /// host memory once it is written.
    pub(crate) fn new(bytes: u64, base: u64) -> Result<Self> {
        let make = || -> std::io::Result<File> {
            let file = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
            file.set_len(bytes)?;
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(file)
        };
        let file = make().context("cannot make the machine's memory")?;
        let map = MmapRaw::map_raw(&file).context("cannot map the machine's memory")?;
        Ok(Self { base, gap: None, file, map, writes: true })
    }

    /// As on QEMU's q35: what does not fit below 2 GiB is at 4 GiB, but all is below if it is less
    /// than 2.75 GiB (`pc_q35_init` in `hw/i386/pc_q35.c`).
    fn of_q35(bytes: u64) -> Result<Self> {
        let gap = (bytes >= 11 * GIB / 4).then_some(Gap { start: 2 * GIB, end: 4 * GIB });
        Ok(Self { gap, ..Self::new(bytes, 0)? })
    }

    pub(crate) fn of(arch: Arch, bytes: u64) -> Result<Self> {
        match arch {
            Arch::X86_64 => Self::of_q35(bytes),
            Arch::Aarch64 => Self::new(bytes, arch.ram_base()),
        }
    }

    pub(crate) fn whereabouts(&self) -> Result<Whereabouts> {
        let data = self.file.metadata().context("cannot look at the machine's memory")?;
        let (fd, inode, bytes) = (self.file.as_raw_fd(), data.ino(), data.len());
        Ok(Whereabouts { fd, inode, bytes, base: self.base, gap: self.gap })
    }

    /// Opens a machine's memory for reading, or for writing, too. The process may have ended, and
    /// another have its ID.
    pub(crate) fn open(pid: u32, at: &Whereabouts, writes: bool) -> Result<Self> {
        Self::open_at(Path::new(&format!("/proc/{pid}/fd/{}", at.fd)), at, getuid().as_raw(), writes)
    }

    fn open_at(path: &Path, at: &Whereabouts, uid: u32, writes: bool) -> Result<Self> {
        // Checked before it is opened, because opening other files may have effects.
        is_ram(path)?;
        let file = OpenOptions::new()
            .read(true)
            .write(writes)
            .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        // The descriptor may have become another file's between the two steps.
        is_ram(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?;
        let data = file.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
        ensure!(data.uid() == uid, "{} belongs to somebody else", path.display());
        ensure!(
            data.ino() == at.inode && data.len() == at.bytes,
            "{} is the memory of another machine",
            path.display()
        );
        // If the memory could shrink, a read beyond its end would kill this process.
        let seals = fcntl_get_seals(&file).context("cannot ask for the memory's seals")?;
        ensure!(seals.contains(SealFlags::SHRINK), "{} may become smaller at any time", path.display());
        let gap_is_one = at.gap.is_none_or(|gap| gap.start < gap.end && at.base <= gap.start);
        ensure!(gap_is_one, "the gap in the machine's memory ends before it begins");
        let options = MmapOptions::new();
        let map = if writes { options.map_raw(&file) } else { options.map_raw_read_only(&file) };
        let map = map.context("cannot map the machine's memory")?;
        Ok(Self { base: at.base, gap: at.gap, file, map, writes })
    }

    /// Memory that may be written, in one piece: where it is mapped, for as long as `self` lives.
    pub(crate) fn piece(&self, start: u64, bytes: u64) -> Result<*mut u8> {
        let first = self.place(start, bytes)?;
        ensure!(self.writes, "the machine's memory is for reading");
        Ok(self.map.as_mut_ptr().wrapping_add(usize::try_from(first)?))
    }

    /// The offset of memory in one piece that begins with a page.
    fn place(&self, start: u64, bytes: u64) -> Result<u64> {
        let none = || anyhow!("there is no piece of {bytes:#x} bytes at {start:#x} of the machine's memory");
        ensure!(start.is_multiple_of(PAGE_SIZE) && bytes != 0, none());
        let last = start.checked_add(bytes - 1).ok_or_else(none)?;
        let (first, last) = self.offset(start).zip(self.offset(last)).ok_or_else(none)?;
        ensure!(last - first == bytes - 1 && last < self.map.len() as u64, none());
        Ok(first)
    }

    fn offset(&self, address: u64) -> Option<u64> {
        let before = match self.gap {
            Some(gap) if address >= gap.end => gap.end - gap.start,
            Some(gap) if address >= gap.start => return None,
            _ => 0,
        };
        address.checked_sub(self.base + before)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The path by which a process that has inherited the descriptor opens the memory.
    pub(crate) fn path_in_child(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// Pages of 4 KiB with equal digests have equal contents, for all practical purposes.
    pub(crate) fn page_digests(&self, start: u64, bytes: u64) -> Result<Vec<blake3::Hash>> {
        let first = self.place(start, bytes)?;
        ensure!(bytes.is_multiple_of(PAGE_SIZE), "whole pages only");
        let mut page = [0; PAGE_SIZE as usize];
        let mut digest = |number: u64| {
            self.file.read_exact_at(&mut page, first + number * PAGE_SIZE)?;
            Ok(blake3::hash(&page))
        };
        (0..bytes / PAGE_SIZE).map(&mut digest).collect()
    }

    /// The word at an address, which others may be writing; acquires what they released with it.
    pub(crate) fn load(&self, address: u64) -> Result<u64> {
        let offset = self.offset(address).and_then(|offset| usize::try_from(offset).ok());
        let index = offset.filter(|at| at.is_multiple_of(size_of::<u64>()));
        let index =
            index.filter(|at| at.checked_add(size_of::<u64>()).is_some_and(|end| end <= self.map.len()));
        let index = index.ok_or_else(|| anyhow!("no word at {address:#x} of the machine's memory"))?;
        // SAFETY: the word is inside the mapping and aligned (the mapping is by page), and the
        // mapping lives as long as `self`. Other processes write to the memory, hence volatile; no
        // processor tears an aligned word. The mapping may be read-only, and an atomic would have
        // to be writable, so the word is not accessed as one.
        let word = unsafe { self.map.as_mut_ptr().add(index).cast::<u64>().read_volatile() };
        // Pairs with the writer's release, as of the hypervisor's `magic`.
        fence(Ordering::Acquire);
        Ok(u64::from_le(word))
    }
}

fn is_ram(link: &Path) -> Result<()> {
    let leads = fs::read_link(link).with_context(|| format!("cannot look at {}", link.display()))?;
    if leads != Path::new(LINK) {
        bail!("{} is {}, not a machine's memory", link.display(), leads.display());
    }
    Ok(())
}

#[cfg(test)]
impl Ram {
    /// Memory of this process: its addresses are those where it is mapped.
    pub(crate) fn in_place(bytes: u64) -> Result<Self> {
        let ram = Self::new(bytes, 0)?;
        let base = ram.map.as_mut_ptr().expose_provenance() as u64;
        Ok(Self { base, ..ram })
    }

    pub(crate) const fn base(&self) -> u64 {
        self.base
    }

    /// Writes as the machine does.
    pub(crate) fn put(&self, address: u64, word: u64) {
        self.put_bytes(address, &word.to_le_bytes());
    }

    pub(crate) fn put_bytes(&self, address: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, address).expect("writes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_or_across_the_end_are_errors() {
        let ram = Ram::new(4096, 0).expect("makes");
        for offset in [4096, 4089, 4, u64::MAX, u64::MAX - 7] {
            assert!(ram.load(offset).is_err(), "{offset:#x}");
        }
        assert_eq!(ram.load(4088).expect("is inside"), 0);
    }

    #[test]
    fn a_page_that_changes_has_another_digest() {
        let ram = Ram::new(16384, 0).expect("makes");
        let before = ram.page_digests(4096, 8192).expect("reads");
        ram.file.write_all_at(&[1], 12287).expect("writes");
        let after = ram.page_digests(4096, 8192).expect("reads");
        assert!(before[0] == after[0] && before[1] != after[1]);
        assert!(ram.page_digests(4096, 16384).is_err() && ram.page_digests(1, 4096).is_err());
    }

    #[test]
    fn addresses_count_from_the_base() {
        let ram = Ram::new(8192, 1 << 30).expect("makes");
        ram.put(4096, 7);
        for below in [0, 4096, (1 << 30) - 8, (1 << 30) + 8192] {
            assert!(ram.load(below).is_err(), "{below:#x}");
        }
        assert_eq!(ram.load((1 << 30) + 4096).expect("reads"), 7);
        assert!(ram.page_digests((1 << 30) - 4096, 8192).is_err());
        let digests = ram.page_digests(1 << 30, 8192).expect("reads");
        assert_ne!(digests[0], digests[1]);
    }

    #[test]
    fn u10_memory_above_4_gib_is_found_where_q35_puts_it() {
        let small = Ram::of_q35(5 * GIB / 2).expect("makes");
        assert!(small.load(5 * GIB / 2 - 8).is_ok() && small.load(4 * GIB).is_err());
        let ram = Ram::of_q35(3 * GIB).expect("makes");
        ram.put(2 * GIB + 4096, 7);
        ram.put(2 * GIB - 8, 8);
        assert_eq!(ram.load(4 * GIB + 4096).expect("reads"), 7);
        assert_eq!(ram.load(2 * GIB - 8).expect("reads"), 8);
        for nowhere in [2 * GIB, 2 * GIB + 4096, 4 * GIB - 8, 5 * GIB] {
            assert!(ram.load(nowhere).is_err(), "{nowhere:#x}");
        }
        assert!(ram.page_digests(2 * GIB - 4096, 2 * GIB + 8192).is_err(), "over the gap");
        let digests = ram.page_digests(4 * GIB, 8192).expect("reads");
        assert_ne!(digests[0], digests[1]);
    }

    #[test]
    fn a_piece_is_inside_and_whole() {
        let ram = Ram::of_q35(3 * GIB).expect("makes");
        for (start, bytes) in
            [(0, 0), (8, 4096), (2 * GIB - 4096, 8192), (5 * GIB - 4096, 8192), (u64::MAX - 4095, 4097)]
        {
            assert!(ram.piece(start, bytes).is_err(), "{start:#x} {bytes:#x}");
        }
        let (at, open) = here(&ram);
        assert!(open(&at).expect("opens").piece(0, 4096).is_err(), "it is for reading");
        let other = Ram::open(std::process::id(), &at, true).expect("opens");
        let place = other.piece(4 * GIB, 4096).expect("is one");
        // SAFETY: mapped, and nobody else uses it.
        unsafe { place.write(7) };
        assert_eq!(ram.load(4 * GIB).expect("reads"), 7);
    }

    #[test]
    fn what_another_writes_is_seen() {
        let ram = Ram::new(8192, 0).expect("makes");
        ram.put(4096, 0x1122_3344_5566_7788);
        assert_eq!(ram.load(4096).expect("reads"), 0x1122_3344_5566_7788);
    }

    /// Where this process has the memory, and a function that opens it there.
    fn here(ram: &Ram) -> (Whereabouts, impl Fn(&Whereabouts) -> Result<Ram>) {
        let at = ram.whereabouts().expect("is there");
        (at, |at: &Whereabouts| Ram::open(std::process::id(), at, false))
    }

    #[test]
    fn another_process_finds_the_memory_and_reads_what_is_written_to_it() {
        let ram = Ram::of_q35(3 * GIB).expect("makes");
        let (at, open) = here(&ram);
        let text = serde_json::to_string(&at).expect("writes");
        let watched = open(&serde_json::from_str(&text).expect("reads")).expect("opens");
        ram.put(2 * GIB + 4096, 7);
        assert_eq!(watched.load(4 * GIB + 4096).expect("reads"), 7);
        assert!(watched.load(2 * GIB).is_err(), "the gap is known");
        assert!(ram.file.set_len(4096).is_err(), "it cannot shrink under its readers");
        assert!(watched.file.write_all_at(&[1], 0).is_err(), "it is for reading");
    }

    #[test]
    fn what_is_not_the_machines_memory_is_not_read() {
        let (ram, other) = (Ram::new(8192, 0).expect("makes"), Ram::new(8192, 0).expect("makes"));
        let (at, open) = here(&ram);
        let refused = |at: &Whereabouts| format!("{:#}", open(at).err().expect("is refused"));
        let (another, _) = here(&other);
        assert!(refused(&Whereabouts { fd: another.fd, ..at.clone() }).contains("of another machine"));
        assert!(refused(&Whereabouts { bytes: 4096, ..at.clone() }).contains("of another machine"));
        let gap = Some(Gap { start: 8192, end: 4096 });
        assert!(refused(&Whereabouts { gap, ..at.clone() }).contains("gap"));
        assert!(refused(&Whereabouts { fd: 9999, ..at.clone() }).contains("cannot look at"));

        let file = tempfile::tempfile().expect("makes");
        let fd = file.as_raw_fd();
        assert!(refused(&Whereabouts { fd, ..at.clone() }).contains("not a machine's memory"));
        let named = File::from(memfd_create("other", MemfdFlags::CLOEXEC).expect("makes"));
        let fd = named.as_raw_fd();
        assert!(refused(&Whereabouts { fd, ..at.clone() }).contains("not a machine's memory"));
        let loose = File::from(memfd_create(NAME, MemfdFlags::CLOEXEC).expect("makes"));
        loose.set_len(8192).expect("grows");
        let (fd, inode) = (loose.as_raw_fd(), loose.metadata().expect("is there").ino());
        assert!(refused(&Whereabouts { fd, inode, ..at.clone() }).contains("may become smaller"));

        let path = format!("/proc/self/fd/{}", at.fd);
        let error =
            Ram::open_at(Path::new(&path), &at, getuid().as_raw() + 1, false).err().expect("is refused");
        assert!(error.to_string().contains("somebody else"), "{error}");
    }
}
