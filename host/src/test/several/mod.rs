//! Several guests on one machine: they boot, come and go, pause, end badly, and share CPUs, and
//! none of it disturbs the others or loses memory.

mod cycles;
mod heard;
mod life;
mod stage;

use super::arm::MAX;
use super::cases::{Body, Case, case};
pub(super) use stage::Room;

/// The act of a row.
pub(super) type Act = fn(&Room<'_>) -> anyhow::Result<()>;

const fn several(name: &'static str, about: &'static str, act: Act) -> Case {
    case(name, about, Body::Several(act))
}

/// The rows.
pub(super) const ROWS: &[Case] = &[
    several("several_live_and_are_paused", LIFE, life::life),
    several("several_live_and_are_paused_on_arm", LIFE, life::life).on(MAX),
    several("several_come_and_go", CYCLES, cycles::come_and_go),
    several("several_come_and_go_on_arm", CYCLES, cycles::come_and_go).on(MAX).with(&["vmid_bits=2"]),
];

const LIFE: &str = "a guest is created, paused, reset and destroyed while another one goes on";
const CYCLES: &str = "guests are created, boot and are destroyed over and over, and no memory is lost";

/// A Debian guest that shows that it goes on, until a line is typed.
pub(super) const BESIDE: &str = r#"
[[guest]]
name = "beside"
vcpus = 1
memory = "128M"
cmdline = "quiet"
exec = "while echo tick; do usleep 100000; done & read line; echo good bye"
"#;
