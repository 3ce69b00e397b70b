//! What is saved and moved (N23). L2 is left before: then all of it is in VMCB12, and no stream has
//! an L2. Contexts and shadows are each machine's own.

use memslots::{Gpa, GuestMemory};
use migration::{Archive, Described, Flaw};

use super::events::exit_now;
use super::exit::{INTERRUPT, end_window, give_back};
use super::instructions::{VM_CR_DISABLED, VM_CR_LOCK};
use super::{Nested, Now};
use crate::svm::intercepts::misc1;
use crate::svm::processor::Amd64;
use crate::svm::step;
use crate::svm::vmcb::Vmcb;
use crate::x86::vcpu::state::{Activity, VcpuState};

/// Where EXITCODE is.
const CODE: u64 = 0x70;

/// A vCPU that is on no CPU leaves L2, if it is there: by the exit that is due, or as if an
/// interrupt had come, of which L1 finds none. What was being delivered is in EXITINTINFO.
///
/// # Errors
///
/// L1 does not ask for interrupts: it would not understand the exit. VMCB12 is no memory: L1 shuts
/// down when L2 exits.
#[cold]
pub(in crate::svm) fn leave_to_move<A: Amd64>(
    state: &mut VcpuState<Vmcb>,
    memory: &GuestMemory<'_>,
) -> Result<(), Flaw> {
    if !state.own.now.contains(Now::INSIDE) {
        return Ok(());
    }
    let Some(nested) = state.own.nested.as_deref() else { return Ok(()) };
    let wants = nested.wants(misc1::INTR);
    let code = Gpa(nested.inside.as_ref().map_or(0, |inside| inside.at.0) + CODE);
    // One page has all of it. This is looked at before anything of L2's is taken.
    if memory.read_u32(code).and_then(|value| memory.write_u32(code, value)).is_err() {
        return Err(Flaw::Unmovable("the control block of a guest of its own is no memory"));
    }
    step::end(state);
    end_window(state);
    let exit = exit_now(state, INTERRUPT);
    if exit.code == INTERRUPT && !wants {
        return Err(Flaw::Unmovable("a guest of its own has its interrupts"));
    }
    let _written = give_back::<A>(state, memory, exit);
    // An interrupt ends a halt.
    state.activity = Activity::Running;
    Ok(())
}

impl Nested {
    /// Describes what L1 has, whose global interrupt flag is 0 if it `holds` events. Physical
    /// addresses have `width` bits.
    pub(super) fn describe(
        &mut self,
        holds: &mut bool,
        width: u32,
        archive: &mut Archive<'_>,
    ) -> Result<(), Flaw> {
        if self.inside.is_some() {
            return Err(Flaw::Unmovable("a guest of its own runs"));
        }
        archive.within(&mut self.vm_cr, VM_CR_LOCK | VM_CR_DISABLED).map_err(|flaw| flaw.named("VM_CR"))?;
        let pages = (1 << width) - (1 << 12);
        archive.within(&mut self.host_save, pages).map_err(|flaw| flaw.named("VM_HSAVE_PA"))?;
        let may = self.vm_cr & VM_CR_DISABLED == 0;
        archive.fixed(&mut self.svme, |svme| svme && may).map_err(|flaw| flaw.named("EFER.SVME"))?;
        let may = self.svme;
        archive.fixed(holds, |holds| holds && may).map_err(|flaw| flaw.named("the interrupt flag of SVM"))?;
        self.held.describe(archive).map_err(|flaw| flaw.named("INIT"))
    }
}
