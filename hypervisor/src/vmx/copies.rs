//! The fields of a VMCS of which software has copies: each has a bit in a word.

use super::fields as f;
use crate::x86::vcpu::block::SegmentName;

/// The registers with copies, besides the segments.
const REGISTERS: [u32; 21] = [
    f::GUEST_RIP.writable(),
    f::GUEST_RSP.writable(),
    f::GUEST_RFLAGS.writable(),
    f::GUEST_CR0.writable(),
    f::GUEST_CR3.writable(),
    f::GUEST_CR4.writable(),
    f::GUEST_DR7.writable(),
    f::GUEST_PAT.writable(),
    f::GUEST_SYSENTER_CS.writable(),
    f::GUEST_SYSENTER_ESP.writable(),
    f::GUEST_SYSENTER_EIP.writable(),
    f::INTERRUPTIBILITY.writable(),
    f::ACTIVITY.writable(),
    f::PENDING_DEBUG.writable(),
    f::INTERRUPT_STATUS.writable(),
    // What no exit changes. EFER changes by its own register and by CR0.PG, which both exit.
    f::GUEST_EFER.writable(),
    f::CR0_SHADOW.writable(),
    f::CR4_SHADOW.writable(),
    f::TSC_OFFSET.writable(),
    f::VPID.writable(),
    f::EPT_POINTER.writable(),
];

/// A register with a copy: its place in [`REGISTERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Copied {
    Rip,
    Rsp,
    Rflags,
    Cr0,
    Cr3,
    Cr4,
    Dr7,
    Pat,
    SysenterCs,
    SysenterEsp,
    SysenterEip,
    Interruptibility,
    Activity,
    PendingDebug,
    InterruptStatus,
    Efer,
    Cr0Shadow,
    Cr4Shadow,
    TscOffset,
    Vpid,
    EptPointer,
}

/// Parts of a segment.
pub(super) const SELECTOR: usize = 0;
pub(super) const RIGHTS: usize = 1;
pub(super) const LIMIT: usize = 2;
pub(super) const BASE: usize = 3;
/// The first field of each part (appendix B).
const PARTS: [u32; 4] = [
    f::GUEST_ES.writable(),
    f::GUEST_ES_RIGHTS.writable(),
    f::GUEST_ES_LIMIT.writable(),
    f::GUEST_ES_BASE.writable(),
];
/// The segments in the order of their fields.
const SEGMENTS: [SegmentName; 10] = {
    use SegmentName::{Cs, Ds, Es, Fs, Gdtr, Gs, Idtr, Ldtr, Ss, Tr};
    [Es, Cs, Ss, Ds, Fs, Gs, Ldtr, Tr, Gdtr, Idtr]
};
/// Those that have a selector and rights.
const WITH_SELECTOR: usize = 8;

/// Places for copies: as many as a word has bits.
pub(super) const COPIES: usize = 64;

/// The fields with copies; 0 in the places of what descriptor tables do not have, and behind them.
pub(super) const FIELDS: [u32; COPIES] = {
    let mut fields = [0; COPIES];
    let mut place = 0;
    while place < COPIES {
        fields[place] = match place.checked_sub(REGISTERS.len()) {
            None => REGISTERS[place],
            Some(part) if part / 4 >= SEGMENTS.len() => 0,
            Some(part) if part / 4 >= WITH_SELECTOR && part % 4 < LIMIT => 0,
            Some(part) => PARTS[part % 4] + 2 * (part / 4) as u32,
        };
        place += 1;
    }
    fields
};

/// All copies.
pub(super) const ALL: u64 = CHANGED_BY_EXITS | ((1 << REGISTERS.len()) - 1);

/// The copies of registers that an exit may change.
pub(super) const CHANGED_BY_EXITS: u64 = {
    let mut all = 0;
    let mut place = 0;
    while place < COPIES {
        if FIELDS[place] != 0 && (place <= Copied::InterruptStatus as usize || place >= REGISTERS.len()) {
            all |= 1 << place;
        }
        place += 1;
    }
    all
};

/// The place of a part of a segment.
pub(super) const fn place(name: SegmentName, part: usize) -> usize {
    let mut index = 0;
    while SEGMENTS[index] as usize != name as usize {
        index += 1;
    }
    REGISTERS.len() + 4 * index + part
}

/// The copies that nearly every exit needs: they are never older than the VMCS.
pub(super) const READ_AT_ONCE: [usize; 5] = [
    Copied::Rip as usize,
    Copied::Rflags as usize,
    Copied::Interruptibility as usize,
    place(SegmentName::Cs, RIGHTS),
    place(SegmentName::Ss, RIGHTS),
];

/// The copies that are never older than the VMCS: no exit changes them, or each reads them
/// [at once](READ_AT_ONCE).
const CURRENT: u64 = {
    let (mut all, mut index) = (!CHANGED_BY_EXITS, 0);
    while index < READ_AT_ONCE.len() {
        all |= 1 << READ_AT_ONCE[index];
        index += 1;
    }
    all
};

/// Whether this copy is never older than the VMCS.
pub(super) const fn is_current(place: usize) -> bool {
    CURRENT >> place & 1 != 0
}

/// The copies that the exit of a vCPU that halts needs, because it leaves its CPU.
pub(super) const READ_AT_HALTS: [usize; 3] =
    [Copied::Cr3 as usize, Copied::Cr4 as usize, Copied::PendingDebug as usize];

const _: () = assert!(REGISTERS.len() + 4 * SEGMENTS.len() <= COPIES);
