//! The entry code. It is [`baremetal`]'s; its tables serve until the hypervisor's own are built,
//! and serve each further CPU for its first instructions.

use super::start::{ap_main, bsp_main};

// Present, writable; long mode, no-execute.
baremetal::x86_64_entry_code! {
    rights: 3,
    efer: 0x900,
    first: bsp_main,
    other: ap_main,
}
