//! The operations that only an x86-64 processor can do, the machine around it, and what differs
//! between the kinds of processors that run guests.

use coherence::CpuId;
use coherence::asid::{AsidAllocator, AsidSlot};
use core::ptr::NonNull;
use hostlink::architecture::Architecture;
use hostlink::config::Switches;
use memslots::GuestMemory;
use memslots::space::LogWay;
use migration::Flaw;
use paging::{Format, Level};
use stay::Cost;
use tlfs::XMM_WORDS;

use super::arch_impl::OnX86;
use super::guest::{Common, Shared};
use super::hyperv::cpuid::CpuidResult;
use super::vcpu::block::ControlBlock;
use super::vcpu::signals::Workspace;
use super::vcpu::state::{Permissions, VcpuState};
use crate::devices::pc::inbox::Inbox;
use crate::devices::pc::platform::SerialPort;
use crate::iommu::messages::{MachineDevices, Remapping};
use crate::owned::DeviceOwner;
use crate::pages::Pages;
use crate::vm::arch::{Arch, Board};
use crate::vm::memory::NestedTables;
use crate::vm::{Context, Next, PerCpu, Vm};

/// The operations that need an instruction of the processor or a port of the machine, whatever runs
/// its guests.
///
/// `arch/x86_64` implements it on bare metal, and a mock processor in tests. Each operation acts on
/// the calling CPU, and is complete when it returns. Operations that must be called in a certain
/// order say so.
pub trait Processor: Board {
    /// The machine's PCI functions and IOMMUs, if there are any that guests may own.
    fn devices() -> Option<&'static MachineDevices>;
    /// The processor's own CPUID. Extended states are those of the XCR0 that is in the processor.
    fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult;

    /// Bits of CPUID leaf 1's ECX that guests are not shown because the machine implements the
    /// feature incorrectly.
    fn wrong() -> u32;

    /// The revision of the processor's microcode.
    fn patch_level() -> u64;
    /// Whether the processor has the TSC_AUX register.
    fn has_tsc_aux() -> bool;

    /// TSC_AUX, which holds the guest's value from [`write_tsc_aux`](Self::write_tsc_aux) on. Not
    /// called where the register is missing.
    fn read_tsc_aux() -> u64;

    /// Writes TSC_AUX. Not called where the register is missing.
    fn write_tsc_aux(value: u64);

    /// DR0 to DR3, which hold the guest's values from
    /// [`write_breakpoints`](Self::write_breakpoints) on.
    fn read_breakpoints() -> [u64; 4];

    /// Writes DR0 to DR3.
    fn write_breakpoints(addresses: [u64; 4]);
    /// Components of the extended state that the processor can save; 0 without XSAVE.
    fn components() -> u64;
    /// Size in bytes of an image of all components.
    fn fpu_size() -> usize;
    /// XCR0, which holds the guest's value while its vCPU is on the CPU. Not called without XSAVE.
    fn read_xcr0() -> u64;

    /// Writes XCR0 with a value that the [`components`](Self::components) allow. Not called without
    /// XSAVE.
    fn write_xcr0(value: u64);

    /// Loads the floating-point and vector registers, all [components](Self::components) of them.
    /// XCR0 has all components enabled.
    ///
    /// # Safety
    ///
    /// The area has [`fpu_size`](Self::fpu_size) bytes, is aligned to 64, and holds what
    /// [`save_fpu`](Self::save_fpu) stored, or zeros except for the control words of an image.
    unsafe fn load_fpu(area: NonNull<u8>);

    /// Stores the floating-point and vector registers. XCR0 has all components enabled.
    ///
    /// # Safety
    ///
    /// The area has [`fpu_size`](Self::fpu_size) bytes, is aligned to 64, and is not otherwise in
    /// use.
    unsafe fn save_fpu(area: NonNull<u8>);

    /// XMM0 to XMM5 of the vCPU on this CPU: the hypervisor uses none of them.
    fn xmm_words() -> [u64; XMM_WORDS];
    /// Measures the cost of flushes on the calling CPU. No vCPU has run yet.
    fn measure_flushes() -> Cost;
    /// Sends a byte from one of the guest's serial ports.
    fn transmit(port: SerialPort, byte: u8);
    /// The next byte received for the guest's first serial port.
    fn receive() -> Option<u8>;
}

