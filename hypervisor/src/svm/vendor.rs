//! SVM as a [kind of processor](Vendor).

use core::marker::PhantomData;

use coherence::CpuId;
use coherence::asid::AsidAllocator;
use paging::Amd64Nested;

use super::processor::Svm;
use super::vmcb::Vmcb;
use super::{enter, intercepts, table};
use crate::pages::Pages;
use crate::vm::{Context, Next};
use crate::x86::offer::OnX86;
use crate::x86::processor::Vendor;
use crate::x86::vcpu::state::Permissions;

/// The processor `P`, whose guests run by SVM.
pub struct OnSvm<P>(PhantomData<P>);

// SAFETY: `Svm::run` is called in `enter::enter` alone, for the owner's guest. `enter::take_flush`
// drops what is named, or notes that the vCPU's next entry drops all translations of its ASID,
// before it completes.
unsafe impl<P: 'static> Vendor for OnX86<OnSvm<P>>
where
    Self: Svm,
{
    type Nested = Amd64Nested;
    type Block = Vmcb;

    fn pretend() {
        <Self as Svm>::pretend();
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
    fn fetched(vmcb: &Vmcb) -> &[u8] {
        let count = if Self::features().decode_assists() { usize::from(vmcb.fetched_count) } else { 0 };
        vmcb.fetched_bytes.get(..count).unwrap_or(&vmcb.fetched_bytes)
    }

    #[inline(always)]
    fn enter(context: &mut Context<'_, Self>) -> bool {
        enter::enter(context)
    }

    fn take_flush(context: &mut Context<'_, Self>) {
        enter::take_flush(context);
    }

    #[inline(always)]
    fn handle_exit(context: &mut Context<'_, Self>) -> Next {
        table::handle_exit(context)
    }

    #[inline(always)]
    fn leave(context: &mut Context<'_, Self>) {
        context.state.own.auditor.leave::<Self>();
    }
}
