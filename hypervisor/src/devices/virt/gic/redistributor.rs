//! The redistributors' region: maps addresses to redistributors, and limits a vCPU's access to
//! another's.
//!
//! A vCPU's private interrupts belong to their owner alone. Of another vCPU's redistributor a vCPU
//! sees the constant registers (identification, GICR_TYPER by which drivers find their own) and
//! GICR_WAKER. Writes to another's GICR_ISPENDR0 are posted; all others are ignored. No driver
//! needs more: each CPU sets up its own.

use super::identity::{Affinity, Frame, IIDR, identification};

/// Size of one redistributor in bytes: two frames of 64 KiB.
const SIZE: u64 = 0x2_0000;
pub(super) const SGI_FRAME: u32 = 0x1_0000;
const GICR_IIDR: u32 = 0x04;
const TYPER: u32 = 0x08;
pub(super) const WAKER: u32 = 0x14;
const ISPENDR0: u32 = SGI_FRAME + 0x200;

/// A location in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedistributorRegister {
    /// The owner of the redistributor.
    pub vcpu: u8,
    /// Offset within that redistributor.
    pub offset: u32,
}

/// The redistributor and register at `offset` from the region's start. `None` after the last: an
/// external abort.
pub const fn locate(offset: u64, vcpu_count: u8) -> Option<RedistributorRegister> {
    let index = offset / SIZE;
    if index >= vcpu_count as u64 {
        return None;
    }
    Some(RedistributorRegister { vcpu: index as u8, offset: (offset % SIZE) as u32 })
}

/// Reads from the redistributor of another vCPU than the reader; `is_awake` is the distributor's
/// value.
pub const fn read_foreign(place: RedistributorRegister, size: u8, vcpu_count: u8, is_awake: bool) -> u64 {
    if place.offset == WAKER && size == 4 {
        return waker(is_awake);
    }
    constant(place.vcpu, place.vcpu as u32 + 1 == vcpu_count as u32, place.offset, size)
}

/// Writes to the redistributor of another vCPU than the writer. The result, if any, is for the
/// owner's [`Inbox::post_private`](super::Inbox::post_private).
pub const fn write_foreign(place: RedistributorRegister, size: u8, value: u64) -> Option<u32> {
    let intids = value as u32;
    if place.offset == ISPENDR0 && size == 4 && intids != 0 { Some(intids) } else { None }
}

/// GICR_WAKER: ChildrenAsleep follows ProcessorSleep at once.
pub(super) const fn waker(is_awake: bool) -> u64 {
    if is_awake { 0 } else { 1 << 2 | 1 << 1 }
}

/// The constant registers of both frames. All others are 0: no LPIs, no power management.
pub(super) const fn constant(vcpu: u8, is_last: bool, offset: u32, size: u8) -> u64 {
    // Bits 63:32 affinity, 23:8 number, 4 last in this region.
    let typer = (Affinity::of(vcpu).0 as u64) << 32 | (vcpu as u64) << 8 | (is_last as u64) << 4;
    match (offset, size) {
        (TYPER, 8) => typer,
        (TYPER, 4) => half(typer, 0, 4),
        (0x0c, 4) => half(typer, 4, 4),
        (GICR_IIDR, 4) => IIDR as u64,
        (0xffd0..0x1_0000 | 0x1_ffd0..0x2_0000, 4) => {
            identification(Frame::Redistributor, offset % SGI_FRAME) as u64
        }
        _ => 0,
    }
}

/// Reads `size` bytes, 4 or 8, of a 64-bit register from byte `offset % 8` on.
pub(super) const fn half(register: u64, offset: u32, size: u8) -> u64 {
    match (size, offset % 8) {
        (8, 0) => register,
        (4, 0) => register & 0xffff_ffff,
        (4, 4) => register >> 32,
        _ => 0,
    }
}
