//! Nested page faults: memory appears when it is first touched, everything else is a device or nothing.

use memslots::space::{Fault, Found};
use paging::Gpa;
use paging::guest::Access;

use super::super::machine::Machine;
use super::exits::Context;
use super::instruction::{Move, decode_move, mask, translate};
use super::state::VcpuState;
use super::vmcb::clean;
use crate::devices::platform::Platform;
use hostlink::counters::Counter;

/// `exit_info_1` of a nested page fault: the access was a store.
const FAULT_WRITE: u64 = 1 << 1;
/// The fault came from the walk of the guest's page tables, not from the access itself.
const FAULT_IN_WALK: u64 = 1 << 33;
/// The fault came from an instruction fetch.
const FAULT_FETCH: u64 = 1 << 4;

impl Context<'_> {
    /// #NPF: `exit_info_2` is the guest physical address.
    pub(crate) fn on_nested_fault(&mut self) {
        let gpa = Gpa(self.state.vmcb.exit_info_2);
        let info = self.state.vmcb.exit_info_1;
        if self.state.mmio.has(gpa, self.vm.space.slots().generation()) {
            self.count(Counter::MmioCached);
            return self.on_mmio(gpa, info);
        }
        match self.with_section(|_, vm| vm.space.fault(gpa, info & FAULT_WRITE != 0)) {
            Fault::Installed(_) => self.count(Counter::NestedInstalled),
            Fault::Upgraded => self.count(Counter::NestedUpgraded),
            // Another vCPU was first, or the processor kept an old absence.
            Fault::Retry => {}
            // Stores to read-only memory are dropped, as by a ROM.
            Fault::ReadOnly => self.emulate_access(gpa),
            Fault::Mmio { found, generation } => {
                self.count(match found {
                    Found::Marked => Counter::MmioMarked,
                    Found::Searched => Counter::MmioSearched,
                });
                self.state.mmio.insert(gpa, generation);
                self.on_mmio(gpa, info);
            }
            // The heap has room for tables that map all memory of the machine page by page.
            Fault::OutOfTables => panic!("no memory for the nested page table at {gpa}"),
        }
    }

    /// An access to a device's registers, or to nothing.
    fn on_mmio(&mut self, gpa: Gpa, info: u64) {
        if info & FAULT_IN_WALK != 0 {
            // The guest's own page tables lie where there is no memory.
            self.state.raise_protection();
        } else if info & FAULT_FETCH != 0 {
            // Code where there is no memory: all ones is no instruction.
            self.state.raise_undefined();
        } else {
            self.emulate_access(gpa);
        }
    }

    /// Performs the move at RIP on the device behind `gpa`; where there is none, loads give all ones and stores are lost.
    ///
    /// Decoding, translation and access are one section for the flush engine: an initiator that has changed the
    /// translation waits until the access is done, or the walk here finds the change, and the guest tries again (H30).
    fn emulate_access(&mut self, gpa: Gpa) {
        let vm = self.vm;
        self.state.rsp_from_vmcb();
        let outcome = self.with_translation(|state, memory| {
            let decoded = decode_move(&state.vmcb, &state.registers, memory)?;
            let kind = match decoded.access {
                Move::Load { .. } => Access::empty(),
                Move::Store { .. } => Access::WRITE,
            };
            if translate(&state.vmcb, memory, decoded.linear, kind) != Ok(gpa) {
                return Ok(None);
            }
            vm.access_device(gpa, decoded.access, state);
            Ok(Some(decoded.length))
        });
        match outcome {
            Ok(Some(length)) => {
                self.state.rsp_to_vmcb();
                self.skip(length);
            }
            Ok(None) => {}
            Err(error) => {
                log::debug!("vCPU {}: access to {gpa} is not emulated", self.vcpu.index);
                self.state.raise_fetch_error(error);
            }
        }
        self.state.vmcb.mark_dirty(clean::ALL);
    }
}

impl Machine {
    /// Performs an access of a vCPU to the device at `gpa`.
    fn access_device(&self, gpa: Gpa, access: Move, state: &mut VcpuState) {
        // The devices here have 32-bit registers; any other access finds nothing.
        let is_device = |size| size == 4 && Platform::is_mmio(gpa.0);
        match access {
            Move::Load { size, signed, to } => {
                let raw = if is_device(size) {
                    u64::from(self.platform.lock().mmio_read(gpa.0))
                } else {
                    mask(size)
                };
                let extended = if signed { sign_extend(raw, size) } else { raw };
                to.write(&mut state.registers, extended);
            }
            Move::Store { size, from } if is_device(size) => {
                let value = from.read(&state.registers) as u32;
                let messages = self.platform.lock().mmio_write(gpa.0, value);
                for message in messages {
                    self.deliver(message, state.lapic.apic_id());
                }
            }
            Move::Store { .. } => {}
        }
    }
}

fn sign_extend(value: u64, size: u32) -> u64 {
    let shift = 64 - 8 * size;
    ((value << shift).cast_signed() >> shift).cast_unsigned()
}
