//! The operations that only an AMD64 processor can do, and the machine around it.

use core::num::NonZeroU32;
use core::ptr::NonNull;

use paging::Amd64Nested;
use tlfs::XMM_WORDS;

#[cfg(any(test, feature = "audit"))]
use super::audit::CpuBooks;
use super::features::Features;
use super::vmcb::Vmcb;
use crate::devices::pc::inbox::Inbox;
use crate::devices::pc::platform::SerialPort;
use crate::iommu::messages::{AmdVi, MachineDevices};
use crate::owned::Owner;
use crate::vm::PerCpu;
use crate::vm::arch::{Arch, Board};
use crate::vm::memory::NestedTables;
use crate::x86::guest::Shared;
use crate::x86::hyperv::cpuid::CpuidResult;
use crate::x86::vcpu::registers::Registers;
use crate::x86::vcpu::signals::Workspace;
use crate::x86::vcpu::state::VcpuState;
use stay::Cost;

/// The operations that need an instruction of the processor or a port of the machine.
///
/// `arch/x86_64` implements it on bare metal, and a mock processor in tests. Each operation acts on
/// the calling CPU, and is complete when it returns. Operations that must be called in a certain
/// order say so.
pub trait Svm: Board {
    /// The machine's PCI functions and IOMMUs, if there are any that guests may own.
    fn devices() -> Option<&'static MachineDevices>;

    /// SVM features here. All CPUs are assumed to have the same.
    fn features() -> Features;

    /// Makes [`features`](Self::features) report clean bits and flushes of one ASID from now on. To
    /// be called before the first vCPU is created.
    fn pretend();

    /// Number of ASIDs that guests can have on each CPU.
    fn tags() -> NonZeroU32;

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

    /// Holds interrupts from here on; they end guest mode as soon as it begins.
    fn hold_interrupts();

    /// Takes the interrupts that were [held](Self::hold_interrupts).
    fn release_interrupts();

    /// VMRUN, including the registers that it does not switch. To be called between
    /// [`hold_interrupts`](Self::hold_interrupts) and
    /// [`release_interrupts`](Self::release_interrupts).
    ///
    /// # Safety
    ///
    /// The block is complete, the registers are this vCPU's, and the nested tables that the block
    /// names map only the guest's own memory.
    unsafe fn run(cpu: &PerCpu<Self>, vmcb: &mut Vmcb, registers: &mut Registers);

    /// INVLPGA: drops this CPU's translations of one page under `asid`, including global ones and
    /// those of a large page around it.
    fn invalidate_page(address: u64, asid: u32);

    /// Measures the cost of flushes on the calling CPU. No vCPU has run yet.
    fn measure_flushes() -> Cost;

    /// Sends a byte from one of the guest's serial ports.
    fn transmit(port: SerialPort, byte: u8);

    /// The next byte received for the guest's first serial port.
    fn receive() -> Option<u8>;

    /// The auditor's record of a CPU. Only that CPU calls it.
    #[cfg(any(test, feature = "audit"))]
    fn books(cpu: &PerCpu<Self>) -> &core::cell::RefCell<CpuBooks>;
}

/// AMD64 with SVM, as the code here sees it: [`Svm`], and the traits of [`crate::vm::arch`].
pub trait Amd64:
    Svm
    + Owner<Platform = AmdVi>
    + Arch<
        Nested = Amd64Nested,
        Tables = NestedTables,
        Shared = Shared,
        Inbox = Inbox,
        State = VcpuState,
        Workspace = Workspace,
    >
{
}

impl<A> Amd64 for A where
    A: Svm
        + Owner<Platform = AmdVi>
        + Arch<
            Nested = Amd64Nested,
            Tables = NestedTables,
            Shared = Shared,
            Inbox = Inbox,
            State = VcpuState,
            Workspace = Workspace,
        >
{
}
