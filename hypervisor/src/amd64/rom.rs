//! The memory behind the guest's expansion ROM, and its place among the guest's memory slots.

use core::slice;

use hostlink::counters::Counter;
use hostlink::rom;
use memslots::space::Report;
use memslots::{Gpa, PhysAddr, Slot, SlotError, SlotFlags, SlotId};
use paging::Progress;

use super::guest::allocate_pages;
use super::processor::Amd64;
use crate::devices::pc::pci::rom_device::RomLen;
use crate::vm::Vm;
use crate::vm::machine::{CounterRow, increase};
use crate::vm::space::{FlushScratch, MemoryJob};

/// Name of the ROM's slot; RAM has the first ones.
const SLOT: SlotId = SlotId(u16::MAX);
const PAGE: usize = 4096;

/// The ROM. Whoever writes to its device's registers holds its lock until [`follow`](Rom::follow)
/// is over, so that the slots follow in the order of the writes.
pub struct Rom {
    image: PhysAddr,
    len: RomLen,
    /// Where its slot is.
    base: Option<Gpa>,
}

impl Rom {
    /// A ROM with its contents, which the guest does not see yet.
    pub fn new(len: RomLen) -> Self {
        let bytes = len.bytes() as usize;
        let image = allocate_pages(bytes / PAGE);
        // SAFETY: the pages were just allocated for this, and no slot names them yet.
        let image_bytes = unsafe { slice::from_raw_parts_mut(image as *mut u8, bytes) };
        for (line, index) in image_bytes.chunks_exact_mut(rom::LINE as usize).zip(0..) {
            line.copy_from_slice(&rom::line(len.bytes(), index));
        }
        Self { image: PhysAddr(image), len, base: None }
    }

    /// Makes the slot be where the device decodes the ROM, and returns what that took; nothing if
    /// it is there already.
    ///
    /// # Errors
    ///
    /// [`Busy`] while another change of the slots is under way: the access that asks for this is to
    /// be tried again.
    pub fn follow<A: Amd64>(
        &mut self,
        vm: &Vm<A>,
        wanted: Option<Gpa>,
        scratch: &mut FlushScratch,
    ) -> Result<Option<Report>, Busy> {
        if self.base == wanted {
            return Ok(None);
        }
        let job = match (self.base, wanted) {
            (None, Some(base)) => {
                // SAFETY: the image comes from the heap, is mapped one to one, and is never given
                // back; nobody has a reference to it.
                unsafe { vm.space.add(self.slot(base)) }
            }
            (Some(_), Some(base)) => vm.space.move_to(SLOT, base),
            (_, None) => vm.space.remove(SLOT),
        };
        match job {
            Ok(job) => {
                let report = vm.finish_job(job, scratch);
                self.base = wanted;
                Ok(Some(report))
            }
            Err(SlotError::Busy) => Err(Busy),
            Err(error) => {
                // Memory that was added lies there, which the device decodes as well: it is seen,
                // not the ROM.
                log::debug!("the ROM is not seen: {error}");
                match self.base {
                    None => Ok(None),
                    Some(_) => self.follow(vm, None, scratch),
                }
            }
        }
    }

    fn slot(&self, gpa: Gpa) -> Slot {
        Slot { id: SLOT, gpa, size: self.len.bytes().into(), host: self.image, flags: SlotFlags::READ_ONLY }
    }
}

/// Another change of the slots is under way.
#[derive(Clone, Copy, Debug)]
pub struct Busy;

impl<A: Amd64> Vm<A> {
    /// Carries a short job through.
    fn finish_job(&self, mut job: MemoryJob<'_, A>, scratch: &mut FlushScratch) -> Report {
        while self.step_job(&mut job, scratch) != Progress::Done {}
        let report = job.report();
        drop(job);
        self.audit_if_paranoid();
        report
    }
}

/// Counts a job that a vCPU's access has caused.
pub fn count_job(counters: &CounterRow, report: &Report) {
    for (counter, amount) in [
        (Counter::SlotChanges, 1),
        (Counter::ZapVisited, report.visited),
        (Counter::ZapTables, report.tables),
        (Counter::ZapFlushes, report.flushes),
    ] {
        increase(&counters[counter as usize], amount);
    }
}
