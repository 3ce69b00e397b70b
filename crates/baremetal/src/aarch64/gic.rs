//! The interrupt controller, a GICv3 with its registers on: SGIs between processors, and the virtual timer.
//!
//! IHI 0069H: 12.9 (distributor), 12.10 and 12.11 (redistributor), 12.2 (registers of the CPU interface), 4.4 (affinity
//! routing). All interrupts are of group 1 and of one priority.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arm_sysregs::el1::accessors::read_mpidr_el1;

use super::info::{self, Gic};
use crate::devicetree::REGIONS;

/// The first INTID that is no interrupt's.
pub const SPECIAL: u32 = 1020;

/// GICD_CTLR: both groups and affinity routing; where there are two security states the bits of a non-secure view are the
/// same.
const CONTROL: u64 = 0x0000;
const CONTROL_ON: u32 = 1 << 4 | 1 << 1 | 1;
const CONTROL_WRITE_PENDING: u32 = 1 << 31;

/// GICR_TYPER, GICR_WAKER, and the frame of SGIs and PPIs behind that of the redistributor itself.
const TYPER: u64 = 0x0008;
const TYPER_VIRTUAL_LPIS: u64 = 1 << 1;
const TYPER_LAST: u64 = 1 << 4;
const WAKER: u64 = 0x0014;
const WAKER_SLEEP: u32 = 1 << 1;
const WAKER_CHILDREN_ASLEEP: u32 = 1 << 2;
const PRIVATE: u64 = 0x1_0000;
const GROUP: u64 = PRIVATE + 0x0080;
const SET_ENABLE: u64 = PRIVATE + 0x0100;
const PRIORITY: u64 = PRIVATE + 0x0400;
/// Bytes of a redistributor without and with virtual LPIs.
const STRIDE: u64 = 0x2_0000;
const STRIDE_VIRTUAL: u64 = 0x4_0000;

/// The priority of all interrupts, in each byte.
const MIDDLE: u32 = 0xa0a0_a0a0;
/// Reads of a register before the controller is declared stuck.
const TRIES: u32 = 1 << 24;
/// Redistributors in a region at most: more than there are processors.
const REDISTRIBUTORS: u64 = 1024;

static DISTRIBUTOR: AtomicU64 = AtomicU64::new(0);
static REGION_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Start and end of each.
static STARTS: [AtomicU64; REGIONS] = [const { AtomicU64::new(0) }; REGIONS];
static ENDS: [AtomicU64; REGIONS] = [const { AtomicU64::new(0) }; REGIONS];

/// Says where the controller is; before other processors run.
pub(super) fn set_place(gic: &Gic) {
    DISTRIBUTOR.store(gic.distributor, Ordering::Relaxed);
    for ((region, start), end) in gic.redistributors.iter().zip(&STARTS).zip(&ENDS) {
        start.store(region.start, Ordering::Relaxed);
        end.store(region.end, Ordering::Relaxed);
    }
    REGION_COUNT.store(gic.redistributors.len(), Ordering::Relaxed);
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
    // SAFETY: as in `read`; what is written concerns interrupts alone, and none is on that is not handled.
    unsafe { (address as *mut u32).write_volatile(value) };
}

/// Affinity levels 3 to 0 as GICR_TYPER has them, of a value like MPIDR_EL1's.
const fn packed(affinity: u64) -> u64 {
    affinity >> 32 << 24 & 0xff00_0000 | affinity & 0x00ff_ffff
}

/// The calling processor's affinity, as MPIDR_EL1 and the device tree have it.
pub fn affinity() -> u64 {
    read_mpidr_el1().bits() & 0xff_00ff_ffff
}

/// The calling processor's redistributor.
fn redistributor() -> Option<u64> {
    let regions = STARTS.iter().zip(&ENDS).take(REGION_COUNT.load(Ordering::Relaxed));
    let wanted = packed(affinity());
    for (start, end) in regions {
        let (mut frame, end) = (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
        for _ in 0..REDISTRIBUTORS {
            if frame.saturating_add(STRIDE) > end {
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
    }
    None
}

/// Switches the distributor on. On the first processor, once.
///
/// # Errors
///
/// There is none, or it does not answer.
pub fn enable_distributor() -> Result<(), &'static str> {
    let distributor = DISTRIBUTOR.load(Ordering::Relaxed);
    if distributor == 0 {
        return Err("the device tree has no GICv3");
    }
    write(distributor + CONTROL, CONTROL_ON);
    let is_done = || read(distributor + CONTROL) & CONTROL_WRITE_PENDING == 0;
    if (0..TRIES).any(|_| is_done()) { Ok(()) } else { Err("the distributor does not answer") }
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
    let frame = redistributor().ok_or("a processor has no redistributor")?;
    write(frame + WAKER, read(frame + WAKER) & !WAKER_SLEEP);
    if !(0..TRIES).any(|_| read(frame + WAKER) & WAKER_CHILDREN_ASLEEP == 0) {
        return Err("a redistributor does not wake");
    }
    write(frame + GROUP, u32::MAX);
    (0..8).for_each(|word| write(frame + PRIORITY + 4 * word, MIDDLE));
    write(frame + SET_ENABLE, 0xffff | 1 << info::virtual_timer());
    // SAFETY: ICC_PMR_EL1, ICC_CTLR_EL1 (an end drops the priority and deactivates), ICC_IGRPEN1_EL1; interrupts stay
    // masked.
    unsafe {
        asm!(
            "msr s3_0_c4_c6_0, {all}", "msr s3_0_c12_c12_4, xzr", "msr s3_0_c12_c12_7, {one}", "isb",
            all = in(reg) 0xffu64, one = in(reg) 1u64, options(nostack, preserves_flags),
        );
    }
    Ok(())
}

/// Sends SGI `number`, below 16, to the processor of this affinity. What was stored before is to be seen by whoever takes it.
pub fn send(affinity: u64, number: u8) {
    let [zero, one, two, _, three, ..] = affinity.to_le_bytes().map(u64::from);
    let list = 1 << (zero % 16) | (zero / 16) << 44;
    let value = three << 48 | two << 32 | u64::from(number & 15) << 24 | one << 16 | list;
    // SAFETY: ICC_SGI1R_EL1: an interrupt that its target handles. The barrier has earlier stores done before it
    // is sent.
    unsafe {
        asm!("dsb ishst", "msr s3_0_c12_c11_5, {}", "isb", in(reg) value, options(nostack, preserves_flags))
    };
}

/// Takes an interrupt: its INTID, or one from [`SPECIAL`] on if there is none.
pub(super) fn acknowledge() -> u32 {
    let id: u64;
    // SAFETY: ICC_IAR1_EL1; who reads it ends the interrupt. The barrier keeps what the handler does behind it.
    unsafe { asm!("mrs {}, s3_0_c12_c12_0", "dsb sy", out(reg) id, options(nostack, preserves_flags)) };
    id as u32 & 0xff_ffff
}

/// Ends an interrupt that was taken.
pub(super) fn end(id: u32) {
    // SAFETY: ICC_EOIR1_EL1 of what has been acknowledged.
    unsafe {
        asm!("msr s3_0_c12_c12_1, {}", "isb", in(reg) u64::from(id), options(nostack, preserves_flags))
    };
}
