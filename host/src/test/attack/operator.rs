//! What operators do, and what they hand in.

use crate::test::arm::{MAX, WORK as WORK_ON_ARM};
use crate::test::cases::{Case, Talk, WORK, talk};

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[
    talk(
        "u16_memory_is_not_laid_over_devices",
        "`ctl add` refuses the addresses of the APICs and of the PCI bus, and names them; the guest works on",
        WORK,
        Talk::Devices,
    ),
    talk(
        "u16_arm_memory_is_not_laid_over_devices",
        "and those of the GIC and the serial port",
        WORK_ON_ARM,
        Talk::Devices,
    )
    .on(MAX),
];
