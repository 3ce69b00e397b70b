//! The free physical memory.

use baremetal::pages::PAGE;
use core::ops::Range;

use arrayvec::ArrayVec;

/// Sizes of pages that can map memory, the largest first.
const PAGES: [u64; 3] = [1 << 30, 2 << 20, PAGE];
/// Maximum number of RAM regions that are tracked. All are on a stack while the machine starts.
const MAX_REGIONS: usize = 256;
/// Maximum number of pieces of one range. Each becomes a slot, and some slots must be left for
/// memory that is added later.
pub const MAX_PIECES: usize = 16;

/// A piece of a range, with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPiece {
    /// Its first address in the range.
    pub at: u64,
    /// Its first byte of physical memory.
    pub host: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// RAM that is not in use yet.
#[derive(Clone, Default)]
pub struct FreeMemory {
    regions: ArrayVec<Range<u64>, MAX_REGIONS>,
}

impl FreeMemory {
    /// Adds RAM, shrunk to whole pages. The first MiB is left out: it holds firmware and start-up
    /// code.
    pub fn add(&mut self, range: Range<u64>) {
        let start = range.start.max(1 << 20).next_multiple_of(PAGE);
        let end = range.end & !(PAGE - 1);
        if start >= end {
            return;
        }
        // Merges adjacent regions.
        let mut whole = start..end;
        self.regions.retain(|region| {
            let touches = region.end == whole.start || region.start == whole.end;
            if touches {
                whole = region.start.min(whole.start)..region.end.max(whole.end);
            }
            !touches
        });
        self.push(whole);
    }

    /// Adds a region that touches no other. If there are too many, the smallest one is lost.
    fn push(&mut self, mut region: Range<u64>) {
        if self.regions.is_full()
            && let Some(least) = self.regions.iter_mut().min_by_key(|region| size(region))
        {
            if size(least) < size(&region) {
                core::mem::swap(least, &mut region);
            }
            log::warn!("memory is too fragmented; {region:x?} stays unused");
            return;
        }
        self.regions.push(region);
    }

    /// Removes a range that is in use already.
    pub fn reserve(&mut self, used: Range<u64>) {
        let used = used.start & !(PAGE - 1)..used.end.next_multiple_of(PAGE);
        let is_hit = |region: &Range<u64>| region.start < used.end && used.start < region.end;
        while let Some(index) = self.regions.iter().position(is_hit) {
            let region = self.regions.swap_remove(index);
            let below = region.start..region.end.min(used.start);
            let above = region.start.max(used.end)..region.end;
            [below, above].into_iter().filter(|part| !part.is_empty()).for_each(|part| self.push(part));
        }
    }

    /// Takes `size` bytes, aligned to `align` (a power of two), ending at or below `limit`. Takes
    /// them from the highest suitable place, so that low memory remains for users that need it.
    pub fn take(&mut self, size: u64, align: u64, limit: u64) -> Option<u64> {
        let place = |region: &Range<u64>| {
            let start = region.end.min(limit).checked_sub(size)? & !(align - 1);
            (start >= region.start).then_some(start)
        };
        let start = self.regions.iter().filter_map(place).max()?;
        self.reserve(start..start + size);
        Some(start)
    }

    /// Bytes in the largest region.
    pub fn largest(&self) -> u64 {
        self.regions.iter().map(size).max().unwrap_or(0)
    }

    /// Bytes in all regions.
    pub fn total(&self) -> u64 {
        self.regions.iter().map(size).sum()
    }

    /// Takes memory for all of `range`, in as few pieces as it can find, ascending. A piece can be
    /// mapped by pages as large as its size and position in the range allow. `None` if there is not
    /// enough memory, or only in too many pieces; nothing is taken then.
    pub fn take_pieces(&mut self, range: &Range<u64>) -> Option<ArrayVec<MemoryPiece, MAX_PIECES>> {
        let mut pieces: ArrayVec<MemoryPiece, MAX_PIECES> = ArrayVec::new();
        let mut at = range.start;
        while at < range.end {
            let room = pieces.remaining_capacity();
            let Some(piece) = (room > 0).then(|| self.take_piece(at, range.end - at)).flatten() else {
                pieces.iter().for_each(|piece| self.add(piece.host..piece.host + piece.size));
                return None;
            };
            pieces.push(piece);
            at += piece.size;
        }
        Some(pieces)
    }

    /// Takes memory for `left` bytes at `at`, or for as many of them as are available in one piece.
    fn take_piece(&mut self, at: u64, left: u64) -> Option<MemoryPiece> {
        let whole = PAGES.into_iter().filter(|&page| left >= page);
        if let Some(host) = whole.into_iter().find_map(|page| self.take(left, page, u64::MAX)) {
            return Some(MemoryPiece { at, host, size: left });
        }
        PAGES.into_iter().filter(|page| at.is_multiple_of(*page)).find_map(|page| {
            let down = |bytes: u64| bytes & !(page - 1);
            let fits = |region: &Range<u64>| {
                let start = region.start.checked_next_multiple_of(page)?;
                Some(down(region.end).checked_sub(start)?.min(down(left)))
            };
            let size = self.regions.iter().filter_map(fits).max().filter(|size| *size != 0)?;
            self.take(size, page, u64::MAX).map(|host| MemoryPiece { at, host, size })
        })
    }
}

