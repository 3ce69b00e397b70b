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
    let file = room.write(&[storing(base, "beside", ""), bare("subject", 2, "32M", MANUAL)].concat())?;
    let mut stage = room.play(&file, limit, |stage| {
        stage.until_shown("beside", DIRTY, 0)?;
        let (before, used) = (stage.memory()?, stage.used("beside")?);
        for number in 1..=cycles {
            cycle(stage, &before).with_context(|| format!("cycle {number} of {cycles}"))?;
        }
        stage.until_it_had_more("beside", used)?;
        let from = stage.length("beside")?;
        stage.until_shown("beside", DIRTY, from).map(drop)
    })?;
    stage.type_end("beside", "qpoweroff\n")?;
    stage.finish()?.ended_by(ExitCode::GuestPowerOff)
}

/// A guest is created, starts, shows that it runs, and is destroyed. Nothing is missing afterwards.
fn cycle(stage: &mut Stage<'_>, before: &Memory) -> Result<()> {
    let guest = named("subject")?;
    stage.start("subject")?;
    stage.until_shown("subject", READY, 0)?;
    stage.ask(&Request::Destroy { guest })?;
    stage.has_memory(before)
}
