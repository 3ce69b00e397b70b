//! The addresses of an Arm64 guest's devices: a subset of QEMU's `virt` board.
//!
//! | start | size | device |
//! |---|---|---|
//! | [`FLASH`] | | memory that firmware takes for a flash with its settings: empty |
//! | [`GICD`] | [`GICD_SIZE`] | GIC distributor |
//! | [`redistributors`] | 128 KiB per vCPU | GIC redistributors |
//! | [`UART`] | [`UART_SIZE`] | PL011, INTID [`UART_INTID`] |
//! | [`RTC`] | [`RTC_SIZE`] | PL031, INTID [`RTC_INTID`] |
//! | [`GENERATION`] | a page | memory with the generation id, INTID [`GENERATION_INTID`] |
//! | [`STOLEN_TIME`] | [`STOLEN_TIME_SIZE`] | memory that tells each vCPU its stolen time |
//! | [`PCI_MEMORY`], [`PCI_ECAM`] | | registers and configuration of PCI functions, INTIDs from [`PCI_INTID`] on |
//! | [`RAM`] | | all of the RAM |

use crate::devices::region::Region;
use crate::index::VpIndex;
use baremetal::pages::PAGE;
use core::ops::Range;

/// Where U-Boot reads its settings on QEMU's board. The device tree has no flash, so it writes
/// none.
pub const FLASH: Range<u64> = 0x0400_0000..0x0404_0000;
/// The distributor.
pub const GICD: u64 = 0x0800_0000;
/// Size of the distributor's frame in bytes.
pub const GICD_SIZE: u64 = 0x1_0000;
/// The redistributors, if all of them fit between here and [`UART`].
const GICR_NEAR: u64 = 0x080a_0000;
/// The redistributors of a guest with more vCPUs than that: in QEMU's window for PCI devices, whose
/// window here begins behind them.
const GICR_FAR: u64 = 0x1000_0000;
/// Size of one vCPU's redistributor in bytes: the RD and the SGI frame of 64 KiB each.
pub const GICR_SIZE: u64 = 0x2_0000;
/// The serial port.
pub const UART: u64 = 0x0900_0000;
/// Size of the serial port's page in bytes.
pub const UART_SIZE: u64 = 0x1000;
/// The serial port's interrupt.
pub const UART_INTID: u8 = 33;
/// The rate that the device tree gives for the serial port's clock input, in hertz.
pub const UART_CLOCK_HZ: u32 = 24_000_000;
/// The real-time clock.
pub const RTC: u64 = 0x0901_0000;
/// Size of its page in bytes.
pub const RTC_SIZE: u64 = 0x1000;
/// The interrupt of its alarm.
pub const RTC_INTID: u8 = 34;
/// The generation id, in a page of its own, because kernels map it without caches.
pub const GENERATION: u64 = STOLEN_TIME - PAGE;
/// Size of the generation id.
pub const GENERATION_BYTES: u64 = 16;
/// The interrupt of a new generation id.
pub const GENERATION_INTID: u8 = 32;
/// The structures with the vCPUs' stolen times, which are memory.
pub const STOLEN_TIME: u64 = 0x090a_0000;
/// Size of the place for them in bytes.
pub const STOLEN_TIME_SIZE: u64 = 0x1_0000;
/// Size of a structure in bytes.
pub const STOLEN_TIME_BYTES: u64 = 64;
/// The window in which PCI functions decode memory, in guests that have any.
pub const PCI_MEMORY: Range<u64> = 0x2000_0000..0x3000_0000;
/// Configuration space of the PCI bus.
pub const PCI_ECAM: u64 = 0x3f00_0000;
/// Size of the configuration space of one bus in bytes.
pub const PCI_ECAM_SIZE: u64 = 0x10_0000;
/// Interrupt lines of the bus.
pub const PCI_LINES: usize = 4;
/// The interrupt of the first of them. The others' follow.
pub const PCI_INTID: u8 = 35;
/// Start of RAM; its end depends on its size.
pub const RAM: u64 = 0x4000_0000;

/// The virtual timer's interrupt, a PPI.
pub const VIRTUAL_TIMER_INTID: u8 = 27;
/// The EL1 physical timer's interrupt, a PPI.
pub const PHYSICAL_TIMER_INTID: u8 = 30;
/// The secure timer's PPI. The device tree must name it, although a guest at EL1 has no such timer.
pub const SECURE_TIMER_INTID: u8 = 29;
/// The same for EL2's timer.
pub const EL2_TIMER_INTID: u8 = 26;
const _: () = assert!(FLASH.end <= GICD);
const _: () = assert!(GICD + GICD_SIZE <= GICR_NEAR && GICR_FAR + 255 * GICR_SIZE <= RAM);
const _: () = assert!(255 * STOLEN_TIME_BYTES <= STOLEN_TIME_SIZE && GENERATION >= RTC + RTC_SIZE);
const _: () = assert!(STOLEN_TIME + STOLEN_TIME_SIZE <= GICR_FAR);
const _: () = assert!(GICR_FAR + 255 * GICR_SIZE <= PCI_MEMORY.start && PCI_MEMORY.end <= PCI_ECAM);
const _: () = assert!(PCI_ECAM + PCI_ECAM_SIZE <= RAM);
const _: () = assert!(GENERATION_INTID < UART_INTID && UART_INTID < RTC_INTID && RTC_INTID < PCI_INTID);

/// The interrupt of a line of the PCI bus.
pub const fn pci_intid(line: usize) -> u8 {
    PCI_INTID + (line % PCI_LINES) as u8
}

/// The addresses of PCI, in guests that have functions.
pub const fn pci_regions() -> [Region; 2] {
    [
        Region { name: "the window of PCI", range: PCI_MEMORY },
        Region::new("the configuration space of PCI", PCI_ECAM, PCI_ECAM_SIZE),
    ]
}

/// The addresses of the redistributors of `vcpu_count` vCPUs, which are contiguous.
pub const fn redistributors(vcpu_count: u8) -> Range<u64> {
    let size = vcpu_count as u64 * GICR_SIZE;
    let start = if GICR_NEAR + size <= UART { GICR_NEAR } else { GICR_FAR };
    start..start + size
}

/// The address of a vCPU's structure.
pub const fn stolen_time(vcpu: VpIndex) -> u64 {
    STOLEN_TIME + vcpu.0 as u64 * STOLEN_TIME_BYTES
}

/// The device addresses of a guest with this many vCPUs.
pub const fn regions(vcpu_count: u8) -> [Region; 6] {
    [
        Region::new("the GIC's distributor", GICD, GICD_SIZE),
        Region { name: "the GIC's redistributors", range: redistributors(vcpu_count) },
        Region::new("the PL011", UART, UART_SIZE),
        Region::new("the PL031", RTC, RTC_SIZE),
        Region::new("the generation id", GENERATION, PAGE),
        Region::new("the stolen times", STOLEN_TIME, STOLEN_TIME_SIZE),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redistributors_never_overlap_anything() {
        for count in 0..=u8::MAX {
            let range = redistributors(count);
            assert_eq!(range.end - range.start, u64::from(count) * 0x2_0000);
            assert!(range.start >= GICD + GICD_SIZE && range.end <= RAM);
            assert!(range.end <= UART || range.start >= UART + UART_SIZE, "{count}");
        }
        assert_eq!(redistributors(123).start, GICR_NEAR, "as on QEMU");
        assert_eq!(redistributors(124).start, GICR_FAR);
    }
}
