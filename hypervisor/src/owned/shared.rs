//! The functions by which a guest reaches memory that it shares with others. They are made up, and
//! compatible with QEMU's device `ivshmem-doorbell` of revision 1 (`docs/specs/ivshmem-spec.rst`):
//!
//! | BAR | contents |
//! |---|---|
//! | 0 | registers, 256 bytes |
//! | 1 | table of MSI-X and pending bits, where guests see messages |
//! | 2 | the memory |
//!
//! They are on the guest's bus behind the functions of the machine that it owns.

use alloc::vec::Vec;
use pci::function::{Interrupts as Wanted, Windows};
use pci::msix::{PAGE_LEN, Read, Write};
use pci::physical::{Bar, BarKind, BarPlace, Capabilities, Header, Identity, Msix};
use pci::{Address, Function, Physical};

use super::functions::{Claim, Functions, show};
use super::platform::Platform;
use super::slots::{BarPiece, Kind, pieces};
use crate::vm::shared::{Link, Messages, VECTORS};

/// What it is: Red Hat's device "Inter-VM shared memory", of class RAM.
const VENDOR: u16 = 0x1af4;
const DEVICE: u16 = 0x1110;
const SUBSYSTEM: u16 = 0x1100;
const CLASS: u32 = 0x05_0000;
const REVISION: u8 = 1;

const REGISTERS: u8 = 0;
const REGISTERS_LEN: u64 = 256;
const TABLE: u8 = 1;
/// Offset of the pending bits in the BAR of the table.
const PENDING: u32 = 0x800;
const MEMORY: usize = 2;
/// Offset of the capability MSI-X.
const CAPABILITY: u8 = 0x40;

/// A guest's function for one region.
pub(super) struct Shared {
    link: Link,
    /// The memory among the guest's slots.
    pub(super) pieces: Vec<BarPiece>,
}

/// The function as a real one would be described.
fn describe(link: &Link, has_messages: bool) -> Physical {
    let identity = Identity {
        vendor: VENDOR,
        device: DEVICE,
        class: CLASS,
        revision: REVISION,
        subsystem_vendor: VENDOR,
        subsystem: SUBSYSTEM,
        header: Header::Endpoint,
        is_multi_function: false,
    };
    let registers = |size| Some(Bar { kind: BarKind::Memory32, is_prefetchable: false, address: 0, size });
    let memory = link.memory();
    let mut bars = [None; 6];
    let [first, second, third, ..] = &mut bars;
    *first = registers(REGISTERS_LEN);
    *second = registers(PAGE_LEN).filter(|_| has_messages);
    *third = Some(Bar {
        kind: BarKind::Memory64,
        is_prefetchable: true,
        address: memory.start,
        size: memory.end - memory.start,
    });
    let msix = has_messages.then_some(Msix {
        offset: CAPABILITY,
        vectors: VECTORS,
        table: BarPlace { bar: TABLE, offset: 0 },
        pending: BarPlace { bar: TABLE, offset: PENDING },
    });
    let capabilities = Capabilities { msix, ..Capabilities::default() };
    // It is nowhere on the real machine: the address means nothing.
    Physical { address: Address::default(), identity, bars, capabilities, pin: 0 }
}

impl Shared {
    /// The interrupts follow what the guest wants.
    pub(super) fn follow(&self, wanted: &Function) {
        let message = |vector| wanted.vector(vector);
        let mut messages = Messages::default();
        (0..).zip(&mut messages).for_each(|(vector, place)| *place = message(vector));
        let is_on = wanted.interrupts() == Wanted::Msix && wanted.is_bus_master();
        self.link.follow(is_on.then_some(messages), wanted.interrupts() == Wanted::Intx);
    }

    /// The state after power-on.
    pub(super) fn reset(&self) {
        self.link.reset();
    }

    /// Reads `size` bytes at an offset of a BAR that is not mapped.
    pub(super) fn read(&self, read: Read, (bar, offset): (u8, u64), size: u8) -> Option<u64> {
        match read {
            Read::Value(value) => Some(value),
            Read::Pending => Some(self.link.pending() >> (offset % 8 * 8)),
            Read::Elsewhere if is_register(bar, offset, size) => Some(self.link.read(offset).into()),
            Read::Elsewhere => None,
        }
    }

    /// Writes there.
    pub(super) fn write(&self, write: Write, (bar, offset): (u8, u64), size: u8, value: u64) {
        if write == Write::Elsewhere && is_register(bar, offset, size) {
            self.link.write(offset, value as u32);
        }
    }
}

/// Registers are accessed as a whole.
const fn is_register(bar: u8, offset: u64, size: u8) -> bool {
    bar == REGISTERS && size == 4 && offset.is_multiple_of(4) && offset < REGISTERS_LEN
}

impl<P: Platform> Claim<P> {
    /// Adds a function for each region that the guest shares.
    #[inline(never)] // What it needs on the stack is free again when it returns.
    pub fn share(&mut self, links: Vec<Link>, windows: &Windows) {
        for link in links {
            let physical = describe(&link, P::SHOWS_MESSAGES);
            show(&mut self.shown, &physical, (windows, true));
            let mut pieces = self.shown.last().map_or_else(Vec::new, |shown| pieces(&physical, shown));
            pieces.retain_mut(|piece| {
                piece.kind = Kind::Memory;
                usize::from(piece.bar) == MEMORY
            });
            self.functions.shared.push(Shared { link, pieces });
        }
    }
}

impl<P: Platform> Functions<P> {
    /// The regions that the guest shares, with the indices of their functions.
    pub(crate) fn links(&self) -> impl Iterator<Item = (usize, &Link)> {
        (self.owned.len()..).zip(self.shared.iter().map(|shared| &shared.link))
    }

    /// The function of this index, if it is one for a region.
    pub(super) fn shared_at(&self, index: usize) -> Option<&Shared> {
        self.shared.get(index.checked_sub(self.owned.len())?)
    }
}
