//! The real GICv3: distributor, redistributors, CPU interface.
//!
//! Only group 1 is used, without LPIs. Ending an interrupt is in two steps (EOImode 1): the
//! priority drops when the hypervisor has seen it; the guest's own interrupts are deactivated by
//! the guest, by way of its list registers.
//!
//! Source: Arm IHI 0069H, GICv3 architecture specification, chapters 8 and 12.

use core::sync::atomic::{AtomicU64, Ordering};

use super::sysreg::{isb, read, write};
use crate::arch::PerCpu;
use crate::arm64::controls;

mod gicd {
    pub(super) const CTLR: u64 = 0x0;
    pub(super) const IGROUPR: u64 = 0x80;
    pub(super) const ISENABLER: u64 = 0x100;
    pub(super) const ICFGR: u64 = 0xc00;
    pub(super) const IPRIORITYR: u64 = 0x400;
    pub(super) const IROUTER: u64 = 0x6000;
    pub(super) const ENABLE_GROUP1: u32 = 1 << 1;
    pub(super) const ROUTING_ENABLE: u32 = 1 << 4;
    pub(super) const WRITE_PENDING: u32 = 1 << 31;
}

mod gicr {
    pub(super) const TYPER: u64 = 0x8;
    pub(super) const WAKER: u64 = 0x14;
    /// The second frame.
    pub(super) const SGI: u64 = 0x1_0000;
    pub(super) const IGROUPR0: u64 = SGI + 0x80;
    pub(super) const ISENABLER0: u64 = SGI + 0x100;
    pub(super) const ICENABLER0: u64 = SGI + 0x180;
    pub(super) const ICACTIVER0: u64 = SGI + 0x380;
    pub(super) const IPRIORITYR: u64 = SGI + 0x400;
    pub(super) const TYPER_LAST: u64 = 1 << 4;
    pub(super) const PROCESSOR_SLEEP: u32 = 1 << 1;
    pub(super) const CHILDREN_ASLEEP: u32 = 1 << 2;
}

/// Bytes of one redistributor's frames: two of 64 KiB, four where GICv4 adds its own.
const STRIDE_V3: u64 = 0x2_0000;
const STRIDE_V4: u64 = 0x4_0000;
/// The redistributor has GICv4's frames.
const TYPER_VLPIS: u64 = 1 << 1;
/// Reads of a register before a device that does not answer is given up.
const TRIES_MAX: u32 = 1 << 24;
/// All interrupts of the hypervisor have this priority.
const PRIORITY: u32 = 0xa0;

/// First INTID that is none: 1020 to 1023 are special.
pub(crate) const SPECIAL: u32 = 1020;

static DISTRIBUTOR: AtomicU64 = AtomicU64::new(0);

fn read32(address: u64) -> u32 {
    // SAFETY: the registers of the GIC that the device tree names, mapped as device memory.
    unsafe { (address as *const u32).read_volatile() }
}

fn write32(address: u64, value: u32) {
    // SAFETY: as above. The GIC is the hypervisor's.
    unsafe { (address as *mut u32).write_volatile(value) };
}

fn write64(address: u64, value: u64) {
    // SAFETY: as above.
    unsafe { (address as *mut u64).write_volatile(value) };
}

/// Waits until `done`, for a while.
fn wait(mut done: impl FnMut() -> bool) -> Result<(), &'static str> {
    if (0..TRIES_MAX).any(|_| done()) { Ok(()) } else { Err("the interrupt controller does not answer") }
}

/// Sets up the distributor: group 1, interrupts by affinity. Once.
pub(crate) fn init_distributor(base: u64) -> Result<(), &'static str> {
    let is_settled = || read32(base + gicd::CTLR) & gicd::WRITE_PENDING == 0;
    write32(base + gicd::CTLR, 0);
    wait(is_settled)?;
    write32(base + gicd::CTLR, gicd::ROUTING_ENABLE);
    wait(is_settled)?;
    write32(base + gicd::CTLR, gicd::ROUTING_ENABLE | gicd::ENABLE_GROUP1);
    wait(is_settled)?;
    DISTRIBUTOR.store(base, Ordering::Relaxed);
    Ok(())
}

