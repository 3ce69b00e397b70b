//! Stage-2 faults: memory is mapped when it is first touched, every other address is a device or
//! unused.
//!
//! Source: Arm DDI 0487, ESR_EL2 "ISS encoding for an exception from a Data Abort", HPFAR_EL2.

use memslots::Gpa;
use stay::in_section;

use super::load_store::{self, LoadStore};
use super::syndrome::{
    CACHE_MAINTENANCE, CLASS_FETCH, IN_WALK, WRITE, has_page, is_beyond, is_of_stage2, needs_write, passed_on,
};
use super::{Described, Syndrome, inject, skip};
use crate::arm64::guest::devices;
use crate::arm64::processor::{Arm64, Processor};
use crate::arm64::vcpu::exchanged::Register;
use crate::vm::{Access, Context, FaultOutcome, Next};

/// Fields of the syndrome.
const VALID: u64 = 1 << 24;
const SIGN_EXTEND: u64 = 1 << 21;
const SIXTY_FOUR: u64 = 1 << 15;

/// PAR_EL1: the translation failed (F), by a fault of stage 2 (S); the address.
const PAR_FAILED: u64 = 1;
const PAR_STAGE2: u64 = 1 << 9;
const PAR_ADDRESS: u64 = 0xf_ffff_ffff_f000;
/// The address without its tag bits.
const ADDRESS: u64 = u64::MAX >> 8;
/// HPFAR_EL2: bits 51 to 12 of the address.
const FAULT_PAGE: u64 = 0xfff_ffff_fff0;

/// A data or instruction abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// ESR_EL2.
    pub syndrome: u64,
    /// FAR_EL2: the guest's virtual address.
    pub address: u64,
    /// Guest physical address of the page, where HPFAR_EL2 holds it.
    pub page: Option<u64>,
}

impl Described for Abort {
    #[inline(always)]
    fn describe<P: Processor>(Syndrome(syndrome): Syndrome) -> Self {
        let page = has_page(syndrome).then(|| (P::fault_page() & FAULT_PAGE) << 8);
        Self { syndrome, address: P::fault_address(), page }
    }
}

impl Abort {
    const fn is_fetch(&self) -> bool {
        Syndrome(self.syndrome).class() == CLASS_FETCH
    }

    /// The guest physical address of the access, unless the guest's own tables have changed
    /// meanwhile.
    fn gpa<P: Processor>(&self) -> Option<u64> {
        match self.page {
            Some(page) => Some(page | self.address & 0xfff),
            // Translating a read at EL1 is enough to find the address.
            None => gpa_of::<P>(self.address, false),
        }
    }
}

enum Fetched {
    Instruction(u32),
    /// Its page has been unmapped since it was executed.
    Changed,
    /// It is AArch32 code, or in an execute-only page.
    No,
}

/// An access to a device, as described by the syndrome or its instruction.
struct Part {
    gpa: u64,
    bytes: u8,
    register: usize,
    is_write: bool,
    sign_extends: bool,
    is_64bit: bool,
}

pub(super) fn handle<A: Arm64>(context: &mut Context<'_, A>, abort: Abort) -> Next {
    let Abort { syndrome, .. } = abort;
    if !is_of_stage2(syndrome) {
        // An external abort or similar: the guest has accessed broken memory.
        return pass_on(context, &abort);
    }
    let Some(gpa) = abort.gpa::<A>() else {
        // The access is retried, and may fault again.
        return Next::Resume;
    };
    if is_beyond(syndrome) {
        return pass_on(context, &abort);
    }
    let access = match () {
        () if syndrome & IN_WALK != 0 => Access::Walk,
        () if abort.is_fetch() => Access::Fetch,
        () => Access::Data,
    };
    match context.nested_fault(Gpa(gpa), access, needs_write(syndrome)) {
        FaultOutcome::Again => {}
        FaultOutcome::WalkRefused | FaultOutcome::FetchRefused => return pass_on(context, &abort),
        FaultOutcome::Lost => skip(context, Syndrome(syndrome)),
        FaultOutcome::Device => return on_mmio(context, gpa, &abort),
    }
    Next::Resume
}

#[cold]
fn pass_on<A: Arm64>(context: &mut Context<'_, A>, abort: &Abort) -> Next {
    let is_fetch = abort.is_fetch();
    let details = passed_on(abort.syndrome, is_fetch);
    inject::external_abort::<A>(&mut context.state.registers, abort.address, is_fetch, details);
    Next::Resume
}

/// An access to a device's registers, or to an unused address.
fn on_mmio<A: Arm64>(context: &mut Context<'_, A>, gpa: u64, abort: &Abort) -> Next {
    let syndrome = abort.syndrome;
    if syndrome & CACHE_MAINTENANCE != 0 {
        // Device registers are not cached.
        skip(context, Syndrome(syndrome));
        return Next::Resume;
    }
    if syndrome & VALID == 0 {
        return on_undescribed(context, gpa, abort);
    }
    let access = Part {
        gpa,
        bytes: 1 << (syndrome >> 22 & 3),
        register: (syndrome >> 16 & 0x1f) as usize,
        is_write: syndrome & WRITE != 0,
        sign_extends: syndrome & SIGN_EXTEND != 0,
        is_64bit: syndrome & SIXTY_FOUR != 0,
    };
    if let Some(configured) = configure(context, &access) {
        if configured.is_err() {
            return Next::Again;
        }
    } else if !access_device(context, &access) {
        return pass_on(context, abort);
    }
    skip(context, Syndrome(syndrome));
    Next::Resume
}

