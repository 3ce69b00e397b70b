//! The PCI bus: configuration mechanism #1 (PCI Local Bus Specification 3.0, section 3.2.2.3.2), a
//! host bridge at 00:00.0 and at 00:01.0 a [device with an expansion ROM](rom_device). Functions of
//! the real machine that the guest owns are devices from 00:02.0 on.
//!
//! There is one bus, without interrupt lines and without I/O space. Other devices, functions and
//! buses are absent: they read as all ones and ignore writes.

pub mod rom_device;
#[cfg(test)]
mod tests;

use super::ioapic;
use super::platform::PortSize;
use ::pci::Function;
use alloc::vec::Vec;
use core::ops::Range;
use hostlink::rom::VENDOR_ID;
use migration::{Archive, Described, Flaw, fields};
use rom_device::{RomDevice, RomLen};

/// Port of the configuration address register. Only double-word accesses reach it: other widths
/// belong to other devices at the ports, such as the reset register.
pub const CONFIG_ADDRESS: u16 = 0xcf8;
/// First of the four ports of the configuration data register.
pub const CONFIG_DATA: u16 = 0xcfc;
/// The last of them.
pub const CONFIG_DATA_LAST: u16 = CONFIG_DATA + 3;
/// Ports of both.
pub const PORT_COUNT: u8 = 8;
/// The number of the one bus.
pub const BUS: u8 = 0;

/// Guest physical addresses that devices on the bus can decode. If software places them elsewhere,
/// over RAM or the I/O APIC for example, the bridge does not forward accesses: they are not
/// visible.
pub const WINDOW: Range<u64> = 0xe000_0000..0xf000_0000;

const _: () = assert!(WINDOW.end <= ioapic::BASE || WINDOW.start >= ioapic::BASE + ioapic::LEN);

/// The beginning of the window is left to the guest, for the ROM.
const MIDDLE: u64 = 128 << 20;

/// Device id of the host bridge; see [`VENDOR_ID`].
const BRIDGE_DEVICE_ID: u16 = 0x10f0;
const BRIDGE_CLASS: u32 = 0x06_0000;
/// It always decodes memory and is always a bus master.
const BRIDGE_COMMAND: u32 = 0x0006;

/// Bits of the configuration address.
const ENABLE: u32 = 1 << 31;
const ADDRESS_BITS: u32 = ENABLE | 0x00ff_fffc;

/// Index of a double word in configuration space: identification, command and status, class.
const ID: u8 = 0;
const COMMAND: u8 = 1;
const CLASS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Bridge,
    Rom,
    /// An owned function, by its index.
    Owned(usize),
}

/// Number of the first owned function's device.
const FIRST_OWNED: usize = 2;

/// The bus and its devices.
#[derive(Clone, Debug, Default)]
pub struct Pci {
    address: u32,
    rom: RomDevice,
    owned: Vec<Function>,
}

impl Described for Pci {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        if !self.owned.is_empty() {
            return Err(Flaw::Unmovable("it has functions on its PCI bus"));
        }
        fields!(self, archive: address & ADDRESS_BITS, rom; stays owned)
    }
}

impl Pci {
    /// The bus after reset, with a ROM of `len`.
    pub const fn new(len: RomLen) -> Self {
        Self { address: 0, rom: RomDevice::new(len), owned: Vec::new() }
    }

    /// Puts functions of the real machine on the bus, with their registers at the window's end, as
    /// firmware would place them.
    pub fn add(&mut self, mut functions: Vec<Function>) {
        let mut end = WINDOW.end;
        // In their places: stacks are small.
        for function in &mut functions {
            for bar in 0..6 {
                let Some(len) = function.bar_len(bar) else { continue };
                let at = end.checked_sub(len).map_or(0, |start| start & !(len - 1));
                // One that does not fit has no place: the guest may find one.
                if at >= WINDOW.start + MIDDLE && function.place(bar, at) {
                    end = at;
                }
            }
        }
        self.owned.append(&mut functions);
    }

    /// The owned functions.
    pub fn owned(&self) -> &[Function] {
        &self.owned
    }

    /// The same, to be changed.
    pub fn owned_mut(&mut self) -> &mut [Function] {
        &mut self.owned
    }

