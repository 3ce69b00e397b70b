//! The instruction that caused an exit: its length, and what it does if it accesses a device register.

use arrayvec::ArrayVec;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use memslots::{AccessError, GuestMemory, Pattern};
use paging::Gpa;
use paging::guest::{Access, ControlRegisters, GuestPaging, WalkError};

use super::code_path::CodePaths;
use super::cpuid;
use super::entry::Registers;
use super::features::Features;
use super::state::VcpuState;
use super::vmcb::{Segment, Vmcb};

/// Longest instruction in bytes.
const INSTRUCTION_MAX: usize = 15;

/// Bytes of an instruction.
type Bytes = ArrayVec<u8, INSTRUCTION_MAX>;

/// Why an instruction cannot be looked at; each becomes a fault in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchError {
    /// #PF at this address with this error code.
    PageFault(u64, u32),
    /// #GP(0): the address is not canonical, or leads to no memory.
    Protection,
    /// #UD: not an instruction that is emulated.
    Undefined,
}

impl VcpuState {
    /// Raises the fault that stands for `error`.
    pub(crate) fn raise_fetch_error(&mut self, error: FetchError) {
        match error {
            FetchError::PageFault(address, code) => self.raise_page_fault(address, code),
            FetchError::Protection => self.raise_protection(),
            FetchError::Undefined => self.raise_undefined(),
        }
    }
}

/// The guest's paging as its registers say.
fn guest_paging(vmcb: &Vmcb) -> GuestPaging {
    let registers = ControlRegisters { cr0: vmcb.cr0, cr3: vmcb.cr3, cr4: vmcb.cr4, efer: vmcb.efer };
    GuestPaging::new(&registers, cpuid::physical_address_bits(), cpuid::host_has_1g_pages())
}

/// Where a linear address leads for an access by the guest, when `read` reads the entries.
fn walk<E>(
    vmcb: &Vmcb,
    linear: u64,
    access: Access,
    read: impl FnMut(Gpa) -> Result<u64, E>,
) -> Result<Gpa, WalkError<E>> {
    let user = if vmcb.cpl == 3 { Access::USER } else { Access::empty() };
    guest_paging(vmcb).translate(linear, access | user, read).map(|translation| translation.gpa)
}

/// Where code at a linear address is, when `read` reads the entries.
pub(super) fn walk_to_code<E>(
    vmcb: &Vmcb,
    linear: u64,
    read: impl FnMut(Gpa) -> Result<u64, E>,
) -> Result<Gpa, WalkError<E>> {
    walk(vmcb, linear, Access::FETCH, read)
}

/// Where a linear address leads for an access by the guest.
pub(crate) fn translate(
    vmcb: &Vmcb,
    memory: &GuestMemory<'_>,
    linear: u64,
    access: Access,
) -> Result<Gpa, FetchError> {
    match walk(vmcb, linear, access, |gpa| memory.read_u64(gpa)) {
        Ok(gpa) => Ok(gpa),
        Err(WalkError::PageFault(code)) => Err(FetchError::PageFault(linear, code.bits())),
        Err(WalkError::NonCanonical | WalkError::Read { .. }) => Err(FetchError::Protection),
    }
}

/// Linear address of the byte at `offset` behind RIP.
pub(super) fn linear_rip(vmcb: &Vmcb, offset: u64) -> u64 {
    let rip = vmcb.rip.wrapping_add(offset);
    if vmcb.is_64bit() { rip } else { vmcb.cs.base.wrapping_add(rip) & 0xffff_ffff }
}

/// Appends `count` bytes of code from `offset` behind RIP; they do not cross a page.
fn fetch_within_page(
    vmcb: &Vmcb,
    memory: &GuestMemory<'_>,
    bytes: &mut Bytes,
    offset: usize,
    count: usize,
) -> Result<(), FetchError> {
    let gpa = translate(vmcb, memory, linear_rip(vmcb, offset as u64), Access::FETCH)?;
    let mut buffer = [0; INSTRUCTION_MAX];
    let part = &mut buffer[..count.min(INSTRUCTION_MAX - offset)];
    memory.read(gpa, part).map_err(|_: AccessError| FetchError::Protection)?;
    bytes.extend(part.iter().copied());
    Ok(())
}