/// An access that the syndrome does not describe: of two registers, or with write-back. It is
/// decoded from its instruction.
#[cold]
fn on_undescribed<A: Arm64>(context: &mut Context<'_, A>, gpa: u64, abort: &Abort) -> Next {
    match fetch(context) {
        // The guest's own tables have changed meanwhile: the access is retried, and may fault
        // again.
        Fetched::Changed => Next::Resume,
        Fetched::No => pass_on(context, abort),
        Fetched::Instruction(word) => {
            let access = load_store::decode(word);
            if access.is_some_and(|access| carry_out(context, &access, gpa, abort)) {
                skip(context, Syndrome(abort.syndrome));
                Next::Resume
            } else {
                pass_on(context, abort)
            }
        }
    }
}

/// Carries out the access; false if it is not the one that faulted, extends beyond the page, or
/// there is no such register.
fn carry_out<A: Arm64>(context: &mut Context<'_, A>, access: &LoadStore, gpa: u64, abort: &Abort) -> bool {
    let base = base(context, access.base);
    let is_it = base.wrapping_add_signed(access.offset) & ADDRESS == abort.address & ADDRESS
        && access.is_load == (abort.syndrome & WRITE == 0);
    if !is_it || (gpa & 0xfff) + access.size() > 0x1000 {
        return false;
    }
    for (index, register) in [Some(access.first), access.second].into_iter().flatten().enumerate() {
        let part = Part {
            gpa: gpa + index as u64 * u64::from(access.bytes),
            bytes: access.bytes,
            register: usize::from(register),
            is_write: !access.is_load,
            sign_extends: access.sign_extends,
            is_64bit: access.is_64bit,
        };
        if !access_device(context, &part) {
            return false;
        }
    }
    if let Some(change) = access.write_back {
        set_base(context, access.base, base.wrapping_add_signed(change));
    }
    true
}

fn fetch<A: Arm64>(context: &mut Context<'_, A>) -> Fetched {
    let registers = &context.state.registers;
    let pc = registers.pc;
    if registers.pstate & inject::AARCH32 != 0 || !pc.is_multiple_of(4) {
        return Fetched::No;
    }
    let result = A::translate(pc, inject::is_from_el0(registers));
    if result & PAR_FAILED != 0 {
        return if result & PAR_STAGE2 != 0 { Fetched::Changed } else { Fetched::No };
    }
    let gpa = Gpa(result & PAR_ADDRESS | pc & 0xfff);
    match in_section(context, |_, vm| vm.space.slots().memory().read_u32(gpa)) {
        Ok(word) => Fetched::Instruction(word),
        Err(_) => Fetched::Changed,
    }
}

/// The stack pointer that the guest selects.
fn stack_pointer<A: Arm64>(context: &Context<'_, A>) -> Register {
    if inject::uses_own_stack(&context.state.registers) { Register::SpEl1 } else { Register::SpEl0 }
}

/// A base register: 31 is the stack pointer.
fn base<A: Arm64>(context: &Context<'_, A>, register: u8) -> u64 {
    match context.state.registers.x.get(usize::from(register)) {
        Some(value) => *value,
        None => A::read(stack_pointer(context)),
    }
}

fn set_base<A: Arm64>(context: &mut Context<'_, A>, register: u8, value: u64) {
    let stack_pointer = stack_pointer(context);
    match context.state.registers.x.get_mut(usize::from(register)) {
        Some(place) => *place = value,
        None => A::write(stack_pointer, value),
    }
}

fn value_of<A: Arm64>(context: &Context<'_, A>, access: &Part) -> u64 {
    let value = context.state.registers.x.get(access.register).copied().unwrap_or(0);
    value & u64::MAX >> (64 - 8 * u32::from(access.bytes))
}

/// A write to the configuration space of a PCI function; `None` if it is another access.
fn configure<A: Arm64>(context: &Context<'_, A>, access: &Part) -> Option<devices::Configured> {
    if !access.is_write {
        return None;
    }
    devices::configure(context, access.gpa, access.bytes, value_of(context, access))
}

/// Carries out an access; false if there is no such register.
fn access_device<A: Arm64>(context: &mut Context<'_, A>, access: &Part) -> bool {
    if access.is_write {
        let value = value_of(context, access);
        return devices::write(context, access.gpa, access.bytes, value);
    }
    let Some(value) = devices::read(context, access.gpa, access.bytes) else { return false };
    let unused = 64 - 8 * u32::from(access.bytes);
    let mut value = match access.sign_extends {
        true => ((value << unused) as i64 >> unused) as u64,
        false => value << unused >> unused,
    };
    if !access.is_64bit {
        value &= 0xffff_ffff;
    }
    if let Some(register) = context.state.registers.x.get_mut(access.register) {
        *register = value;
    }
    true
}

/// The guest physical address of an address that the guest can read at EL1 or EL0.
pub(super) fn gpa_of<P: Processor>(address: u64, at_el0: bool) -> Option<u64> {
    let result = P::translate(address, at_el0);
    (result & PAR_FAILED == 0).then_some(result & PAR_ADDRESS | address & 0xfff)
}
