//! The tests of Arm machines: software that runs directly on them, and on Quell there; and QEMU's
//! plugin, with a program that is known instruction by instruction.

use super::cases::REBOOTS;
use crate::bench::phases::Phases;
use crate::machine::payload::Payload;
use crate::test::prelude::*;

pub(super) const MAX: Platform = Platform::Aarch64(ArmCpu::Max);
pub(super) const N1: Platform = Platform::Aarch64(ArmCpu::NeoverseN1);
pub(super) const A72: Platform = Platform::Aarch64(ArmCpu::CortexA72);

pub(super) const ACTS: &[Named] = &[("arm_plugin_counts", counts), ("arm_reboot_reboots", REBOOTS)];

/// The program that is counted: an arm64 boot image's header, which begins with a branch, and code.
const PROGRAM: [u32; 38] = [
    0x1400_0010, // b 1f
    0, 0x0020_0000, // text_offset
    0, 0x0000_1000, // image_size
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0x644d_5241, // magic
    0, 0xd503_2c3f, // 1: hint #0x61
    0xd503_3a9f, // dsb ishst
    0xd508_831f, // tlbi vmalle1is
    0xd503_3b9f, // dsb ish
    0xd503_3fdf, // isb
    0xd280_0c80, // mov x0, #100
    0xf100_0400, // 2: subs x0, x0, #1
    0x54ff_ffe1, // b.ne 2b
    0xd503_2c5f, // hint #0x62
    0xd508_871f, // tlbi vmalle1
    0xd503_379f, // dsb nsh
    0xd508_751f, // ic iallu
    0xd2a1_2001, // movz x1, #0x900, lsl #16: the PL011
    0xd280_0640, // mov x0, #50
    0xb940_1822, // 3: ldr w2, [x1, #0x18]: QEMU translates code that accesses devices a second time
    0xf100_0400, // subs x0, x0, #1
    0x54ff_ffc1, // b.ne 3b
    0xd503_2c1f, // hint #0x60
    0xd280_0100, // mov x0, #8
    0xf2b0_8000, // movk x0, #0x8400, lsl #16: PSCI's SYSTEM_OFF
    0xd400_0002, // hvc #0
    0x1400_0000, // b .
];

/// Counts the program twice, the second time with one more iteration of a loop.
fn counts(room: &Room<'_>) -> Result<()> {
    let counted = count(room, &PROGRAM)?;
    let first = counted.of(Phase::Blocking)?;
    ensure!(first.instructions == 206, "{} instructions instead of 206", first.instructions);
    ensure!(
        (first.of_kind("vmalle1is"), first.of_kind("ishst"), first.of_kind("ish")) == (1, 1, 1)
            && (first.tlbi(), first.dsb(), first.dc, first.eret) == (1, 2, 0, 0),
        "the first phase is counted as {first:?}"
    );
    let second = counted.of(Phase::Reclaim)?;
    ensure!(
        (second.instructions, second.of_kind("vmalle1"), second.of_kind("nsh")) == (156, 1, 1)
            && (second.entries, second.tlbi(), second.dsb()) == (1, 1, 1),
        "the second phase is counted as {second:?}"
    );
    ensure!(counted.of(Phase::PerPage).is_err(), "a phase was counted that never began");
    let mut longer = PROGRAM;
    longer[21] += 1 << 5; // mov x0, #101
    let counted = count(room, &longer)?;
    let longer = counted.of(Phase::Blocking)?.instructions;
    ensure!(longer == 208, "one more turn of the loop makes {longer} instructions instead of 208");
    Ok(())
}

fn count(room: &Room<'_>, program: &[u32]) -> Result<Phases> {
    let kernel = room.directory.join("counted.img");
    fs::write(&kernel, program.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())?;
    let payload = Payload::Bare { kernel, initrd: None, cmdline: String::new() };
    let counting = Phases::counting(room.directory)?;
    let spec = Spec {
        clock: Clock::Instructions,
        timeout: Some(Duration::from_secs(60)),
        counting: Some(counting.clone()),
        ..Spec::new(room.platform, payload, 1, 128 * MIB)
    };
    let outcome = Machine::start(&spec, room.signals)?.run(|_, _| Ok(Flow::Continue))?;
    outcome.ended_by(&[End::PowerOff]).with_context(|| outcome.qemu_messages.to_string())?;
    Phases::read(&counting)
}
