//! The operations that only a processor with VMX can do, and VMX as a [kind of processor](Vendor).

use coherence::CpuId;
use coherence::asid::{AsidAllocator, AsidSlot, TlbControl};
use core::cell::Cell;
use core::marker::PhantomData;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU16, Ordering};
use hostlink::architecture::Architecture;
use hostlink::config::Switches;
use memslots::space::LogWay;
use paging::{Ept, Level, Stamp};
use stay::tagged::two_flushes::{self, Invept, Invvpid, Roots, TwoFlushes};
use stay::tagged::{self, Mode};
use stay::{Mistake, Mistakes};

use super::capabilities::Capabilities;
use super::controls::{Controls, LISTS, VPID, Word};
use super::soft_state::Register;
use super::vmcs::Vmcs;
use super::{intercepts, table};
use crate::pages::Pages;
use crate::stopping::STOP;
use crate::vm::arch::{Arch, Board};
use crate::vm::defects::Defects;
use crate::vm::{Context, Host, Next, PerCpu, Vm};
use crate::x86::CR4_PAE;
use crate::x86::arch_impl::OnX86;
use crate::x86::cpuid::guest_cr4_mask;
use crate::x86::processor::{Processor, Vendor, X86};
use crate::x86::vcpu::block::{ControlBlock, Field};
use crate::x86::vcpu::registers::Registers;
use crate::x86::vcpu::state::{Permissions, VcpuState};

/// The operations that need an instruction of VMX.
pub trait Vmx: Processor {
    /// What the processors can do, and the controls that were chosen from that.
    fn chosen() -> (&'static Capabilities, Controls);
    /// VMREAD, of the current VMCS.
    fn vmread(field: u32) -> u64;
    /// A register of the guest that a VMCS does not have.
    fn read_soft(register: Register) -> u64;
    /// The vCPU arrives on the CPU: VMPTRLD.
    fn arrive(cpu: &PerCpu<Self>, vmcs: &mut Vmcs);
    /// The vCPU leaves the CPU: VMCLEAR.
    fn leave(vmcs: &mut Vmcs);
    /// Takes the interrupts that are pending, or runs the handler of the one that the exit has
    /// taken.
    fn release_interrupts(acknowledged: Option<u8>);
    /// Interrupts a CPU in guest mode, so that it takes what is posted.
    fn tell(cpu: &PerCpu<Self>);

    /// Writes the VMCS, VMLAUNCH or VMRESUME, and reads the VMCS after the exit. False if the entry
    /// fails.
    ///
    /// # Safety
    ///
    /// The block is complete, the registers are this vCPU's, and the nested tables that the block
    /// names map only the guest's own memory.
    unsafe fn run(cpu: &PerCpu<Self>, vmcs: &mut Vmcs, registers: &mut Registers) -> bool;

    /// INVVPID.
    fn invalidate(named: Invvpid);
    /// INVEPT.
    fn invalidate_nested(named: Invept);
    /// The roots of nested tables by which a CPU may hold translations.
    fn roots(cpu: &PerCpu<Self>) -> &Roots;
}

/// Intel 64 with VMX, as the code here sees it.
pub trait Intel64: Vmx + X86<Block = Vmcs> {}

impl<P: 'static> Intel64 for OnX86<OnVmx<P>> where Self: Vmx {}

/// Most VPIDs of a CPU's guests, set before there are any.
static VPIDS: AtomicU16 = AtomicU16::new(u16::MAX);

fn vpids() -> Option<NonZeroU32> {
    NonZeroU32::new(VPIDS.load(Ordering::Relaxed).into())
}

/// The processor `P`, whose guests run by VMX.
pub struct OnVmx<P>(PhantomData<P>);

struct Loaded<'a, A: Arch> {
    vm: &'a Vm<A>,
    cpu: &'a PerCpu<A>,
    vmcs: &'a mut Vmcs,
    registers: &'a mut Registers,
}

impl<A: Arch> Mistakes for Loaded<'_, A> {
    fn makes(&self, mistake: Mistake) -> bool {
        Defects.makes(mistake)
    }
}

impl<A: Vmx + X86<Block = Vmcs>> tagged::Processor for Loaded<'_, A> {
    fn id(&self) -> CpuId {
        CpuId(self.cpu.index.0)
    }

    /// What is owed is dropped at once: an entry drops nothing (29.4.3.3).
    #[inline(always)]
    fn set_tag(&mut self, asid: u32, control: TlbControl, changed: bool) {
        let vpid = two_flushes::begin_entry(self, asid, control, changed);
        self.vmcs.set_vpid(vpid);
    }

    /// RFLAGS.IF is 0 anyway, and an interrupt exits whatever it is: one that arrives from here on
    /// ends guest mode as soon as it begins.
    #[inline(always)]
    fn hold_interrupts(&mut self) {}

    fn run(&mut self) -> bool {
        self.vmcs.settle_step();
        #[cfg(any(test, feature = "audit"))]
        {
            let nested_root = self.vm.space.root().0;
            self.vmcs.own = Some(Permissions { nested_root, ..self.vm.guest.permissions() });
        }
        // SAFETY: the block is complete, the registers are this vCPU's; the nested tables map its
        // memory only.
        let has_run = unsafe { A::run(self.cpu, self.vmcs, self.registers) };
        self.vmcs.leave(has_run);
        self.cpu.last_exit.store(self.vmcs.code, Ordering::Relaxed);
        if self.vm.space.has_lists() && has_run {
            // Before others can see that the stay is over.
            self.vmcs.mark_listed(self.vm.space.slots());
        }
        has_run
    }

    fn take_interrupts(&mut self) {
        A::release_interrupts(self.vmcs.take_acknowledged());
    }

    fn invalidate_page(&mut self, address: u64, asid: u32) {
        two_flushes::invalidate_page(self, address, asid);
    }

    fn owe_nested_flush(&mut self) {
        two_flushes::owe_nested(self);
    }

    /// INVVPID of an address drops it of all PCIDs.
    fn mode(&self) -> Mode {
        let pae = self.vmcs.read(Field::Cr4) & CR4_PAE != 0;
        Mode { pcid: false, pae, pieces: self.vm.space.has_pieces() }
    }
}

