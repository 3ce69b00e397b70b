//! The configuration space that a guest sees of its function.
//!
//! After each write the caller compares what the guest wants with what the real function does, and
//! follows: where the BARs are, whether DMA is on, which interrupts are sent. All of this is state
//! ("level-based"), so a caller that follows late, or twice, is right in the end.
//!
//! What the guest sees:
//!
//! | register | contents |
//! |---|---|
//! | identity, class, subsystem | as the function has them |
//! | command | memory, bus master, INTx off; other bits are 0 |
//! | status | whether there is a list of capabilities; other bits are 0 |
//! | BARs | those of memory, a page at least; those of ports are hidden |
//! | expansion ROM | hidden |
//! | interrupt pin and line | hidden, unless [`Function::show_pin`] shows them |
//! | capabilities | MSI-X, MSI with one message, vendor-specific ones as they were; a reset, if [`Function::show_reset`] shows it |
//! | extended space | hidden |
//!
//! What is hidden reads as 0, and writes to it are ignored. A function that is being reset does not
//! answer: everything reads as all ones.

mod bars;
#[cfg(test)]
mod fuzz;
mod list;
mod msi;
#[cfg(test)]
mod tests;

pub use bars::Decoded;

use crate::config::{BAR_COUNT, HAS_CAPABILITIES, register};
use crate::msix::{Message, Pages, Read, Table, Write};
use crate::physical::{Msix, Physical};
use arrayvec::ArrayVec;
use bars::Bars;
use core::ops::Range;
use list::List;
use pci_types::CommandRegister;

/// Bits of the command register that the guest can write.
const COMMAND: u32 = CommandRegister::MEMORY_ENABLE
    .union(CommandRegister::BUS_MASTER_ENABLE)
    .union(CommandRegister::INTERRUPT_DISABLE)
    .bits() as u32;

/// MSI-X's message control, in the upper half of the first double word: enabled; all are masked.
const MSIX_ENABLE: u32 = 1 << 31;
const MSIX_MASK: u32 = 1 << 30;

/// Control of advanced features, in the second double word: start a reset.
const INITIATE_FLR: u32 = 1 << 0;

/// Guest physical addresses at which BARs are decoded. Elsewhere they are not.
///
/// Neither may contain RAM or other devices. They may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Addresses below 4 GiB.
    pub low: Range<u64>,
    /// Addresses above.
    pub high: Range<u64>,
}

impl Windows {
    /// Whether `len` bytes at `address` are in one of the windows.
    pub fn contain(&self, address: u64, len: u64) -> bool {
        [&self.low, &self.high]
            .into_iter()
            .any(|window| window.start <= address && address < window.end && window.end - address >= len)
    }
}

/// By what the function interrupts, as the guest set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// Not at all.
    Off,
    /// By its interrupt pin, which is level-triggered.
    Intx,
    /// By MSI.
    Msi,
    /// By MSI-X.
    Msix,
}

/// The interrupt pin and line that the guest sees.
#[derive(Clone, Copy, Debug)]
struct Intx {
    pin: u8,
    line: u8,
    /// The line after reset.
    placed: u8,
}

/// A function as its guest sees it.
#[derive(Clone, Debug)]
pub struct Function {
    id: u32,
    class: u32,
    subsystem: u32,
    command: u32,
    bars: Bars,
    windows: Windows,
    list: List,
    msi: Option<msi::State>,
    table: Option<Table>,
    /// Bits [`MSIX_ENABLE`] and [`MSIX_MASK`].
    msix_control: u32,
    intx: Option<Intx>,
    is_resetting: bool,
}

impl Function {
    /// The function in the state after power-on: nothing is decoded, all BARs are 0, no interrupt
    /// is enabled. MSI-X is hidden if the real table is not where it can be ([`Table::new`]).
    pub fn new(physical: &Physical, windows: Windows) -> Self {
        Self::with(physical, windows, true)
    }

    /// The same without MSI and MSI-X, for guests that are interrupted by pins only. The table's
    /// pages are still to be trapped.
    pub fn without_messages(physical: &Physical, windows: Windows) -> Self {
        Self::with(physical, windows, false)
    }

