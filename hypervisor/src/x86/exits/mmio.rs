//! Accesses that the processor cannot complete: to device registers, to unused addresses, and
//! stores to read-only memory.

use hostlink::counters::Counter;
use iced_x86::Instruction;
use memslots::{GuestMemory, Resolution};
use paging::Gpa;
use paging::guest::Access;

use super::effects::readdress;
use super::with_translation;
use crate::devices::pc::lapic::{Effect, Lapic};
use crate::devices::pc::platform::PcBoard;
use crate::vm::{Context, Next, Vm, increase};
use crate::x86::emulator::{Cpu, EmulationOutcome, Failure, Memory, SegmentBases, execute};
use crate::x86::processor::X86;
use crate::x86::vcpu::block::Field::{Rflags, TscOffset};
use crate::x86::vcpu::block::{ControlBlock, SegmentName};
use crate::x86::vcpu::instruction::{FetchError, faulting_instruction, translate};
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{DR6_SINGLE_STEP, RFLAGS_TF};

const PAGE: u64 = 4096;

/// Emulates the instruction at RIP, whose access the processor could not complete. The page of
/// `mmio` is known to have no memory behind it.
///
/// Decoding, translation and access are one section for the flush engine: an initiator that has
/// changed the translation waits until the access is done, or the walk here finds the change (H30).
#[inline(never)] // Rare, and with a stack frame that other exits need not make.
pub(super) fn emulate_access<A: X86>(context: &mut Context<'_, A>, mmio: Option<Gpa>) -> Next {
    let vm = context.vm;
    context.state.rsp_from_block();
    let outcome = with_translation(context, |state, memory| {
        let instruction = faulting_instruction::<A>(&state.block, memory)?;
        let (outcome, effects) = emulate(vm, state, memory, mmio, &instruction);
        Ok((outcome, effects, instruction.len() as u64))
    });
    let (outcome, effects) = match outcome {
        Ok((outcome, effects, length)) => (outcome.map(|outcome| (outcome, length)), effects),
        Err(error) => (Err(error), LapicEffects::default()),
    };
    match outcome {
        Ok((EmulationOutcome::Done, length)) => {
            context.state.rsp_to_block();
            context.state.skip(length);
        }
        Ok((EmulationOutcome::Unfinished, _)) => {
            // An interrupt shadow of the previous instruction covers the first elements only.
            context.state.block.end_shadow();
            if context.state.block.read(Rflags) & RFLAGS_TF != 0 {
                context.state.raise_debug(DR6_SINGLE_STEP);
            }
        }
        Ok((EmulationOutcome::Retry, _)) => {}
        Err(error) => {
            log::debug!("vCPU {}: access is not emulated: {error:?}", context.vcpu.index);
            context.state.raise_fetch_error(error);
        }
    }
    settle_lapic(context, &effects)
}

/// Carries out the remaining effects of accesses to the local APIC's registers.
fn settle_lapic<A: X86>(context: &mut Context<'_, A>, effects: &LapicEffects) -> Next {
    if effects.targets != 0 {
        increase(&context.counters[Counter::IrqIpi as usize], effects.targets);
    }
    if !effects.is_changed {
        return Next::Resume;
    }
    readdress(context);
    Next::Timers
}

/// Effects of accesses to the local APIC's registers that are carried out after the instruction.
#[derive(Clone, Copy, Default)]
struct LapicEffects {
    /// Number of vCPUs that interrupts were sent to.
    targets: u64,
    /// Timer or address may have changed.
    is_changed: bool,
}

fn emulate<A: X86>(
    vm: &'static Vm<A>,
    state: &mut VcpuState<A::Block>,
    memory: &GuestMemory<'_>,
    mmio: Option<Gpa>,
    instruction: &Instruction,
) -> (Result<EmulationOutcome, FetchError>, LapicEffects) {
    let block = &*state.block;
    let mut flags = block.read(Rflags);
    let base = |name| block.segment(name).base;
    let mut cpu = Cpu {
        registers: &mut state.registers.0,
        flags: &mut flags,
        bases: SegmentBases {
            legacy: [SegmentName::Es, SegmentName::Cs, SegmentName::Ss, SegmentName::Ds].map(base),
            extra: [SegmentName::Fs, SegmentName::Gs].map(base),
        },
        is_64bit: block.is_64bit(),
    };
    let effects = LapicEffects::default();
    let mut reach = Reach { vm, block, memory, mmio, lapic: &mut state.lapic, effects };
    let outcome = execute(instruction, &mut cpu, &mut reach);
    let effects = reach.effects;
    state.block.write(Rflags, flags);
    let outcome = outcome.map_err(|failure| match failure {
        Failure::Memory(error) => error,
        Failure::Unsupported => FetchError::Undefined,
    });
    (outcome, effects)
}

