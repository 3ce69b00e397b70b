//! The auditor of a vCPU's entries; a no-op in images without one.

#[cfg(any(test, feature = "audit"))]
use crate::arm64::processor::FloatState;
use crate::arm64::processor::{Arm64, Configuration, Processor};
use crate::arm64::vcpu::debug::Debug;
use crate::devices::virt::gic::{ListRegister, Maintenance};
use crate::vm::{PerCpu, Vm};
#[cfg(any(test, feature = "audit"))]
use {
    super::demands::{self, demand},
    super::{self as audit, Finding, VcpuBooks, expect},
    crate::arm64::controls::{self, Control, at_start},
    crate::arm64::processor::Features,
    crate::arm64::vcpu::exchanged::{DEFERRED, KEYS, MATRIX, PRIORITIES6, PRIORITIES7, Register},
    alloc::boxed::Box,
    coherence::tlbi::Stage2Tlb,
};

/// The vCPU's values of what the processor must have when it is entered.
#[derive(Clone, Copy)]
pub struct Expected<'a> {
    /// Its index.
    pub index: u8,
    /// HCR_EL2.
    pub configuration: Configuration,
    /// Its debug registers.
    pub debug: &'a Debug,
    /// The maintenance that was requested.
    pub maintenance: Maintenance,
    /// The list registers in use.
    pub lists: &'a [ListRegister],
}

/// The auditor's record of a vCPU.
pub struct Auditor {
    #[cfg(any(test, feature = "audit"))]
    books: VcpuBooks,
    #[cfg(any(test, feature = "audit"))]
    left: Box<Left>,
}

#[cfg(any(test, feature = "audit"))]
struct Left {
    /// By the places in [`Register::ALL`]; none if they have been checked since.
    registers: Option<[u64; Register::ALL.len()]>,
    /// None likewise.
    float: Option<FloatState>,
    /// The registers are those of a reset: times are the guest's, not the machine's.
    has_started: bool,
}

#[cfg(any(test, feature = "audit"))]
impl Auditor {
    /// For a vCPU that has never run. If `reaches_all`, its local invalidations are broadcast.
    pub fn new(index: u32, reaches_all: bool) -> Self {
        let left = Left { registers: None, float: Some(FloatState::default()), has_started: true };
        let mut auditor = Self { books: VcpuBooks::new(index, reaches_all), left: Box::new(left) };
        auditor.start();
        auditor
    }

    /// The vCPU is reset: the translations that it may have left stay.
    pub fn reset(&mut self) {
        self.start();
        self.left.float = Some(FloatState::default());
    }

    /// The vCPU has other registers than those with which it left.
    pub fn forget(&mut self) {
        *self.left = Left { registers: None, float: None, has_started: false };
    }

    /// The vCPU starts as after power-on.
    pub fn start(&mut self) {
        let mut registers = [0; Register::ALL.len()];
        registers.iter_mut().zip(Register::ALL).for_each(|(value, register)| *value = register.at_reset());
        (self.left.registers, self.left.has_started) = (Some(registers), true);
    }

    /// The vCPU's registers are about to be saved.
    pub fn leave<P: Processor>(&mut self) {
        let mut registers = [0; Register::ALL.len()];
        for (value, &register) in registers.iter_mut().zip(Register::ALL).filter(|(_, r)| is_there::<P>(**r))
        {
            *value = P::read(register);
        }
        (self.left.registers, self.left.has_started) = (Some(registers), false);
        P::save_float(self.left.float.insert(FloatState::default()));
    }

    /// Called right before ERET.
    pub fn check<A: Arm64>(&mut self, cpu: &PerCpu<A>, vm: &Vm<A>, expected: &Expected<'_>) {
        let mut books = cpu.arch.books.borrow_mut();
        // VTTBR_EL2: VMID, BADDR; CnP is 0.
        let (is, should) = (A::TLB.vttbr(), u64::from(vm.guest.current_vmid()) << 48 | vm.space.root().0);
        let first = match books.controls {
            None => check_first::<A>(&A::description()),
            Some(_) => Ok(()),
        };
        let controls = books.controls.get_or_insert_with(|| read_controls::<A>(&A::description()));
        let checked = first
            .and_then(|()| check_controls::<A>(controls))
            .and_then(|()| check_own::<A>(vm, expected))
            .and_then(|()| self.check_left::<A>(vm.clock.base()))
            .and_then(|()| self.books.check(&books, is, should));
        if let Err(finding) = checked {
            panic!("audit: {finding}");
        }
    }

