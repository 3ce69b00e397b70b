//! Guests that try everything: random values, and every register.

use crate::test::arm::{A72, N1};
use crate::test::bochs::{ON_VMX, SKYLAKE};
use crate::test::cases::hostile;
use crate::test::prelude::*;

pub(in crate::test) const ROWS: &[Case] = &[
    hostile("fuzz_amd64", "storm seed=0x5eed rounds=12 count=4000 rest", (4, 2))
        .about("random MSRs, ports, devices, instructions, hypercalls and requests lose nothing")
        .or_long("storm seed=0x10000 rounds=720 count=4000 rest"),
    hostile("fuzz_arm64", "storm seed=0x5eed rounds=24 count=4000 rest", (4, 2))
        .about("random system registers, instructions, devices, PSCI calls and requests lose nothing")
        .on(MAX)
        .or_long("storm seed=0x10000 rounds=1500 count=4000 rest"),
    hostile("hostile_guest_is_alive", "alive", (4, 2)).about("the guest runs on all vCPUs").on_both(),
    hostile("open_state_is_in_the_table", "walk", (2, 1))
        .about("each MSR, port and CPUID leaf is in the table or absent, and none belongs to another vCPU")
        .also(ON_VMX, SKYLAKE),
    hostile("open_state_is_in_the_table_on_max", "walk", (2, 1))
        .about("so is each system register and instruction of Arm64")
        .on(MAX),
    hostile("open_state_is_in_the_table_on_neoverse_n1", "walk", (2, 1)).about("on each model").on(N1),
    hostile("open_state_is_in_the_table_on_cortex_a72", "walk", (2, 1)).about("and on this one").on(A72),
];
