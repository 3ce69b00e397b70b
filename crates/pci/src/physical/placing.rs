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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Device, Machine, at};

    #[test]
    fn bars_without_an_address_get_one_that_fits() {
        let device = Device::new(0x1234, 1, 0)
            .bar64(0, 4, 0, 0x4000)
            .bar(2, 0, 0, 0x1000)
            .bar(3, 0, 0x8000_0000, 0x1000)
            .bar(4, 1, 0, 0x20)
            .bar(5, 0, 0, 0x10_0000);
        let machine = Machine::new([("00:04.0", device)]);
        let mut free = 0x1000_1000..0x1000_8000;
        place(&machine, at("00:04.0"), &mut free).unwrap();
        let bars = Physical::read(&machine, at("00:04.0")).unwrap().bars;
        let addresses = bars.map(|bar| bar.map(|bar| bar.address));
        let expected = [Some(0x1000_4000), None, None, Some(0x8000_0000), Some(0), Some(0)];
        assert_eq!(addresses[..2], expected[..2], "a multiple of its size");
        assert_eq!(addresses[3..], expected[3..], "kept; ports; too large");
        assert_eq!(addresses[2], Some(0), "no room is left");
        assert_eq!(free, 0x1000_8000..0x1000_8000);
        let machine = Machine::new([("00:04.0", Device::new(0x1234, 1, 0).bar64(0, 4, 0, 0x4000))]);
        place(&machine, at("00:04.0"), &mut (0x12_3456_0000..0x12_3457_0000)).unwrap();
        let found = Physical::read(&machine, at("00:04.0")).unwrap().bars[0];
        assert_eq!(found.map(|bar| bar.address), Some(0x12_3456_0000));
    }
}
