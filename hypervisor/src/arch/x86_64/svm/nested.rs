//! Nested page faults: memory appears when it is first touched, everything else is a device or nothing.

use memslots::Resolution;
use paging::{Gpa, Installed, MapError, Permissions as Rights};

use super::exits::Context;
use super::instruction::{Move, decode_move, mask};
use super::vmcb::clean;
use crate::devices::platform::Platform;
use hostlink::counters::Counter;

/// `exit_info_1` of a nested page fault: the access was a store.
const FAULT_WRITE: u64 = 1 << 1;
/// The fault came from an instruction fetch.
const FAULT_FETCH: u64 = 1 << 4;

impl Context<'_, '_> {
    /// #NPF: `exit_info_2` is the guest physical address.
    pub(crate) fn on_nested_fault(&mut self) {
        let gpa = Gpa(self.state.vmcb.exit_info_2);
        let info = self.state.vmcb.exit_info_1;
        let memory = self.vm.memslots.memory();
        match memory.resolve(gpa) {
            Resolution::Ram { slot, .. } if slot.is_read_only() && info & FAULT_WRITE != 0 => {
                // Stores to read-only memory are dropped, as by a ROM.
                drop(memory);
                self.emulate_access(gpa);
            }
            Resolution::Ram { slot, host, level } => {
                let rights = if slot.is_read_only() { Rights::RX } else { Rights::RWX };
                match self.vm.nested.install(gpa.0, host, level.min(self.vm.largest_page), rights) {
                    Ok(Installed::New(_)) => self.count(Counter::NestedInstalled),
                    // Another vCPU was first, or the processor kept an old absence.
                    Ok(Installed::Present(_)) | Err(MapError::Raced) => {}
                    Err(error) => panic!("nested page table: {error}"),
                }
            }
            Resolution::Mmio if info & FAULT_FETCH != 0 => {
                // Code where there is no memory: all ones is no instruction.
                drop(memory);
                self.state.raise_undefined();
            }
            Resolution::Mmio => {
                drop(memory);
                self.emulate_access(gpa);
            }
        }
    }

    /// Performs the move at RIP on the device behind `gpa`; where there is none, loads give all ones and stores are lost.
    fn emulate_access(&mut self, gpa: Gpa) {
        let decoded = self.with_translation(|state, memory| decode_move(&state.vmcb, memory));
        let (access, length) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                log::warn!(
                    "vCPU {}: access to {gpa} at {:#x} is not emulated",
                    self.vcpu.index,
                    self.state.vmcb.rip
                );
                return self.state.raise_fetch_error(error);
            }
        };
        match access {
            Move::Load { size, signed, to } => {
                let raw = if size == 4 && Platform::is_mmio(gpa.0) {
                    u64::from(self.vm.platform.lock().mmio_read(gpa.0))
                } else {
                    mask(size)
                };
                let extended = if signed { sign_extend(raw, size) } else { raw };
                to.write(&mut self.state.registers, extended);
            }
            Move::Store { size, from } => {
                if size == 4 && Platform::is_mmio(gpa.0) {
                    let value = from.read(&self.state.registers) as u32;
                    let messages = self.vm.platform.lock().mmio_write(gpa.0, value);
                    for message in messages {
                        self.vm.deliver(message, self.state.lapic.apic_id());
                    }
                }
            }
        }
        self.skip(length);
        self.state.vmcb.mark_dirty(clean::ALL);
    }
}

fn sign_extend(value: u64, size: u32) -> u64 {
    let shift = 64 - 8 * size;
    ((value << shift).cast_signed() >> shift).cast_unsigned()
}
