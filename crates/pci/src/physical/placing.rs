//! Addresses for BARs, on a machine whose firmware has given them none (PCI, 6.2.5.1).

use super::bar::{BarKind, register_of};
use super::{Physical, Unusable};
use crate::config::{Address, ConfigSpace};
use core::ops::Range;

/// Gives each BAR of memory of the function at `address` that has none an address in `free`, whose
/// beginning moves. Nothing may be decoded by the function. BARs that do not fit stay without.
///
/// # Errors
///
/// [`Unusable`], as for [`Physical::read`].
pub fn place(space: &impl ConfigSpace, address: Address, free: &mut Range<u64>) -> Result<(), Unusable> {
    let physical = Physical::read(space, address)?;
    for (number, bar) in physical.bars.iter().enumerate() {
        let Some(bar) = bar.filter(|bar| bar.is_memory() && bar.address == 0) else { continue };
        let Some(start) = free.start.checked_next_multiple_of(bar.size) else { continue };
        let Some(end) = start.checked_add(bar.size).filter(|&end| end <= free.end) else { continue };
        if bar.kind == BarKind::Memory32 && end > 1 << 32 {
            continue;
        }
        space.write(address, register_of(number), start as u32);
        if bar.kind == BarKind::Memory64 {
            space.write(address, register_of(number + 1), (start >> 32) as u32);
        }
        free.start = end;
    }
    Ok(())
}
