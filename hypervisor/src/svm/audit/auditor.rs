//! The auditor of a vCPU's entries; a no-op in images without one.

use crate::svm::nested::InnerMaps;
use crate::svm::processor::Amd64;
use crate::svm::vmcb::Vmcb;
use crate::vm::{PerCpu, Vm};
#[cfg(any(test, feature = "audit"))]
use {
    super::{Finding, VcpuBooks, Words, expect},
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

    /// For a guest of a vCPU's guest.
    pub fn of_inner(index: u32) -> Self {
        Self { left: None, breakpoints: None, ..Self::new(index) }
    }

    /// A guest of the guest is going to run, which has the same DR0 to DR3.
    pub const fn share(&mut self) {
        self.breakpoints = None;
    }

    /// It begins with registers that the vCPU's guest has given it.
    pub fn begin(&mut self, vmcb: &Vmcb) {
        self.books.begin(words(vmcb));
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

    /// The clean bits of what is not as the last exit has left it.
    #[cfg(test)]
    pub(in crate::svm) fn changed(&self, vmcb: &Vmcb) -> u32 {
        super::changed(&self.books.last, words(vmcb))
    }

    /// Called right before VMRUN; `inner` is what a guest of the guest has of its own.
    pub fn check<A: Amd64>(&mut self, cpu: &PerCpu<A>, vm: &Vm<A>, vmcb: &Vmcb, inner: Option<InnerMaps>) {
        let mut books = A::books(cpu).borrow_mut();
        if books.asids == 0 {
            // CPUID Fn8000_000A_EBX: NASID.
            books.asids = A::cpuid(0x8000_000a, 0).ebx;
        }
        let mut own = Permissions { nested_root: vm.space.root().0, ..vm.guest.permissions() };
        if let Some((msrs, shadow)) = inner {
            (own.msr, own.nested_root) = (msrs, shadow.unwrap_or(own.nested_root));
        }
        let checked = check_controls(&own, words(vmcb))
            .and_then(|()| if inner.is_none() { self.check_left::<A>(vmcb) } else { Ok(()) })
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
        expect("intercepts of debug registers", vmcb.intercept_dr.into(), DEBUG)
    }

    /// Called right after VMRUN, if the guest has run.
    pub fn note<A: Amd64>(&mut self, cpu: &PerCpu<A>, vmcb: &Vmcb) {
        if vmcb.intercept_dr == 0 {
            self.breakpoints = Some(A::read_breakpoints());
        }
        self.books.note(&mut A::books(cpu).borrow_mut(), cpu.index, words(vmcb));
    }
}

/// Writes of DR0 to DR3, of DR7, and of DR5, which may be its name; reads of DR0 to DR3.
#[cfg(any(test, feature = "audit"))]
const DEBUG: u64 = 0x00af_000f;

/// The fields on which the guest's confinement rests, by the auditor's own reading of appendix B:
/// offset in the VMCB, bits that must be set, and names.
#[cfg(any(test, feature = "audit"))]
const ALWAYS: [(usize, u64, &str); 5] = [
    // Writes of CR4.
    (0x00, 0x0010_0000, "intercepts of control registers"),
    // #DB, #AC, #MC; in the upper half INTR, NMI, SMI, INIT, RDPMC, CPUID, INVD, HLT, INVLPGA, I/O,
    // MSRs, FERR_FREEZE, shutdown.
    (0x08, 0xdd44_800f_0006_0002, "intercepts of exceptions, or the first word of others"),
    // VMRUN, VMMCALL, VMLOAD, VMSAVE, STGI, CLGI, SKINIT, WBINVD, MONITOR, MWAIT, armed MWAIT,
    // XSETBV, RDPRU; in the upper half INVLPGB, an illegal one, MCOMMIT, TLBSYNC.
    (0x10, 0x0000_001b_0000_7e7f, "intercepts, second or third word"),
    (0x60, 1 << 24, "V_INTR_MASKING"),
    (0x4d0, 1 << 12, "EFER.SVME"),
];

#[cfg(any(test, feature = "audit"))]
fn check_controls(own: &Permissions, vmcb: &Words) -> Result<(), Finding> {
    for (at, bits, name) in ALWAYS {
        expect(name, vmcb[at / 8] & bits, bits)?;
    }
    expect("IOPM_BASE_PA", vmcb[0x40 / 8], own.io)?;
    expect("MSRPM_BASE_PA", vmcb[0x48 / 8], own.msr)?;
    expect("NP_ENABLE", vmcb[0x90 / 8], 1)?;
    expect("N_CR3", vmcb[0xb0 / 8], own.nested_root)
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
    pub const fn of_inner(_: u32) -> Self {
        Self {}
    }
    pub const fn share(&mut self) {}
    pub const fn begin(&mut self, _: &Vmcb) {}
    pub const fn check<A: Amd64>(&mut self, _: &PerCpu<A>, _: &Vm<A>, _: &Vmcb, _: Option<InnerMaps>) {}
    pub const fn note<A: Amd64>(&mut self, _: &PerCpu<A>, _: &Vmcb) {}
}

#[cfg(any(test, feature = "audit"))]
pub(in crate::svm) fn words(vmcb: &Vmcb) -> &Words {
    const { assert!(size_of::<Vmcb>() == size_of::<Words>()) };
    // SAFETY: the block has the same size and a larger alignment, and consists of integers without
    // gaps. It is borrowed as long as the words are, and the processor writes to it only in
    // `Svm::run`.
    unsafe { &*core::ptr::from_ref(vmcb).cast() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svm::features::Features;
    use crate::svm::intercepts;
    use crate::svm::vmcb::{EFER_SVME, vintr};
    use crate::x86::vcpu::block::ControlBlock;

    #[test]
    fn u61_each_intercept_that_every_guest_has_is_looked_at() {
        let own = Permissions { io: 0x1000, msr: 0x4000, nested_root: 0x7000, apic: false };
        let mut vmcb = Vmcb::boxed();
        vmcb.set_up(&own, Features(0));
        [vmcb.intercept_misc1, vmcb.intercept_misc2, vmcb.intercept_misc3] = intercepts::ALWAYS;
        (vmcb.intercept_cr, vmcb.intercept_exceptions) = (intercepts::CR_WRITE_4, intercepts::EXCEPTIONS);
        (vmcb.interrupt_control, vmcb.efer) = (vintr::MASKING, EFER_SVME);
        let whole = *words(&vmcb);
        assert_eq!((check_controls(&own, &whole), DEBUG), (Ok(()), intercepts::DEBUG.into()));
        // What every guest has, and nothing else, is demanded.
        for at in [0x00, 0x08, 0x10, 0x40, 0x48, 0x60, 0x90, 0xb0, 0x4d0] {
            for bit in 0..64 {
                let mut changed = whole;
                changed[at / 8] ^= 1 << bit;
                let is_whole = matches!(at, 0x40 | 0x48 | 0x90 | 0xb0);
                let found = check_controls(&own, &changed).is_err();
                assert_eq!(found, is_whole || whole[at / 8] >> bit & 1 != 0, "{at:#x}, bit {bit}");
            }
        }
    }
}
