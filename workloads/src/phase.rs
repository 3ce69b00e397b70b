//! Signals with an instruction which phase begins (Arm64), for a QEMU plugin that counts
//! instructions by phase. It has no other effect. There is no such instruction on AMD64.

use hostlink::phase::Phase;

/// Signals that a phase begins.
#[cfg(target_arch = "aarch64")]
pub fn mark(phase: Phase) {
    macro_rules! hint {
        ($phase:ident) => {
            // SAFETY: a hint that no architecture defines is a NOP.
            unsafe {
                std::arch::asm!("hint #{}", const Phase::$phase.hint(), options(nomem, nostack, preserves_flags))
            }
        };
    }
    match phase {
        Phase::None => hint!(None),
        Phase::Blocking => hint!(Blocking),
        Phase::Reclaim => hint!(Reclaim),
        Phase::DirtyEnable => hint!(DirtyEnable),
        Phase::DirtyFetch => hint!(DirtyFetch),
        Phase::FaultIn => hint!(FaultIn),
        Phase::PerPage => hint!(PerPage),
        Phase::After => hint!(After),
    }
}

/// Signals that a phase begins.
#[cfg(not(target_arch = "aarch64"))]
pub fn mark(_phase: Phase) {}

/// Runs a function as a phase of its own; the instructions after it belong to no measured phase.
pub fn marked<R>(phase: Phase, act: impl FnOnce() -> R) -> R {
    mark(phase);
    let done = act();
    mark(Phase::None);
    done
}
