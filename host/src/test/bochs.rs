//! The tests on the machine that remembers: Bochs, whose TLB keeps what a processor may keep.
//!
//! A flush that is owed and forgotten shows there, and on QEMU it does not. All rows fail, too, if
//! Bochs complains of what no sound hypervisor does.

use super::cases::REBOOTS;
use super::several::{cycles, migration};
use crate::image::Entry;
use crate::machine::bochs::{Bochs, Tlb};
use crate::test::prelude::*;
use crate::test::room::Act;

pub(super) const RYZEN: Platform = Platform::Bochs(Bochs::RYZEN);
pub(super) const DROPPING: Platform =
    Platform::Bochs(Bochs { tlb: Tlb { dropping: Some(1), ..Tlb::TAGGED }, ..Bochs::RYZEN });
pub(super) const SKYLAKE: Platform = Platform::Bochs(Bochs::SKYLAKE);

/// How rows end that run there, too, where VMX runs the guests.
pub(super) const ON_VMX: &str = "_on_vmx";

/// With more vCPUs than tags: they begin anew all the time.
pub(super) const FEW_TAGS: Platform =
    Platform::Bochs(Bochs { tlb: Tlb { asids: Some(3), ..Tlb::TAGGED }, ..Bochs::RYZEN });

fn with_defects(room: &Room<'_>, act: Act) -> Result<()> {
    let hypervisor = Hypervisor::with_defects(room.platform.arch())?;
    act(&Room { other: Some(&hypervisor), ..*room })
}

pub(super) const ACTS: &[Named] = &[
    ("bochs_catches_tag_kept", |room| with_defects(room, cycles::spoil_each_other)),
    ("bochs_catches_rollover_kept", |room| with_defects(room, cycles::spoil_each_other)),
    ("bochs_catches_rollover_by_tag", |room| with_defects(room, cycles::spoil_each_other)),
    ("bochs_catches_tag_of_another_guest", |room| with_defects(room, cycles::spoil_each_other)),
    ("bochs_catches_former_root_dropped", |room| with_defects(room, cycles::see_former_roms)),
    ("bochs_several_share_few_tags", cycles::share_cpus),
    ("bochs_several_come_and_go", cycles::come_and_go),
    ("bochs_migration_in_vain_changes_nothing", |room| room.lab.migrate(room.case)),
    ("bochs_a_guest_moves_often", migration::moves_often),
    ("bochs_reboot_reboots", REBOOTS),
    ("bochs_disc_runs_linux", |room| room.lab.disc(room.platform, Entry::Linux, false, "hello from a disc")),
];
