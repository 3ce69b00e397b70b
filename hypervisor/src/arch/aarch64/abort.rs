//! Stage-2 faults: memory appears when it is first touched, everything else is a device or nothing.
//!
//! Source: Arm DDI 0487, ESR_EL2 "ISS encoding for an exception from a Data Abort", HPFAR_EL2.

use memslots::Gpa;
use stay::{Answer, in_section};

use super::inject;
use super::sysreg::{isb, read, write};
use crate::arch::Context;
use crate::arm64::abort::{CACHE_MAINTENANCE, IN_WALK, WRITE, kind, kind_of, needs_write, passed_on};
use crate::arm64::load_store::{self, LoadStore};
use crate::vm::Next;

/// Fields of the syndrome.
const VALID: u64 = 1 << 24;
const SIGN_EXTEND: u64 = 1 << 21;
const SIXTY_FOUR: u64 = 1 << 15;
const CLASS_FETCH: u64 = 0x20;

/// PAR_EL1: the translation failed (F), by a fault of stage 2 (S); the address.
const PAR_FAILED: u64 = 1;
const PAR_STAGE2: u64 = 1 << 9;
const PAR_ADDRESS: u64 = 0xf_ffff_ffff_f000;
/// An address without what may be a tag in it.
const ADDRESS: u64 = u64::MAX >> 8;

/// What has come of reading an instruction.
enum Fetched {
    Instruction(u32),
    /// Its page has gone since it was executed.
    Changed,
    /// It is AArch32's, or in a page that can be executed only.
    No,
}

/// An access to a device, as the syndrome or its instruction describes it.
struct Access {
    gpa: u64,
    bytes: u8,
    register: usize,
    is_write: bool,
    sign_extends: bool,
    is_64bit: bool,
}

