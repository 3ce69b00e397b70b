//! Guests that come and go beside one that runs.

use super::*;

/// Cycles, and those of `--long`.
const CYCLES: u32 = 50;
const CYCLES_LONG: u32 = 1000;
/// Time for the guest beside them, and for a cycle, which takes a quarter of a second.
const TIMEOUT: Duration = Duration::from_secs(120);
const TIMEOUT_CYCLE: Duration = Duration::from_secs(3);

pub(super) fn come_and_go(room: &Room<'_>) -> Result<()> {
    let cycles = if room.is_long { CYCLES_LONG } else { CYCLES };
    let limit = TIMEOUT + TIMEOUT_CYCLE * cycles;
    let base = room.platform.arch().ram_base();
    let text = storing(base, "beside", "") + &bare("subject", 2, "32M", MANUAL);
    let stage = room.play(&text, limit, |stage| {
        stage.until_shown("beside", DIRTY, 0)?;
        let (before, used) = (stage.memory()?, stage.used("beside")?);
        for number in 1..=cycles {
            cycle(stage, &before).with_context(|| format!("cycle {number} of {cycles}"))?;
        }
        stage.until_it_had_more("beside", used)?;
        stage.goes_on("beside", DIRTY, 1)
    })?;
    stage.end("beside", "qpoweroff\n").map(drop)
}

/// A guest is created, starts, shows that it runs, and is destroyed. Nothing is missing afterwards.
fn cycle(stage: &mut Stage<'_>, before: &Memory) -> Result<()> {
    stage.start("subject")?;
    stage.until_shown("subject", READY, 0)?;
    stage.destroy("subject")?;
    stage.has_memory(before)
}
