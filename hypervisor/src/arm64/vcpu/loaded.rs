//! The address space that a CPU has loaded, as the one that frees address spaces finds it.

use core::sync::atomic::{AtomicU64, Ordering};

use stay::broadcast::{Entered, Nowhere};

/// Root of the address space in VTTBR_EL2; 0 for that of no machine. The CPU itself writes it when
/// it has loaded the register, and proves that:
///
/// ```compile_fail,E0061
/// hypervisor::arm64::loaded::Loaded::none().leave();
/// ```
#[derive(Debug)]
pub struct Loaded(AtomicU64);

impl Loaded {
    /// None is loaded.
    pub const fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The CPU has entered the one with this root: the former one is not loaded any more.
    pub fn enter(&self, root: u64, _: &Entered) {
        self.0.store(root, Ordering::Release); // Pairs with `is`.
    }

    /// It has left it.
    pub fn leave(&self, _: Nowhere) {
        self.0.store(0, Ordering::Release); // Pairs with `is`.
    }

    /// Whether any is loaded here, on the calling CPU.
    pub fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Whether the one with this root is. If not, the CPU does not walk its tables any more.
    pub fn is(&self, root: u64) -> bool {
        self.0.load(Ordering::Acquire) == root // Pairs with `enter` and `leave`.
    }
}
