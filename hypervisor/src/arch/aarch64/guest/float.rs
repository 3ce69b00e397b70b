//! The guest's floating-point and vector registers. The hypervisor does not use them, so they are
//! switched only with the vCPU.

use core::arch::global_asm;

use crate::arm64::processor::FloatState;

global_asm!(
    r#"
.arch_extension fp
.arch_extension simd
.section .text
.macro each_pair what
    \what q0, q1, [x0]
    \what q2, q3, [x0, #32]
    \what q4, q5, [x0, #64]
    \what q6, q7, [x0, #96]
    \what q8, q9, [x0, #128]
    \what q10, q11, [x0, #160]
    \what q12, q13, [x0, #192]
    \what q14, q15, [x0, #224]
    \what q16, q17, [x0, #256]
    \what q18, q19, [x0, #288]
    \what q20, q21, [x0, #320]
    \what q22, q23, [x0, #352]
    \what q24, q25, [x0, #384]
    \what q26, q27, [x0, #416]
    \what q28, q29, [x0, #448]
    \what q30, q31, [x0, #480]
.endm
float_save:
    each_pair stp
    mrs x1, fpcr
    mrs x2, fpsr
    add x0, x0, #512
    stp x1, x2, [x0]
    ret
float_load:
    each_pair ldp
    add x0, x0, #512
    ldp x1, x2, [x0]
    msr fpcr, x1
    msr fpsr, x2
    ret
"#
);

unsafe extern "C" {
    fn float_save(to: *mut FloatState);
    fn float_load(from: *const FloatState);
}

const _: () = assert!(
    core::mem::offset_of!(FloatState, control) == 512 && core::mem::offset_of!(FloatState, status) == 520
);

pub(in crate::arch::aarch64) fn save(to: &mut FloatState) {
    // SAFETY: the layout is what the code writes; CPTR_EL2 does not trap.
    unsafe { float_save(to) };
}

pub(in crate::arch::aarch64) fn load(from: &FloatState) {
    // SAFETY: as above; only the guest uses these registers.
    unsafe { float_load(from) };
}
