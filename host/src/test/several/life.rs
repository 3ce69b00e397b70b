//! The life of a guest beside one that goes on.

use super::*;

const TIMEOUT: Duration = Duration::from_secs(240);

/// How far the other guest goes on while this one is paused.
const TICKS: u32 = 10;

pub(super) fn life(room: &Room<'_>) -> Result<()> {
    let base = room.platform.arch().ram_base();
    let text = format!("{BESIDE}{}", bare("subject", 2, "64M", MANUAL));
    let stage = room.play(&text, TIMEOUT, |stage| {
        stage.goes_on("beside", "tick", TICKS)?;
        let before = stage.memory()?;
        refusals(stage)?;
        starts(stage, &before)?;
        stops_while_paused(stage, base)?;
        restarts(stage)?;
        goes(stage, &before)?;
        from_every_state(stage, &before)?;
        stage.goes_on("beside", "tick", TICKS)
    })?;
    let ended = stage.end("beside", "\n")?;
    ensure!(ended.shown("beside").contains("good bye"), "the guest beside it did not come to its end");
    Ok(())
}

fn subject() -> Result<Name> {
    named("subject")
}

/// A guest that does not exist.
fn refusals(stage: &mut Stage<'_>) -> Result<()> {
    use Request::{Destroy, Pause, Reset, Resume, Start};
    let (guest, nobody) = (subject()?, named("nobody")?);
    for request in [Start { guest }, Pause { guest }, Resume { guest }, Reset { guest }, Destroy { guest }] {
        stage.refused(&request, "guest 'subject' is empty: this is for a guest that is there")?;
    }
    stage.refused(&Request::Create { guest: nobody }, "describes no guest 'nobody'")?;
    stage.refused(&Request::Create { guest: named("beside")? }, "guest 'beside' is running")
}

fn starts(stage: &mut Stage<'_>, before: &Memory) -> Result<()> {
    let guest = subject()?;
    stage.ask(&Request::Create { guest })?;
    stage.until_it_is("subject", GuestState::Loaded)?;
    let now = stage.memory()?;
    ensure!(now.free < before.free && now.heap > before.heap, "it takes no memory: {now:?} after {before:?}");
    stage.refused(&Request::Create { guest }, "is loaded: this is for a guest that is empty")?;
    stage.refused(&Request::Pause { guest }, "this is for a guest that is running")?;
    stage.refused(&Request::Resume { guest }, "this is for a guest that is paused")?;
    ensure!(stage.used("subject")? == 0, "a guest that was not started has had a CPU");
    stage.ask(&Request::Start { guest })?;
    stage.until_shown("subject", READY, 0)?;
    stage.refused(&Request::Start { guest }, "this is for a guest that is loaded, off or failed")
}

/// A paused guest shows nothing and takes no CPU until it is resumed, while the other one goes on.
fn stops_while_paused(stage: &mut Stage<'_>, base: u64) -> Result<()> {
    let guest = subject()?;
    stage.type_text("subject", &format!("dirty={:#x},16M,0\n", base + (32 << 20)))?;
    let from = stage.until_shown("subject", DIRTY, 0)?;
    stage.until_shown("subject", DIRTY, from)?;
    stage.ask(&Request::Pause { guest })?;
    stage.until_it_is("subject", GuestState::Paused)?;
    let (shown, used, other) = (stage.length("subject")?, stage.used("subject")?, stage.used("beside")?);
    stage.goes_on("beside", "tick", TICKS)?;
    let (shown_later, used_later) = (stage.length("subject")?, stage.used("subject")?);
    ensure!(shown_later == shown, "a paused guest has shown {} bytes", shown_later - shown);
    ensure!(used_later == used, "a paused guest has had a CPU for {} ticks", used_later - used);
    stage.until_it_had_more("beside", other)?;
    stage.refused(&Request::Pause { guest }, "is paused: this is for a guest that is running")?;
    stage.ask(&Request::Resume { guest })?;
    stage.until_shown("subject", DIRTY, shown)?;
    stage.until_it_had_more("subject", used)
}

fn restarts(stage: &mut Stage<'_>) -> Result<()> {
    let from = stage.length("subject")?;
    stage.ask(&Request::Reset { guest: subject()? })?;
    stage.until_shown("subject", READY, from)?;
    stage.type_text("subject", "spin=1\n")?;
    stage.until_shown("subject", "done: spin=1 ", from).map(drop)
}

fn goes(stage: &mut Stage<'_>, before: &Memory) -> Result<()> {
    let guest = subject()?;
    stage.ask(&Request::Destroy { guest })?;
    ensure!(stage.guest("subject")?.is_none(), "a destroyed guest is still there");
    stage.refused(&Request::Destroy { guest }, "guest 'subject' is empty")?;
    stage.has_memory(before)
}

/// It is destroyed after it was loaded, was paused, has ended, and has ended and started again.
fn from_every_state(stage: &mut Stage<'_>, before: &Memory) -> Result<()> {
    let guest = subject()?;
    stage.ask(&Request::Create { guest })?;
    goes(stage, before)?;

    starts(stage, before)?;
    stage.ask(&Request::Pause { guest })?;
    goes(stage, before)?;

    starts(stage, before)?;
    stage.type_text("subject", "poweroff\n")?;
    let off = stage.until_it_is("subject", GuestState::Off)?;
    ensure!(off.exit == Some(ExitCode::GuestPowerOff), "it ended by {:?}", off.exit);
    let from = stage.length("subject")?;
    stage.ask(&Request::Start { guest })?;
    stage.until_shown("subject", READY, from)?;
    stage.type_text("subject", "poweroff\n")?;
    stage.until_it_is("subject", GuestState::Off)?;
    goes(stage, before)
}
