//! The auditor of a vCPU's entries; a no-op in images without one.

use crate::svm::processor::Amd64;
use crate::svm::vmcb::Vmcb;
use crate::vm::{PerCpu, Vm};
#[cfg(any(test, feature = "audit"))]
use {
    super::{Finding, VcpuBooks, Words, expect},
    crate::svm::intercepts::{self, ALWAYS, CR_WRITE_4, EXCEPTIONS},
    crate::svm::vmcb::{EFER_SVME, vintr},
    crate::x86::vcpu::state::Permissions,
    tlfs::XMM_WORDS,
};

/// The auditor's record of a vCPU.
pub struct Auditor {
    #[cfg(any(test, feature = "audit"))]
    books: VcpuBooks,
    #[cfg(any(test, feature = "audit"))]
    left: Option<Left>,
    /// DR0 to DR3, unless another machine has them.
    #[cfg(any(test, feature = "audit"))]
    breakpoints: Option<[u64; 4]>,
}

/// The registers that VMRUN does not switch, as the vCPU left them. Of the vectors those that are
/// cheap to read stand for all.
#[cfg(any(test, feature = "audit"))]
struct Left {
    xcr0: u64,
    tsc_aux: u64,
    xmm: [u64; XMM_WORDS],
}

#[cfg(any(test, feature = "audit"))]
impl Left {
    const RESET: Self = Self { xcr0: 1, tsc_aux: 0, xmm: [0; XMM_WORDS] };

    fn read<A: Amd64>() -> Self {
        Self {
            xcr0: if A::components() == 0 { 1 } else { A::read_xcr0() },
            tsc_aux: if A::has_tsc_aux() { A::read_tsc_aux() } else { 0 },
            xmm: A::xmm_words(),
        }
    }
}

#[cfg(any(test, feature = "audit"))]
impl Auditor {
    /// For a vCPU that has never run.
    pub fn new(index: u32) -> Self {
        Self { books: VcpuBooks::new(index), left: Some(Left::RESET), breakpoints: Some([0; 4]) }
    }

    /// The vCPU is reset: the translations that it may have left stay.
    pub fn reset(&mut self) {
        (self.left, self.breakpoints) = (Some(Left::RESET), Some([0; 4]));
    }

    /// The vCPU has taken INIT.
    pub fn init(&mut self) {
        self.breakpoints = Some([0; 4]);
    }

    /// The vCPU comes from another machine.
    pub fn begin_elsewhere(&mut self) {
        (self.left, self.breakpoints) = (None, None);
    }

    /// The vCPU has taken a flush of everything.
    pub fn take_flush(&mut self) {
        self.books.take_flush();
    }

    /// The vCPU's registers are about to be saved.
    pub fn leave<A: Amd64>(&mut self) {
        self.left = Some(Left::read::<A>());
    }

    /// Called right before VMRUN.
    pub fn check<A: Amd64>(&mut self, cpu: &PerCpu<A>, vm: &Vm<A>, vmcb: &Vmcb) {
        let mut books = A::books(cpu).borrow_mut();
        if books.asids == 0 {
            // CPUID Fn8000_000A_EBX: NASID.
            books.asids = A::cpuid(0x8000_000a, 0).ebx;
        }
        let checked = check_controls(&vm.guest.permissions(), vmcb)
            .and_then(|()| self.check_left::<A>(vmcb))
            .and_then(|()| self.books.check(&books, cpu.index, words(vmcb)));
        if let Err(finding) = checked {
            panic!("audit: {finding}");
        }
    }

    /// Compares what is switched with the vCPU, once after each time that it arrives; and DR0 to
    /// DR3 whenever the guest has them.
    fn check_left<A: Amd64>(&mut self, vmcb: &Vmcb) -> Result<(), Finding> {
        if let Some(should) = self.left.take() {
            let is = Left::read::<A>();
            expect("XCR0", is.xcr0, should.xcr0)?;
            expect("TSC_AUX", is.tsc_aux, should.tsc_aux)?;
            is.xmm.into_iter().zip(should.xmm).try_for_each(|(is, should)| expect("XMM", is, should))?;
        }
        if vmcb.intercept_dr == 0 {
            let pairs = A::read_breakpoints().into_iter().zip(self.breakpoints.into_iter().flatten());
            return pairs.into_iter().try_for_each(|(is, should)| expect("DR", is, should));
        }
        expect("intercepts of debug registers", vmcb.intercept_dr.into(), intercepts::DEBUG.into())
    }