/// Has a shared, level-triggered interrupt go to a CPU.
pub(crate) fn route(intid: u32, cpu: &PerCpu) {
    let base = DISTRIBUTOR.load(Ordering::Relaxed);
    let (word, bit) = (u64::from(intid / 32) * 4, 1 << (intid % 32));
    let level = base + gicd::ICFGR + u64::from(intid / 16) * 4;
    write32(level, read32(level) & !(2 << (intid % 16 * 2)));
    // SAFETY: a byte of the distributor's.
    unsafe { ((base + gicd::IPRIORITYR + u64::from(intid)) as *mut u8).write_volatile(PRIORITY as u8) };
    write32(base + gicd::IGROUPR + word, read32(base + gicd::IGROUPR + word) | bit);
    write64(base + gicd::IROUTER + u64::from(intid) * 8, cpu.id);
    write32(base + gicd::ISENABLER + word, bit);
}

/// The redistributor of the CPU with affinity `id`, in the frames that begin at `first`.
pub(crate) fn find_redistributor(first: u64, id: u64) -> Result<u64, &'static str> {
    let affinity = id & 0xff_ffff | id >> 32 << 24;
    let mut frame = first;
    for _ in 0..crate::vm::percpu::MAX_CPUS {
        let typer = u64::from(read32(frame + gicr::TYPER)) | u64::from(read32(frame + gicr::TYPER + 4)) << 32;
        if typer >> 32 == affinity {
            return Ok(frame);
        }
        if typer & gicr::TYPER_LAST != 0 {
            break;
        }
        frame += if typer & TYPER_VLPIS != 0 { STRIDE_V4 } else { STRIDE_V3 };
    }
    Err("a CPU has no redistributor")
}

/// Sets up the calling CPU's part, with these private interrupts enabled.
pub(crate) fn init_cpu(redistributor: u64, enabled: u32) -> Result<(), &'static str> {
    let waker = redistributor + gicr::WAKER;
    write32(waker, read32(waker) & !gicr::PROCESSOR_SLEEP);
    wait(|| read32(waker) & gicr::CHILDREN_ASLEEP == 0)?;
    write32(redistributor + gicr::ICENABLER0, u32::MAX);
    write32(redistributor + gicr::ICACTIVER0, u32::MAX);
    write32(redistributor + gicr::IGROUPR0, u32::MAX);
    for word in 0..8 {
        write32(redistributor + gicr::IPRIORITYR + word * 4, PRIORITY * 0x0101_0101);
    }
    write32(redistributor + gicr::ISENABLER0, enabled);
    // SAFETY: the CPU interface is the hypervisor's; the guest has the virtual one.
    unsafe {
        write!("icc_sre_el2", controls::ICC_SRE_EL2);
        isb();
        write!("icc_sre_el1", controls::ICC_SRE_EL1);
        isb();
        write!("icc_pmr_el1", 0xff);
        write!("icc_bpr1_el1", 0);
        // Priority drop and deactivation are apart.
        write!("icc_ctlr_el1", 1 << 1);
        write!("icc_igrpen1_el1", 1);
    }
    isb();
    Ok(())
}

/// Acknowledges the interrupt of highest priority; [`SPECIAL`] or more if there is none.
#[inline]
pub(crate) fn acknowledge() -> u32 {
    (read!("icc_iar1_el1") & 0xff_ffff) as u32
}

/// Drops the priority of an interrupt that was acknowledged. It stays active.
pub(crate) fn drop_priority(intid: u32) {
    // SAFETY: the interrupt was acknowledged by this CPU.
    unsafe { write!("icc_eoir1_el1", intid.into()) };
}

/// Deactivates an interrupt.
pub(crate) fn deactivate(intid: u32) {
    // SAFETY: the interrupt is the hypervisor's, or one of the guest's that nobody handles any
    // more.
    unsafe { write!("icc_dir_el1", intid.into()) };
}

/// Sends a software-generated interrupt to the CPU with affinity `id`.
pub(crate) fn send(id: u64, intid: u32) {
    let target = 1u64 << (id & 0xf);
    let range = id >> 4 & 0xf;
    let affinity = (id >> 8 & 0xff) << 16 | (id >> 16 & 0xff) << 32 | (id >> 32 & 0xff) << 48;
    // What was written before is to be seen by who is interrupted.
    // SAFETY: a barrier, then an interrupt that every CPU handles.
    unsafe {
        core::arch::asm!("dsb ishst", options(nostack, preserves_flags));
        write!("icc_sgi1r_el1", target | u64::from(intid) << 24 | range << 44 | affinity);
    }
    isb();
}
