//! Where a kernel and its initial RAM disk go.

use core::ops::Range;

const PAGE: u64 = 4096;

/// What a kernel needs of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Where it wants to start.
    pub preferred: u64,
    /// If it may be elsewhere: at multiples of this.
    pub alignment: Option<u64>,
    /// Bytes before its start that the loader needs, and from there on that the kernel needs.
    pub before: u64,
    /// Bytes from its start on.
    pub size: u64,
    /// The last address of an initial RAM disk.
    pub initrd_last: u64,
}

/// The kernel's start, and that of the initial RAM disk.
pub type Places = (u64, u64);

/// Places for a kernel and an initial RAM disk of so many bytes, in memory from `free` on. The
/// kernel is as low as may be, the RAM disk as high. `None` if there is no room.
pub fn places(
    ram: impl Iterator<Item = Range<u64>>,
    free: u64,
    needs: &Needs,
    initrd: u64,
) -> Option<Places> {
    let around = |range: Range<u64>| {
        let first = range.start.max(free).checked_add(needs.before)?.max(needs.preferred);
        let start = match needs.alignment {
            _ if first == needs.preferred => first,
            Some(alignment) => first.checked_next_multiple_of(alignment.max(PAGE))?,
            None => return None,
        };
        let kernel_end = start.checked_add(needs.size)?.checked_next_multiple_of(PAGE)?;
        let end = range.end.min(needs.initrd_last.saturating_add(1)).min(1 << 32);
        let initrd = end.checked_sub(initrd)? & !(PAGE - 1);
        // Without a RAM disk the kernel has to fit all the same.
        (initrd >= kernel_end).then_some((start, initrd))
    };
    ram.filter(|range| range.end > free).find_map(around)
}
