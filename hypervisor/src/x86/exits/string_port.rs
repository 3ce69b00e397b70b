//! INS and OUTS: port I/O from and to memory.

use iced_x86::Register;
use memslots::GuestMemory;
use paging::Gpa;
use paging::guest::Access;

use super::port::{PortAccess, read_port, write_port};
use super::with_translation;
use crate::devices::pc::platform::PortSize;
use crate::vm::{Context, Next};
use crate::x86::emulator::{add_masked, mask, string_address_size};
use crate::x86::processor::X86;
use crate::x86::vcpu::block::Field::{Rflags, Rip};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::instruction::{FetchError, fetch_and_decode, translate};
use crate::x86::vcpu::registers::{RCX, RDI, RSI};
use crate::x86::vcpu::state::VcpuState;

/// Number of elements that one exit moves; for the rest the instruction exits again, with
/// interrupts in between.
const ELEMENTS_PER_EXIT: u64 = 64;
/// Size of the widest element in bytes.
const ELEMENT_MAX: usize = 4;
const RFLAGS_DF: u64 = 1 << 10;

/// What the processor reports of a string instruction.
#[derive(Clone, Copy, Debug)]
pub struct StringAccess {
    /// It is repeated.
    pub is_repeated: bool,
    /// Size of an address in bytes, if the processor reports it.
    pub address_size: Option<u32>,
    /// The segment of the source, if the processor reports it.
    pub segment: Option<Register>,
}

#[derive(Clone, Copy)]
struct Operation {
    port: u16,
    width: PortSize,
    /// Size of an element in bytes.
    size: usize,
    is_input: bool,
    /// All ones in the bits of RSI, RDI and RCX that the instruction uses.
    address_mask: u64,
    /// Added to the offset for a linear address.
    base: u64,
    /// All ones in the bits of a linear address.
    linear_mask: u64,
}

impl Operation {
    /// The operation that these describe. Fields that the processor does not report, as on
    /// processors without decode assists and on emulators, are taken from the instruction itself.
    fn new<A: X86>(
        block: &A::Block,
        memory: &GuestMemory<'_>,
        PortAccess { port, size, is_input, .. }: PortAccess,
        string: StringAccess,
    ) -> Result<Self, FetchError> {
        let size = size as usize;
        let width = PortSize::from_bytes(size).ok_or(FetchError::Protection)?;
        // INS stores to ES regardless of its prefixes.
        let segment = if is_input { Some(Register::ES) } else { string.segment };
        let (address_size, segment) = match (string.address_size, segment) {
            (Some(size), Some(segment)) => (size, segment),
            (address_size, segment) => {
                let instruction = fetch_and_decode::<A>(block, memory)?;
                let decoded = string_address_size(&instruction).ok_or(FetchError::Undefined)?;
                (address_size.unwrap_or(decoded), segment.unwrap_or(instruction.memory_segment()))
            }
        };
        let is_64bit = block.is_64bit();
        Ok(Self {
            port,
            width,
            size,
            is_input,
            address_mask: mask(address_size),
            base: segment_base(block, segment, is_64bit),
            linear_mask: if is_64bit { u64::MAX } else { 0xffff_ffff },
        })
    }

    fn index(&self) -> usize {
        if self.is_input { RDI } else { RSI }
    }

    fn linear<B: ControlBlock>(&self, state: &VcpuState<B>, offset: usize) -> u64 {
        let address = (state.registers.0[self.index()] & self.address_mask).wrapping_add(offset as u64);
        self.base.wrapping_add(address) & self.linear_mask
    }

    /// The guest physical addresses of the element's bytes. All are translated before any is
    /// accessed, so a fault leaves no half-written element.
    fn locate<A: X86>(
        &self,
        state: &VcpuState<A::Block>,
        memory: &GuestMemory<'_>,
    ) -> Result<[Gpa; ELEMENT_MAX], FetchError> {
        let access = if self.is_input { Access::WRITE } else { Access::empty() };
        let mut places = [Gpa(0); ELEMENT_MAX];
        for (offset, place) in places.iter_mut().enumerate().take(self.size) {
            *place = translate::<A>(&state.block, memory, self.linear(state, offset), access)?;
        }
        Ok(places)
    }