/// A kind of processor that runs guests: SVM, or VMX.
///
/// # Safety
///
/// The processor translates by a machine's nested tables in the [loaded](Self::loaded) processor's
/// `run` only, and only for the vCPU whose state it has. It drops what [`stay`] has it drop, nested
/// translations included.
pub unsafe trait Vendor: Processor {
    /// Its name in configurations.
    const ARCHITECTURE: Architecture;
    /// Its instruction for a hypercall: VMMCALL, or VMCALL.
    const HYPERCALL: [u8; 3];
    /// Whether guests are shown a processor of Intel's.
    const IS_INTEL: bool = matches!(Self::ARCHITECTURE, Architecture::Intel64);
    /// Format of the nested page table.
    type Nested: Format + 'static;
    /// The vCPUs' control blocks.
    type Block: ControlBlock;

    /// The largest page of nested tables by which no guest can harm the machine.
    fn largest_page() -> Level;

    /// How the processor detects stores to slots with a log.
    fn log_way() -> LogWay {
        LogWay::DirtyBits
    }

    /// Makes the processor have other features from now on, to be called before the first vCPU is
    /// created: fewer than it has; or more, and an auditor watches what is then done with them.
    fn heed(switches: &Switches);

    /// The tags that a CPU gives its vCPUs' translations.
    fn tags(cpu: CpuId) -> AsidAllocator;
    /// The maps of ports and of MSRs that cause exits.
    fn permission_maps() -> [Pages; 2];
    /// Whether the processor can be a vCPU's local APIC.
    fn has_apic() -> bool {
        false
    }

    /// Whether a processor in guest mode may take interrupts that are posted in the vCPU's inbox.
    #[inline(always)]
    fn takes_posted() -> bool {
        false
    }

    /// Has the vCPU in guest mode on this CPU take what is posted.
    fn tell(_: &PerCpu<Self>) {}

    /// Sets what a vCPU's block has for good.
    fn set_up(block: &mut Self::Block, permissions: &Permissions);
    /// The address behind the instruction that caused an exit, if the processor says it.
    fn next_rip(block: &Self::Block) -> Option<u64>;

    /// What the processor fetched of the instruction that caused a nested page fault; empty if it
    /// does not say.
    fn fetched(block: &Self::Block) -> &[u8];

    /// The calling CPU with this vCPU's state, for one entry or one flush; and the vCPU's tag.
    fn loaded<'a>(
        vm: &'a Vm<Self>,
        cpu: &'a PerCpu<Self>,
        state: &'a mut VcpuState<Self::Block>,
    ) -> (impl stay::tagged::Processor + 'a, &'a mut AsidSlot)
    where
        Self: Arch;

    /// CPUID's leaf of SVM, for a guest that may have guests.
    fn inner_leaf() -> CpuidResult {
        CpuidResult::default()
    }

    /// Enters a guest of the guest, if such a one is what runs. As [`enter`](super::enter::enter).
    #[inline(always)]
    fn enter_inner(_: &mut Context<'_, Self>) -> Option<bool>
    where
        Self: X86,
    {
        None
    }

    /// A vCPU that is on no CPU leaves a guest of its guest, if it runs one.
    ///
    /// # Errors
    ///
    /// If that is not possible now.
    fn leave_to_move(_: &mut VcpuState<Self::Block>, _: &GuestMemory<'_>) -> Result<(), Flaw> {
        Ok(())
    }

    /// The vCPU has taken a flush: guests of the guest may have used what it is about.
    #[inline(always)]
    fn owe_inner(_: &mut Context<'_, Self>)
    where
        Self: X86,
    {
    }

    /// See [`Arch::handle_exit`].
    fn handle_exit(context: &mut Context<'_, Self>) -> Next
    where
        Self: X86;

    /// Whether the CPU may hold translations by the nested tables with this root, though no vCPU of
    /// that guest can be entered.
    fn holds_root(_: u64, _: &PerCpu<Self>) -> bool {
        false
    }

    /// See [`Arch::let_go`].
    #[inline(always)]
    fn let_go(_: &PerCpu<Self>)
    where
        Self: Arch,
    {
    }

    /// The vCPU may come from another CPU: nothing that a processor caches of its block is valid.
    /// Its registers are loaded next.
    fn arrive(context: &mut Context<'_, Self>)
    where
        Self: X86;

    /// The vCPU's registers are about to be saved.
    fn leave(context: &mut Context<'_, Self>)
    where
        Self: X86;
}

/// An architecture of x86-64 guests, as the code here sees it.
pub trait X86:
    Vendor
    + DeviceOwner<Platform = Remapping>
    + Arch<
        Nested = <Self as Vendor>::Nested,
        Tables = NestedTables,
        Common = Common,
        Shared = Shared,
        Inbox = Inbox,
        State = VcpuState<<Self as Vendor>::Block>,
        Workspace = Workspace,
    >
{
}

impl<V: 'static> X86 for OnX86<V> where Self: Vendor {}
