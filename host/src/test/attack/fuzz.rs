//! Guests that try everything: random values, and every register.

use crate::arch::{ArmCpu, Platform};
use crate::test::cases::{Case, hostile};

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[
    hostile(
        "fuzz_amd64",
        "random values for MSRs, ports, devices, instructions and hypercalls from all vCPUs, and random requests, lose nothing",
        "storm seed=0x5eed rounds=12 count=4000 rest",
        (4, 2),
    )
    .or_long("storm seed=0x10000 rounds=720 count=4000 rest"),
    hostile(
        "fuzz_arm64",
        "random values for system registers, instructions, devices and PSCI from all vCPUs, and random requests, lose nothing",
        "storm seed=0x5eed rounds=24 count=4000 rest",
        (4, 2),
    )
    .on(Platform::Aarch64(ArmCpu::Max))
    .or_long("storm seed=0x10000 rounds=1500 count=4000 rest"),
    hostile("hostile_guest_is_alive", "the guest that tries everything runs on all vCPUs", "alive", (4, 2)),
    hostile("hostile_guest_is_alive_on_arm", "and on Arm64", "alive", (4, 2))
        .on(Platform::Aarch64(ArmCpu::Max)),
    hostile(
        "open_state_is_in_the_table",
        "each MSR, port and CPUID leaf is in the table or absent, and none belongs to another vCPU",
        "walk",
        (2, 1),
    ),
    hostile(
        "open_state_is_in_the_table_on_max",
        "so is each system register and instruction of Arm64",
        "walk",
        (2, 1),
    )
    .on(Platform::Aarch64(ArmCpu::Max)),
    hostile("open_state_is_in_the_table_on_neoverse_n1", "on each model", "walk", (2, 1))
        .on(Platform::Aarch64(ArmCpu::NeoverseN1)),
    hostile("open_state_is_in_the_table_on_cortex_a72", "and on this one", "walk", (2, 1))
        .on(Platform::Aarch64(ArmCpu::CortexA72)),
];