    fn with(physical: &Physical, windows: Windows, messages: bool) -> Self {
        let identity = &physical.identity;
        let msix = physical.capabilities.msix;
        let table = msix.and_then(|msix| Table::new(&msix, &physical.bars));
        let shown =
            msix.zip(table.as_ref()).map(|(msix, table)| Msix { vectors: table.vector_count(), ..msix });
        let msi = physical.capabilities.msi.filter(|_| messages);
        let list =
            List::new(shown.filter(|_| messages).as_ref(), msi.as_ref(), &physical.capabilities.vendor);
        Self {
            id: identity.id(),
            class: u32::from(identity.revision) | identity.class << 8,
            subsystem: u32::from(identity.subsystem_vendor) | u32::from(identity.subsystem) << 16,
            command: 0,
            bars: Bars::new(&physical.bars),
            windows,
            msi: msi.as_ref().filter(|_| list.msi.is_some()).map(msi::State::new),
            table,
            list,
            msix_control: 0,
            intx: None,
            is_resetting: false,
        }
    }

    /// Shows a way by which the guest resets the function (Advanced Capabilities for Conventional
    /// PCI, ECN of 2006), if there is room for it in the list. The caller carries that out: see
    /// [`is_resetting`](Self::is_resetting).
    pub fn show_reset(&mut self) {
        self.list.add_reset();
    }

    /// Shows an interrupt pin (1 for INTA, to 4) and a line, for guests that use INTx. A pin of
    /// another number shows nothing.
    pub fn show_pin(&mut self, pin: u8, line: u8) {
        self.intx = matches!(pin, 1..=4).then_some(Intx { pin, line, placed: line });
    }

    /// Puts a BAR at a guest physical address, as firmware does, now and after each reset. False if
    /// there is no such BAR, or the address is not a multiple of its [length](Self::bar_len), or
    /// does not fit a BAR of 32 bits.
    pub fn place(&mut self, bar: u8, address: u64) -> bool {
        self.bars.place(bar.into(), address)
    }

    /// Bytes of the guest's memory that a BAR takes; `None` if there is no such BAR.
    pub fn bar_len(&self, bar: u8) -> Option<u64> {
        self.bars.len(bar.into())
    }

    /// Returns to the state after power-on; BARs are where [`place`](Self::place) put them.
    pub fn reset(&mut self) {
        self.is_resetting = false;
        self.command = 0;
        self.bars.reset();
        self.msix_control = 0;
        if let Some(msi) = &mut self.msi {
            msi.reset();
        }
        if let Some(table) = &mut self.table {
            table.reset();
        }
        if let Some(intx) = &mut self.intx {
            intx.line = intx.placed;
        }
    }

    /// The guest has begun to reset it. Nothing is decoded or enabled, and BARs are 0, as a
    /// function is after its reset; nobody has placed them.
    fn begin_reset(&mut self) {
        self.reset();
        self.bars.clear();
        self.is_resetting = true;
    }

    /// Whether the guest is resetting it. The caller resets the real function, which must do
    /// nothing meanwhile, and calls [`end_reset`](Self::end_reset). It need not be quick: the guest
    /// looks until the function answers.
    pub const fn is_resetting(&self) -> bool {
        self.is_resetting
    }

    /// The real function is reset: this one answers again.
    pub const fn end_reset(&mut self) {
        self.is_resetting = false;
    }

    /// Reads a double word of configuration space by its index (byte offset / 4).
    pub fn read(&self, index: u16) -> u32 {
        if self.is_resetting {
            return u32::MAX;
        }
        if usize::from(index) >= list::WORDS {
            return 0;
        }
        match index * 4 {
            register::ID => self.id,
            register::COMMAND => self.command | if self.list.first != 0 { HAS_CAPABILITIES } else { 0 },
            register::CLASS => self.class,
            at @ register::BAR..0x28 => self.bars.read(bar_number(at)),
            register::SUBSYSTEM => self.subsystem,
            register::CAPABILITIES => self.list.first.into(),
            register::INTERRUPT => {
                self.intx.map_or(0, |intx| u32::from(intx.line) | u32::from(intx.pin) << 8)
            }
            at if at < register::HEADER_END => 0,
            _ => self.list.word(index.into()) | self.read_capability(index.into()),
        }
    }

    /// The bits of a capability's double word that can be written.
    fn read_capability(&self, index: usize) -> u32 {
        if self.list.msix == Some(index) {
            return self.msix_control;
        }
        match (&self.msi, self.list.msi) {
            (Some(msi), Some(at)) if index >= at => msi.read(index - at),
            _ => 0,
        }
    }

