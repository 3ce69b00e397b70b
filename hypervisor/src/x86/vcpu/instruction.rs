//! The instruction that caused an exit, and the translation of its addresses.

use arrayvec::ArrayVec;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};
use memslots::{AccessError, GuestMemory, Pattern, Unwalked};
use paging::Gpa;
use paging::guest::{Access, ControlRegisters, GuestPaging, PageFault, Translation};

use super::block::Field::{Cr0, Cr3, Cr4, Efer, Rflags, Rip};
use super::block::{ControlBlock, Inner, Segment, SegmentName};
use super::checks::{self, Refusal};
use super::code_path::CodePaths;
use super::state::VcpuState;
use crate::x86::cpuid;
use crate::x86::emulator::Operand;
use crate::x86::processor::X86;

/// Longest instruction in bytes.
const INSTRUCTION_MAX: usize = 15;

type Bytes = ArrayVec<u8, INSTRUCTION_MAX>;

/// Why an instruction cannot be read; each reason becomes a fault in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// #PF at this address with this error code.
    PageFault(u64, u32),
    /// #GP(0): the address is not canonical, or has no memory.
    Protection,
    /// #UD: the instruction is not emulated, or not in memory.
    Undefined,
    /// The guest's tables changed during the walk: the guest executes the instruction again.
    Raced,
    /// A nested page fault of a guest of the guest, for the guest: at this address, with this error
    /// code, in a walk of tables or not.
    Nested(Gpa, PageFault, bool),
}

impl<B: ControlBlock> VcpuState<B> {
    /// Raises the fault for `error`.
    pub fn raise_fetch_error(&mut self, error: FetchError) {
        match error {
            FetchError::PageFault(address, code) => self.raise_page_fault(address, code),
            FetchError::Protection => self.raise_protection(),
            FetchError::Undefined => self.raise_undefined(),
            FetchError::Raced => {}
            FetchError::Nested(gpa, code, in_walk) => self.own.raise_nested(gpa, code, in_walk),
        }
    }
}

/// The guest's paging mode from its registers.
fn guest_paging<A: X86>(block: &A::Block) -> GuestPaging {
    let registers = ControlRegisters {
        cr0: block.read(Cr0),
        cr3: block.read(Cr3),
        cr4: block.read(Cr4),
        efer: block.read(Efer),
        rflags: block.read(Rflags),
    };
    GuestPaging::new(&registers, cpuid::physical_address_bits::<A>(), cpuid::host_has_1g_pages::<A>())
}

/// With the rights of the guest's privilege level.
fn by_level(block: &impl ControlBlock, access: Access) -> Access {
    if block.cpl() == 3 { access | Access::USER } else { access }
}

/// Translates a linear address of code, with `read` to read the entries. `None` also for a guest of
/// the guest with nested tables, whose entries are at other addresses than they say.
pub(crate) fn walk_to_code<A: X86, E>(
    block: &A::Block,
    linear: u64,
    read: impl FnMut(Gpa) -> Result<u64, E>,
) -> Option<Gpa> {
    if block.inner_paging().is_some() {
        return None;
    }
    let translation = guest_paging::<A>(block).translate(linear, by_level(block, Access::FETCH), read);
    Some(translation.ok()?.gpa)
}

/// The nested tables of the guest, if a guest of the guest with such is what runs.
fn nested_paging<A: X86>(block: &A::Block) -> Option<GuestPaging> {
    let registers = block.inner_paging()?;
    let (bits, has_1g) = (cpuid::physical_address_bits::<A>(), cpuid::host_has_1g_pages::<A>());
    Some(GuestPaging::nested(&registers, bits, has_1g))
}

/// A physical address of a guest of the guest as one of the guest, for a load, a store or a fetch.
///
/// # Errors
///
/// The fault for the guest; `None` if the guest changed its tables meanwhile.
pub(crate) fn nested_translate<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
    gpa: Gpa,
    access: Access,
) -> Result<Translation, Option<PageFault>> {
    let Some(paging) = nested_paging::<A>(block) else { return Err(None) };
    let access = access & (Access::WRITE | Access::FETCH) | Access::USER;
    let walked = memory.walk(&paging, gpa.0, access, Ok::<_, ()>);
    walked.map_err(|error| match error {
        Unwalked::Fault(code) => Some(code),
        Unwalked::Raced => None,
        Unwalked::NoMemory | Unwalked::NonCanonical | Unwalked::Entry(()) => Some(paging.unreadable(access)),
    })
}