    /// Compares what is switched with the vCPU, once after each time that it arrives. Its guest's
    /// counter is by `base` ahead of the machine's.
    fn check_left<P: Processor>(&mut self, base: u64) -> Result<(), Finding> {
        if let Some(registers) = self.left.registers.take() {
            // The guest's time 0, by the machine's counter; before that counter's 0 it is 0.
            let behind = base.cast_signed().min(0).unsigned_abs();
            for (left, &register) in registers.iter().zip(Register::ALL) {
                let is_time_0 = self.left.has_started && register == Register::PhysicalValue;
                let should = if is_time_0 { &behind } else { left };
                if is_there::<P>(register) && register != Register::Vmpidr {
                    let fixed = if *should == register.at_reset() { audit::fixed(register) } else { 0 };
                    let bits = audit::lasting(register) & !fixed;
                    expect(register.name(), P::read(register) & bits, should & bits)?;
                }
            }
        }
        if let Some(should) = self.left.float.take() {
            let mut is = FloatState::default();
            P::save_float(&mut is);
            if is != should {
                return Err(Finding::Float);
            }
        }
        Ok(())
    }

    /// Called right after the exit.
    pub fn note<A: Arm64>(&mut self, cpu: &PerCpu<A>) {
        self.books.note(&mut cpu.arch.books.borrow_mut(), A::TLB.vttbr());
    }

    /// Notes that this CPU has dropped its stage-1 translations.
    pub fn drop_local<P: Processor>() {
        P::this_cpu().arch.books.borrow_mut().drop_local();
    }
}

/// Whether the processor has a register that is switched with the vCPU.
#[cfg(any(test, feature = "audit"))]
fn is_there<P: Processor>(register: Register) -> bool {
    let features = P::features();
    let (bits, is_of) = (P::preemption_bits(), |group: &[Register]| group.contains(&register));
    (features.contains(Features::POINTER_KEYS) || !is_of(KEYS))
        && (features.contains(Features::ERRORS) || !is_of(DEFERRED))
        && (features.contains(Features::MATRICES) || !is_of(MATRIX))
        && (bits > 5 || !is_of(PRIORITIES6))
        && (bits > 6 || !is_of(PRIORITIES7))
}

/// Checks the registers that vary with the vCPU, or with each entry.
#[cfg(any(test, feature = "audit"))]
fn check_own<A: Arm64>(vm: &Vm<A>, expected: &Expected<'_>) -> Result<(), Finding> {
    /// ICH_HCR_EL2.En, and EOIcount, which counts on its own.
    const ENABLE: u64 = 1;
    const EOI_COUNT: u64 = 0x1f << 27;
    /// The bits of an interrupt's priority that a processor need not have.
    const FINE: u64 = 7 << 48;
    expect("HCR_EL2", A::configuration() & demands::HCR, demands::HCR_ONES)?;
    audit::check_configuration(A::configuration(), expected.configuration, vm.guest.configuration())?;
    // RES1; clusters of sixteen.
    let affinity = 0x8000_0000 | u64::from(expected.index >> 4) << 8 | u64::from(expected.index & 15);
    expect("VMPIDR_EL2", A::read(Register::Vmpidr), affinity)?;
    expect("MDSCR_EL1", A::control(Control::Mdscr), expected.debug.armed().unwrap_or(0))?;
    // EL1PCTEN and EL1PCEN: the machine's own counters are for a guest that has not been moved.
    let base = vm.clock.base();
    expect("CNTVOFF_EL2", A::control(Control::Cntvoff).wrapping_add(base), 0)?;
    expect("CNTHCTL_EL2", A::control(Control::Cnthctl), if base == 0 { 3 } else { 0 })?;
    let maintenance = ENABLE | u64::from(expected.maintenance.bits());
    expect("ICH_HCR_EL2", A::interface_control() & !EOI_COUNT, maintenance)?;
    let lists = expected.lists.iter().map(|list| list.into_bits()).chain(core::iter::repeat(0));
    (0..A::list_count())
        .zip(lists)
        .try_for_each(|(n, list)| expect("ICH_LR_EL2", A::read_list(n) & !FINE, list & !FINE))
}

