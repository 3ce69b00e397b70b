//! The memory behind the guest's expansion ROM, and its place among the guest's memory slots.

use hostlink::rom;
use memslots::{Gpa, PhysAddr, Slot, SlotError, SlotFlags};
use migration::described;

use crate::devices::pc::pci::rom_device::RomLen;
use crate::owned::{Busy, Followed};
use crate::pages::Pages;
use crate::vm::shown::DEVICE_SLOT as SLOT;
use crate::vm::{PerCpu, Vm, VpIndex};
use crate::x86::processor::X86;

const PAGE: usize = 4096;

/// The ROM. A CPU that writes to the device's registers holds the lock until
/// [`follow`](Rom::follow) has begun the change, so that the slots change in the order of the
/// writes.
#[derive(Debug)]
pub struct Rom {
    image: Pages,
    len: RomLen,
    /// Address of its slot.
    base: Option<Gpa>,
}

// Its contents follow from its length, and its slot from the device's registers.
described!(Rom: ; same len; stays image, base);

impl Rom {
    /// A ROM with its contents, not yet visible to the guest.
    pub fn new(len: RomLen) -> Self {
        let image = Pages::filled(len.bytes() as usize / PAGE, |image| {
            for (line, index) in image.chunks_exact_mut(rom::LINE as usize).zip(0..) {
                line.copy_from_slice(&rom::line(len.bytes(), index));
            }
        });
        Self { image, len, base: None }
    }

    /// Moves the slot to where the device decodes the ROM.
    ///
    /// # Errors
    ///
    /// [`Busy`] while another change of the slots is in progress: the access that caused this must
    /// be retried.
    pub fn follow<A: X86>(
        &mut self,
        vm: &'static Vm<A>,
        cpu: &PerCpu<A>,
        by: VpIndex,
        wanted: Option<Gpa>,
    ) -> Result<Followed, Busy> {
        if vm.is_changing() {
            return Err(Busy);
        }
        if self.base == wanted {
            return Ok(Followed::WasThere);
        }
        let job = match (self.base, wanted) {
            (None, Some(base)) => {
                // SAFETY: the image comes from the heap, is mapped one to one, and is freed with
                // the guest, whose slots are gone then; there are no references to it.
                unsafe { vm.space.add(self.slot(base)) }
            }
            (Some(_), Some(base)) => vm.space.move_to(SLOT, base),
            (_, None) => vm.space.remove(SLOT),
        };
        match job {
            Ok(job) => {
                self.base = wanted;
                vm.begin_change(cpu, by, job);
                Ok(Followed::Goes)
            }
            Err(SlotError::Busy) => Err(Busy),
            Err(error) => {
                // Added memory is at this address, which the device decodes as well: the memory is
                // visible, not the ROM.
                log::debug!("the ROM is not seen: {error}");
                match self.base {
                    None => Ok(Followed::WasThere),
                    Some(_) => self.follow(vm, cpu, by, None),
                }
            }
        }
    }

    fn slot(&self, gpa: Gpa) -> Slot {
        Slot {
            id: SLOT,
            gpa,
            size: self.len.bytes().into(),
            host: PhysAddr(self.image.start()),
            flags: SlotFlags::READ_ONLY,
        }
    }
}