/// Up to `wanted` bytes of code at RIP, fewer if the next page cannot be read.
fn fetch(vmcb: &Vmcb, memory: &GuestMemory<'_>, wanted: usize) -> Result<Bytes, FetchError> {
    let mut bytes = Bytes::new();
    let in_page = 4096 - (linear_rip(vmcb, 0) & 0xfff) as usize;
    fetch_within_page(vmcb, memory, &mut bytes, 0, wanted.min(in_page))?;
    if in_page < wanted {
        // The instruction may end before the page does, so this failing is no fault yet.
        let _ = fetch_within_page(vmcb, memory, &mut bytes, in_page, wanted - in_page);
    }
    Ok(bytes)
}

fn bitness(vmcb: &Vmcb) -> u32 {
    match vmcb.cs.attributes & (Segment::LONG | Segment::DEFAULT_32) {
        attributes if attributes & Segment::LONG != 0 && vmcb.is_64bit() => 64,
        attributes if attributes & Segment::DEFAULT_32 != 0 => 32,
        _ => 16,
    }
}

fn decode(vmcb: &Vmcb, bytes: &[u8]) -> Result<Instruction, FetchError> {
    let mut decoder = Decoder::with_ip(bitness(vmcb), bytes, vmcb.rip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.code() == Code::INVALID { Err(FetchError::Undefined) } else { Ok(instruction) }
}

/// Builds the decoder's tables, which it does on first use: that takes thousands of allocations and more stack than
/// a CPU's block has. Call on the boot stack, with a heap.
pub(crate) fn build_decoder() {
    let nop = Decoder::new(64, &[0x90], DecoderOptions::NONE).decode();
    assert_eq!(nop.code(), Code::Nopd, "the decoder works");
}

/// Length of the instruction at RIP, which is expected to be `usual`: prefixes may make it longer.
#[inline]
pub(crate) fn length(
    vmcb: &Vmcb,
    memory: &GuestMemory<'_>,
    paths: &mut CodePaths,
    usual: &Pattern,
) -> Result<u64, FetchError> {
    if Features::get().next_rip() && vmcb.next_rip != 0 {
        return Ok(vmcb.next_rip.wrapping_sub(vmcb.rip));
    }
    if paths.is_at_rip(vmcb, memory, usual) {
        return Ok(usual.len() as u64);
    }
    decoded_length(vmcb, memory)
}

#[cold]
fn decoded_length(vmcb: &Vmcb, memory: &GuestMemory<'_>) -> Result<u64, FetchError> {
    let bytes = fetch(vmcb, memory, INSTRUCTION_MAX)?;
    Ok(decode(vmcb, &bytes)?.len() as u64)
}

/// Where a value comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A general register: number, size in bytes, and whether it is bits 15:8 (AH to BH).
    Register { number: usize, size: u32, high_byte: bool },
    /// A constant.
    Immediate(u64),
}

impl Operand {
    /// The value, cut to the operand's size.
    pub(crate) fn read(self, registers: &Registers) -> u64 {
        match self {
            Self::Immediate(value) => value,
            Self::Register { number, high_byte: true, .. } => registers.0[number] >> 8 & 0xff,
            Self::Register { number, size, .. } => registers.0[number] & mask(size),
        }
    }

    /// Writes a register as the processor does: 32 bits clear the upper half, 8 and 16 leave the rest.
    pub(crate) fn write(self, registers: &mut Registers, value: u64) {
        let Self::Register { number, size, high_byte } = self else { return };
        let old = registers.0[number];
        registers.0[number] = match size {
            _ if high_byte => old & !0xff00 | (value & 0xff) << 8,
            4 | 8 => value & mask(size),
            _ => old & !mask(size) | value & mask(size),
        };
    }
}

/// All ones in the low `size` bytes.
pub(crate) fn mask(size: u32) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * size)) - 1 }
}

/// An access to a device register by a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// Loads `size` bytes and extends them, with their sign if `signed`.
    Load { size: u32, signed: bool, to: Operand },
    /// Stores `size` bytes.
    Store { size: u32, from: Operand },
}

