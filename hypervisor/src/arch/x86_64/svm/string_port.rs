//! INS and OUTS: port I/O from and to memory.

use memslots::GuestMemory;
use paging::guest::Access;

use super::entry::{RCX, RDI, RSI};
use super::exits::{Context, Next};
use super::instruction::{FetchError, mask, translate};
use super::state::VcpuState;
use crate::devices::platform::PortSize;

/// Elements that one exit moves; what is left makes the instruction exit again, with interrupts in between.
const ELEMENTS_PER_EXIT: u64 = 64;
const RFLAGS_DF: u64 = 1 << 10;

/// The I/O exit information of a string instruction (APM volume 2, section 15.10.2).
#[derive(Clone, Copy)]
struct Info(u64);

impl Info {
    fn is_input(self) -> bool {
        self.0 & 1 != 0
    }

    fn is_repeated(self) -> bool {
        self.0 & 1 << 3 != 0
    }

    fn size(self) -> usize {
        (self.0 >> 4 & 7) as usize
    }

    /// Bytes of an address.
    fn address_size(self) -> u32 {
        match self.0 >> 7 & 7 {
            1 => 2,
            2 => 4,
            _ => 8,
        }
    }

    fn port(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

impl Context<'_, '_> {
    /// INS or OUTS, `info` being the exit's.
    pub(crate) fn on_string_port(&mut self, info: u64) -> Next {
        let info = Info(info);
        let address_mask = mask(info.address_size());
        let Some(width) = PortSize::from_bytes(info.size()) else {
            self.state.raise_protection();
            return Next::Resume;
        };
        let left = if info.is_repeated() { self.state.registers.0[RCX] & address_mask } else { 1 };
        for _ in 0..left.min(ELEMENTS_PER_EXIT) {
            if let Err(error) = self.move_element(info, width) {
                self.state.raise_fetch_error(error);
                return Next::Resume;
            }
            let step = if self.state.vmcb.rflags & RFLAGS_DF == 0 { info.size() as u64 } else { 0u64.wrapping_sub(info.size() as u64) };
            let index = if info.is_input() { RDI } else { RSI };
            add_masked(&mut self.state.registers.0[index], step, address_mask);
            if info.is_repeated() {
                add_masked(&mut self.state.registers.0[RCX], u64::MAX, address_mask);
            }
        }
        if left <= ELEMENTS_PER_EXIT {
            let length = self.state.vmcb.exit_info_2.wrapping_sub(self.state.vmcb.rip);
            self.skip(length);
        }
        Next::Resume
    }

    fn move_element(&mut self, info: Info, width: PortSize) -> Result<(), FetchError> {
        if info.is_input() {
            let value = self.vm.port_read(info.port(), width);
            return self.with_translation(|state, memory| store(state, memory, info, value));
        }
        let value = self.with_translation(|state, memory| load(state, memory, info))?;
        // A power event of a string instruction is taken up by the next plain one.
        let _next = self.write_port(info.port(), width, value);
        Ok(())
    }
}

/// Adds to the part of a register that `mask` covers; a 32-bit address clears the rest, a 16-bit one leaves it.
fn add_masked(register: &mut u64, step: u64, mask: u64) {
    let sum = register.wrapping_add(step) & mask;
    *register = if mask == 0xffff { *register & !mask | sum } else { sum };
}

/// Linear address of byte `offset` of the element.
fn linear(state: &VcpuState, info: Info, offset: usize) -> u64 {
    let (segment, index) = if info.is_input() { (state.vmcb.es, RDI) } else { (state.vmcb.ds, RSI) };
    let address = (state.registers.0[index] & mask(info.address_size())).wrapping_add(offset as u64);
    if state.vmcb.is_64bit() { address } else { segment.base.wrapping_add(address) & 0xffff_ffff }
}

fn load(state: &VcpuState, memory: &GuestMemory<'_>, info: Info) -> Result<u32, FetchError> {
    let mut bytes = [0; 4];
    for offset in 0..info.size().min(4) {
        let gpa = translate(&state.vmcb, memory, linear(state, info, offset), Access::empty())?;
        memory.read(gpa, &mut bytes[offset..=offset]).map_err(|_| FetchError::Protection)?;
    }
    Ok(u32::from_le_bytes(bytes))
}

fn store(state: &VcpuState, memory: &GuestMemory<'_>, info: Info, value: u32) -> Result<(), FetchError> {
    let bytes = value.to_le_bytes();
    // All bytes are translated before the first is written, so that a fault leaves no half of the element behind.
    let mut places = [paging::Gpa(0); 4];
    for offset in 0..info.size().min(4) {
        places[offset] = translate(&state.vmcb, memory, linear(state, info, offset), Access::WRITE)?;
    }
    for offset in 0..info.size().min(4) {
        memory.write(places[offset], &bytes[offset..=offset]).map_err(|_| FetchError::Protection)?;
    }
    Ok(())
}
