//! Configuration space of PCI by its two ports (PCI Local Bus Specification 3.0, section
//! 3.2.2.3.2).

use x86_64::instructions::port::Port;

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// Configuration space of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigSpace {
    /// Bus, device and function, as in the address register.
    place: u32,
}

impl ConfigSpace {
    /// The function with this bus, device and function number: bits 15:8, 7:3, and 2:0.
    pub const fn new(place: u16) -> Self {
        Self { place: (place as u32) << 8 }
    }

    /// The first function 0 of a device on bus 0 for which this is so.
    pub fn find(is_it: impl Fn(&Self) -> bool) -> Option<Self> {
        (0..32).map(|device| Self::new(device << 3)).find(is_it)
    }

    fn select(self, register: u8) {
        // SAFETY: the port is the host bridge's, and selects a register.
        unsafe { Port::new(ADDRESS).write(ENABLE | self.place | u32::from(register & !3)) };
    }

    /// Reads a double word; all ones where there is no function.
    pub fn read(&self, register: u8) -> u32 {
        self.select(register);
        // SAFETY: reading configuration space changes nothing.
        unsafe { Port::new(DATA).read() }
    }

    /// Writes a double word. The caller has the function to itself.
    pub fn write(&self, register: u8, value: u32) {
        self.write_part(register, 4, 0, value);
    }

    /// Writes `size` bytes from the `first` byte of a double word on, which may go beyond its end.
    pub fn write_part(&self, register: u8, size: u8, first: u8, value: u32) {
        self.select(register);
        let port = DATA + u16::from(first & 3);
        // SAFETY: the caller has the function to itself; behind the ports of the data there is
        // nothing.
        unsafe {
            match size {
                1 => Port::new(port).write(value as u8),
                2 => Port::new(port).write(value as u16),
                _ => Port::new(port).write(value),
            }
        }
    }

    /// Reads in the same way.
    pub fn read_part(&self, register: u8, size: u8, first: u8) -> u32 {
        self.select(register);
        let port = DATA + u16::from(first & 3);
        // SAFETY: reading configuration space changes nothing.
        unsafe {
            match size {
                1 => u32::from(Port::<u8>::new(port).read()),
                2 => u32::from(Port::<u16>::new(port).read()),
                _ => Port::new(port).read(),
            }
        }
    }
}