/// A decoded move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodedMove {
    /// What it does.
    pub(crate) access: Move,
    /// Linear address of its memory operand.
    pub(crate) linear: u64,
    /// Length in bytes.
    pub(crate) length: u64,
}

/// Linear address of an instruction's memory operand `index`.
fn operand_address(vmcb: &Vmcb, registers: &Registers, instruction: &Instruction, index: u32) -> Option<u64> {
    let linear = instruction.virtual_address(index, 0, |register, _, _| match register {
        Register::FS => Some(vmcb.fs.base),
        Register::GS => Some(vmcb.gs.base),
        _ if register.is_segment_register() && vmcb.is_64bit() => Some(0),
        Register::ES => Some(vmcb.es.base),
        Register::CS => Some(vmcb.cs.base),
        Register::SS => Some(vmcb.ss.base),
        Register::DS => Some(vmcb.ds.base),
        _ if register.is_gpr() => {
            Some(registers.0[register.full_register().number()] & mask(register.size() as u32))
        }
        _ => None,
    })?;
    Some(if vmcb.is_64bit() { linear } else { linear & 0xffff_ffff })
}

/// Decodes the move at RIP.
pub(crate) fn decode_move(
    vmcb: &Vmcb,
    registers: &Registers,
    memory: &GuestMemory<'_>,
) -> Result<DecodedMove, FetchError> {
    let fetched = vmcb.fetched_count.min(INSTRUCTION_MAX as u8) as usize;
    let bytes = if Features::get().decode_assists() && fetched > 0 {
        vmcb.fetched_bytes[..fetched].iter().copied().collect()
    } else {
        fetch(vmcb, memory, INSTRUCTION_MAX)?
    };
    let instruction = decode(vmcb, &bytes)?;
    let size = instruction.memory_size().size() as u32;
    let length = instruction.len() as u64;
    let signed = matches!(instruction.mnemonic(), Mnemonic::Movsx | Mnemonic::Movsxd);
    let is_move = signed || matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx);
    if !is_move || !matches!(size, 1 | 2 | 4 | 8) {
        return Err(FetchError::Undefined);
    }
    let access = match (instruction.op0_kind(), instruction.op1_kind()) {
        (OpKind::Register, OpKind::Memory) => {
            Move::Load { size, signed, to: operand(instruction.op0_register())? }
        }
        (OpKind::Memory, OpKind::Register) => {
            Move::Store { size, from: operand(instruction.op1_register())? }
        }
        (OpKind::Memory, _) => Move::Store { size, from: Operand::Immediate(instruction.immediate(1)) },
        _ => return Err(FetchError::Undefined),
    };
    let memory_operand = u32::from(matches!(access, Move::Load { .. }));
    let linear =
        operand_address(vmcb, registers, &instruction, memory_operand).ok_or(FetchError::Undefined)?;
    Ok(DecodedMove { access, linear, length })
}

/// The instruction at RIP.
pub(super) fn fetch_and_decode(vmcb: &Vmcb, memory: &GuestMemory<'_>) -> Result<Instruction, FetchError> {
    let bytes = fetch(vmcb, memory, INSTRUCTION_MAX)?;
    decode(vmcb, &bytes)
}

/// A move to a control register at RIP: which one, from which general register, and its length.
pub(crate) fn decode_control_write(
    vmcb: &Vmcb,
    memory: &GuestMemory<'_>,
) -> Result<(u32, Operand, u64), FetchError> {
    let instruction = fetch_and_decode(vmcb, memory)?;
    let control = instruction.op0_register();
    if instruction.mnemonic() != Mnemonic::Mov || !control.is_cr() {
        return Err(FetchError::Undefined);
    }
    let from = operand(instruction.op1_register())?;
    Ok((control.number() as u32, from, instruction.len() as u64))
}

fn operand(register: Register) -> Result<Operand, FetchError> {
    if !register.is_gpr() {
        return Err(FetchError::Undefined);
    }
    let high_byte = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
    let number = register.full_register().number();
    Ok(Operand::Register { number, size: register.size() as u32, high_byte })
}