/// The memory and devices that a vCPU reaches by its linear addresses.
struct Reach<'a, A: X86> {
    vm: &'static Vm<A>,
    block: &'a A::Block,
    memory: &'a GuestMemory<'a>,
    /// An address in a page that has no memory.
    mmio: Option<Gpa>,
    /// The vCPU's own local APIC.
    lapic: &'a mut Lapic,
    effects: LapicEffects,
}

impl<A: X86> Reach<'_, A> {
    /// The memory of the page of `gpa`: whether it is read-only; `None` if there is no memory.
    fn memory_at(&self, gpa: Gpa) -> Option<bool> {
        if self.mmio.is_some_and(|known| known.0 / PAGE == gpa.0 / PAGE) {
            return None;
        }
        match self.memory.resolve(gpa) {
            Resolution::Ram { slot, .. } if !slot.is_device() => Some(slot.is_read_only()),
            Resolution::Ram { .. } | Resolution::Mmio => None,
        }
    }

    /// The devices here have 32-bit registers; any other access has no effect.
    fn is_register(gpa: Gpa, len: usize) -> bool {
        len == 4 && PcBoard::is_mmio(gpa.0)
    }

    fn is_lapic(&self, gpa: Gpa, len: usize) -> bool {
        len == 4 && Lapic::is_register(gpa.0) && self.lapic.has_page(gpa.0)
    }

    /// The vCPU's TSC.
    fn now(&self) -> u64 {
        A::now().wrapping_add(self.block.read(TscOffset))
    }

    fn read_function(&self, gpa: Gpa, bytes: &mut [u8]) {
        if !matches!(bytes.len(), 1 | 2 | 4 | 8) {
            return;
        }
        let value = self.vm.guest.owned.functions.lock().trapped_read(self.vm, gpa, bytes.len() as u8);
        if let Some(value) = value {
            bytes.iter_mut().zip(value.to_le_bytes()).for_each(|(byte, read)| *byte = read);
        }
    }

    fn write_function(&self, gpa: Gpa, bytes: &[u8]) {
        let mut value = [0; 8];
        if !matches!(bytes.len(), 1 | 2 | 4 | 8) {
            return;
        }
        value.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        let value = u64::from_le_bytes(value);
        self.vm.guest.owned.functions.lock().trapped_write(self.vm, gpa, bytes.len() as u8, value);
    }

    fn write_lapic(&mut self, gpa: Gpa, value: u32) {
        let effect = self.lapic.write_page(gpa.0, value, self.now());
        let sender = self.lapic.apic_id();
        match effect {
            Effect::None | Effect::Eoi { level: false, .. } => {}
            Effect::Ipi(message) => self.effects.targets += self.vm.deliver(message, sender),
            Effect::Eoi { vector, level: true } => {
                let messages = self.vm.guest.platform.lock().eoi(vector);
                for message in messages {
                    self.vm.deliver(message, sender);
                }
            }
            Effect::TimerChanged | Effect::Readdressed => self.effects.is_changed = true,
        }
    }
}

impl<A: X86> Memory for Reach<'_, A> {
    type Error = FetchError;

    fn translate(&mut self, linear: u64, is_write: bool) -> Result<Gpa, FetchError> {
        let access = if is_write { Access::WRITE } else { Access::empty() };
        translate::<A>(self.block, self.memory, linear, access)
    }

    fn is_direct(&mut self, gpa: Gpa, is_write: bool) -> bool {
        self.memory_at(gpa).is_some_and(|is_read_only| !(is_read_only && is_write))
    }

    /// Reads all ones at unused addresses.
    fn read(&mut self, gpa: Gpa, bytes: &mut [u8]) {
        bytes.fill(0xff);
        match self.memory_at(gpa) {
            Some(_) => {
                // It was found in the pinned slots.
                let _ = self.memory.read(gpa, bytes);
            }
            None if self.is_lapic(gpa, bytes.len()) => {
                let value = self.lapic.read_page(gpa.0, self.now());
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            None if Self::is_register(gpa, bytes.len()) => {
                let value = self.vm.guest.platform.lock().mmio_read(gpa.0);
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            None if self.vm.guest.has_functions => self.read_function(gpa, bytes),
            None => {}
        }
    }

    /// Writes to unused addresses and to read-only memory are discarded.
    fn write(&mut self, gpa: Gpa, bytes: &[u8]) {
        match (self.memory_at(gpa), bytes.first_chunk()) {
            (Some(_), _) => {
                let _ = self.memory.write(gpa, bytes);
            }
            (None, Some(register)) if self.is_lapic(gpa, bytes.len()) => {
                self.write_lapic(gpa, u32::from_le_bytes(*register));
            }
            (None, Some(register)) if Self::is_register(gpa, bytes.len()) => {
                let value = u32::from_le_bytes(*register);
                let messages = self.vm.guest.platform.lock().mmio_write(gpa.0, value);
                for message in messages {
                    self.vm.deliver(message, self.lapic.apic_id());
                }
            }
            (None, _) if self.vm.guest.has_functions => self.write_function(gpa, bytes),
            _ => {}
        }
    }
}
