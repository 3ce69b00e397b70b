//! A channel in memory between the hypervisor and the host tool: two rings of bytes.
//!
//! Each ring has one writer and one reader. The writer counts the bytes that it has ever put in,
//! the reader those that it has taken out; neither waits for the other.
//!
//! ```text
//! writer                                     reader
//!
//! A  load taken (Acquire)                    a  load put (Acquire)
//! B  write bytes, at most up to taken + size b  read bytes, at most up to put
//! C  store put (Release)                     c  store taken (Release)
//! ```
//!
//! | must hold | because |
//! |---|---|
//! | the bytes that b reads are those of B | a reads what C stored, and C is after B |
//! | B overwrites no byte that b has yet to read | A reads what c stored, and c is after b |
//!
//! A count that makes no sense (more taken than put, or more put than there is room for) is the
//! other side's mistake: the ring is then [broken](Broken), and nothing of it is used.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

use core::marker::PhantomData;

/// The other side's counts make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The two counts of a ring, each on a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Counts {
    put: AtomicU64,
    _apart: [u64; 7],
    taken: AtomicU64,
    _behind: [u64; 7],
}

#[cfg(loom)]
impl Default for Counts {
    fn default() -> Self {
        Self { put: AtomicU64::new(0), _apart: [0; 7], taken: AtomicU64::new(0), _behind: [0; 7] }
    }
}

impl Counts {
    /// A: where the writer goes on, and for how many bytes there is room.
    fn room(&self, size: u64) -> Result<(u64, u64), Broken> {
        // Relaxed: only the writer stores it.
        let put = self.put.load(Ordering::Relaxed);
        let taken = self.taken.load(Ordering::Acquire); // Pairs with `take`.
        let used = put.checked_sub(taken).filter(|used| *used <= size).ok_or(Broken)?;
        Ok((put, size - used))
    }

    /// C: so many bytes more have been put in.
    fn publish(&self, bytes: u64) {
        let put = self.put.load(Ordering::Relaxed);
        self.put.store(put.wrapping_add(bytes), Ordering::Release); // Pairs with `filled`.
    }

    /// a: where the reader goes on, and how many bytes there are.
    fn filled(&self, size: u64) -> Result<(u64, u64), Broken> {
        // Relaxed: only the reader stores it.
        let taken = self.taken.load(Ordering::Relaxed);
        let put = self.put.load(Ordering::Acquire); // Pairs with `publish`.
        let used = put.checked_sub(taken).filter(|used| *used <= size).ok_or(Broken)?;
        Ok((taken, used))
    }

    /// c: so many bytes have been taken out.
    fn take(&self, bytes: u64) {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(bytes), Ordering::Release); // Pairs with `room`.
    }
}

/// The head of a channel. The data of the ring to the tool is behind it, at [`DATA`]; behind that
/// the data of the ring to the hypervisor.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Head {
    to_tool: Counts,
    to_hypervisor: Counts,
    /// The machine's counter when the hypervisor looked last.
    clock: AtomicU64,
}

/// Where the data begins in a channel.
pub const DATA: u64 = 4096;
const _: () = assert!(size_of::<Head>() <= DATA as usize);

/// The sizes of a channel's rings, in bytes: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of the ring to the tool.
    pub to_tool: u64,
    /// Of the ring to the hypervisor.
    pub to_hypervisor: u64,
}

impl Sizes {
    /// Where a guest leaves.
    pub const SOURCE: Self = Self { to_tool: 4 << 20, to_hypervisor: 64 << 10 };
    /// Where a guest arrives.
    pub const TARGET: Self = Self { to_tool: 64 << 10, to_hypervisor: 4 << 20 };

    /// Bytes of the whole channel.
    pub const fn total(&self) -> u64 {
        DATA + self.to_tool + self.to_hypervisor
    }
}

/// One end of a channel: it writes to one ring, and reads the other.
#[derive(Debug)]
pub struct End<'a> {
    head: &'a Head,
    writes: Ring<'a>,
    reads: Ring<'a>,
}

#[derive(Debug)]
struct Ring<'a> {
    counts: &'a Counts,
    data: *mut u8,
    size: u64,
    memory: PhantomData<&'a ()>,
}

// SAFETY: the counts are atomics, and say which bytes of the data this end alone uses.
unsafe impl Send for Ring<'_> {}

impl<'a> End<'a> {
    /// The hypervisor's end of the channel at `at`.
    ///
    /// # Safety
    ///
    /// For `'a`, `sizes.total()` bytes at `at` (aligned to a page) are mapped readable and writable
    /// with exposed provenance. They were zero at first, and only two ends use them: one of the
    /// hypervisor's, and one of the tool's, with the same sizes.
    pub unsafe fn of_hypervisor(at: *mut u8, sizes: Sizes) -> Self {
        // SAFETY: the caller's promise is the one that `rings` asks for.
        let (head, out, back) = unsafe { rings(at, sizes) };
        Self { head, writes: out, reads: back }
    }