    fn load<A: X86>(&self, state: &VcpuState<A::Block>, memory: &GuestMemory<'_>) -> Result<u32, FetchError> {
        let mut bytes = [0; ELEMENT_MAX];
        let places = self.locate::<A>(state, memory)?;
        for (byte, &place) in bytes.iter_mut().zip(&places).take(self.size) {
            memory.read(place, core::slice::from_mut(byte)).map_err(|_| FetchError::Protection)?;
        }
        Ok(u32::from_le_bytes(bytes))
    }

    fn store<A: X86>(
        &self,
        state: &VcpuState<A::Block>,
        memory: &GuestMemory<'_>,
        value: u32,
    ) -> Result<(), FetchError> {
        let places = self.locate::<A>(state, memory)?;
        for (byte, &place) in value.to_le_bytes().iter().zip(&places).take(self.size) {
            memory.write(place, core::slice::from_ref(byte)).map_err(|_| FetchError::Protection)?;
        }
        Ok(())
    }
}

/// Base of a segment; in 64-bit code only FS and GS have one.
fn segment_base(block: &impl ControlBlock, segment: Register, is_64bit: bool) -> u64 {
    let Segment { base, .. } = match segment {
        Register::FS => block.segment(SegmentName::Fs),
        Register::GS => block.segment(SegmentName::Gs),
        _ if is_64bit => return 0,
        Register::ES => block.segment(SegmentName::Es),
        Register::CS => block.segment(SegmentName::Cs),
        Register::SS => block.segment(SegmentName::Ss),
        _ => block.segment(SegmentName::Ds),
    };
    base
}

/// INS or OUTS.
pub(crate) fn on_string_port<A: X86>(
    context: &mut Context<'_, A>,
    access: PortAccess,
    string: StringAccess,
) -> Next {
    let operation =
        with_translation(context, |state, memory| Operation::new::<A>(&state.block, memory, access, string));
    let moved = operation
        .and_then(|operation| move_elements(context, &operation, string.is_repeated, access.next_rip));
    moved.unwrap_or_else(|error| {
        context.state.raise_fetch_error(error);
        Next::Resume
    })
}

/// Moves as many elements as one exit may; stops after a write that ends or resets the machine.
fn move_elements<A: X86>(
    context: &mut Context<'_, A>,
    operation: &Operation,
    is_repeated: bool,
    next_rip: u64,
) -> Result<Next, FetchError> {
    let mask = operation.address_mask;
    let size = operation.size as u64;
    let step = if context.state.block.read(Rflags) & RFLAGS_DF == 0 { size } else { size.wrapping_neg() };
    let count = if is_repeated { context.state.registers.0[RCX] & mask } else { 1 };
    let mut left = count;
    let mut next = Next::Resume;
    while left > 0 && count - left < ELEMENTS_PER_EXIT && next == Next::Resume {
        next = move_element(context, operation)?;
        if next == Next::Again {
            return Ok(next);
        }
        left -= 1;
        add_masked(&mut context.state.registers.0[operation.index()], step, mask);
        if is_repeated {
            add_masked(&mut context.state.registers.0[RCX], u64::MAX, mask);
        }
    }
    if left == 0 {
        let length = next_rip.wrapping_sub(context.state.block.read(Rip));
        context.state.skip(length);
    }
    Ok(next)
}

fn move_element<A: X86>(context: &mut Context<'_, A>, operation: &Operation) -> Result<Next, FetchError> {
    if operation.is_input {
        // Reading the port may change the device, so any fault must come first.
        with_translation(context, |state, memory| operation.locate::<A>(state, memory))?;
        let value = read_port(context, operation.port, operation.width);
        with_translation(context, |state, memory| operation.store::<A>(state, memory, value))?;
        return Ok(Next::Resume);
    }
    let value = with_translation(context, |state, memory| operation.load::<A>(state, memory))?;
    Ok(write_port(context, operation.port, operation.width, value))
}
