//! An auditor at the entry: whether ERET may begin with what the processor may hold.
//!
//! An emulator keeps translations by VMID, but few of them, and mostly drops more than it is told:
//! a hypervisor that forgets what a vCPU must not meet goes unnoticed there. The auditor keeps
//! books of its own, apart from the code that decides, and compares before each entry:
//!
//! * the VMID that is loaded is the machine's: the one that invalidations by other CPUs name;
//! * under that VMID this vCPU was here last, and has not been elsewhere since; or this processor
//!   has dropped what it held of stage 1 since then (A3, A21).

use alloc::collections::BTreeMap;
use core::fmt;

/// Something that the guest would meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Another VMID, or other tables, are loaded than the machine's.
    Loaded {
        /// VTTBR_EL2.
        is: u64,
        /// What it has to be.
        should: u64,
    },
    /// Another vCPU's translations, of the same VMID.
    Met {
        /// Whose.
        vcpu: u32,
    },
    /// Its own translations, of before it was elsewhere.
    Elsewhere,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loaded { is, should } => write!(f, "VTTBR_EL2 is {is:#x} instead of {should:#x}"),
            Self::Met { vcpu } => write!(f, "the CPU holds translations of vCPU {vcpu}"),
            Self::Elsewhere => write!(f, "the CPU holds translations of before the vCPU was elsewhere"),
        }
    }
}

/// Who was on a processor last under a VMID, in which of its stays, and when.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    vcpu: u32,
    stay: u64,
    epoch: u64,
}

/// The books of one processor.
#[derive(Debug, Default)]
pub struct CpuBooks {
    tenants: BTreeMap<u16, Tenant>,
    /// How often it has dropped everything of stage 1 of the VMID that was loaded, or of all.
    epoch: u64,
}

impl CpuBooks {
    /// Of a processor that holds nothing of any guest.
    pub const fn new() -> Self {
        Self { tenants: BTreeMap::new(), epoch: 0 }
    }

    /// The processor has dropped what it held of stage 1.
    pub fn drop_local(&mut self) {
        self.epoch += 1;
    }
}

/// The books of one vCPU.
#[derive(Clone, Copy, Debug)]
pub struct VcpuBooks {
    index: u32,
    /// How often it has run.
    stays: u64,
    /// Whether what it invalidates for its own processor reaches all.
    reaches_all: bool,
}

const fn vmid(vttbr: u64) -> u16 {
    (vttbr >> 48) as u16
}

impl VcpuBooks {
    /// Of a vCPU that has never run.
    pub const fn new(index: u32, reaches_all: bool) -> Self {
        Self { index, stays: 0, reaches_all }
    }

    /// Whether the guest may be entered with this VTTBR_EL2, which has to be `should`.
    ///
    /// # Errors
    ///
    /// What the guest would meet.
    pub fn check(&self, books: &CpuBooks, vttbr: u64, should: u64) -> Result<(), Finding> {
        if vttbr != should {
            return Err(Finding::Loaded { is: vttbr, should });
        }
        let Some(tenant) = books.tenants.get(&vmid(vttbr)) else { return Ok(()) };
        if tenant.epoch != books.epoch {
            return Ok(());
        }
        if tenant.vcpu != self.index {
            return Err(Finding::Met { vcpu: tenant.vcpu });
        }
        match tenant.stay == self.stays || self.reaches_all {
            true => Ok(()),
            false => Err(Finding::Elsewhere),
        }
    }

    /// The guest has run.
    pub fn note(&mut self, books: &mut CpuBooks, vttbr: u64) {
        self.stays += 1;
        let tenant = Tenant { vcpu: self.index, stay: self.stays, epoch: books.epoch };
        books.tenants.insert(vmid(vttbr), tenant);
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
        let mut cpu = CpuBooks::new();
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
            let mut cpus = [CpuBooks::new(), CpuBooks::new()];
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
        let (vcpu, cpu) = (VcpuBooks::new(0, true), CpuBooks::new());
        let found = vcpu.check(&cpu, 8 << 48 | 0x1000, VTTBR);
        assert_eq!(found, Err(Finding::Loaded { is: 8 << 48 | 0x1000, should: VTTBR }));
    }
}
