//! Model-specific registers of the guest. Registers that are not named here raise #GP.

use core::ops::RangeInclusive;

use super::block::Field::{
    Cr0, Cstar, Efer, KernelGs, Lstar, Pat, Sfmask, Star, SysenterCs, SysenterEip, SysenterEsp, TscOffset,
};
use super::block::{ControlBlock, Inner, Segment, SegmentName};
use super::state::VcpuState;
use crate::devices::GeneralProtection;
use crate::devices::pc::lapic;
use crate::x86::cpuid::{guest_efer_mask, physical_address_bits, shows_fsgsbase};
use crate::x86::processor::X86;
use crate::x86::{CR0_PG, EFER_LMA, EFER_LME};

const TSC: u32 = 0x10;
const TSC_ADJUST: u32 = 0x3b;
pub(crate) const PATCH_LEVEL: u32 = 0x8b;
const SYSENTER_CS: u32 = 0x174;
const SYSENTER_ESP: u32 = 0x175;
const SYSENTER_EIP: u32 = 0x176;
const DEBUG_CONTROL: u32 = 0x1d9;
pub(crate) const PAT: u32 = 0x277;
const EFER: u32 = 0xc000_0080;
pub(crate) const STAR: u32 = 0xc000_0081;
pub(crate) const LSTAR: u32 = 0xc000_0082;
pub(crate) const CSTAR: u32 = 0xc000_0083;
pub(crate) const SFMASK: u32 = 0xc000_0084;
const FS_BASE: u32 = 0xc000_0100;
const GS_BASE: u32 = 0xc000_0101;
pub(crate) const KERNEL_GS_BASE: u32 = 0xc000_0102;
pub(crate) const TSC_AUX: u32 = 0xc000_0103;
/// Event selects and counters of processors without CPUID's performance extensions: all AMD64
/// processors have them, so kernels access them without checking.
const PERFORMANCE: RangeInclusive<u32> = 0xc001_0000..=0xc001_0007;
const SYSCFG: u32 = 0xc001_0010;
const HWCR: u32 = 0xc001_0015;
const NB_CFG: u32 = 0xc001_001f;
const LS_CFG: u32 = 0xc001_1020;
const DC_CFG: u32 = 0xc001_1022;
const BU_CFG2: u32 = 0xc001_102a;
const DE_CFG: u32 = 0xc001_1029;

/// Intel's; locked, and without VMX.
pub(crate) const FEATURE_CONTROL: u32 = 0x3a;
const FEATURE_CONTROL_LOCKED: u64 = 1;
const MISC_ENABLE: u32 = 0x1a0;
/// MISC_ENABLE: fast strings; neither branch traces nor event-based samples.
const MISC_FIXED: u64 = 1 | 1 << 11 | 1 << 12;

/// HWCR: the TSC counts at the rate of P0, regardless of the clock.
const HWCR_TSC_FREQ_SEL: u64 = 1 << 24;
/// DE_CFG: LFENCE serialises.
const DE_CFG_LFENCE: u64 = 1 << 1;

/// MSRs that hold the guest's values in the processor while it runs; all others cause an exit.
const PASS_THROUGH: [u32; 10] =
    [SYSENTER_CS, SYSENTER_ESP, SYSENTER_EIP, STAR, LSTAR, CSTAR, SFMASK, FS_BASE, GS_BASE, KERNEL_GS_BASE];

/// Whether the guest's value of this register is in the processor while it runs.
pub fn passes_through<A: X86>(number: u32) -> bool {
    PASS_THROUGH.contains(&number) || number == TSC_AUX && A::has_tsc_aux()
}

/// Addresses. A processor refuses values that are not canonical (APM volume 3, "WRMSR"), but QEMU
/// does not, so their writes cause exits. Those of the bases do so where a guest has instructions
/// for them, for then its kernel does not write the registers when it switches tasks; a processor
/// without the instructions is no emulator.
///
/// Not among them are SYSENTER's, of which this architecture uses 32 bits. VMX leaves STAR and
/// SFMASK to software: a kernel writes them once, so no switch of vCPUs need read them.
fn is_checked<A: X86>(number: u32) -> bool {
    match number {
        LSTAR | CSTAR => true,
        STAR | SFMASK => A::IS_INTEL,
        FS_BASE | GS_BASE | KERNEL_GS_BASE => shows_fsgsbase::<A>(),
        _ => false,
    }
}

/// The address by its 48 bits, sign-extended: guests have no larger ones.
pub(crate) const fn canonical(address: u64) -> u64 {
    (address << 16).cast_signed().wrapping_shr(16).cast_unsigned()
}

const fn is_canonical(address: u64) -> bool {
    canonical(address) == address
}

/// The registers that cause no exits when they are read; and whether the writes of each do.
pub fn passing<A: X86>() -> impl Iterator<Item = (u32, bool)> {
    let passing = PASS_THROUGH.into_iter().chain([TSC_AUX]).filter(|&number| passes_through::<A>(number));
    passing.map(|number| (number, is_checked::<A>(number)))
}

/// Resets the pass-through registers.
pub fn reset_pass_through(block: &mut impl ControlBlock) {
    let registers = [Star, Lstar, Cstar, Sfmask, SysenterCs, SysenterEsp, SysenterEip, KernelGs];
    registers.into_iter().for_each(|register| block.write(register, 0));
}

/// Whether the local APIC handles this MSR.
#[inline]
pub fn is_lapic(number: u32) -> bool {
    matches!(number, 0x800..=0x8ff | lapic::msr::TSC_DEADLINE | lapic::msr::APIC_BASE)
}

