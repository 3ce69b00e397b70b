//! Registers of owned functions among the guest's memory slots.

use alloc::vec::Vec;
use memslots::{Gpa, PhysAddr, Slot, SlotError, SlotFlags, SlotId};
use pci::function::Decoded;
use pci::msix::PAGE_LEN;
use pci::{Function, Physical};

use super::functions::Functions;
use super::platform::{DeviceOwner, Platform};
use crate::vm::shown::DEVICE_SLOT;
use crate::vm::{PerCpu, Vm, VpIndex};

/// A range of a BAR that the guest reaches directly: whole pages, none of them trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BarPiece {
    pub(super) bar: u8,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Host physical address.
    host: u64,
    /// Where its slot is.
    at: Option<Gpa>,
    /// Where it could not be when that was last tried: memory was there.
    refused: Option<Gpa>,
}

pub(super) type Bars = [Option<Decoded>; 6];

/// The pieces of a function's BARs. BARs of less than a page have none: the rest of the page may be
/// another function's.
pub(super) fn pieces(physical: &Physical, shown: &Function) -> Vec<BarPiece> {
    let mut pieces = Vec::new();
    for (number, bar) in (0..).zip(&physical.bars) {
        let Some(bar) = bar.filter(|bar| bar.is_memory() && bar.size >= PAGE_LEN) else { continue };
        if !bar.address.is_multiple_of(PAGE_LEN) {
            continue;
        }
        let trapped = shown.trapped();
        let mut trapped: Vec<_> =
            trapped.iter().filter(|pages| pages.bar == number).map(|pages| pages.offsets.clone()).collect();
        trapped.sort_by_key(|offsets| offsets.start);
        let mut from = 0;
        for end in trapped.into_iter().chain(core::iter::once(bar.size..bar.size)) {
            if end.start > from {
                let (offset, len, host) = (from, end.start - from, bar.address + from);
                pieces.push(BarPiece { bar: number, offset, len, host, at: None, refused: None });
            }
            from = end.end;
        }
    }
    pieces
}

impl<P: Platform> Functions<P> {
    /// Bytes of the slots of owned functions, if all are decoded.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.owned.iter().flat_map(|owned| &owned.pieces).map(|piece| piece.len).sum()
    }

    /// Moves the slot of each piece to where a function's BARs decode it, by the function's index.
    /// One change at a time is possible.
    ///
    /// # Errors
    ///
    /// [`Busy`] if others remain, or another change is in progress.
    pub(super) fn follow_slots<A: DeviceOwner<Platform = P>>(
        &mut self,
        vm: &'static Vm<A>,
        cpu: &PerCpu<A>,
        by: VpIndex,
        bars_of: impl Fn(usize) -> Bars,
    ) -> Result<Followed, Busy> {
        let mut number = 0;
        let mut begun = false;
        for (index, owned) in self.owned.iter_mut().enumerate() {
            let bars = bars_of(index);
            for piece in &mut owned.pieces {
                number += 1;
                let id = SlotId(DEVICE_SLOT.0 - number);
                let decoded = bars.get(usize::from(piece.bar)).copied().flatten();
                let wanted = decoded.map(|decoded| Gpa(decoded.address + piece.offset));
                if wanted == piece.at {
                    continue;
                }
                if begun || vm.is_changing() {
                    return Err(Busy);
                }
                begun = piece.follow(vm, cpu, by, id, wanted)?;
                if piece.at != wanted && piece.refused != wanted {
                    // It was removed first.
                    return Err(Busy);
                }
            }
        }
        Ok(if begun { Followed::Goes } else { Followed::WasThere })
    }
}

impl BarPiece {
    pub(super) fn contains(&self, bar: u8, offset: u64) -> bool {
        self.bar == bar && (self.offset..self.offset + self.len).contains(&offset)
    }

    /// Begins one change; returns whether there was one to begin.
    fn follow<A: DeviceOwner>(
        &mut self,
        vm: &'static Vm<A>,
        cpu: &PerCpu<A>,
        by: VpIndex,
        id: SlotId,
        wanted: Option<Gpa>,
    ) -> Result<bool, Busy> {
        self.refused = None;
        let (job, at) = match (self.at, wanted) {
            (None, None) => return Ok(false),
            (None, Some(gpa)) => {
                let (size, host) = (self.len, PhysAddr(self.host));
                // SAFETY: a device's slot is not accessed by software, and the registers are the
                // guest's own function's, which stays its own until the slot is gone.
                (unsafe { vm.space.add(Slot { id, gpa, size, host, flags: SlotFlags::DEVICE }) }, wanted)
            }
            (Some(_), _) => (vm.space.remove(id), None),
        };
        match job {
            Ok(job) => {
                self.at = at;
                vm.begin_change(cpu, by, job);
                Ok(true)
            }
            Err(SlotError::Busy) => Err(Busy),
            Err(error) => {
                // Memory is at this address: it is visible, not the device.
                log::debug!("a device's registers are not seen: {error}");
                self.refused = wanted;
                Ok(false)
            }
        }
    }
}

/// The state of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It was in place before.
    WasThere,
    /// The [change](Vm::begin_change) has begun.
    Goes,
}

/// Another change of the slots is in progress.
#[derive(Clone, Copy, Debug)]
pub struct Busy;
