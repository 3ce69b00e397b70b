//! The processor's features, and the EL2 setup of every CPU.
//!
//! Source: Arm DDI 0487, D24.2: the ID registers, VTCR_EL2; [`controls`] for all else.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::arch::aarch64::sysreg::{field, isb, read, write};
use crate::arm64::controls::{self, Control, Processor, at_start, hcr};
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
    let isar0 = read!("id_aa64isar0_el1");
    let mmfr0 = read!("id_aa64mmfr0_el1");
    let mmfr1 = read!("id_aa64mmfr1_el1");
    let mmfr2 = read!("id_aa64mmfr2_el1");
    if field(read!("id_aa64pfr0_el1"), 24) == 0 {
        return Err("the GIC has no system registers: QEMU takes -M virt,gic-version=3");
    }
    if field(mmfr0, 28) == 0xf {
        return Err("the processor has no pages of 4 KiB");
    }
    // FEAT_LPA2 has another encoding; without either value stage 2 supports what stage 1 does.
    if field(mmfr0, 40) == 1 {
        return Err("the processor has no pages of 4 KiB in stage 2");
    }
    let mut found = Features::empty();
    found.set(Features::RANGE, field(isar0, 56) >= 2);
    found.set(Features::LEVEL_HINT, field(mmfr2, 48) >= 1);
    found.set(Features::VMID16, field(mmfr1, 4) >= 2);
    found.set(Features::FORCED_WRITE_BACK, field(mmfr2, 40) >= 1);
    found.set(Features::ACCESS_FLAG, field(mmfr1, 0) >= 1);
    found.set(Features::DIRTY_STATE, field(mmfr1, 0) >= 2);
    found.set(Features::REPLACES_IN_PLACE, field(mmfr2, 52) >= 2);
    found.set(Features::VHE, field(mmfr1, 8) >= 1);
    found.set(Features::POINTER_KEYS, processor().has_pointer_keys());
    found.set(Features::ERRORS, processor().has_ras());
    found.set(Features::MATRICES, field(read!("id_aa64pfr1_el1"), 24) != 0);
    // CTR_EL0.L1Ip: 3 is physical; all other kinds have virtual properties.
    found.set(Features::VIRTUAL_INSTRUCTION_CACHE, read!("ctr_el0") >> 14 & 3 != 3);
    FEATURES.store(found.bits(), Ordering::Relaxed);
    enable_el2();
    if read!("hcr_el2") & hcr::E2H != 0 {
        return Err("the processor has no EL2 but with VHE (HCR_EL2.E2H cannot be cleared)");
    }
    Ok(())
}

/// The calling CPU's ID registers.
pub(crate) fn processor() -> Processor {
    let mut processor = Processor {
        pfr0: read!("id_aa64pfr0_el1"),
        pfr1: read!("id_aa64pfr1_el1"),
        dfr0: read!("id_aa64dfr0_el1"),
        mmfr0: read!("id_aa64mmfr0_el1"),
        mmfr1: read!("id_aa64mmfr1_el1"),
        mmfr2: read!("id_aa64mmfr2_el1"),
        isar1: read!("id_aa64isar1_el1"),
        isar2: read!("s3_0_c0_c6_2"),
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

/// The constant part of HCR_EL2, see [`controls::hcr_base`].
pub(crate) fn hypervisor_configuration() -> u64 {
    controls::hcr_base(&processor())
}

/// Sizes of physical addresses by ID_AA64MMFR0_EL1.PARange.
fn physical_bits_of(range: u64) -> u32 {
    match range {
        0 => 32,
        1 => 36,
        2 => 40,
        3 => 42,
        4 => 44,
        // More than 48 bits need other table formats.
        _ => 48,
    }
}

/// Width of the intermediate physical addresses that stage 2 translates: the capacity of three
/// levels of tables.
pub(crate) const STAGE2_BITS: u32 = 39;

/// VTCR_EL2: three levels, 4 KiB pages, walks through the caches, inner shareable; bit 31 is always
/// one.
fn stage2_control() -> u64 {
    let features = get();
    let size = field(read!("id_aa64mmfr0_el1"), 0).min(5);
    let mut value =
        (64 - u64::from(STAGE2_BITS)) | 1 << 6 | 1 << 8 | 1 << 10 | 3 << 12 | size << 16 | 1 << 31;
    if features.contains(Features::VMID16) {
        value |= 1 << 19;
    }
    if features.contains(Features::ACCESS_FLAG) {
        value |= 1 << 21;
    }
    if features.contains(Features::DIRTY_STATE) {
        value |= 1 << 22;
    }
    value
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
        }
    }
    // SAFETY: the guest's value of MIDR_EL1, and the format of stage 2; no guest runs yet on this
    // CPU.
    unsafe {
        write!("vtcr_el2", stage2_control());
        write!("vpidr_el2", read!("midr_el1"));
    }
    isb();
}

macro_rules! control_writer {
    ($($(#[$doc:meta])* $name:ident: $register:literal $encoding:literal,)*) => {
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
    };
}

for_each_control!(control_writer);

/// Affinity of the calling CPU, as in MPIDR_EL1.
pub(crate) fn affinity() -> u64 {
    read!("mpidr_el1") & 0xff_00ff_ffff
}

/// Width of physical addresses here.
pub(crate) fn physical_bits() -> u32 {
    physical_bits_of(field(read!("id_aa64mmfr0_el1"), 0))
}
