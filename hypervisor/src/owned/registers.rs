//! Registers that the hypervisor itself accesses, and therefore maps.

use alloc::vec::Vec;
use core::ops::Range;
use pci::msix::{PAGE_LEN, Table};
use pci::{Address, Physical};

use super::machine::Bus;

/// Pages of a function's registers that the hypervisor accesses: MSI-X's table, BARs below a page.
pub fn hypervisors_pages(bus: &dyn Bus, address: Address) -> Vec<Range<u64>> {
    let Ok(physical) = Physical::read(&bus, address) else { return Vec::new() };
    let mut pages = Vec::new();
    let page = |at: u64| at & !(PAGE_LEN - 1);
    let bars = physical.bars.iter().flatten().filter(|bar| bar.is_memory() && bar.address != 0);
    pages.extend(
        bars.filter(|bar| bar.size < PAGE_LEN).map(|bar| page(bar.address)..page(bar.address) + PAGE_LEN),
    );
    if let Some(table) = physical.capabilities.msix.and_then(|msix| Table::new(&msix, &physical.bars)) {
        for trapped in table.pages() {
            if let Some(Some(bar)) = physical.bars.get(usize::from(trapped.bar))
                && bar.address != 0
            {
                pages.push(
                    page(bar.address + trapped.offsets.start)
                        ..page(bar.address + trapped.offsets.end - 1) + PAGE_LEN,
                );
            }
        }
    }
    pages
}

/// The same addresses in ascending order, without overlaps. Pages may be in several of `ranges`:
/// small BARs share them.
pub fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let touches = next.start <= before.end;
        if touches {
            before.end = before.end.max(next.end);
        }
        touches
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_or_touch_are_one() {
        let ranges = alloc::vec![5..7, 0..2, 1..3, 8..9, 3..4, 5..6, 6..7];
        assert_eq!(merged(ranges), [0..4, 5..7, 8..9]);
        assert_eq!(merged(alloc::vec![0..9, 1..2, 9..9, 11..12]), [0..9, 11..12]);
        assert_eq!(merged(Vec::new()), []);
    }
}