impl<B: ControlBlock> VcpuState<B> {
    /// RDMSR of everything except the Hyper-V registers, when the host's TSC is `now`.
    pub fn read_msr<A: X86>(&self, number: u32, now: u64) -> Result<u64, GeneralProtection> {
        if is_lapic(number) {
            return self.lapic.read_msr(number, now.wrapping_add(self.tsc_offset()));
        }
        Ok(match number {
            TSC => now.wrapping_add(self.block.read(TscOffset)),
            TSC_ADJUST => self.tsc_adjust,
            PATCH_LEVEL => A::patch_level(),
            DEBUG_CONTROL => 0,
            PAT => self.block.read(Pat),
            EFER => self.block.read(Efer) & !B::EFER_OWN | self.own.efer(),
            FEATURE_CONTROL if A::IS_INTEL => FEATURE_CONTROL_LOCKED,
            MISC_ENABLE if A::IS_INTEL => MISC_FIXED,
            _ if A::IS_INTEL => return Err(GeneralProtection),
            HWCR => HWCR_TSC_FREQ_SEL,
            DE_CFG => DE_CFG_LFENCE,
            SYSCFG | NB_CFG | LS_CFG | DC_CFG | BU_CFG2 => 0,
            // There are no counters.
            number if PERFORMANCE.contains(&number) => 0,
            _ => return self.own.read_msr(number),
        })
    }

    /// WRMSR of a register that the [local APIC handles](is_lapic), when the host's TSC is `now`.
    #[inline]
    pub fn write_lapic(
        &mut self,
        number: u32,
        value: u64,
        now: u64,
    ) -> Result<lapic::Effect, GeneralProtection> {
        self.lapic.write_msr(number, value, now.wrapping_add(self.tsc_offset()))
    }

    /// WRMSR of everything except the local APIC's and the Hyper-V registers, when the host's TSC
    /// is `now`.
    pub fn write_msr<A: X86>(&mut self, number: u32, value: u64, now: u64) -> Result<(), GeneralProtection> {
        match number {
            TSC => {
                let delta = value.wrapping_sub(now.wrapping_add(self.block.read(TscOffset)));
                self.move_tsc(delta);
            }
            TSC_ADJUST => self.move_tsc(value.wrapping_sub(self.tsc_adjust)),
            PAT if is_valid_pat(value) => {
                let old = self.block.translation_controls();
                self.block.write(Pat, value);
                self.settle_translations(old);
            }
            EFER => self.write_efer::<A>(value)?,
            // In the block while the guest does not run.
            STAR => self.block.write(Star, value),
            SFMASK if value >> 32 == 0 => self.block.write(Sfmask, value),
            LSTAR if is_canonical(value) => self.block.write(Lstar, value),
            CSTAR if is_canonical(value) => self.block.write(Cstar, value),
            FS_BASE if is_canonical(value) => self.set_base(SegmentName::Fs, value),
            GS_BASE if is_canonical(value) => self.set_base(SegmentName::Gs, value),
            KERNEL_GS_BASE if is_canonical(value) => self.block.write(KernelGs, value),
            // Configuration writes are accepted and ignored: nothing depends on them here.
            PATCH_LEVEL | DEBUG_CONTROL => {}
            MISC_ENABLE if A::IS_INTEL => {}
            _ if A::IS_INTEL => return Err(GeneralProtection),
            SYSCFG | HWCR | NB_CFG | LS_CFG | DC_CFG | BU_CFG2 | DE_CFG => {}
            number if PERFORMANCE.contains(&number) => {}
            _ => return self.own.write_msr(number, value, physical_address_bits::<A>()),
        }
        Ok(())
    }

    fn set_base(&mut self, name: SegmentName, base: u64) {
        let segment = self.block.segment(name);
        self.block.set_segment(name, Segment { base, ..segment });
    }

    fn move_tsc(&mut self, delta: u64) {
        self.block.write(TscOffset, self.block.read(TscOffset).wrapping_add(delta));
        self.tsc_adjust = self.tsc_adjust.wrapping_add(delta);
        self.lapic.tsc_jumped(delta.cast_signed());
    }

    /// EFER: reserved bits are checked, LME cannot change while paging is on, LMA is controlled by
    /// the processor (APM volume 2, section 3.1.7).
    fn write_efer<A: X86>(&mut self, value: u64) -> Result<(), GeneralProtection> {
        let writable = guest_efer_mask::<A>() & !self.hidden.efer;
        let old = self.block.read(Efer);
        let (own, value) = (value & B::EFER_OWN, value & !B::EFER_OWN);
        let reserved = value & !(writable | EFER_LMA) != 0;
        if reserved || (value ^ old) & EFER_LME != 0 && self.block.read(Cr0) & CR0_PG != 0 {
            return Err(GeneralProtection);
        }
        self.own.set_efer(own)?;
        let before = self.block.translation_controls();
        self.block.write(Efer, value & writable | old & EFER_LMA);
        self.settle_translations(before);
        Ok(())
    }
}

/// Each byte of PAT holds a memory type: 0, 1, 4, 5, 6 or 7 (APM volume 2, section 7.8.2).
pub(crate) fn is_valid_pat(value: u64) -> bool {
    kept_pat(value) == value
}

/// PAT with 0 in place of what is no type.
pub(super) fn kept_pat(value: u64) -> u64 {
    u64::from_le_bytes(value.to_le_bytes().map(|byte| if matches!(byte, 0 | 1 | 4..=7) { byte } else { 0 }))
}