    /// Returns to the state after power-on.
    pub fn reset(&mut self) {
        let mut owned = core::mem::take(&mut self.owned);
        owned.iter_mut().for_each(Function::reset);
        *self = Self { owned, ..Self::default() };
    }

    /// Whether a write to `port` can move the ROM.
    pub const fn is_data_port(port: u16) -> bool {
        matches!(port, CONFIG_DATA..=CONFIG_DATA_LAST)
    }

    /// The address at which the ROM is visible.
    pub fn rom_base(&self) -> Option<u64> {
        self.rom.base()
    }

    /// IN from one of the registers' ports; `None` if another device must answer. Bytes beyond the
    /// last port are ones.
    pub fn port_read(&self, port: u16, size: PortSize) -> Option<u32> {
        if port == CONFIG_ADDRESS && size == PortSize::Dword {
            return Some(self.address);
        }
        let lanes = Lanes::of(port, size)?;
        let value = match self.selected() {
            Some((device, register)) => self.read(device, register),
            None => u32::MAX,
        };
        Some(lanes.to_port(value))
    }

    /// OUT to one of the registers' ports; false if it belongs to another device. Bytes beyond the
    /// last port are lost.
    ///
    /// The ROM may be visible [elsewhere](Self::rom_base) afterwards.
    pub fn port_write(&mut self, port: u16, size: PortSize, value: u32) -> bool {
        if port == CONFIG_ADDRESS && size == PortSize::Dword {
            self.address = value & ADDRESS_BITS;
            return true;
        }
        let Some(lanes) = Lanes::of(port, size) else { return false };
        self.write_selected(lanes.to_register(value), lanes.mask());
        true
    }

    #[inline(never)]
    fn write_selected(&mut self, value: u32, mask: u32) {
        match self.selected() {
            Some((Device::Rom, register)) => self.rom.write(register, value, mask),
            Some((Device::Owned(index), register)) => {
                if let Some(function) = self.owned.get_mut(index) {
                    function.write(register.into(), value, mask);
                }
            }
            Some((Device::Bridge, _)) | None => {}
        }
    }

    /// The device and the index of the double word that the address names.
    fn selected(&self) -> Option<(Device, u8)> {
        let [register, function, bus, _] = self.address.to_le_bytes();
        if self.address & ENABLE == 0 || bus != BUS {
            return None;
        }
        // Device number and function number.
        let device = match (function >> 3, function & 7) {
            (0, 0) => Device::Bridge,
            (1, 0) => Device::Rom,
            (device, 0) => {
                let index = usize::from(device).checked_sub(FIRST_OWNED)?;
                (index < self.owned.len()).then_some(Device::Owned(index))?
            }
            _ => return None,
        };
        Some((device, register / 4))
    }

    fn read(&self, device: Device, register: u8) -> u32 {
        match (device, register) {
            (Device::Rom, _) => self.rom.read(register),
            (Device::Owned(index), _) => {
                self.owned.get(index).map_or(u32::MAX, |function| function.read(register.into()))
            }
            (Device::Bridge, ID) => u32::from(VENDOR_ID) | u32::from(BRIDGE_DEVICE_ID) << 16,
            (Device::Bridge, COMMAND) => BRIDGE_COMMAND,
            (Device::Bridge, CLASS) => BRIDGE_CLASS << 8,
            // Header type 0, one function, and no optional registers.
            (Device::Bridge, _) => 0,
        }
    }
}

/// The bytes of the configuration data register that an access covers.
#[derive(Clone, Copy)]
struct Lanes {
    shift: u32,
    size: PortSize,
}

impl Lanes {
    /// `None` if the access does not begin in the register.
    const fn of(port: u16, size: PortSize) -> Option<Self> {
        if !Pci::is_data_port(port) {
            return None;
        }
        Some(Self { shift: (port - CONFIG_DATA) as u32 * 8, size })
    }

    const fn mask(self) -> u32 {
        self.size.all_ones() << self.shift
    }

    const fn to_register(self, value: u32) -> u32 {
        value << self.shift
    }

    const fn to_port(self, value: u32) -> u32 {
        let beyond = !(u32::MAX >> self.shift);
        (value >> self.shift | beyond) & self.size.all_ones()
    }
}
