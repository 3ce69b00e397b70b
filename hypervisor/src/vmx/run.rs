//! An entry and its exit, by the instructions of VMX.

use coherence::CpuId;
use core::fmt;

use super::controls::{MOV_DR, Word};
use super::fields::INSTRUCTION_ERROR;
use super::outside::Register;
use super::switch::HostState;
use super::vmcs::Vmcs;
use crate::x86::vcpu::event;
use crate::x86::vcpu::registers::Registers;

/// The instructions of VMX, and what belongs to an entry besides.
pub trait Instructions {
    /// VMREAD, of the current VMCS.
    fn vmread(field: u32) -> u64;
    /// VMWRITE, to the current VMCS.
    fn vmwrite(field: u32, value: u64);
    /// VMCLEAR.
    fn vmclear(region: u64);
    /// VMPTRLD.
    fn vmptrld(region: u64);
    /// What the calling CPU has at an exit.
    fn host_state() -> HostState;
    /// A register that a VMCS does not have.
    fn read_outside(register: Register) -> u64;
    /// Changes such a register.
    fn write_outside(register: Register, value: u64);

    /// VMLAUNCH, or VMRESUME, with general registers.
    ///
    /// # Errors
    ///
    /// The instruction has failed.
    ///
    /// # Safety
    ///
    /// The current VMCS and the registers are those of one vCPU, whose nested tables map only its
    /// guest's memory.
    unsafe fn enter(registers: &mut Registers, is_launched: bool) -> Result<(), Failed>;

    /// Takes the NMI that has ended the stay.
    fn take_nmi();
}

/// How an instruction of VMX has failed (31.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// There is no current VMCS.
    Invalid,
    /// The current VMCS has the reason.
    Valid,
}

/// The reason why an instruction of VMX has failed (31.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionError(pub u32);

impl fmt::Display for InstructionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.0 {
            0 => "there is no current VMCS",
            4 => "VMLAUNCH of a VMCS that is not clear",
            5 => "VMRESUME of a VMCS that is not launched",
            7 => "invalid control fields",
            8 => "invalid host state",
            12 => "a field that does not exist",
            13 => "a field that is read-only",
            26 => "events are blocked by MOV SS",
            28 => "an operand of INVEPT or INVVPID is invalid",
            _ => "see the manual",
        };
        write!(f, "VM-instruction error {}: {why}", self.0)
    }
}

/// The reason of no exit.
const NO_REASON: u16 = u16::MAX;
const EXCEPTION: u16 = 0;

/// Enters the guest by this VMCS, on this CPU, and takes over what the exit says. False if the
/// processor refuses.
///
/// # Safety
///
/// Interrupts are off. As for [`Instructions::enter`].
#[inline(always)]
pub unsafe fn run<I: Instructions>(cpu: CpuId, vmcs: &mut Vmcs, registers: &mut Registers) -> bool {
    if !vmcs.active.is_on(cpu) {
        // The first time this initialises what a processor keeps in the region.
        I::vmclear(vmcs.region());
        I::vmptrld(vmcs.region());
        vmcs.begin(cpu, &I::host_state(), I::vmwrite);
    }
    vmcs.outside.load(I::write_outside);
    vmcs.write_changes(I::vmwrite);
    // SAFETY: the caller's promise.
    if let Err(failed) = unsafe { I::enter(registers, vmcs.active.is_launched()) } {
        refuse::<I>(vmcs, failed);
        return false;
    }
    vmcs.active.launch();
    vmcs.take_exit(I::vmread);
    vmcs.outside.see(Register::Cr2, I::read_outside(Register::Cr2));
    if !vmcs.control(Word::Primary, MOV_DR) {
        vmcs.outside.see(Register::Dr6, I::read_outside(Register::Dr6));
    }
    if vmcs.reason == EXCEPTION && vmcs.interruption & event::TYPE_MASK == event::TYPE_NMI {
        I::take_nmi();
    }
    !vmcs.is_refused
}

#[cold]
fn refuse<I: Instructions>(vmcs: &mut Vmcs, failed: Failed) {
    let error = match failed {
        Failed::Invalid => 0,
        Failed::Valid => I::vmread(INSTRUCTION_ERROR.raw()) as u32,
    };
    log::error!("an entry has failed: {}", InstructionError(error));
    (vmcs.reason, vmcs.is_refused) = (NO_REASON, true);
}

/// The vCPU leaves the CPU.
pub fn leave<I: Instructions>(vmcs: &mut Vmcs) {
    if vmcs.end(I::vmread) {
        vmcs.outside.save(I::read_outside);
        I::vmclear(vmcs.region());
    }
}
