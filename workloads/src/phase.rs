//! Signals with an instruction which phase begins, for a QEMU plugin that counts instructions by
//! phase. It has no other effect.

use hostlink::phase::Phase;

/// Executes the instruction of one phase.
#[cfg(target_arch = "aarch64")]
macro_rules! begin {
    ($phase:ident) => {
        // SAFETY: a hint that no architecture defines is a NOP.
        unsafe {
            std::arch::asm!(
                "hint #{}",
                const Phase::$phase.hint(),
                options(nomem, nostack, preserves_flags)
            )
        }
    };
}

/// Executes the instruction of one phase.
#[cfg(target_arch = "x86_64")]
macro_rules! begin {
    ($phase:ident) => {
        // SAFETY: a NOP does not access its operand.
        unsafe {
            std::arch::asm!(
                "nop dword ptr [rax + {}]",
                const Phase::$phase.nop(),
                options(nomem, nostack, preserves_flags)
            )
        }
    };
}

/// Signals that a phase begins.
pub fn mark(phase: Phase) {
    match phase {
        Phase::None => begin!(None),
        Phase::Blocking => begin!(Blocking),
        Phase::Reclaim => begin!(Reclaim),
        Phase::DirtyEnable => begin!(DirtyEnable),
        Phase::DirtyFetch => begin!(DirtyFetch),
        Phase::FaultIn => begin!(FaultIn),
        Phase::PerPage => begin!(PerPage),
        Phase::After => begin!(After),
    }
}

/// Runs a function as a phase of its own; the instructions after it belong to no measured phase.
pub fn marked<R>(phase: Phase, act: impl FnOnce() -> R) -> R {
    mark(phase);
    let done = act();
    mark(Phase::None);
    done
}
