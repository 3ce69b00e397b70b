//! Stage-2 faults: memory appears when it is first touched, everything else is a device or nothing.
//!
//! Source: Arm DDI 0487, ESR_EL2 "ISS encoding for an exception from a Data Abort", HPFAR_EL2.

use hostlink::counters::Counter;
use memslots::space::{Fault, Found};
use paging::Gpa;

use super::inject;
use super::sysreg::{isb, read, write};
use crate::arm64::abort::{CACHE_MAINTENANCE, IN_WALK, WRITE, kind, kind_of, needs_write};
use crate::vm::{Context, Next};

/// Fields of the syndrome.
const VALID: u64 = 1 << 24;
const SIGN_EXTEND: u64 = 1 << 21;
const SIXTY_FOUR: u64 = 1 << 15;
const CLASS_FETCH: u64 = 0x20;

/// An access to a device, as the syndrome describes it.
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
        if self.state.mmio.has(Gpa(gpa), self.vm.space.slots().generation()) {
            self.count(Counter::MmioCached);
            return self.on_mmio(gpa, syndrome, address);
        }
        match self.with_section(|_, vm| vm.space.fault(Gpa(gpa), is_write)) {
            Fault::Installed(_) => self.count(Counter::NestedInstalled),
            Fault::Upgraded => self.count(Counter::NestedUpgraded),
            // Another vCPU was first, or a change is under way.
            Fault::Retry => {}
            // Stores to read-only memory are dropped, those of walks cannot be.
            Fault::ReadOnly if syndrome & IN_WALK != 0 => return self.abort(syndrome, address),
            Fault::ReadOnly => self.skip(syndrome),
            Fault::Mmio { found, generation } => {
                self.count(match found {
                    Found::Marked => Counter::MmioMarked,
                    Found::Searched => Counter::MmioSearched,
                });
                self.state.mmio.insert(Gpa(gpa), generation);
                return self.on_mmio(gpa, syndrome, address);
            }
            // The heap has room for tables that map all memory of the machine page by page.
            Fault::OutOfTables => panic!("no memory for the stage-2 table at {gpa:#x}"),
        }
        Next::Resume
    }

    #[cold]
    fn abort(&mut self, syndrome: u64, address: u64) -> Next {
        let is_fetch = syndrome >> 26 & 0x3f == CLASS_FETCH;
        inject::external_abort(&mut self.state.registers, address, is_fetch, syndrome & WRITE != 0);
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
        // Without a valid syndrome the access is of a kind that drivers do not make: of several registers, or with
        // writeback.
        if is_fetch || syndrome & (VALID | IN_WALK) != VALID {
            return self.abort(syndrome, address);
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
    let saved = read!("par_el1");
    // SAFETY: translates by the guest's stage 1 into PAR_EL1, which is put back. A read at EL1 is enough to find the
    // address.
    let result = unsafe {
        core::arch::asm!("at s1e1r, {}", in(reg) address, options(nostack, preserves_flags));
        isb();
        let result = read!("par_el1");
        write!("par_el1", saved);
        result
    };
    (result & 1 == 0).then_some(result & 0xf_ffff_ffff_f000 | offset)
}