const fn size(region: &Range<u64>) -> u64 {
    region.end - region.start
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn free(regions: &[Range<u64>]) -> FreeMemory {
        let mut free = FreeMemory::default();
        regions.iter().for_each(|region| free.add(region.clone()));
        free
    }

    fn sorted(free: &FreeMemory) -> ArrayVec<Range<u64>, MAX_REGIONS> {
        let mut regions = free.regions.clone();
        regions.sort_by_key(|region| region.start);
        regions
    }

    /// Takes memory for a range and checks that it fits the range, that it overlaps no other
    /// user's, and that none was lost.
    fn checked(free: &mut FreeMemory, range: &Range<u64>) -> ArrayVec<MemoryPiece, MAX_PIECES> {
        let (before, regions) = (free.total(), free.regions.clone());
        let pieces = free.take_pieces(range).expect("there is so much");
        let mut at = range.start;
        for piece in &pieces {
            let host = piece.host..piece.host + piece.size;
            assert_eq!(piece.at, at);
            assert!(regions.iter().any(|region| region.start <= host.start && host.end <= region.end));
            assert!(free.regions.iter().all(|region| region.end <= host.start || host.end <= region.start));
            let other = |other: &&MemoryPiece| other.at != piece.at;
            let apart = |other: &MemoryPiece| other.host >= host.end || other.host + other.size <= host.start;
            assert!(pieces.iter().filter(other).all(apart));
            at += piece.size;
        }
        assert_eq!((at, before - free.total()), (range.end, range.end - range.start));
        pieces
    }

    #[test]
    fn u10_a_pcs_memory_is_in_two_places_and_a_guest_larger_than_either_fits() {
        // 2 GiB below 4 GiB, containing the image, and the rest above: QEMU's q35 from 2.75 GiB on.
        for (machine, guest) in
            [(3328 * MIB, 3 * GIB), (5376 * MIB, 5 * GIB), (12 * GIB + 512 * MIB, 12 * GIB)]
        {
            let mut free = free(&[32 * MIB..2 * GIB, 4 * GIB..4 * GIB + machine - 2 * GIB]);
            let low = checked(&mut free, &(0..guest.min(3 * GIB)));
            let high = checked(&mut free, &(4 * GIB..4 * GIB + guest.saturating_sub(3 * GIB)));
            assert!(low.len() <= 4 && high.len() <= 6, "{guest:#x}: {low:x?}, {high:x?}");
            // Each can be mapped by large pages.
            assert!(
                low.iter().chain(&high).all(|piece| (piece.at | piece.host | piece.size) % (2 * MIB) == 0)
            );
        }
    }

    #[test]
    fn one_piece_is_preferred_and_is_aligned_to_the_largest_page_it_can_hold() {
        let mut all = free(&[MIB..8 * GIB + MIB, 16 * GIB..17 * GIB]);
        let pieces = checked(&mut all, &(0..5 * GIB / 2));
        assert!(pieces.len() == 1 && pieces[0].host.is_multiple_of(GIB), "{pieces:x?}");
        let pieces = checked(&mut all, &(0..256 * MIB));
        assert!(pieces.len() == 1 && pieces[0].host.is_multiple_of(2 * MIB), "{pieces:x?}");
    }

    #[test]
    fn what_there_is_not_is_not_taken() {
        let mut some = free(&[GIB..2 * GIB, 3 * GIB..3 * GIB + 8 * PAGE]);
        let before = sorted(&some);
        assert_eq!(some.take_pieces(&(0..GIB + 9 * PAGE)), None);
        assert_eq!(sorted(&some), before, "it is as it was");
        checked(&mut some, &(0..GIB + 8 * PAGE));
        assert_eq!(some.total(), 0);
        // More places than the maximum number of pieces.
        let regions: ArrayVec<_, 32> = (1..=32).map(|n| n * 4 * MIB..n * 4 * MIB + 2 * MIB).collect();
        let mut scattered = free(&regions);
        assert_eq!(scattered.take_pieces(&(0..64 * MIB)), None);
        assert_eq!(scattered.total(), 64 * MIB);
        assert_eq!(checked(&mut scattered, &(0..32 * MIB)).len(), MAX_PIECES);
    }

    #[test]
    fn of_too_many_pieces_the_smallest_is_lost() {
        // Every other page is free, and then a large piece comes back.
        let page = |index: u64| (256 + 2 * index) * PAGE..(257 + 2 * index) * PAGE;
        let mut all = free(&[]);
        (0..MAX_REGIONS as u64).for_each(|index| all.add(page(index)));
        assert_eq!(all.total(), MAX_REGIONS as u64 * PAGE);
        all.add(GIB..2 * GIB);
        assert_eq!((all.largest(), all.total()), (GIB, GIB + (MAX_REGIONS as u64 - 1) * PAGE));
        // One that touches another is never lost.
        all.add(2 * GIB..3 * GIB);
        assert_eq!(all.largest(), 2 * GIB);
        // A hole in the large one costs a page, not the rest of it.
        all.reserve(GIB + 2 * MIB..GIB + 4 * MIB);
        assert_eq!(all.total(), 2 * GIB - 2 * MIB + (MAX_REGIONS as u64 - 2) * PAGE);
    }
}
