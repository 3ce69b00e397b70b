//! The interrupt controller, a GICv3 with system registers enabled. Operations on a distributor or
//! redistributor at a given address are for any image; the rest is for programs at EL1, which take
//! SGIs and the virtual timer's interrupt.
//!
//! IHI 0069H: 12.9 (distributor), 12.10 and 12.11 (redistributor), 12.2 (registers of the CPU
//! interface), 4.4 (affinity routing). All interrupts are of group 1 and of one priority.

use core::arch::asm;
use core::ops::Range;

use arm_sysregs::el1::accessors::read_mpidr_el1;
use spin::Once;

use super::clock;
use crate::HardwareId;
use crate::devicetree::Gic;
use crate::encodings::gic::{
    CLEAR_ACTIVE, CLEAR_ENABLE, GROUP, PRIORITY, SET_ENABLE, bit, edge, packed, router, sgi,
};

/// The first INTID that is not an interrupt.
pub const SPECIAL: u32 = 1020;

/// GICD_CTLR: affinity routing. With two security states, the bits of a non-secure view are the
/// same.
pub const ROUTING: u32 = 1 << 4;
/// GICD_CTLR: interrupts of group 1.
pub const GROUP_1: u32 = 1 << 1;
/// GICD_CTLR: interrupts of group 0, or of group 1 in a non-secure view without affinity routing.
const GROUP_0: u32 = 1 << 0;
const CONTROL_WRITE_PENDING: u32 = 1 << 31;

/// GICD_CTLR.
const CONTROL: u64 = 0x0000;

/// GICR_TYPER, GICR_WAKER, and the frame of SGIs and PPIs after that of the redistributor itself;
/// its registers have the same offsets as in the distributor.
const TYPER: u64 = 0x0008;
const TYPER_VIRTUAL_LPIS: u64 = 1 << 1;
const TYPER_LAST: u64 = 1 << 4;
const WAKER: u64 = 0x0014;
const WAKER_SLEEP: u32 = 1 << 1;
const WAKER_CHILDREN_ASLEEP: u32 = 1 << 2;
const PRIVATE: u64 = 0x1_0000;
/// Bytes of a redistributor without and with virtual LPIs.
const STRIDE: u64 = 0x2_0000;
const STRIDE_VIRTUAL: u64 = 0x4_0000;

/// The priority of all interrupts.
const MIDDLE: u8 = 0xa0;
/// Reads of a register before the controller is declared stuck.
const TRIES: u32 = 1 << 24;
/// The most redistributors in a region: more than there are processors.
const REDISTRIBUTORS: u64 = 1024;

static GIC: Once<Gic> = Once::new();

/// Sets the controller's address; before other processors run.
pub(super) fn set_place(gic: &Gic) {
    GIC.call_once(|| gic.clone());
}

fn read(address: u64) -> u32 {
    // SAFETY: the address is a register of the controller, mapped as a device.
    unsafe { (address as *const u32).read_volatile() }
}

fn read_long(address: u64) -> u64 {
    // SAFETY: as in `read`; the register has 64 bits.
    unsafe { (address as *const u64).read_volatile() }
}

fn write(address: u64, value: u32) {
    // SAFETY: as in `read`; writes affect interrupts only, and every enabled one is handled.
    unsafe { (address as *mut u32).write_volatile(value) };
}

/// The calling processor's affinity, as MPIDR_EL1 and the device tree have it.
pub fn affinity() -> HardwareId {
    HardwareId(read_mpidr_el1().bits() & 0xff_00ff_ffff)
}

/// Waits until the controller is done, for a limited time.
fn wait(mut is_done: impl FnMut() -> bool) -> Result<(), &'static str> {
    if (0..TRIES).any(|_| is_done()) { Ok(()) } else { Err("the interrupt controller does not answer") }
}

/// Makes the distributor at `distributor` apply these bits of its control register.
///
/// # Errors
///
/// It does not answer.
pub fn set_control(distributor: u64, bits: u32) -> Result<(), &'static str> {
    write(distributor + CONTROL, bits);
    wait(|| read(distributor + CONTROL) & CONTROL_WRITE_PENDING == 0)
}

/// Routes a shared, level-triggered interrupt to the processor with this affinity.
pub fn route(distributor: u64, intid: u32, affinity: HardwareId) {
    route_as(distributor, intid, affinity, false);
    set_enabled(distributor, intid, true);
}

/// Routes an interrupt that is edge-triggered or level-triggered, and not enabled.
pub fn route_as(distributor: u64, intid: u32, affinity: HardwareId, is_edge: bool) {
    let ((trigger, edge), (group, bit)) = (edge(intid), bit(GROUP, intid));
    let (trigger, group) = (distributor + trigger, distributor + group);
    write(trigger, read(trigger) & !edge | if is_edge { edge } else { 0 });
    // SAFETY: a byte of the distributor, and a register of 64 bits, mapped as a device.
    unsafe { ((distributor + PRIORITY + u64::from(intid)) as *mut u8).write_volatile(MIDDLE) };
    write(group, read(group) | bit);
    // SAFETY: as above.
    unsafe { ((distributor + router(intid)) as *mut u64).write_volatile(affinity.0) };
}

/// Enables a shared interrupt, or disables it.
pub fn set_enabled(distributor: u64, intid: u32, is_enabled: bool) {
    let (register, bit) = bit(if is_enabled { SET_ENABLE } else { CLEAR_ENABLE }, intid);
    write(distributor + register, bit);
}

