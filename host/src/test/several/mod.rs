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
mod misuse;
pub(super) mod moving;
mod random;
mod shares;
mod stage;
mod vectors;

use super::prelude::*;
use stage::{Stage, named};

const DRAWS: &str = "a kernel that knows the generation id draws other numbers after each restoration of one \
    file";

pub(super) const ROWS: &[Case] = &[
    act("several_boot", boot::few)
        .about("guests of 1, 2 and 3 vCPUs boot, each on its own console, where APIC ids have a gap")
        .on_both(),
    act("several_sixteen_boot", boot::sixteen)
        .about("the example of sixteen guests boots, and each of them takes a command")
        .only_long()
        .on_both(),
    act("several_four_by_32_boot", boot::four_by_32)
        .about("the example of four guests of 32 vCPUs boots, and each of them takes a command")
        .only_long()
        .on_both(),
    act("several_end_badly", badly::end_badly)
        .about("guests fault, reset, panic, switch themselves off and are destroyed beside one that goes on")
        .on_both(),
    act("several_keep_their_cpus", shares::keep_their_cpus)
        .about("sets of CPUs, caps and weights hold for guests that want all the time there is")
        .on_both(),
    act("several_find_zeros", memory::is_not_handed_on)
        .about("the memory of a destroyed guest is zero for the next one")
        .on_both(),
    act("several_catch_no_zeros", memory::is_seen_to_be_handed_on)
        .about("and a guest notices a hypervisor that hands the memory on as it is")
        .with(&["defect=memory-handed-on"])
        .on_both(),
    act("several_consoles_attach", attach::attach)
        .about("what is typed on an attached console reaches that guest alone, and leaving it ends nothing"),
    act("several_live_and_are_paused", life::life)
        .about("a guest is created, paused, reset and destroyed while another one goes on")
        .on_both(),
    act("several_come_and_go", cycles::come_and_go)
        .about("guests are created, boot and are destroyed over and over, and no memory is lost"),
    act("several_disks_are_taken_amid_writes", devices::come_and_go)
        .about("a guest is destroyed while its disk writes: disk and memory are free, and others go on")
        .on_both(),
    act("several_own_many_disks", devices::own_many)
        .about("thirteen disks of two guests work, and so does the hypervisor"),
    act("several_take_random_requests", random::requests)
        .about("random requests about guests with disks and weights are answered, and no memory is lost")
        .on_both(),
    act("several_leave_vectors", vectors::leave_vectors)
        .about("a guest that wants all interrupt vectors leaves some for the disk of another one"),
    act("several_devices_are_misused", misuse::misuse)
        .about("a guest misuses its disk and network card in all ways; another one is as before"),
    act("several_are_reset_amid_dma", amid_dma::reset_amid_dma)
        .about("a guest is reset while its disk reads: nothing of that comes into its memory afterwards"),
    act("several_are_reset_amid_failing_dma", amid_dma::reset_amid_failing_dma)
        .about("and while its virtio disk reads to nothing: that ends neither the disk nor QEMU")
        .on_both(),
    act("m10_a_guest_is_saved_and_restored", moving::is_saved)
        .about("a guest that stores is saved while it runs, and for good; it goes on in another machine")
        .on_both(),
    act("m11_two_restored_from_one_file_draw_different_numbers", moving::draws_others).about(DRAWS),
    act("m11_two_restored_from_one_file_draw_different_numbers_on_arm", moving::draws_others)
        .about(DRAWS)
        .on(MAX),
    act("m1_a_guest_moves_there_and_back", moving::moves)
        .about("a guest that stores is moved to another machine in vain, then there, and back")
        .on_both(),
    act("m1_a_guest_moves_often", moving::moves_often)
        .about("a guest that looks for errors moves often, also without a processor, asleep and in a restart")
        .on_both(),
    act("m1_a_large_guest_moves", moving::a_large_one_moves)
        .about("and so does one of 64 vCPUs and 4 GiB, which stores")
        .only_long()
        .on_both(),
    act("m10_a_guest_is_saved_often", moving::is_saved_often)
        .about("a guest that looks for errors in memory, clocks and sums is saved and restored ten times")
        .only_long()
        .on_both(),
    act("several_come_and_go_on_arm", cycles::come_and_go)
        .about("guests are created, boot and are destroyed over and over, and no memory is lost")
        .on(MAX)
        .with(&["vmid_bits=2"]),
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
