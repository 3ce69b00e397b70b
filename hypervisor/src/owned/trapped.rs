//! Accesses to registers of owned functions that are not mapped: the table of MSI-X, and what
//! shares a page with it or with another function.

use memslots::Gpa;
use pci::Function;
use pci::msix::{Read, Write};

use super::functions::Functions;
use super::platform::{DeviceOwner, Platform};
use crate::vm::Vm;

struct Register {
    function: usize,
    bar: u8,
    offset: u64,
    /// The real BAR ends before this offset.
    real_len: u64,
}

/// The BAR that is decoded at an address.
fn find(functions: &[Function], gpa: Gpa) -> Option<Register> {
    functions.iter().enumerate().find_map(|(function, shown)| {
        (0..).zip(shown.bars()).find_map(|(bar, decoded)| {
            let decoded = decoded.filter(|decoded| decoded.range().contains(&gpa.0))?;
            let (offset, real_len) = (gpa.0 - decoded.address, decoded.real_len);
            Some(Register { function, bar, offset, real_len })
        })
    })
}

impl<P: Platform> Functions<P> {
    /// A read by the guest at an address without memory; `None` if none of the functions is there.
    pub fn trapped_read<A: DeviceOwner<Platform = P>>(&self, vm: &Vm<A>, gpa: Gpa, size: u8) -> Option<u64> {
        let (place, read) = A::with_shown(vm, |shown| {
            let place = find(shown, gpa)?;
            let read = shown.get(place.function)?.trapped_read(place.bar, place.offset, size);
            Some((place, read))
        })?;
        match read {
            Read::Value(value) => Some(value),
            Read::Elsewhere => {
                let address = self.real(&place, size)?;
                Some(self.machine?.bus.load(address, size))
            }
        }
    }

    /// A write by the guest at an address without memory; false if none of the functions is there.
    pub fn trapped_write<A: DeviceOwner<Platform = P>>(
        &mut self,
        vm: &'static Vm<A>,
        gpa: Gpa,
        size: u8,
        value: u64,
    ) -> bool {
        let to = A::receiver(vm);
        let found = A::with_shown(vm, |shown| {
            let place = find(shown, gpa)?;
            let function = shown.get_mut(place.function)?;
            let effect = function.trapped_write(place.bar, place.offset, size, value);
            if let Write::Vector(_) = effect {
                self.follow_function(to, place.function, function);
            }
            Some((place, effect))
        });
        let Some((place, effect)) = found else { return false };
        match effect {
            Write::Vector(_) => {}
            Write::Ignored => {}
            Write::Elsewhere => {
                if let (Some(address), Some(machine)) = (self.real(&place, size), self.machine) {
                    machine.bus.store(address, size, value);
                }
            }
        }
        true
    }

    /// Host physical address of an access that the real function gets.
    ///
    /// `None` in pages that the guest reaches directly, because the hypervisor has not mapped them:
    /// an access to one is emulated if its instruction accesses a trapped page, too, or if its slot
    /// is not there yet.
    fn real(&self, place: &Register, size: u8) -> Option<u64> {
        let end = place.offset.checked_add(size.into())?;
        let owned = self.owned.get(place.function)?;
        let bar = owned.given.bar(place.bar)?;
        let is_direct = owned.pieces.iter().any(|piece| piece.contains(place.bar, place.offset));
        (end <= place.real_len && !is_direct).then(|| bar + place.offset)
    }
}