    /// Writes the bits in `mask` of a double word of configuration space. Afterwards the caller
    /// follows.
    pub fn write(&mut self, index: u16, value: u32, mask: u32) {
        if usize::from(index) >= list::WORDS || self.is_resetting {
            return;
        }
        match index * 4 {
            register::COMMAND => set(&mut self.command, value, mask & COMMAND),
            at @ register::BAR..0x28 => self.bars.write(bar_number(at), value, mask),
            register::INTERRUPT => {
                if let Some(intx) = &mut self.intx {
                    let mask = mask as u8;
                    intx.line = intx.line & !mask | value as u8 & mask;
                }
            }
            at if at < register::HEADER_END => {}
            _ => self.write_capability(index.into(), value, mask),
        }
    }

    fn write_capability(&mut self, index: usize, value: u32, mask: u32) {
        if self.list.msix == Some(index) {
            set(&mut self.msix_control, value, mask & (MSIX_ENABLE | MSIX_MASK));
        } else if self.list.reset == Some(index) {
            if value & mask & INITIATE_FLR != 0 {
                self.begin_reset();
            }
        } else if let (Some(msi), Some(at)) = (&mut self.msi, self.list.msi)
            && index >= at
        {
            msi.write(index - at, value, mask);
        }
    }

    /// Where each BAR is in the guest's memory now, by its number.
    ///
    /// `None` if memory is not decoded, or the BAR is outside of the windows, overlaps another one
    /// of the function, or does not exist.
    pub fn bars(&self) -> [Option<Decoded>; BAR_COUNT] {
        if !self.has(CommandRegister::MEMORY_ENABLE) {
            return [None; BAR_COUNT];
        }
        self.bars.decoded(&self.windows)
    }

    /// Whether the function may do DMA, which includes sending messages.
    pub const fn is_bus_master(&self) -> bool {
        self.has(CommandRegister::BUS_MASTER_ENABLE)
    }

    const fn has(&self, bit: CommandRegister) -> bool {
        self.command & bit.bits() as u32 != 0
    }

    /// By what the function interrupts. If the guest enabled both MSI and MSI-X, which it must not
    /// (PCI, 6.8), it is MSI-X.
    pub const fn interrupts(&self) -> Interrupts {
        if self.msix_control & MSIX_ENABLE != 0 {
            return Interrupts::Msix;
        }
        match &self.msi {
            Some(msi) if msi.is_enabled() => Interrupts::Msi,
            _ if self.intx.is_some() && !self.has(CommandRegister::INTERRUPT_DISABLE) => Interrupts::Intx,
            _ => Interrupts::Off,
        }
    }

    /// Number of vectors: those of MSI-X if it has that, one if it has MSI only, or none.
    pub fn vector_count(&self) -> u16 {
        match (&self.table, &self.msi) {
            (Some(table), _) => table.vector_count(),
            (None, Some(_)) => 1,
            (None, None) => 0,
        }
    }

    /// The message that the guest gave a vector, if it is enabled and not masked now. It does not
    /// depend on [`is_bus_master`](Self::is_bus_master).
    ///
    /// MSI is vector 0.
    pub fn vector(&self, vector: u16) -> Option<Message> {
        match self.interrupts() {
            Interrupts::Msix if self.msix_control & MSIX_MASK == 0 => self.table.as_ref()?.message(vector),
            Interrupts::Msi if vector == 0 => self.msi.as_ref()?.message(),
            _ => None,
        }
    }

    /// Pages of BARs that must be trapped: [`Table::pages`]. They do not depend on what the guest
    /// does.
    pub fn trapped(&self) -> ArrayVec<Pages, 2> {
        self.table.as_ref().map(Table::pages).unwrap_or_default()
    }

    /// A read of 1 to 8 bytes in trapped pages of a BAR: [`Table::read`].
    pub fn trapped_read(&self, bar: u8, offset: u64, size: u8) -> Read {
        self.table.as_ref().map_or(Read::Elsewhere, |table| table.read(bar, offset, size))
    }

    /// A write of 1 to 8 bytes in trapped pages of a BAR: [`Table::write`].
    pub fn trapped_write(&mut self, bar: u8, offset: u64, size: u8, value: u64) -> Write {
        self.table.as_mut().map_or(Write::Elsewhere, |table| table.write(bar, offset, size, value))
    }
}

/// The number of a BAR by its register.
const fn bar_number(at: u16) -> usize {
    ((at - register::BAR) / 4) as usize
}

/// Replaces the bits in `mask`.
const fn set(bits: &mut u32, value: u32, mask: u32) {
    *bits = *bits & !mask | value & mask;
}