/// Declares the check of all that is written once. Without a loop: each is one instruction to read.
#[cfg(any(test, feature = "audit"))]
macro_rules! check_each {
    ($($(#[$doc:meta])* $name:ident: $register:literal $encoding:literal $($status:literal)?,)*) => {
        /// What the processor has, of those that are there.
        fn read_controls<A: Arm64>(there: &controls::IdRegisters) -> [Option<u64>; Control::ALL.len()] {
            [$(at_start(Control::$name, there).map(|_| A::control(Control::$name)),)*]
        }

        fn check_controls<A: Arm64>(values: &[Option<u64>; Control::ALL.len()]) -> Result<(), Finding> {
            $(
                if let (Some(should), false) = (values[Control::$name as usize], varies(Control::$name)) {
                    let bits = compared(Control::$name);
                    expect($register, A::control(Control::$name) & bits, should & bits)?;
                }
            )*
            Ok(())
        }
    };
}

#[cfg(any(test, feature = "audit"))]
for_each_control!(check_each);

/// Checks all that is written once, as the manual demands it.
#[cfg(any(test, feature = "audit"))]
fn check_first<A: Arm64>(processor: &controls::IdRegisters) -> Result<(), Finding> {
    read_controls::<A>(processor).iter().zip(Control::ALL).try_for_each(|(is, &control)| {
        let (bits, should) = if varies(control) { (0, 0) } else { demand(control, processor) };
        expect(control.name(), is.unwrap_or(should) & bits, should)
    })
}

/// The bits of a control that read as they were written: Enable in ICC_SRE_EL2 may always be 1 (IHI
/// 0069H, section 12.2).
#[cfg(any(test, feature = "audit"))]
const fn compared(control: Control) -> u64 {
    match control {
        Control::IccSre2 => !(1 << 3),
        _ => u64::MAX,
    }
}

/// Whether a register is switched with the vCPU, which is checked otherwise.
#[cfg(any(test, feature = "audit"))]
const fn varies(control: Control) -> bool {
    use Control as C;
    matches!(control, C::Hcr | C::Vdisr | C::Mdscr | C::Cntvoff | C::Cnthctl)
}

#[cfg(not(any(test, feature = "audit")))]
#[allow(missing_docs, reason = "they do nothing")]
impl Auditor {
    pub const fn new(_: u32, _: bool) -> Self {
        Self {}
    }
    pub const fn reset(&mut self) {}
    pub const fn forget(&mut self) {}
    pub const fn start(&mut self) {}
    pub const fn leave<P: Processor>(&mut self) {}
    pub const fn check<A: Arm64>(&mut self, _: &PerCpu<A>, _: &Vm<A>, _: &Expected<'_>) {}
    pub const fn note<A: Arm64>(&mut self, _: &PerCpu<A>) {}
    pub const fn drop_local<P: Processor>() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm64::mock::{MockArm64, machine};

    #[test]
    fn u61_bits_that_a_processor_has_fixed_are_compared_when_a_guest_has_run() {
        let _made = machine("");
        for &register in Register::ALL.iter().filter(|&&register| register != Register::Vmpidr) {
            for bit in 0..64 {
                Register::ALL.iter().for_each(|&register| MockArm64::write(register, register.at_reset()));
                let mut auditor = Auditor::new(0, false);
                MockArm64::write(register, register.at_reset() ^ 1 << bit);
                let finds = is_there::<MockArm64>(register) && audit::lasting(register) >> bit & 1 != 0;
                let finds_fixed = finds && audit::fixed(register) >> bit & 1 == 0;
                let found = auditor.check_left::<MockArm64>(0).is_err();
                assert_eq!(found, finds_fixed, "{register:?}, bit {bit}");
                auditor.leave::<MockArm64>();
                MockArm64::write(register, register.at_reset());
                assert_eq!(auditor.check_left::<MockArm64>(0).is_err(), finds, "{register:?}, bit {bit}");
            }
        }
    }
}
