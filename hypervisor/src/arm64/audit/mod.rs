//! An auditor at the entry: checks whether ERET may begin, given the registers of the processor and
//! the translations that it may hold.
//!
//! An emulator keeps few translations by VMID, and mostly drops more than it is told to. So a
//! hypervisor that forgets to drop the translations of another vCPU goes unnoticed there. The
//! auditor keeps its own books, independent of the code that decides, and checks before each entry:
//!
//! * the loaded VMID is the machine's, which is the one that invalidations by other CPUs name;
//! * this vCPU was the last to run here under that VMID, and has not run elsewhere since; or this
//!   processor has dropped its stage-1 translations since then (A3, A21);
//! * each register that the entry relies on has its value: those that are written once (what the
//!   manual demands, `demands`, at the first look, and no change since), those that vary with the
//!   vCPU, and at the first entry after another vCPU's, all of
//!   [`exchanged`](super::vcpu::exchanged) and floating point, as this vCPU left them (U61).

pub mod auditor;
#[cfg(any(test, feature = "audit"))]
pub mod demands;

use core::fmt;

use super::controls::{Control, hcr};
use super::processor::Configuration;
use super::vcpu::exchanged::Register;
use crate::tag_users::TagUsers;

/// A state that the guest must not be entered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The loaded VMID or tables are not the machine's.
    Loaded {
        /// VTTBR_EL2.
        is: u64,
        /// Its expected value.
        should: u64,
    },
    /// Another vCPU's translations, of the same VMID.
    Met {
        /// The index of that vCPU.
        vcpu: u32,
    },
    /// Its own translations, from before it ran elsewhere.
    Elsewhere,
    /// A register has another value than this vCPU's.
    Register {
        /// Its name.
        name: &'static str,
        /// Its value.
        is: u64,
        /// The expected one.
        should: u64,
    },
    /// A floating-point or vector register has.
    Float,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loaded { is, should } => write!(f, "VTTBR_EL2 is {is:#x} instead of {should:#x}"),
            Self::Met { vcpu } => write!(f, "the CPU holds translations of vCPU {vcpu}"),
            Self::Elsewhere => write!(f, "the CPU holds translations of before the vCPU was elsewhere"),
            Self::Register { name, is, should } => write!(f, "{name} is {is:#x} instead of {should:#x}"),
            Self::Float => write!(f, "floating-point registers are not the vCPU's"),
        }
    }
}

/// Compares a register with its expected value.
///
/// # Errors
///
/// If they differ.
#[inline(always)]
pub const fn expect(name: &'static str, is: u64, should: u64) -> Result<(), Finding> {
    if is == should { Ok(()) } else { Err(Finding::Register { name, is, should }) }
}

/// Checks HCR_EL2, which varies between guests (`steady`), and for the vCPU that has noted `own`:
/// its treatment of WFE, and a virtual SError, which the processor may have delivered since.
///
/// # Errors
///
/// If it is not this vCPU's, or the vCPU's not its guest's.
pub const fn check_configuration(is: u64, own: Configuration, steady: Configuration) -> Result<(), Finding> {
    const VARIES: u64 = hcr::TWE | hcr::VSE;
    let should = steady.bits() & !VARIES | own.bits() & VARIES;
    let delivered = if is & hcr::VSE == 0 { hcr::VSE } else { 0 };
    match expect("HCR_EL2", is, should & !delivered) {
        Ok(()) => expect("HCR_EL2 as noted", own.bits(), should),
        Err(finding) => Err(finding),
    }
}

/// The bits of a register that the vCPU, and nothing else, changes: a timer's ISTATUS comes and
/// goes with time.
pub const fn lasting(register: Register) -> u64 {
    match register {
        Register::VirtualControl | Register::PhysicalControl => 3,
        _ => u64::MAX,
    }
}

/// The bits of a register that a processor may have fixed: after a write of the value of a reset
/// they read as the processor has them.
pub const fn fixed(register: Register) -> u64 {
    /// SCTLR_EL1: M, A, C, SA, SA0, I, WXN, E0E, EE, which every processor has.
    const SCTLR_ALL_HAVE: u64 = 0x1f | 1 << 12 | 1 << 19 | 3 << 24;
    /// PAR_EL1: bit 11 is RES1 (Arm DDI 0487, D24.2.144).
    const PAR: u64 = 1 << 11;
    /// ICH_VMCR_EL2: the binary points have a least value, and VFIQEn is RES1 with system registers
    /// (IHI 0069H, section 12.4.8).
    const VMCR: u64 = 7 << 21 | 7 << 18 | 1 << 3;
    match register {
        Register::Sctlr => !SCTLR_ALL_HAVE,
        Register::Par => PAR,
        Register::IchVmcr => VMCR,
        _ => 0,
    }
}

