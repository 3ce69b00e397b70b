//! What the vCPUs of a guest share, written or read by its description, and what the guest sees of
//! the processor.

use coherence::tlbi::Stage2Tlb;
use migration::{Archive, Described, Flaw};

use super::{QUEUE_MAX, Shared, Uart, identity};
use crate::arm64::processor::Arm64;
use crate::vm::Vm;

/// Describes what the guest's vCPUs share. Its memory is as the stream says already.
///
/// # Errors
///
/// What is wrong with it.
pub fn describe<A: Arm64>(vm: &Vm<A>, archive: &mut Archive<'_>) -> Result<(), Flaw> {
    identity::compare::<A>(&vm.guest.former, archive)?;
    archive.same("CNTFRQ_EL0", A::hz()).map_err(Flaw::of_rates)?;
    archive.same("width of physical addresses", A::physical_address_bits().into())?;
    vm.guest.describe(archive)
}

/// Memory has been written, and cleaned where that is needed, that a guest will execute: no CPU has
/// instructions from before. The guest's own cache maintenance for them was elsewhere, or never.
pub fn drop_instructions<A: Arm64>() {
    A::TLB.instruction_cache();
    A::TLB.complete();
    A::TLB.context_sync();
}

impl Shared {
    fn describe(&self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Self {
            distributor,
            uart,
            rtc,
            pci,
            // A guest that owns functions is not described.
            owned: _,
            mirror: _,
            has_functions: _,
            wires: _,
            // The machine's, and the configuration's.
            common: _,
            former: _, // What the guest sees has been compared.
            vmid_churn: _,
            ns_per_tick: _,
            setup: _,
            configuration: _,
            local_maintenance: _,
            vcpus: _,
            // Nobody has used its tag.
            tag: _,
            root: _,
        } = self;
        distributor.lock().describe(archive)?;
        uart.lock().describe(archive)?;
        rtc.lock().describe(archive)?;
        pci.lock().describe(archive)
    }
}

impl Described for Uart {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Self { device, waiting } = self;
        device.describe(archive)?;
        archive.list(waiting, QUEUE_MAX)?;
        waiting.reserve(QUEUE_MAX - waiting.len());
        Ok(())
    }
}