/// Translates a linear address for an access by the guest, and sets accessed and dirty bits as the
/// processor does. For a guest of the guest, by both levels of tables.
pub fn translate<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
    linear: u64,
    access: Access,
) -> Result<Gpa, FetchError> {
    let has_nested = block.inner_paging().is_some();
    let locate = |gpa: Gpa, access: Access, in_walk: bool| {
        if !has_nested {
            return Ok(gpa);
        }
        let found = nested_translate::<A>(block, memory, gpa, access);
        found.map(|found| found.gpa).map_err(|code| match code {
            Some(code) => FetchError::Nested(gpa, code, in_walk),
            None => FetchError::Raced,
        })
    };
    let paging = guest_paging::<A>(block);
    // A walk counts as a user's store (section 15.25.5).
    let walked =
        memory.walk(&paging, linear, by_level(block, access), |gpa| locate(gpa, Access::WRITE, true));
    let found = walked.map_err(|error| match error {
        Unwalked::Fault(code) => FetchError::PageFault(linear, code.bits()),
        Unwalked::NonCanonical | Unwalked::NoMemory => FetchError::Protection,
        Unwalked::Raced => FetchError::Raced,
        Unwalked::Entry(error) => error,
    })?;
    locate(found.gpa, access, false)
}

/// A byte of the task's state segment, as the processor itself reads it.
pub(crate) fn read_task<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
    linear: u64,
) -> Result<u8, FetchError> {
    let gpa = translate::<A>(block, memory, linear, Access::IMPLICIT)?;
    let mut byte = 0;
    memory.read(gpa, core::slice::from_mut(&mut byte)).map_err(|_: AccessError| FetchError::Protection)?;
    Ok(byte)
}

pub(crate) fn linear_rip(block: &impl ControlBlock, offset: u64) -> u64 {
    let rip = block.read(Rip).wrapping_add(offset);
    if block.is_64bit() { rip } else { block.segment(SegmentName::Cs).base.wrapping_add(rip) & 0xffff_ffff }
}

/// Appends `count` bytes of code from `offset` after RIP; they do not cross a page.
fn fetch_within_page<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
    bytes: &mut Bytes,
    offset: usize,
    count: usize,
) -> Result<(), FetchError> {
    let gpa = translate::<A>(block, memory, linear_rip(block, offset as u64), Access::FETCH)?;
    let mut buffer = [0; INSTRUCTION_MAX];
    let part = &mut buffer[..count.min(INSTRUCTION_MAX - offset)];
    // All ones, where there is no memory, is not an instruction. A processor need not have said
    // that it was fetched.
    memory.read(gpa, part).map_err(|_: AccessError| FetchError::Undefined)?;
    bytes.extend(part.iter().copied());
    Ok(())
}

/// Up to `wanted` bytes of code at RIP, fewer if the next page cannot be read.
fn fetch<A: X86>(block: &A::Block, memory: &GuestMemory<'_>, wanted: usize) -> Result<Bytes, FetchError> {
    let mut bytes = Bytes::new();
    let in_page = 4096 - (linear_rip(block, 0) & 0xfff) as usize;
    fetch_within_page::<A>(block, memory, &mut bytes, 0, wanted.min(in_page))?;
    if in_page < wanted {
        // The instruction may end before the page does, so a failure is no fault yet.
        let _ = fetch_within_page::<A>(block, memory, &mut bytes, in_page, wanted - in_page);
    }
    Ok(bytes)
}

fn bitness(block: &impl ControlBlock) -> u32 {
    match block.attributes(SegmentName::Cs) & (Segment::LONG | Segment::DEFAULT_32) {
        attributes if attributes & Segment::LONG != 0 && block.is_64bit() => 64,
        attributes if attributes & Segment::DEFAULT_32 != 0 => 32,
        _ => 16,
    }
}

