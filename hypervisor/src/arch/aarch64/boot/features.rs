//! The processor's features, and the EL2 setup of every CPU.
//!
//! What follows from the ID registers is in [`crate::arm64::controls`].

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::arch::aarch64::sysreg::{isb, read, write};
use crate::arm64::controls::{Control, IdRegisters, at_start, hcr};
use crate::arm64::processor::Features;

static FEATURES: AtomicU32 = AtomicU32::new(0);

/// The features that [`probe`] has found.
#[inline(always)]
pub(crate) fn get() -> Features {
    Features::from_bits_retain(FEATURES.load(Ordering::Relaxed))
}

/// The names of the relevant features, for the log.
pub(crate) struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Features::RANGE, "TLBIRANGE"),
            (Features::LEVEL_HINT, "TTL"),
            (Features::VMID16, "VMID16"),
            (Features::FORCED_WRITE_BACK, "S2FWB"),
            (Features::DIRTY_STATE, "HAFDBS"),
            (Features::REPLACES_IN_PLACE, "BBM2"),
            (Features::VHE, "VHE (not used)"),
        ];
        let mut separator = "with ";
        for (_, name) in names.into_iter().filter(|&(bit, _)| get().contains(bit)) {
            core::write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        if separator == "with " { f.write_str("with nothing optional") } else { Ok(()) }
    }
}

/// Detects the processor's features. Called once, on the boot CPU; the others are assumed to be the
/// same.
pub(crate) fn probe() -> Result<(), &'static str> {
    let processor = processor();
    if let Some(why) = processor.lacks() {
        return Err(why);
    }
    FEATURES.store(processor.features().bits(), Ordering::Relaxed);
    enable_el2();
    if read!("hcr_el2") & hcr::E2H != 0 {
        return Err("the processor has no EL2 but with VHE (HCR_EL2.E2H cannot be cleared)");
    }
    Ok(())
}

pub(crate) fn processor() -> IdRegisters {
    let mut processor = IdRegisters {
        midr: read!("midr_el1"),
        pfr0: read!("id_aa64pfr0_el1"),
        pfr1: read!("id_aa64pfr1_el1"),
        dfr0: read!("id_aa64dfr0_el1"),
        mmfr0: read!("id_aa64mmfr0_el1"),
        mmfr1: read!("id_aa64mmfr1_el1"),
        mmfr2: read!("id_aa64mmfr2_el1"),
        isar0: read!("id_aa64isar0_el1"),
        isar1: read!("id_aa64isar1_el1"),
        isar2: read!("s3_0_c0_c6_2"),
        ctr: read!("ctr_el0"),
        dczid: read!("dczid_el0"),
        mpamidr: 0,
        counters: 0,
    };
    if processor.has_mpam() {
        processor.mpamidr = read!("s3_0_c10_c4_4");
    }
    if processor.has_pmu() {
        processor.counters = read!("pmcr_el0") >> 11 & 0x1f;
    }
    processor
}

/// Sets up the calling CPU's EL2 for guests, before the first guest.
pub(crate) fn enable() {
    enable_el2();
}

fn enable_el2() {
    let processor = processor();
    for &control in Control::ALL {
        if let Some(value) = at_start(control, &processor) {
            write_control(control, value);
            // Some exist when an earlier one is in effect.
            isb();
        }
    }
}

macro_rules! access {
    (@read $encoding:literal) => {{
        let mut value = 0u64;
        // An emulator (QEMU 7.2) leaves the target as it is where it has no such register.
        // SAFETY: reading these registers changes nothing.
        unsafe {
            core::arch::asm!(concat!("mrs {}, ", $encoding), inout(reg) value, options(nostack, preserves_flags));
        }
        value
    }};
    // OSLSR_EL1.OSLK.
    (@read $encoding:literal $status:literal) => { access!(@read $status) >> 1 & 1 };
    ($($(#[$doc:meta])* $name:ident: $register:literal $encoding:literal $($status:literal)?,)*) => {
        /// Writes a control that the processor has.
        fn write_control(control: Control, value: u64) {
            match control {
                $(
                    // SAFETY: it controls traps of the guest, or affects nothing in use; no guest
                    // runs yet on this CPU. The hypervisor uses none of these registers.
                    Control::$name => unsafe { write!($encoding, value) },
                )*
            }
        }

        /// Reads a control that the processor has.
        #[cfg(feature = "audit")]
        #[inline(always)]
        pub(crate) fn read_control(control: Control) -> u64 {
            match control {
                $(Control::$name => access!(@read $encoding $($status)?),)*
            }
        }
    };
}

for_each_control!(access);
