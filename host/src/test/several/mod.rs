//! Several guests on one machine: they boot, come and go, pause, end badly, and share CPUs, and
//! none of it disturbs the others or loses memory.

mod amid_dma;
mod attach;
mod badly;
mod boot;
pub(super) mod cycles;
mod devices;
mod heard;
mod life;
mod memory;
pub(super) mod migration;
mod misuse;
mod random;
mod shares;
mod stage;
mod vectors;

use super::prelude::*;
use stage::{Stage, named};

pub(super) const ACTS: &[Named] = &[
    ("several_boot", boot::few),
    ("several_sixteen_boot", |room| boot::example(room, "sixteen.toml", boot::TIMEOUT_SIXTEEN)),
    ("several_four_by_32_boot", |room| boot::example(room, "four-by-32.toml", boot::TIMEOUT_FOUR_BY_32)),
    ("several_end_badly", badly::end_badly),
    ("several_keep_their_cpus", |room| shares::sets(room).and_then(|()| shares::shares(room))),
    ("several_find_zeros", |room| memory::is_handed_on(room, false)),
    ("several_catch_no_zeros", |room| memory::is_handed_on(room, true)),
    ("several_consoles_attach", attach::attach),
    ("several_live_and_are_paused", life::life),
    ("several_come_and_go", cycles::come_and_go),
    ("several_disks_are_taken_amid_writes", devices::come_and_go),
    ("several_own_many_disks", devices::own_many),
    ("several_take_random_requests", random::requests),
    ("several_leave_vectors", vectors::leave_vectors),
    ("several_devices_are_misused", misuse::misuse),
    ("several_are_reset_amid_dma", amid_dma::reset_amid_dma),
    ("several_are_reset_amid_failing_dma", amid_dma::reset_amid_failing_dma),
    ("m10_a_guest_is_saved_and_restored", migration::is_saved),
    ("m11_two_restored_from_one_file_draw_different_numbers", migration::draws_others),
    ("m11_two_restored_from_one_file_draw_different_numbers_on_arm", migration::draws_others),
    ("m1_a_guest_moves_there_and_back", migration::moves),
    ("m1_a_guest_moves_often", migration::moves_often),
    ("m1_a_large_guest_moves", migration::a_large_one_moves),
    ("m10_a_guest_is_saved_often", migration::is_saved_often),
    ("n23_a_guest_is_saved_while_its_guest_runs", migration::is_saved_with_its_guest),
    ("several_come_and_go_on_arm", cycles::come_and_go),
];

/// What a bare guest shows when it accepts commands, and while it writes to memory.
pub(super) const READY: &str = "load: ready";
pub(super) const DIRTY: &str = "load: dirty: ";

/// A bare guest, which takes commands from its console. `keys` are more lines of its table.
pub(super) fn bare(name: &str, vcpus: u32, memory: &str, keys: &str) -> String {
    let size = format!("vcpus = {vcpus}\nmemory = \"{memory}\"");
    format!("\n[[guest]]\nname = \"{name}\"\nprogram = \"load\"\n{size}\n{keys}\n")
}

/// The same, which stores to its memory all the time. `base` is where RAM begins.
pub(super) fn storing(base: u64, name: &str, keys: &str) -> String {
    let dirty = base + (24 << 20);
    bare(name, 1, "32M", &format!("cmdline = \"dirty={dirty:#x},4M,0\"\n{keys}"))
}

/// A guest that is created by a request.
pub(super) const MANUAL: &str = "start = \"manual\"";

/// A Debian guest that shows that it goes on, until a line is typed.
pub(super) const BESIDE: &str = r#"
[[guest]]
name = "beside"
vcpus = 1
memory = "128M"
cmdline = "quiet"
exec = "while echo tick; do usleep 100000; done & read line; echo good bye"
"#;
