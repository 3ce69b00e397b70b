//! SVM as a [kind of processor](Vendor).

use coherence::CpuId;
use coherence::asid::{AsidAllocator, AsidSlot};
use core::marker::PhantomData;
use hostlink::architecture::Architecture;
use hostlink::config::Switches;
use memslots::GuestMemory;
use migration::Flaw;
use paging::{Amd64Nested, Level};
use stay::tagged::Processor;

use super::loaded::Loaded;
use super::processor::Svm;
use super::vmcb::{Vmcb, clean};
use super::{intercepts, nested, table};
use crate::pages::Pages;
use crate::vm::{Context, Next, PerCpu, Vm};
use crate::x86::arch_impl::OnX86;
use crate::x86::cpuid;
use crate::x86::hyperv::cpuid::CpuidResult;
use crate::x86::processor::Vendor;
use crate::x86::vcpu::state::{Permissions, VcpuState};

/// ASIDs of a guest's guests, its own among them.
const INNER_TAGS: u32 = 0x8000;

/// The processor `P`, whose guests run by SVM.
pub struct OnSvm<P>(PhantomData<P>);

// SAFETY: `Svm::run` is called by `Loaded` alone, with the block and registers of one vCPU. It
// drops what the tag that was set before says, and INVLPGA what it names.
unsafe impl<P: 'static> Vendor for OnX86<OnSvm<P>>
where
    Self: Svm,
{
    const ARCHITECTURE: Architecture = Architecture::Amd64;
    const HYPERCALL: [u8; 3] = [0x0f, 0x01, 0xd9];

    type Nested = Amd64Nested;
    type Block = Vmcb;

    fn largest_page() -> Level {
        if cpuid::host_has_1g_pages::<Self>() { Level::Page1G } else { Level::Page2M }
    }

    fn heed(switches: &Switches) {
        if switches.pretend {
            Self::pretend();
        }
    }

    fn tags(cpu: CpuId) -> AsidAllocator {
        AsidAllocator::new(cpu, <Self as Svm>::tags(), Self::features().flush_by_asid())
    }

    fn permission_maps() -> [Pages; 2] {
        intercepts::permission_maps::<Self>()
    }

    fn set_up(vmcb: &mut Vmcb, permissions: &Permissions) {
        vmcb.set_up(permissions, Self::features());
    }

    #[inline(always)]
    fn next_rip(vmcb: &Vmcb) -> Option<u64> {
        (Self::features().next_rip() && vmcb.next_rip != 0).then_some(vmcb.next_rip)
    }

    #[inline(always)]
    fn fetched(vmcb: &Vmcb) -> &[u8] {
        let count = if Self::features().decode_assists() { usize::from(vmcb.fetched_count) } else { 0 };
        vmcb.fetched_bytes.get(..count).unwrap_or(&vmcb.fetched_bytes)
    }

    #[inline(always)]
    fn loaded<'a>(
        vm: &'a Vm<Self>,
        cpu: &'a PerCpu<Self>,
        state: &'a mut VcpuState<Vmcb>,
    ) -> (impl Processor + 'a, &'a mut AsidSlot) {
        Loaded::of(vm, cpu, state)
    }

    /// So many ASIDs that the guest seldom has to begin anew; flushes of one of them; the address
    /// of the next instruction, where the processor has it.
    fn inner_leaf() -> CpuidResult {
        let features = Self::features().offered().0;
        CpuidResult { eax: 1, ebx: INNER_TAGS, ecx: 0, edx: features }
    }

    #[inline(always)]
    fn enter_inner(context: &mut Context<'_, Self>) -> Option<bool> {
        if context.state.own.enters_inner() { nested::enter_inner(context) } else { None }
    }

    fn leave_to_move(state: &mut VcpuState<Vmcb>, memory: &GuestMemory<'_>) -> Result<(), Flaw> {
        nested::leave_to_move::<Self>(state, memory)
    }

    #[inline(always)]
    fn owe_inner(context: &mut Context<'_, Self>) {
        if context.state.own.nested.is_some() {
            context.state.own.owe_inner();
        }
    }

    #[inline(always)]
    fn handle_exit(context: &mut Context<'_, Self>) -> Next {
        table::handle_exit(context)
    }

    #[inline(always)]
    fn arrive(context: &mut Context<'_, Self>) {
        context.state.block.mark_dirty(clean::ALL);
    }

    #[inline(always)]
    fn leave(context: &mut Context<'_, Self>) {
        context.state.own.auditor.leave::<Self>();
    }
}