impl Context<'_> {
    /// A data or instruction abort.
    pub(crate) fn on_abort(&mut self, syndrome: u64) -> Next {
        let address = read!("far_el2");
        let kind = kind_of(syndrome);
        if !matches!(kind, kind::TRANSLATION | kind::ACCESS_FLAG | kind::PERMISSION | kind::ADDRESS_SIZE) {
            // An external abort or the like: the guest has met broken memory.
            return self.abort(syndrome, address);
        }
        let Some(gpa) = faulting(syndrome, kind, address) else {
            // The guest's own tables have changed meanwhile: it faults again, or not.
            return Next::Resume;
        };
        if kind == kind::ADDRESS_SIZE {
            return self.abort(syndrome, address);
        }
        let is_write = needs_write(syndrome);
        match self.answer_nested_fault(Gpa(gpa), is_write) {
            // Stores to read-only memory are dropped, those of walks cannot be.
            Answer::ReadOnly if syndrome & IN_WALK != 0 => return self.abort(syndrome, address),
            Answer::ReadOnly => self.skip(syndrome),
            Answer::Mmio(_) => return self.on_mmio(gpa, syndrome, address),
            Answer::Installed(_) | Answer::Upgraded | Answer::Retry | Answer::OutOfTables => {}
        }
        Next::Resume
    }

    #[cold]
    fn abort(&mut self, syndrome: u64, address: u64) -> Next {
        let is_fetch = syndrome >> 26 & 0x3f == CLASS_FETCH;
        inject::external_abort(&mut self.state.registers, address, is_fetch, passed_on(syndrome, is_fetch));
        Next::Resume
    }

    /// An access to a device's registers, or to nothing.
    fn on_mmio(&mut self, gpa: u64, syndrome: u64, address: u64) -> Next {
        let is_fetch = syndrome >> 26 & 0x3f == CLASS_FETCH;
        if syndrome & CACHE_MAINTENANCE != 0 {
            // Of a device's registers nothing is cached.
            self.skip(syndrome);
            return Next::Resume;
        }
        if is_fetch || syndrome & IN_WALK != 0 {
            return self.abort(syndrome, address);
        }
        if syndrome & VALID == 0 {
            return self.on_undescribed(gpa, syndrome, address);
        }
        let access = Access {
            gpa,
            bytes: 1 << (syndrome >> 22 & 3),
            register: (syndrome >> 16 & 0x1f) as usize,
            is_write: syndrome & WRITE != 0,
            sign_extends: syndrome & SIGN_EXTEND != 0,
            is_64bit: syndrome & SIXTY_FOUR != 0,
        };
        if !self.access_device(&access) {
            return self.abort(syndrome, address);
        }
        self.skip(syndrome);
        Next::Resume
    }

    /// An access that the syndrome does not describe: of two registers, or with write-back. Its instruction says what it is.
    #[cold]
    fn on_undescribed(&mut self, gpa: u64, syndrome: u64, address: u64) -> Next {
        match self.fetch() {
            // The guest's own tables have changed meanwhile: it faults again, or not.
            Fetched::Changed => Next::Resume,
            Fetched::No => self.abort(syndrome, address),
            Fetched::Instruction(word) => {
                let access = load_store::decode(word);
                if access.is_some_and(|access| self.carry_out(&access, gpa, syndrome, address)) {
                    self.skip(syndrome);
                    Next::Resume
                } else {
                    self.abort(syndrome, address)
                }
            }
        }
    }

    /// Carries the access out; false if it is not what faulted, reaches beyond the page, or nothing is there.
    fn carry_out(&mut self, access: &LoadStore, gpa: u64, syndrome: u64, address: u64) -> bool {
        let base = self.base(access.base);
        let is_it = base.wrapping_add_signed(access.offset) & ADDRESS == address & ADDRESS
            && access.is_load == (syndrome & WRITE == 0);
        if !is_it || (gpa & 0xfff) + access.size() > 0x1000 {
            return false;
        }
        for (index, register) in [Some(access.first), access.second].into_iter().flatten().enumerate() {
            let part = Access {
                gpa: gpa + index as u64 * u64::from(access.bytes),
                bytes: access.bytes,
                register: usize::from(register),
                is_write: !access.is_load,
                sign_extends: access.sign_extends,
                is_64bit: access.is_64bit,
            };
            if !self.access_device(&part) {
                return false;
            }
        }
        if let Some(change) = access.write_back {
            self.set_base(access.base, base.wrapping_add_signed(change));
        }
        true
    }

    /// The instruction at the PC.
    fn fetch(&mut self) -> Fetched {
        let registers = &self.state.registers;
        let pc = registers.pc;
        if registers.pstate & inject::AARCH32 != 0 || !pc.is_multiple_of(4) {
            return Fetched::No;
        }
        let result = translate(pc, inject::is_from_el0(registers));
        if result & PAR_FAILED != 0 {
            return if result & PAR_STAGE2 != 0 { Fetched::Changed } else { Fetched::No };
        }
        let gpa = Gpa(result & PAR_ADDRESS | pc & 0xfff);
        match in_section(self, |_, vm| vm.space.slots().memory().read_u32(gpa)) {
            Ok(word) => Fetched::Instruction(word),
            Err(_) => Fetched::Changed,
        }
    }

    /// A base register: 31 is the stack pointer that the guest uses.
    fn base(&self, register: u8) -> u64 {
        match self.state.registers.x.get(usize::from(register)) {
            Some(value) => *value,
            None if inject::uses_own_stack(&self.state.registers) => read!("sp_el1"),
            None => read!("sp_el0"),
        }
    }

    fn set_base(&mut self, register: u8, value: u64) {
        let uses_own_stack = inject::uses_own_stack(&self.state.registers);
        match self.state.registers.x.get_mut(usize::from(register)) {
            Some(place) => *place = value,
            // SAFETY: the guest's stack pointers, which EL2 does not use.
            None if uses_own_stack => unsafe { write!("sp_el1", value) },
            // SAFETY: as above.
            None => unsafe { write!("sp_el0", value) },
        }
    }

    /// Carries out an access; false if nothing is there.
    fn access_device(&mut self, access: &Access) -> bool {
        if access.is_write {
            let value = self.state.registers.x.get(access.register).copied().unwrap_or(0);
            let mask = u64::MAX >> (64 - 8 * u32::from(access.bytes));
            return self.write_device(access.gpa, access.bytes, value & mask);
        }
        let Some(value) = self.read_device(access.gpa, access.bytes) else { return false };
        let unused = 64 - 8 * u32::from(access.bytes);
        let mut value = match access.sign_extends {
            true => ((value << unused) as i64 >> unused) as u64,
            false => value << unused >> unused,
        };
        if !access.is_64bit {
            value &= 0xffff_ffff;
        }
        if let Some(register) = self.state.registers.x.get_mut(access.register) {
            *register = value;
        }
        true
    }
}

/// The guest physical address that the fault is about. HPFAR_EL2 holds it but for permission faults of the access itself:
/// there stage 1 has to be walked once more, and `None` says that it has changed meanwhile.
fn faulting(syndrome: u64, kind: u64, address: u64) -> Option<u64> {
    let offset = address & 0xfff;
    if kind != kind::PERMISSION || syndrome & IN_WALK != 0 {
        return Some((read!("hpfar_el2") & 0xfff_ffff_fff0) << 8 | offset);
    }
    // A read at EL1 is enough to find the address.
    gpa_of(address, false)
}

/// The guest physical address of what the guest can read at EL1 or EL0.
pub(super) fn gpa_of(address: u64, at_el0: bool) -> Option<u64> {
    let result = translate(address, at_el0);
    (result & PAR_FAILED == 0).then_some(result & PAR_ADDRESS | address & 0xfff)
}

/// Translates by the guest's stage 1, for a read at EL1 or EL0: PAR_EL1.
fn translate(address: u64, at_el0: bool) -> u64 {
    let saved = read!("par_el1");
    // SAFETY: the result is in PAR_EL1, which is put back.
    unsafe {
        if at_el0 {
            core::arch::asm!("at s1e0r, {}", in(reg) address, options(nostack, preserves_flags));
        } else {
            core::arch::asm!("at s1e1r, {}", in(reg) address, options(nostack, preserves_flags));
        }
        isb();
        let result = read!("par_el1");
        write!("par_el1", saved);
        result
    }
}
