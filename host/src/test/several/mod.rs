//! Several guests on one machine: they boot, come and go, pause, end badly, and share CPUs, and
//! none of it disturbs the others or loses memory.

mod amid_dma;
mod attach;
mod badly;
mod boot;
mod cycles;
mod devices;
mod heard;
mod life;
mod memory;
mod misuse;
mod random;
mod shared;
mod shares;
mod stage;
mod vectors;

use super::arm::MAX;
use super::cases::{Case, act};

/// The rows.
pub(super) const ROWS: &[Case] = &[
    act("several_boot", BOOT, boot::few),
    act("several_boot_on_arm", BOOT, boot::few).on(MAX),
    act("several_sixteen_boot", SIXTEEN, boot::sixteen).only_long(),
    act("several_sixteen_boot_on_arm", SIXTEEN, boot::sixteen).only_long().on(MAX),
    act("several_four_by_32_boot", FOUR_BY_32, boot::four_by_32).only_long(),
    act("several_four_by_32_boot_on_arm", FOUR_BY_32, boot::four_by_32).only_long().on(MAX),
    act("several_end_badly", BADLY, badly::end_badly),
    act("several_end_badly_on_arm", BADLY, badly::end_badly).on(MAX),
    act("several_keep_their_cpus", SHARES, shares::keep_their_cpus),
    act("several_keep_their_cpus_on_arm", SHARES, shares::keep_their_cpus).on(MAX),
    act("several_find_zeros", ZEROS, memory::is_not_handed_on),
    act("several_find_zeros_on_arm", ZEROS, memory::is_not_handed_on).on(MAX),
    act("several_catch_no_zeros", HANDED_ON, memory::is_seen_to_be_handed_on).with(HANDS_ON),
    act("several_catch_no_zeros_on_arm", HANDED_ON, memory::is_seen_to_be_handed_on).with(HANDS_ON).on(MAX),
    act("several_consoles_attach", ATTACH, attach::attach),
    act("several_live_and_are_paused", LIFE, life::life),
    act("several_live_and_are_paused_on_arm", LIFE, life::life).on(MAX),
    act("several_come_and_go", CYCLES, cycles::come_and_go),
    act("several_disks_are_taken_amid_writes", DISKS, devices::come_and_go),
    act("several_disks_are_taken_amid_writes_on_arm", DISKS, devices::come_and_go).on(MAX),
    act("several_own_many_disks", MANY, devices::own_many),
    act("several_take_random_requests", REQUESTS, random::requests),
    act("several_take_random_requests_on_arm", REQUESTS, random::requests).on(MAX),
    act("several_leave_vectors", VECTORS, vectors::leave_vectors),
    act("several_devices_are_misused", MISUSE, misuse::misuse),
    act("several_are_reset_amid_dma", AMID_DMA, amid_dma::reset_amid_dma),
    act("several_are_reset_amid_failing_dma", AMID_FAILING, amid_dma::reset_amid_failing_dma),
    act("several_are_reset_amid_failing_dma_on_arm", AMID_FAILING, amid_dma::reset_amid_failing_dma).on(MAX),
    act("several_share_memory", SHARED, shared::share_memory),
    act("several_share_memory_on_arm", SHARED, shared::share_memory).on(MAX),
    act("several_come_and_go_on_arm", CYCLES, cycles::come_and_go).on(MAX).with(&["vmid_bits=2"]),
];

const BOOT: &str = "guests of 1, 2 and 3 vCPUs boot, and each console shows its own guest's output only";
const SIXTEEN: &str = "the example of sixteen guests boots, and each of them takes a command";
const FOUR_BY_32: &str = "the example of four guests of 32 vCPUs boots, and each of them takes a command";
const BADLY: &str =
    "guests fault, reset, panic, switch themselves off and are destroyed beside one that goes on";
const SHARES: &str = "sets of CPUs, caps and weights hold for guests that want all the time there is";
const ZEROS: &str = "the memory of a destroyed guest is zero for the next one";
const HANDED_ON: &str = "and a guest notices a hypervisor that hands the memory on as it is";
const HANDS_ON: &[&str] = &["defect=memory-handed-on"];
const ATTACH: &str =
    "what is typed on an attached console reaches that guest alone, and leaving it ends nothing";
const LIFE: &str = "a guest is created, paused, reset and destroyed while another one goes on";
const DISKS: &str = "a guest is destroyed while its disk writes: disk and memory are free, and others go on";
const MANY: &str = "thirteen disks of two guests work, and so does the hypervisor";
const REQUESTS: &str =
    "random requests about guests with disks, weights and sets are answered, and no memory is lost";
const VECTORS: &str = "a guest that wants all interrupt vectors leaves some for the disk of another one";
const MISUSE: &str =
    "a guest misuses its disk and its network card in all ways; another one and its disk are as before";
const AMID_DMA: &str =
    "a guest is reset while its disk reads: nothing of that comes into its memory afterwards";
const AMID_FAILING: &str =
    "and while its virtio disk reads to addresses without memory: that ends neither the disk nor QEMU";
const SHARED: &str =
    "guests exchange words through memory that they share, and ring each other; others do not reach it";
const CYCLES: &str = "guests are created, boot and are destroyed over and over, and no memory is lost";

/// What a bare guest shows when it accepts commands, and while it writes to memory.
pub(super) const READY: &str = "load: ready";
pub(super) const DIRTY: &str = "load: dirty: ";

/// A bare guest, which takes commands from its console. `keys` are more lines of its table.
pub(super) fn bare(name: &str, vcpus: u32, memory: &str, keys: &str) -> String {
    format!(
        "\n[[guest]]\nname = \"{name}\"\nprogram = \"load\"\nvcpus = {vcpus}\nmemory = \"{memory}\"\n{keys}\n"
    )
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
