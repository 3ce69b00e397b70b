//! The PCI host of a guest that owns functions of the machine: configuration space by address, one
//! bus, and functions from device 1 on. It has no ports. Source: PCI Express Base Specification,
//! revision 5.0, 7.2.2 "PCI Express Enhanced Configuration Access Mechanism".

use super::map::{PCI_ECAM_SIZE, PCI_MEMORY};
use alloc::vec::Vec;
use migration::{Archive, Described, Flaw};
use pci::Function;

/// Device number of the first function.
pub const FIRST: u8 = 1;

/// The bus, with its functions in the order of their device numbers.
#[derive(Clone, Debug, Default)]
pub struct Pci {
    functions: Vec<Function>,
}

impl Described for Pci {
    /// A guest with functions is not described.
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Self { functions } = self;
        archive.same("number of PCI functions", functions.len() as u64)
    }
}

impl Pci {
    /// The functions after power-on, with their registers at the window's end, as firmware would
    /// place them.
    pub fn new(functions: Vec<Function>) -> Self {
        let mut pci = Self { functions };
        let mut end = PCI_MEMORY.end;
        for function in &mut pci.functions {
            for bar in 0..6 {
                let Some(len) = function.bar_len(bar) else { continue };
                let at = end.checked_sub(len).map_or(0, |start| start & !(len - 1));
                // One that does not fit has no place: the guest may find one.
                if at >= PCI_MEMORY.start && function.place(bar, at) {
                    end = at;
                }
            }
        }
        pci
    }

    /// The functions.
    pub fn functions_mut(&mut self) -> &mut [Function] {
        &mut self.functions
    }

    /// Returns to the state after power-on.
    pub fn reset(&mut self) {
        self.functions.iter_mut().for_each(Function::reset);
    }

    /// Reads 1 to 8 bytes of configuration space. Where no function is, all bits are set.
    pub fn read(&self, offset: u32, size: u8) -> u64 {
        let word = |offset: u32| match find(offset) {
            Some((index, register)) => {
                self.functions.get(index).map_or(u32::MAX, |function| function.read(register))
            }
            None => u32::MAX,
        };
        let high = if offset % 4 + u32::from(size) > 4 { word(offset + 4) } else { u32::MAX };
        let both = u64::from(word(offset)) | u64::from(high) << 32;
        (both >> (offset % 4 * 8)) & mask(size)
    }

    /// Writes 1 to 8 bytes. Afterwards the real functions must follow.
    pub fn write(&mut self, offset: u32, size: u8, value: u64) {
        let shift = offset % 4 * 8;
        let (value, mask) = ((value & mask(size)) << shift, mask(size) << shift);
        for (offset, shift) in [(offset, 0), (offset + 4, 32)] {
            let part = (mask >> shift) as u32;
            if part != 0
                && let Some((index, register)) = find(offset)
                && let Some(function) = self.functions.get_mut(index)
            {
                function.write(register, (value >> shift) as u32, part);
            }
        }
    }
}

const fn mask(size: u8) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (size * 8)) - 1 }
}

/// The index of a function, and that of its double word.
fn find(offset: u32) -> Option<(usize, u16)> {
    if u64::from(offset) >= PCI_ECAM_SIZE {
        return None;
    }
    let (device, function) = (offset >> 15 & 31, offset >> 12 & 7);
    let index = device.checked_sub(FIRST.into()).filter(|_| function == 0)?;
    Some((index as usize, (offset >> 2 & 0x3ff) as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_configuration_space_is_a_function_and_a_double_word() {
        assert_eq!(find(0), None, "there is no host bridge");
        assert_eq!((find(1 << 15), find(2 << 15 | 0x3f)), (Some((0, 0)), Some((1, 15))));
        assert_eq!(find(1 << 15 | 1 << 12), None, "one function each");
        assert_eq!(find(PCI_ECAM_SIZE as u32 + (1 << 15)), None, "another bus");
        assert_eq!(find(1 << 15 | 0xffc), Some((0, 0x3ff)));
    }

    #[test]
    fn without_functions_all_bits_are_set_and_writes_are_lost() {
        let mut pci = Pci::default();
        pci.write(1 << 15 | 4, 2, 7);
        assert_eq!((pci.read(1 << 15 | 2, 2), pci.read(1 << 15, 8)), (0xffff, u64::MAX));
        assert_eq!(pci.read(0xf_fffc, 8), u64::MAX, "up to the window's end");
    }
}
