//! The results and effects of accesses to synthetic registers.

/// Whether the hypervisor interface owns register `msr`. Of the 256-register blocks from 0x40000000
/// on, the first two contain registers; unassigned ones in these blocks are as absent as any other.
pub const fn is_synthetic(msr: u32) -> bool {
    matches!(msr, 0x4000_0000..=0x4000_01ff)
}

/// The access raises #GP(0) in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpFault;

/// The result of a read of a synthetic register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MsrRead {
    /// This value.
    Value(u64),
    /// The local APIC's interrupt command, converted by [`icr_from_x2apic`].
    ApicIcr,
    /// The local APIC's task priority.
    ApicTpr,
    /// The time that the scheduler has given the virtual processor since its reset, converted by
    /// [`ReferenceClock::duration`](super::time::ReferenceClock::duration).
    RunTime,
}

/// The effect of a write to a synthetic register. Effects on pages of a partition must be performed
/// before another of its virtual processors writes the same register: the caller holds a lock over
/// both, otherwise the moves get out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write does nothing outside the register until its effect is performed"]
pub enum MsrEffect {
    /// No effect.
    None,
    /// End of interrupt at the local APIC.
    ApicEoi,
    /// Write of the local APIC's interrupt command, in x2APIC format: destination in bits 63:32.
    ApicIcr(u64),
    /// Write of the local APIC's task priority.
    ApicTpr(u8),
    /// The hypercall page moves; its code is the processor's instruction and RET.
    HypercallPage(PageMove),
    /// The reference TSC page moves; it starts with
    /// [`ReferenceClock::page`](super::time::ReferenceClock::page), the rest is zero.
    TscPage(PageMove),
    /// The virtual processor's assist page moves. Its first four bytes, the EOI assist field,
    /// become zero; the rest belongs to the guest.
    VpAssistPage(PageMove),
    /// A synthetic timer was changed: call [`Vp::next_deadline_tsc`](super::Vp::next_deadline_tsc)
    /// again.
    Timers,
    /// The guest reports that it crashed; it keeps running.
    Crash(CrashReport),
    /// The guest has reported more crashes than are printed.
    CrashAgain,
    /// Reset the partition.
    Reset,
}

/// The hypervisor's page appears at one guest physical address and disappears from another.
///
/// The TLFS overlays such pages on the guest's: the previous contents reappear when the page is
/// removed. Where overlays are not possible the contents can be written into the guest's own page.
/// Other hypervisors do this, and guests cope with it: they provide a page of their own that they
/// do not use otherwise. An address without memory is legal; then the page is not visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// The page's previous address.
    pub from: Option<u64>,
    /// Its present address.
    pub to: Option<u64>,
}

impl PageMove {
    /// The effect of the move, or none if the page does not move.
    pub(super) fn effect(self, effect: impl FnOnce(Self) -> MsrEffect) -> MsrEffect {
        if self.from == self.to { MsrEffect::None } else { effect(self) }
    }
}

/// The guest's report of its crash. TLFS, "Partition Crash Enlightenment".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashReport {
    /// Five values with a meaning defined by the guest's vendor. Linux: error, guest OS identity,
    /// instruction pointer, and two registers.
    pub parameters: [u64; 5],
    /// A text in guest memory, if there is one.
    pub message: Option<CrashMessage>,
}

/// The location of a crash's text. Both values are the guest's and unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashMessage {
    /// Guest physical address.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Destination of the interrupt command in the xAPIC's layout.
const XAPIC_DESTINATION_SHIFT: u32 = 56;
const XAPIC_BROADCAST: u64 = 0xff;
const X2APIC_BROADCAST: u64 = 0xffff_ffff;

/// Converts an interrupt command from the synthetic register's layout to x2APIC's. The synthetic
/// register combines the xAPIC's pair of registers, with 8 bits of destination on top (as Linux
/// notes where it avoids the register in x2APIC mode, arch/x86/hyperv/hv_apic.c).
pub const fn icr_to_x2apic(value: u64) -> u64 {
    let destination = match value >> XAPIC_DESTINATION_SHIFT {
        XAPIC_BROADCAST => X2APIC_BROADCAST,
        destination => destination,
    };
    destination << 32 | value & 0xffff_ffff
}

/// The inverse of [`icr_to_x2apic`]. Destinations from 255 on become the broadcast.
pub const fn icr_from_x2apic(value: u64) -> u64 {
    let destination = match value >> 32 {
        destination @ 0..XAPIC_BROADCAST => destination,
        _ => XAPIC_BROADCAST,
    };
    destination << XAPIC_DESTINATION_SHIFT | value & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_commands_change_layout_and_back() {
        assert_eq!(icr_to_x2apic(0x0500_0000_0000_40fd), 0x0000_0005_0000_40fd);
        assert_eq!(icr_to_x2apic(0xff00_0000_000c_4500), 0xffff_ffff_000c_4500, "broadcast");
        assert_eq!(icr_to_x2apic(0x03ab_cdef_0000_0030), 0x0000_0003_0000_0030, "reserved bits go");
        assert_eq!(icr_from_x2apic(0x0000_0005_0000_40fd), 0x0500_0000_0000_40fd);
        assert_eq!(icr_from_x2apic(0xffff_ffff_0000_0030), 0xff00_0000_0000_0030);
    }

    #[test]
    fn the_interface_owns_two_blocks() {
        for (number, owned) in [
            (0x3fff_ffff, false),
            (0x4000_0000, true),
            (0x4000_0118, true),
            (0x4000_01ff, true),
            (0x4000_0200, false),
            (0x10, false),
        ] {
            assert_eq!(is_synthetic(number), owned, "{number:#x}");
        }
    }
}