fn decode(block: &impl ControlBlock, bytes: &[u8]) -> Result<Instruction, FetchError> {
    let mut decoder = Decoder::with_ip(bitness(block), bytes, block.read(Rip), DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.code() == Code::INVALID { Err(FetchError::Undefined) } else { Ok(instruction) }
}

/// Builds the decoder's tables, which otherwise happens on first use and takes thousands of
/// allocations and more stack than a CPU's block has. Call on the boot stack, with a heap.
pub fn build_decoder() {
    let nop = Decoder::new(64, &[0x90], DecoderOptions::NONE).decode();
    assert_eq!(nop.code(), Code::Nopd, "the decoder works");
}

/// Length of the instruction from RIP to `next_rip`. If the guest may not execute it at its
/// privilege level, returns the fault for that.
#[inline(always)] // On the path of most exits.
pub fn length_to(
    next_rip: u64,
    block: &impl ControlBlock,
    whose: checks::Instruction,
) -> Result<u64, FetchError> {
    // A single comparison covers all checks that an instruction in the kernel does not need.
    if block.cpl() != 0 {
        check_others(block, whose)?;
    }
    Ok(next_rip.wrapping_sub(block.read(Rip)))
}

/// The same of the one at RIP, which is expected to be `usual`: prefixes may make it longer.
#[inline]
pub fn length<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
    paths: &mut CodePaths,
    usual: &Pattern,
    whose: checks::Instruction,
) -> Result<u64, FetchError> {
    if block.cpl() != 0 {
        return others_length::<A>(block, memory, paths, usual, whose);
    }
    allowed_length::<A>(block, memory, paths, usual, 0)
}

#[inline(always)] // It has two callers, one of which knows the privilege level.
fn allowed_length<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
    paths: &mut CodePaths,
    usual: &Pattern,
    cpl: u8,
) -> Result<u64, FetchError> {
    if paths.is_at_rip::<A>(block, memory, usual, cpl) {
        return Ok(usual.len() as u64);
    }
    decoded_length::<A>(block, memory)
}

#[cold]
#[inline(never)]
fn others_length<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
    paths: &mut CodePaths,
    usual: &Pattern,
    whose: checks::Instruction,
) -> Result<u64, FetchError> {
    check_others(block, whose)?;
    allowed_length::<A>(block, memory, paths, usual, block.cpl())
}

#[cold]
fn check_others(block: &impl ControlBlock, whose: checks::Instruction) -> Result<(), FetchError> {
    checks::check(whose, block.conditions()).map_err(|refusal| match refusal {
        Refusal::Undefined => FetchError::Undefined,
        Refusal::Protection => FetchError::Protection,
    })
}

#[cold]
fn decoded_length<A: X86>(block: &A::Block, memory: &GuestMemory<'_>) -> Result<u64, FetchError> {
    let bytes = fetch::<A>(block, memory, INSTRUCTION_MAX)?;
    Ok(decode(block, &bytes)?.len() as u64)
}

/// The instruction at RIP.
pub(crate) fn fetch_and_decode<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
) -> Result<Instruction, FetchError> {
    let bytes = fetch::<A>(block, memory, INSTRUCTION_MAX)?;
    decode(block, &bytes)
}

/// The instruction at RIP, which caused a nested page fault.
pub(crate) fn faulting_instruction<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
) -> Result<Instruction, FetchError> {
    match A::fetched(block) {
        [] => fetch_and_decode::<A>(block, memory),
        bytes => decode(block, bytes),
    }
}

/// Decodes a move to a control register at RIP: its number, the source register, and the length.
pub fn decode_control_write<A: X86>(
    block: &A::Block,
    memory: &GuestMemory<'_>,
) -> Result<(u32, Operand, u64), FetchError> {
    let instruction = fetch_and_decode::<A>(block, memory)?;
    let control = instruction.op0_register();
    if instruction.mnemonic() != Mnemonic::Mov || !control.is_cr() {
        return Err(FetchError::Undefined);
    }
    let from = Operand::of(instruction.op1_register()).ok_or(FetchError::Undefined)?;
    Ok((control.number() as u32, from, instruction.len() as u64))
}