    /// Called right after VMRUN, if the guest has run.
    pub fn note<A: Amd64>(&mut self, cpu: &PerCpu<A>, vmcb: &Vmcb) {
        if vmcb.intercept_dr == 0 {
            self.breakpoints = Some(A::read_breakpoints());
        }
        self.books.note(&mut A::books(cpu).borrow_mut(), cpu.index, words(vmcb));
    }
}

/// Checks the fields on which the guest's confinement rests.
#[cfg(any(test, feature = "audit"))]
fn check_controls(own: &Permissions, vmcb: &Vmcb) -> Result<(), Finding> {
    let [first, second, third] = ALWAYS;
    for (name, is, always) in [
        ("intercepts of control registers", vmcb.intercept_cr, CR_WRITE_4),
        ("intercepts of exceptions", vmcb.intercept_exceptions, EXCEPTIONS),
        ("intercepts, first word", vmcb.intercept_misc1, first),
        ("intercepts, second word", vmcb.intercept_misc2, second),
        ("intercepts, third word", vmcb.intercept_misc3, third),
    ] {
        expect(name, (is & always).into(), always.into())?;
    }
    expect("IOPM_BASE_PA", vmcb.iopm_base, own.io)?;
    expect("MSRPM_BASE_PA", vmcb.msrpm_base, own.msr)?;
    expect("N_CR3", vmcb.nested_cr3, own.nested_root)?;
    expect("NP_ENABLE", vmcb.nested_control, 1)?;
    expect("V_INTR_MASKING", vmcb.interrupt_control & vintr::MASKING, vintr::MASKING)?;
    expect("EFER.SVME", vmcb.efer & EFER_SVME, EFER_SVME)
}

#[cfg(not(any(test, feature = "audit")))]
#[allow(missing_docs, reason = "they do nothing")]
impl Auditor {
    pub const fn new(_: u32) -> Self {
        Self {}
    }
    pub const fn reset(&mut self) {}
    pub const fn init(&mut self) {}
    pub const fn begin_elsewhere(&mut self) {}
    pub const fn take_flush(&mut self) {}
    pub const fn leave<A: Amd64>(&mut self) {}
    pub const fn check<A: Amd64>(&mut self, _: &PerCpu<A>, _: &Vm<A>, _: &Vmcb) {}
    pub const fn note<A: Amd64>(&mut self, _: &PerCpu<A>, _: &Vmcb) {}
}

#[cfg(any(test, feature = "audit"))]
fn words(vmcb: &Vmcb) -> &Words {
    const { assert!(size_of::<Vmcb>() == size_of::<Words>()) };
    // SAFETY: the block has the same size and a larger alignment, and consists of integers without
    // gaps. It is not written to while the guest does not run.
    unsafe { &*core::ptr::from_ref(vmcb).cast() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86::vcpu::block::ControlBlock;

    #[test]
    fn u61_each_intercept_that_every_guest_has_is_looked_at() {
        let own = Permissions { io: 0x1000, msr: 0x4000, nested_root: 0x7000, apic: false };
        let mut vmcb = Vmcb::boxed();
        [vmcb.intercept_misc1, vmcb.intercept_misc2, vmcb.intercept_misc3] = ALWAYS;
        (vmcb.intercept_cr, vmcb.intercept_exceptions) = (CR_WRITE_4, EXCEPTIONS);
        (vmcb.iopm_base, vmcb.msrpm_base, vmcb.nested_cr3) = (own.io, own.msr, own.nested_root);
        (vmcb.nested_control, vmcb.interrupt_control, vmcb.efer) = (1, vintr::MASKING, EFER_SVME);
        assert_eq!(check_controls(&own, &vmcb), Ok(()));
        for bit in 0..32 {
            type Word = fn(&mut Vmcb) -> &mut u32;
            let words: [(Word, u32); 5] = [
                (|vmcb| &mut vmcb.intercept_cr, CR_WRITE_4),
                (|vmcb| &mut vmcb.intercept_exceptions, EXCEPTIONS),
                (|vmcb| &mut vmcb.intercept_misc1, ALWAYS[0]),
                (|vmcb| &mut vmcb.intercept_misc2, ALWAYS[1]),
                (|vmcb| &mut vmcb.intercept_misc3, ALWAYS[2]),
            ];
            for (word, always) in words {
                *word(&mut vmcb) ^= 1 << bit;
                assert_eq!(check_controls(&own, &vmcb).is_err(), always >> bit & 1 != 0, "bit {bit}");
                *word(&mut vmcb) ^= 1 << bit;
            }
        }
        vmcb.interrupt_control = 0;
        assert!(check_controls(&own, &vmcb).is_err(), "V_INTR_MASKING");
    }
}