impl<A: Vmx + X86<Block = Vmcs>> TwoFlushes for Loaded<'_, A> {
    #[inline(always)]
    fn has_vpids(&self) -> bool {
        self.vmcs.control(Word::Secondary, VPID)
    }

    fn invvpid(&self, named: Invvpid) {
        A::invalidate(named);
    }

    fn invept(&self, named: Invept) {
        A::invalidate_nested(named);
    }

    #[inline(always)]
    fn nested_debt(&self) -> &Cell<bool> {
        &self.vmcs.nested_debt
    }

    #[inline(always)]
    fn roots(&self) -> &Roots {
        A::roots(self.cpu)
    }

    #[inline(always)]
    fn stamp(&self) -> Stamp {
        self.vm.space.stamp()
    }
}

// SAFETY: `Vmx::run` is called by `Loaded` alone, with the block and registers of one vCPU. INVVPID
// and INVEPT drop what is named before they are complete.
unsafe impl<P: 'static> Vendor for OnX86<OnVmx<P>>
where
    Self: Vmx,
{
    const ARCHITECTURE: Architecture = Architecture::Intel64;
    const HYPERCALL: [u8; 3] = [0x0f, 0x01, 0xc1];

    type Nested = Ept;
    type Block = Vmcs;

    fn largest_page() -> Level {
        Self::chosen().0.largest_page()
    }

    fn log_way() -> LogWay {
        if Self::chosen().1.has(Word::Secondary, LISTS) { LogWay::Lists } else { LogWay::DirtyBits }
    }

    fn heed(switches: &Switches) {
        VPIDS.store(switches.vpids.unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    fn tags(cpu: CpuId) -> AsidAllocator {
        AsidAllocator::new(cpu, vpids().unwrap_or(NonZeroU32::MIN), true)
    }

    fn permission_maps() -> [Pages; 2] {
        intercepts::permission_maps::<Self>()
    }

    fn has_apic() -> bool {
        Self::chosen().1.apic
    }

    fn takes_posted() -> bool {
        Self::chosen().1.posted
    }

    fn tell(cpu: &PerCpu<Self>) {
        <Self as Vmx>::tell(cpu);
    }

    fn set_up(vmcs: &mut Vmcs, permissions: &Permissions) {
        let read = (Self::vmread as _, Self::read_soft as _);
        let (capabilities, controls) = Self::chosen();
        let controls = if vpids().is_some() { controls } else { controls.without(Word::Secondary, VPID) };
        vmcs.set_up((capabilities, controls), guest_cr4_mask::<Self>(), permissions, read);
    }

    fn next_rip(vmcs: &Vmcs) -> Option<u64> {
        Some(vmcs.next_rip())
    }

    /// VMX does not say.
    fn fetched(_: &Vmcs) -> &[u8] {
        &[]
    }

    fn loaded<'a>(
        vm: &'a Vm<Self>,
        cpu: &'a PerCpu<Self>,
        state: &'a mut VcpuState<Vmcs>,
    ) -> (impl tagged::Processor + 'a, &'a mut AsidSlot) {
        let VcpuState { block: vmcs, registers, own, .. } = state;
        (Loaded { vm, cpu, vmcs, registers }, own)
    }

    fn handle_exit(context: &mut Context<'_, Self>) -> Next {
        table::handle_exit(context)
    }

    fn holds_root(root: u64, cpu: &PerCpu<Self>) -> bool {
        <Self as Vmx>::roots(cpu).holds(root)
    }

    fn let_go(cpu: &PerCpu<Self>)
    where
        Self: Arch,
    {
        if <Self as Board>::host().is_some_and(Host::is_leaving) {
            <Self as Vmx>::roots(cpu).let_go(&Defects, <Self as Vmx>::invalidate_nested);
        }
    }

    #[inline(always)]
    fn arrive(context: &mut Context<'_, Self>) {
        context.state.block.apic.posted = core::ptr::from_ref(context.vcpu.inbox.posted()).addr() as u64;
        <Self as Vmx>::arrive(context.cpu, &mut context.state.block);
    }

    #[inline(always)]
    fn leave(context: &mut Context<'_, Self>) {
        if context.vm.attention() & STOP != 0 {
            context.state.block.read_all();
        }
        <Self as Vmx>::leave(&mut context.state.block);
    }
}
