//! List registers: ICH_LR&lt;n&gt;_EL2 (IHI 0069H section 12.4), and which maintenance interrupts
//! they need.

use bitfield_struct::bitfield;

/// Maximum number of list registers in hardware.
pub const LIST_MAX: usize = 16;

/// Number of list registers by ICH_VTR_EL2 (ListRegs), as far as they are used.
pub const fn list_count(vtr: u32) -> usize {
    let count = (vtr & 0x1f) as usize + 1;
    if count < LIST_MAX { count } else { LIST_MAX }
}

/// Number of priority bits that decide about preemption by ICH_VTR_EL2 (PREbits).
pub const fn preemption_bits(vtr: u32) -> u32 {
    (vtr >> 26 & 7) + 1
}

/// One list register.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ListRegister {
    /// Virtual INTID.
    #[bits(32)]
    pub intid: u32,
    /// Physical INTID if `hardware`; otherwise its bit 9 requests a maintenance interrupt at EOI.
    #[bits(13)]
    pub physical: u16,
    #[bits(3)]
    __: u8,
    /// Priority.
    #[bits(8)]
    pub priority: u8,
    #[bits(4)]
    __: u8,
    /// Group 1.
    pub group1: bool,
    /// Deactivation by the guest deactivates the physical interrupt too.
    pub hardware: bool,
    /// Pending.
    pub pending: bool,
    /// Active.
    pub active: bool,
}

/// Bit 41 of the register: interrupt the hypervisor when the guest deactivates this one.
const EOI: u16 = 1 << 9;

impl ListRegister {
    /// Requests a maintenance interrupt when the guest deactivates it. Not for a `hardware` one.
    pub const fn with_eoi(self) -> Self {
        self.with_physical(EOI)
    }

    /// Whether [`Self::with_eoi`] was used.
    pub const fn eoi(self) -> bool {
        !self.hardware() && self.physical() & EOI != 0
    }
}

/// The list registers of the CPU that runs the vCPU. Outside the guest all of them are 0.
pub trait ListRegisters {
    /// Number of registers, 1 to 16 (ICH_VTR_EL2.ListRegs + 1).
    fn count(&self) -> usize;
    /// Reads register `index`, which is less than the count.
    fn read(&self, index: usize) -> u64;
    /// Writes register `index`.
    fn write(&mut self, index: usize, value: u64);
}

bitflags::bitflags! {
    /// Bits for ICH_HCR_EL2 (IHI 0069H section 12.4), in addition to those that are always set. Its
    /// EOIcount must be written as 0.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[must_use]
    pub struct Maintenance: u32 {
        /// LRENPIE: the guest deactivated an interrupt that was in no list register.
        const NOT_PRESENT = 1 << 2;
        /// NPIE: no list register is pending any more.
        const NO_PENDING = 1 << 3;
        /// VGrp0EIE: the guest enabled group 0.
        const GROUP0_ENABLED = 1 << 4;
        /// VGrp0DIE: the guest disabled group 0.
        const GROUP0_DISABLED = 1 << 5;
        /// VGrp1EIE: the guest enabled group 1.
        const GROUP1_ENABLED = 1 << 6;
        /// VGrp1DIE: the guest disabled group 1.
        const GROUP1_DISABLED = 1 << 7;
        /// TDIR: writes of ICC_DIR_EL1 trap; perform them with
        /// [`deactivate`](super::Private::deactivate).
        const TRAP_DEACTIVATION = 1 << 14;
    }
}

impl Maintenance {
    /// ICH_HCR_EL2.EOIcount, for [`sync`](super::Private::sync).
    pub const fn eoi_count(hcr: u64) -> u32 {
        (hcr >> 27) as u32 & 0x1f
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u63_the_interface_has_one_more_than_its_fields_say() {
        // QEMU's: 4 list registers, 5 bits of priority and of preemption.
        assert_eq!((list_count(0x9018_0003), preemption_bits(0x9018_0003)), (4, 5));
        assert_eq!((list_count(0), list_count(15), list_count(0x1f)), (1, 16, 16));
        assert_eq!((preemption_bits(5 << 26), preemption_bits(6 << 26 | 7 << 29)), (6, 7));
    }

    #[test]
    fn fields_lie_where_the_architecture_has_them() {
        let zero = ListRegister::new();
        assert_eq!((zero.into_bits(), zero.with_intid(u32::MAX).into_bits()), (0, 0xffff_ffff));
        assert_eq!(zero.with_physical(0x1fff).into_bits(), 0x1fff << 32);
        assert_eq!(zero.with_eoi().into_bits(), 1 << 41);
        assert!(zero.with_eoi().eoi() && !zero.with_eoi().with_hardware(true).eoi());
        assert_eq!(zero.with_priority(0xff).into_bits(), 0xff << 48);
        assert_eq!(zero.with_group1(true).into_bits(), 1 << 60);
        assert_eq!(zero.with_hardware(true).into_bits(), 1 << 61);
        assert_eq!(zero.with_pending(true).into_bits(), 1 << 62);
        assert_eq!(zero.with_active(true).into_bits(), 1 << 63);
        assert_eq!(Maintenance::eoi_count(0xffff_ffff_17ff_ffff), 2);
    }
}