/// The last vCPU on a processor under a VMID, in which of its stays, and when.
#[derive(Clone, Copy, Debug)]
struct TagUser {
    vcpu: u32,
    stay: u64,
    epoch: u64,
}

/// The auditor's record of one processor.
#[derive(Debug, Default)]
pub struct CpuBooks {
    users: TagUsers<TagUser>,
    /// The values of the controls that it had when it was first looked at.
    pub controls: Option<[Option<u64>; Control::ALL.len()]>,
    /// Number of times it has dropped all stage-1 translations of the loaded VMID, or of all VMIDs.
    epoch: u64,
}

impl CpuBooks {
    /// Notes that the processor has dropped its stage-1 translations.
    pub fn drop_local(&mut self) {
        self.epoch += 1;
    }
}

/// The auditor's record of one vCPU.
#[derive(Clone, Copy, Debug)]
pub struct VcpuBooks {
    index: u32,
    stays: u64,
    /// Whether its local invalidations reach all processors.
    reaches_all: bool,
}

const fn vmid(vttbr: u64) -> u16 {
    (vttbr >> 48) as u16
}

impl VcpuBooks {
    /// For a vCPU that has never run.
    pub const fn new(index: u32, reaches_all: bool) -> Self {
        Self { index, stays: 0, reaches_all }
    }

    /// Checks whether the guest may be entered with this VTTBR_EL2, which must be `should`.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn check(&self, books: &CpuBooks, vttbr: u64, should: u64) -> Result<(), Finding> {
        if vttbr != should {
            return Err(Finding::Loaded { is: vttbr, should });
        }
        let Some(user) = books.users.get(vmid(vttbr).into()) else { return Ok(()) };
        if user.epoch != books.epoch {
            return Ok(());
        }
        if user.vcpu != self.index {
            return Err(Finding::Met { vcpu: user.vcpu });
        }
        match user.stay == self.stays || self.reaches_all {
            true => Ok(()),
            false => Err(Finding::Elsewhere),
        }
    }

    /// Notes that the guest has run.
    pub fn note(&mut self, books: &mut CpuBooks, vttbr: u64) {
        self.stays += 1;
        let user = TagUser { vcpu: self.index, stay: self.stays, epoch: books.epoch };
        books.users.set(vmid(vttbr).into(), user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VTTBR: u64 = 7 << 48 | 0x1000;

    fn enter(vcpu: &mut VcpuBooks, cpu: &mut CpuBooks, vttbr: u64) -> Result<(), Finding> {
        vcpu.check(cpu, vttbr, vttbr)?;
        vcpu.note(cpu, vttbr);
        Ok(())
    }

    #[test]
    fn a3_another_vcpu_is_met_unless_the_processor_has_dropped_what_it_held() {
        let mut vcpus = [VcpuBooks::new(0, true), VcpuBooks::new(1, true)];
        let mut cpu = CpuBooks::default();
        assert_eq!(enter(&mut vcpus[0], &mut cpu, VTTBR), Ok(()));
        assert_eq!(enter(&mut vcpus[0], &mut cpu, VTTBR), Ok(()));
        assert_eq!(enter(&mut vcpus[1], &mut cpu, VTTBR), Err(Finding::Met { vcpu: 0 }));
        assert_eq!(enter(&mut vcpus[1], &mut cpu, 8 << 48), Ok(()), "under another VMID");
        cpu.drop_local();
        assert_eq!(enter(&mut vcpus[1], &mut cpu, VTTBR), Ok(()));
        assert_eq!(enter(&mut vcpus[0], &mut cpu, VTTBR), Err(Finding::Met { vcpu: 1 }));
    }

    #[test]
    fn a21_a_vcpu_that_was_elsewhere_meets_its_own_unless_its_instructions_reach_all() {
        for reaches_all in [false, true] {
            let mut vcpu = VcpuBooks::new(0, reaches_all);
            let mut cpus = [CpuBooks::default(), CpuBooks::default()];
            assert_eq!(enter(&mut vcpu, &mut cpus[0], VTTBR), Ok(()));
            assert_eq!(enter(&mut vcpu, &mut cpus[1], VTTBR), Ok(()));
            let met = if reaches_all { Ok(()) } else { Err(Finding::Elsewhere) };
            assert_eq!(enter(&mut vcpu, &mut cpus[0], VTTBR), met);
            cpus[0].drop_local();
            assert_eq!(enter(&mut vcpu, &mut cpus[0], VTTBR), Ok(()));
        }
    }

    #[test]
    fn a4_a_vmid_that_invalidations_do_not_name_is_found() {
        let (vcpu, cpu) = (VcpuBooks::new(0, true), CpuBooks::default());
        let found = vcpu.check(&cpu, 8 << 48 | 0x1000, VTTBR);
        assert_eq!(found, Err(Finding::Loaded { is: 8 << 48 | 0x1000, should: VTTBR }));
    }
}