    /// The tool's end.
    ///
    /// # Safety
    ///
    /// As of [`of_hypervisor`](Self::of_hypervisor).
    pub unsafe fn of_tool(at: *mut u8, sizes: Sizes) -> Self {
        // SAFETY: the caller's promise is the one that `rings` asks for.
        let (head, out, back) = unsafe { rings(at, sizes) };
        Self { head, writes: back, reads: out }
    }

    /// The hypervisor's counter is at `now`.
    pub fn show_clock(&self, now: u64) {
        // Relaxed: it orders nothing.
        self.head.clock.store(now, Ordering::Relaxed);
    }

    /// What the hypervisor's counter was when it looked last; 0 before that.
    pub fn clock(&self) -> u64 {
        // Relaxed: as above.
        self.head.clock.load(Ordering::Relaxed)
    }

    /// Bytes that can be put.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    pub fn room(&self) -> Result<usize, Broken> {
        self.writes.counts.room(self.writes.size).map(|(_, room)| room as usize)
    }

    /// Lets `fill` write the next `len` bytes, for which there is [room](Self::room), in at most
    /// two pieces, which it gets one after the other. The reader does not see them before
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// [`Broken`], also if there is no room.
    pub fn write(&mut self, ahead: usize, len: usize, mut fill: impl FnMut(&mut [u8])) -> Result<(), Broken> {
        let (put, room) = self.writes.counts.room(self.writes.size)?;
        if (ahead + len) as u64 > room {
            return Err(Broken);
        }
        for (at, len) in self.writes.pieces(put.wrapping_add(ahead as u64), len) {
            // SAFETY: inside the data; until they are published, this end alone uses free bytes.
            fill(unsafe { core::slice::from_raw_parts_mut(self.writes.data.add(at), len) });
        }
        Ok(())
    }

    /// Writes the next bytes, as [`write`](Self::write) does.
    ///
    /// # Errors
    ///
    /// [`Broken`], also if there is no room.
    pub fn write_all(&mut self, ahead: usize, bytes: &[u8]) -> Result<(), Broken> {
        let mut left = bytes;
        self.write(ahead, bytes.len(), |piece| {
            let (now, later) = left.split_at(piece.len());
            piece.copy_from_slice(now);
            left = later;
        })
    }

    /// Lets the reader see the next `len` bytes, which have been written.
    pub fn publish(&mut self, len: usize) {
        self.writes.counts.publish(len as u64);
    }

    /// Bytes that can be read.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    pub fn filled(&self) -> Result<usize, Broken> {
        self.reads.counts.filled(self.reads.size).map(|(_, filled)| filled as usize)
    }

    /// Lets `see` read `len` bytes from the `ahead`-th on, which [are there](Self::filled), in at
    /// most two pieces, which it gets one after the other.
    ///
    /// # Errors
    ///
    /// [`Broken`], also if they are not there.
    pub fn read(&self, ahead: usize, len: usize, mut see: impl FnMut(&[u8])) -> Result<(), Broken> {
        let (taken, filled) = self.reads.counts.filled(self.reads.size)?;
        if (ahead + len) as u64 > filled {
            return Err(Broken);
        }
        for (at, len) in self.reads.pieces(taken.wrapping_add(ahead as u64), len) {
            // SAFETY: inside the data; the writer leaves filled bytes alone until they are taken.
            see(unsafe { core::slice::from_raw_parts(self.reads.data.add(at), len) });
        }
        Ok(())
    }

    /// Reads bytes, as [`read`](Self::read) does.
    ///
    /// # Errors
    ///
    /// [`Broken`], also if they are not there.
    pub fn read_all(&self, ahead: usize, bytes: &mut [u8]) -> Result<(), Broken> {
        let mut at = 0;
        self.read(ahead, bytes.len(), |piece| {
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        })
    }

    /// Gives the next `len` bytes, which have been read, back to the writer.
    pub fn take(&mut self, len: usize) {
        self.reads.counts.take(len as u64);
    }
}

impl Ring<'_> {
    /// Offsets and lengths of `len` bytes from this count on.
    fn pieces(&self, from: u64, len: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let at = (from & (self.size - 1)) as usize;
        let first = len.min(self.size as usize - at);
        [(at, first), (0, len - first)].into_iter().filter(|(_, len)| *len > 0)
    }
}

/// # Safety
///
/// As of [`End::of_hypervisor`].
unsafe fn rings<'a>(at: *mut u8, sizes: Sizes) -> (&'a Head, Ring<'a>, Ring<'a>) {
    debug_assert!(sizes.to_tool.is_power_of_two() && sizes.to_hypervisor.is_power_of_two());
    // SAFETY: the caller vouches that it is aligned, mapped and zeroed; it consists of atomics.
    let head: &'a Head = unsafe { &*at.cast::<Head>() };
    // SAFETY: both are inside the `sizes.total()` bytes that the caller vouches for.
    let (out, back) = unsafe { (at.add(DATA as usize), at.add((DATA + sizes.to_tool) as usize)) };
    let ring = |counts, data, size| Ring { counts, data, size, memory: PhantomData };
    (head, ring(&head.to_tool, out, sizes.to_tool), ring(&head.to_hypervisor, back, sizes.to_hypervisor))
}

#[cfg(test)]
mod tests;
