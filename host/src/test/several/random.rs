//! Random requests about guests with disks, weights, caps and sets of CPUs, in any order. A failure
//! names its seed; `QUELL_REQUESTS_SEED` runs from that one.

use super::*;
use crate::machine::control::Refused;
use baremetal::random::Random;
use std::{env, thread};

const NAMES: [&str; 3] = ["a", "b", "c"];
const SEED: u64 = 0x5eed;
/// Requests of a machine; machines, and those of `--long`.
const REQUESTS: u32 = 150;
const MACHINES: u64 = 2;
const MACHINES_LONG: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(240);
/// The longest time of a request, in the machine's own: an emulator on a busy computer may need a
/// hundred times what the unit test of the same name allows.
const BOUND: Duration = Duration::from_secs(10);
/// The longest pause between two requests.
const PAUSE_MS: u64 = 100;
const DISK: usize = 1 << 20;

/// Each request is answered in time, or refused; memory is as before, and another guest goes on.
pub(super) fn requests(room: &Room<'_>) -> Result<()> {
    let first = env::var("QUELL_REQUESTS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(SEED);
    let machines = if room.is_long { MACHINES_LONG } else { MACHINES };
    (first..first + machines).try_for_each(|seed| machine(room, seed).with_context(|| format!("seed {seed}")))
}

/// A guest that reads its disk and stores to its memory, or one that resets itself all the time.
fn guest(random: &mut Random, base: u64, name: &str) -> String {
    let mut keys = format!("{MANUAL}\nreset = \"reboot\"\nweight = {}", random.one_of([1, 100, 10_000]));
    if random.one_in(3) {
        keys += &format!("\ncap = {}", 1 + random.below(100));
    }
    if random.one_in(2) {
        keys += &format!("\ncpus = [{}]", random.below(2));
    }
    if name == "c" {
        keys += "\ncmdline = \"test=attack attack=resets seed=1\"";
        return bare(name, 2, "64M", &keys).replace("\"load\"", "\"hostile\"");
    }
    let (at, dirty) = (base + (20 << 20), base + (24 << 20));
    let kind = if name == "a" { "disks" } else { "virtio_disks" };
    keys += &format!("\n{kind} = [\"{name}.img\"]\ncmdline = \"fly={at:#x},63 dirty={dirty:#x},4M,0\"");
    bare(name, 1, "32M", &keys)
}

fn request(random: &mut Random) -> Result<Request> {
    let guest = named(NAMES[random.below(NAMES.len() as u64) as usize])?;
    Ok(match random.below(16) {
        0..=2 => Request::Create { guest },
        3..=6 => Request::Start { guest },
        7..=8 => Request::Pause { guest },
        9..=10 => Request::Resume { guest },
        11..=12 => Request::Reset { guest },
        13..=14 => Request::Destroy { guest },
        _ => Request::Guests,
    })
}

fn machine(room: &Room<'_>, seed: u64) -> Result<()> {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let base = room.platform.arch().ram_base();
    let mut text = format!("[machine]\ncpus = 2\n{}", storing(base, "beside", ""));
    for name in NAMES {
        room.disk(&format!("{name}.img"), &[0xa5; DISK])?;
        text += &guest(&mut random, base, name);
    }
    let stage = room.play(&text, TIMEOUT, |stage| {
        stage.until_shown("beside", DIRTY, 0)?;
        NAMES.into_iter().try_for_each(|name| stage.start(name))?;
        destroy_all(stage)?;
        let before = stage.memory()?;
        for number in 0..REQUESTS {
            let request = request(&mut random)?;
            let begin = stage.passed();
            match stage.ask(&request) {
                Err(error) if !error.is::<Refused>() => return Err(error),
                _ => {}
            }
            let took = stage.passed().saturating_sub(begin);
            ensure!(took <= BOUND, "request {number}, '{request}', took {} ms", took.as_millis());
            thread::sleep(Duration::from_millis(random.one_of([0, 0, 1, 10]) * random.below(PAUSE_MS) / 10));
        }
        destroy_all(stage)?;
        stage.has_memory(&before)?;
        stage.goes_on("beside", DIRTY, 1)
    })?;
    stage.end("beside", "qpoweroff\n").map(drop)
}

fn destroy_all(stage: &mut Stage<'_>) -> Result<()> {
    for name in NAMES {
        if stage.guest(name)?.is_some() {
            stage.destroy(name)?;
        }
    }
    Ok(())
}