/// The redistributor of the processor with this affinity, if it is in the region.
pub fn find_redistributor(region: Range<u64>, affinity: HardwareId) -> Option<u64> {
    let (mut frame, wanted) = (region.start, packed(affinity));
    for _ in 0..REDISTRIBUTORS {
        if frame.saturating_add(STRIDE) > region.end {
            break;
        }
        let kind = read_long(frame + TYPER);
        if kind >> 32 == wanted {
            return Some(frame);
        }
        if kind & TYPER_LAST != 0 {
            break;
        }
        frame += if kind & TYPER_VIRTUAL_LPIS != 0 { STRIDE_VIRTUAL } else { STRIDE };
    }
    None
}

/// Makes a redistributor forward exactly the private interrupts that `enabled` names.
///
/// # Errors
///
/// It does not wake.
pub fn set_private(redistributor: u64, enabled: u32) -> Result<(), &'static str> {
    let waker = redistributor + WAKER;
    write(waker, read(waker) & !WAKER_SLEEP);
    wait(|| read(waker) & WAKER_CHILDREN_ASLEEP == 0)?;
    let private = redistributor + PRIVATE;
    write(private + CLEAR_ENABLE, u32::MAX);
    write(private + CLEAR_ACTIVE, u32::MAX);
    write(private + GROUP, u32::MAX);
    (0..8).for_each(|word| write(private + PRIORITY + 4 * word, u32::from_ne_bytes([MIDDLE; 4])));
    write(private + SET_ENABLE, enabled);
    Ok(())
}

/// Opens the calling processor's interface for interrupts of any priority. If `two_steps` is set,
/// an end drops the priority, and the interrupt is deactivated separately.
pub fn open_interface(two_steps: bool) {
    // SAFETY: ICC_PMR_EL1, ICC_BPR1_EL1, ICC_CTLR_EL1.EOImode, ICC_IGRPEN1_EL1: the interface
    // affects only the caller, and interrupts stay masked.
    unsafe {
        asm!(
            "msr s3_0_c4_c6_0, {all}", "msr s3_0_c12_c12_3, xzr", "msr s3_0_c12_c12_4, {control}",
            "msr s3_0_c12_c12_7, {one}", "isb",
            all = in(reg) 0xffu64, control = in(reg) u64::from(two_steps) << 1, one = in(reg) 1u64,
            options(nostack, preserves_flags),
        );
    }
}

/// Switches the distributor on. On the first processor, once; again if it has been switched off.
///
/// # Errors
///
/// There is none, or it does not answer.
pub fn enable_distributor() -> Result<(), &'static str> {
    let gic = GIC.get().ok_or("the device tree has no GICv3")?;
    set_control(gic.distributor.start, ROUTING | GROUP_1 | GROUP_0)
}

/// Lets the calling processor take SGIs and its virtual timer's interrupt.
///
/// # Errors
///
/// It has no redistributor, or that one does not wake.
pub fn enable() -> Result<(), &'static str> {
    // SAFETY: ICC_SRE_EL1.SRE: the interface by registers, which is what this module uses.
    unsafe {
        asm!("mrs {x}, s3_0_c12_c12_5", "orr {x}, {x}, #1", "msr s3_0_c12_c12_5, {x}", "isb", x = out(reg) _, options(nostack, preserves_flags));
    }
    let mut regions = GIC.get().into_iter().flat_map(|gic| &gic.redistributors);
    let frame = regions.find_map(|region| find_redistributor(Range::from(*region), affinity()));
    set_private(frame.ok_or("a processor has no redistributor")?, 0xffff | 1 << clock::virtual_timer())?;
    open_interface(false);
    Ok(())
}

/// Sends SGI `number`, below 16, to the processor with this affinity. Earlier stores are visible to
/// the CPU that takes it.
pub fn send(affinity: HardwareId, number: u8) {
    let value = sgi(affinity, number);
    // SAFETY: ICC_SGI1R_EL1: an interrupt that its target handles. The barrier completes earlier
    // stores before it is sent.
    unsafe {
        asm!("dsb ishst", "msr s3_0_c12_c11_5, {}", "isb", in(reg) value, options(nostack, preserves_flags))
    };
}

/// Takes an interrupt: its INTID, or one from [`SPECIAL`] on if there is none.
#[inline]
pub fn acknowledge() -> u32 {
    let id: u64;
    // SAFETY: ICC_IAR1_EL1; the reader ends the interrupt.
    unsafe { asm!("mrs {}, s3_0_c12_c12_0", out(reg) id, options(nostack, preserves_flags)) };
    id as u32 & 0xff_ffff
}

/// Ends an interrupt that the calling processor has taken; if ending takes two steps, drops its
/// priority.
pub fn end(id: u32) {
    // SAFETY: ICC_EOIR1_EL1 of what has been acknowledged.
    unsafe { asm!("msr s3_0_c12_c12_1, {}", in(reg) u64::from(id), options(nostack, preserves_flags)) };
}

/// Deactivates an interrupt, if that is a separate step.
pub fn deactivate(id: u32) {
    // SAFETY: ICC_DIR_EL1 for an acknowledged interrupt, or one that is no longer handled.
    unsafe { asm!("msr s3_0_c12_c11_1, {}", in(reg) u64::from(id), options(nostack, preserves_flags)) };
}
