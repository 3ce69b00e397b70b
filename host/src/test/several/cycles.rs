//! Guests that come and go beside one that runs.

use super::*;

/// Cycles, and those of `--long`.
const CYCLES: u32 = 50;
const CYCLES_LONG: u32 = 1000;
/// Time for the guest beside them, and for a cycle, which takes a quarter of a second.
const TIMEOUT: Duration = Duration::from_secs(120);
const TIMEOUT_CYCLE: Duration = Duration::from_secs(3);

pub(in crate::test) fn come_and_go(room: &Room<'_>) -> Result<()> {
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

const SHARING: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Guests that store to their memory all the time share two CPUs, and are destroyed one after the
/// other.
pub(in crate::test) fn share_cpus(room: &Room<'_>) -> Result<()> {
    let stage = room.play(&sharing(room), TIMEOUT, |stage| {
        SHARING.iter().try_for_each(|name| stage.until_shown(name, DIRTY, 0).map(drop))?;
        stage.goes_on("a", DIRTY, 1)?;
        SHARING[1..].iter().try_for_each(|name| stage.destroy(name))
    })?;
    stage.end("a", "qpoweroff\n").map(drop)
}

/// The same guests, one of which finds what is not its own: while it checks memory, or as it
/// starts, where it has no handlers yet.
pub(in crate::test) fn spoil_each_other(room: &Room<'_>) -> Result<()> {
    one_shows(room, &sharing(room), &SHARING, "load: panic", Some("shut down by triple fault"))
}

/// Guests that share CPUs, each with a ROM that comes and goes, which one of them sees in vain.
pub(in crate::test) fn see_former_roms(room: &Room<'_>) -> Result<()> {
    const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let probe = |name| {
        let words = "program = \"probe\"\ncmdline = \"test=rom_toggles count=20000\"";
        format!("\n[[guest]]\nname = \"{name}\"\n{words}\nvcpus = 1\nmemory = \"32M\"\n")
    };
    one_shows(room, &NAMES.map(probe).concat(), &NAMES, "what was there before the change", None)
}

/// One of the guests says this, or the hypervisor logs that.
fn one_shows(room: &Room<'_>, text: &str, names: &[&str], says: &str, logs: Option<&str>) -> Result<()> {
    let stage = room.play(text, TIMEOUT, |stage| {
        stage.until(says, |stage| {
            let shown = names.iter().map(|name| stage.has_shown(name, says, 0));
            let has_shown = shown.collect::<Result<Vec<_>>>()?.contains(&true);
            let has_logged = logs.map_or(Ok(false), |text| stage.has_logged(text))?;
            Ok((has_shown || has_logged).then_some(()))
        })
    })?;
    drop(stage);
    Ok(())
}

fn sharing(room: &Room<'_>) -> String {
    SHARING.map(|name| storing(room.platform.arch().ram_base(), name, "")).concat()
}

/// A guest is created, starts, shows that it runs, and is destroyed. Nothing is missing afterwards.
fn cycle(stage: &mut Stage<'_>, before: &Memory) -> Result<()> {
    stage.start("subject")?;
    stage.until_shown("subject", READY, 0)?;
    stage.destroy("subject")?;
    stage.has_memory(before)
}
