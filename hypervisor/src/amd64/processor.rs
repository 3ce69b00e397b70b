//! What only an AMD64 processor can do, and the machine around it.

use core::num::NonZeroU32;
use core::ptr::NonNull;

use paging::Amd64Nested;
use tlfs::XMM_WORDS;

#[cfg(feature = "audit")]
use super::audit::CpuBooks;
use super::features::Features;
use super::guest::Shared;
use super::registers::Registers;
use super::signals::Workspace;
use super::state::VcpuState;
use super::vmcb::Vmcb;
use crate::devices::pc::inbox::Inbox;
use crate::devices::pc::platform::SerialPort;
use crate::hyperv::cpuid::CpuidResult;
use crate::vm::PerCpu;
use crate::vm::arch::Arch;
use crate::vm::memory::NestedTables;
use stay::Cost;

/// AMD64 with SVM, as the code here sees it: [`crate::vm::arch`]'s traits, and the operations that
/// take an instruction of the processor or a port of the machine.
///
/// `arch/x86_64` implements it on bare metal, and tests by a processor that is made up. Each
/// operation acts on the calling CPU, and has been done when it returns; those that have to come in
/// an order say so.
pub trait Amd64:
    Arch<
        Nested = Amd64Nested,
        Tables = NestedTables,
        Shared = Shared,
        Inbox = Inbox,
        State = VcpuState,
        Workspace = Workspace,
    >
{
    /// What SVM offers here. All CPUs are taken to have the same.
    fn features() -> Features;

    /// From now on [`features`](Self::features) says that there are clean bits and flushes of one
    /// ASID. Before the first vCPU.
    fn pretend();

    /// Address space tags that guests can have on each CPU.
    fn tags() -> NonZeroU32;

    /// What the processor's own CPUID says. Extended states are those of the XCR0 that is in the
    /// processor.
    fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult;

    /// Bits of CPUID leaf 1's ECX that guests are not shown because the machine gets what they
    /// stand for wrong.
    fn wrong() -> u32;

    /// The revision of the processor's microcode.
    fn patch_level() -> u64;

    /// Whether the processor has the TSC_AUX register.
    fn has_tsc_aux() -> bool;

    /// TSC_AUX, which is the guest's from [`write_tsc_aux`](Self::write_tsc_aux) on. Where there is
    /// none it is not called.
    fn read_tsc_aux() -> u64;

    /// Writes TSC_AUX. Where there is none it is not called.
    fn write_tsc_aux(value: u64);

    /// DR0 to DR3, which are the guest's from [`write_breakpoints`](Self::write_breakpoints) on.
    fn read_breakpoints() -> [u64; 4];

    /// Writes DR0 to DR3.
    fn write_breakpoints(addresses: [u64; 4]);

    /// Components of the extended state that the processor can save; 0 where there is no XSAVE.
    fn components() -> u64;

    /// Bytes that an image of all components takes.
    fn fpu_size() -> usize;

    /// XCR0, which is the guest's while its vCPU is on the CPU. Where there is no XSAVE it is not
    /// called.
    fn read_xcr0() -> u64;

    /// Writes XCR0 with a value that the [`components`](Self::components) allow. Where there is no
    /// XSAVE it is not called.
    fn write_xcr0(value: u64);

    /// Loads the floating-point and vector registers, all [components](Self::components) of them.
    /// XCR0 has all of them on.
    ///
    /// # Safety
    ///
    /// The area has [`fpu_size`](Self::fpu_size) bytes, is aligned to 64, and holds what
    /// [`save_fpu`](Self::save_fpu) stored, or zeros but for the control words of an image.
    unsafe fn load_fpu(area: NonNull<u8>);

    /// Stores the floating-point and vector registers. XCR0 has all components on.
    ///
    /// # Safety
    ///
    /// The area has [`fpu_size`](Self::fpu_size) bytes and is aligned to 64, and nobody else uses
    /// it.
    unsafe fn save_fpu(area: NonNull<u8>);

    /// XMM0 to XMM5, which are those of the vCPU on this CPU: the hypervisor uses none.
    fn xmm_words() -> [u64; XMM_WORDS];

    /// From here on interrupts are held, and end guest mode as soon as it begins.
    fn hold_interrupts();

    /// Takes the interrupts that were [held](Self::hold_interrupts).
    fn release_interrupts();

    /// VMRUN, with the registers that it does not exchange by itself. Between
    /// [`hold_interrupts`](Self::hold_interrupts) and
    /// [`release_interrupts`](Self::release_interrupts).
    ///
    /// # Safety
    ///
    /// The block is complete, the registers are this vCPU's, and the nested tables that the block
    /// names give the guest its own memory only.
    unsafe fn run(cpu: &PerCpu<Self>, vmcb: &mut Vmcb, registers: &mut Registers);

    /// INVLPGA: drops this CPU's translations of one page under `asid`, global ones and those of a
    /// large page around it included.
    fn invalidate_page(address: u64, asid: u32);

    /// Measures what flushing costs on the calling CPU. No vCPU has run yet.
    fn measure_flushes() -> Cost;

    /// Sends a byte of one of the guest's serial ports.
    fn transmit(port: SerialPort, byte: u8);

    /// The next byte that has come for the guest's first serial port.
    fn receive() -> Option<u8>;

    /// What the auditor knows of a CPU. Only that CPU calls it.
    #[cfg(feature = "audit")]
    fn books(cpu: &PerCpu<Self>) -> &core::cell::RefCell<CpuBooks>;
}
