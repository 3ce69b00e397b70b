//! What accesses to synthetic registers return and ask for.

/// Whether the hypervisor interface owns register `msr`. Of the 256-register blocks from 0x40000000
/// on, the first two hold registers; an unassigned one in them is as absent as any other.
pub const fn is_synthetic(msr: u32) -> bool {
    matches!(msr, 0x4000_0000..=0x4000_01ff)
}

/// The access raises #GP(0) in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpFault;

/// What a read of a synthetic register returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MsrRead {
    /// This value.
    Value(u64),
    /// The local APIC's interrupt command, converted by [`icr_from_x2apic`].
    ApicIcr,
    /// The local APIC's task priority.
    ApicTpr,
}

/// What a write of a synthetic register asks for. Effects on pages of a partition are to be
/// performed before another of its virtual processors writes the same register: the caller holds
/// a lock over both, or the moves get out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write does nothing outside the register until its effect is performed"]
pub enum MsrEffect {
    /// Nothing more.
    None,
    /// End of interrupt at the local APIC.
    ApicEoi,
    /// Write of the local APIC's interrupt command, as x2APIC has it: destination in bits 63:32.
    ApicIcr(u64),
    /// Write of the local APIC's task priority.
    ApicTpr(u8),
    /// The hypercall page moves; its code is [`HYPERCALL_CODE`](super::partition::HYPERCALL_CODE).
    HypercallPage(PageMove),
    /// The reference TSC page moves; it starts with
    /// [`ReferenceClock::page`](super::time::ReferenceClock::page), the rest is zero.
    TscPage(PageMove),
    /// The virtual processor's assist page moves. Its first four bytes, the EOI assist field,
    /// become zero; the rest is the guest's.
    VpAssistPage(PageMove),
    /// A synthetic timer was changed: [`Vp::next_deadline_tsc`](super::Vp::next_deadline_tsc) is to
    /// be asked again.
    Timers,
    /// The guest reports that it crashed; it goes on running.
    Crash(CrashReport),
    /// It did so more often than is printed.
    CrashAgain,
    /// Reset the partition.
    Reset,
}

/// The hypervisor's page appears at one guest physical address and disappears from another.
///
/// The TLFS lays such pages over the guest's: what was there before reappears when the page goes.
/// Where overlays are not to be had the contents can be written into the guest's own page, which is
/// what other hypervisors do and guests cope with: they give a page of their own that they do not
/// use otherwise. An address without memory is legal; then there is nothing to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// Where the page was.
    pub from: Option<u64>,
    /// Where it is now.
    pub to: Option<u64>,
}

impl PageMove {
    /// The effect of the move, or none if the page stays where it is.
    pub(super) fn effect(self, effect: impl FnOnce(Self) -> MsrEffect) -> MsrEffect {
        if self.from == self.to { MsrEffect::None } else { effect(self) }
    }
}

/// What a guest says about its crash. TLFS, "Partition Crash Enlightenment".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashReport {
    /// Five values that mean something to the guest's vendor. Linux: error, guest OS identity,
    /// instruction pointer, and two registers.
    pub parameters: [u64; 5],
    /// A text in guest memory, if there is one.
    pub message: Option<CrashMessage>,
}

/// Where the text of a crash lies. Both values are the guest's and unchecked.
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

/// An interrupt command of the synthetic register in x2APIC's layout. The synthetic register is the
/// xAPIC's pair of registers in one, with 8 bits of destination on top (Linux says so where it
/// avoids the register in x2APIC mode, arch/x86/hyperv/hv_apic.c).
pub const fn icr_to_x2apic(value: u64) -> u64 {
    let destination = match value >> XAPIC_DESTINATION_SHIFT {
        XAPIC_BROADCAST => X2APIC_BROADCAST,
        destination => destination,
    };
    destination << 32 | value & 0xffff_ffff
}

/// The reverse of [`icr_to_x2apic`]. Destinations from 255 on become the broadcast.
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
