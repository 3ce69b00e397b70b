//! Guests that end in every way there is, beside one that goes on.

use super::*;
use hostlink::config::NestedPage;

const TIMEOUT: Duration = Duration::from_secs(300);

/// How often the guest beside them has to show that it goes on.
const LINES: u32 = 2;
/// Pages for the nested page table of each guest, where they are few: enough for one that uses 4
/// MiB of its memory, and not for one that uses 64 MiB, in pages of 4 KiB.
const TABLES: u32 = 24;

/// Those that end. Each is started by a request.
const SUBJECTS: &str = include_str!("badly.toml");

pub(super) fn end_badly(room: &Room<'_>) -> Result<()> {
    let (arch, base) = (room.platform.arch(), room.platform.arch().ram_base());
    let off = bare("off", 1, "32M", &format!("cmdline = \"poweroff\"\n{MANUAL}"));
    let text = format!("{}{off}{SUBJECTS}", storing(base, "beside", ""));
    let mut stage = room.play(&text, TIMEOUT, |stage| {
        goes_on(stage)?;
        ends(stage, "off", GuestState::Off, ExitCode::GuestPowerOff)?;
        ends(stage, "resets", GuestState::Off, ExitCode::GuestReset)?;
        faults(stage, arch)?;
        is_destroyed_while_it_boots(stage)?;
        ends(stage, "panics", GuestState::Off, ExitCode::GuestReset)
    })?;
    stage.type_end("beside", "qpoweroff\n")?;
    let ended = stage.finish()?;
    let shown = ended.shown("panics");
    ensure!(shown.contains("Kernel panic"), "the guest ended without a panic of its kernel:\n{shown}");
    ended.ended_by(ExitCode::GuestReset)?;
    without_tables(room, base)
}

/// The guest beside them shows more.
fn goes_on(stage: &mut Stage<'_>) -> Result<()> {
    let mut from = stage.length("beside")?;
    for _ in 0..LINES {
        // It answers each byte with a line.
        stage.type_text("beside", "x")?;
        from = stage.until_shown("beside", DIRTY, from)?;
    }
    Ok(())
}

/// A guest starts and ends like this, and the guest beside it goes on.
fn ends(stage: &mut Stage<'_>, name: &str, state: GuestState, exit: ExitCode) -> Result<()> {
    stage.start(name)?;
    let seen = stage.until_it_is(name, state)?;
    ensure!(seen.exit == Some(exit), "{name} ended by {:?} instead of {exit:?}", seen.exit);
    goes_on(stage)
}

/// A guest whose handler of faults faults: it ends, or is in its handler until it is destroyed.
fn faults(stage: &mut Stage<'_>, arch: Arch) -> Result<()> {
    match arch {
        Arch::X86_64 => ends(stage, "faults", GuestState::Off, ExitCode::GuestReset),
        Arch::Aarch64 => {
            stage.start("faults")?;
            stage.until("the faulting guest has had a CPU", |stage| {
                Ok(stage.guest("faults")?.filter(|guest| guest.used_ticks != 0))
            })?;
            goes_on(stage)?;
            stage.destroy("faults")?;
            goes_on(stage)
        }
    }
}

/// A kernel is destroyed when it has just begun to show something, and nothing of it is left.
fn is_destroyed_while_it_boots(stage: &mut Stage<'_>) -> Result<()> {
    let before = stage.memory()?;
    stage.start("panics")?;
    stage.until_shown("panics", "Linux version", 0)?;
    stage.until_it_is("panics", GuestState::Running)?;
    stage.destroy("panics")?;
    ensure!(stage.guest("panics")?.is_none(), "a destroyed guest is still there");
    stage.has_memory(&before)?;
    goes_on(stage)
}

/// A guest needs more pages for its nested page table than there are.
fn without_tables(room: &Room<'_>, base: u64) -> Result<()> {
    let touch = format!("cmdline = \"touch={:#x},64M,2M\"\n{MANUAL}", base + (64 << 20));
    let guests = [storing(base, "beside", ""), bare("greedy", 1, "128M", &touch)];
    let switches = Switches { nested_page: NestedPage::Small, tables: Some(TABLES), ..room.switches };
    let mut stage = Room { switches, ..*room }.play(&guests.concat(), TIMEOUT, |stage| {
        goes_on(stage)?;
        ends(stage, "greedy", GuestState::Failed, ExitCode::GuestOutOfTables)
    })?;
    stage.type_end("beside", "qpoweroff\n")?;
    let ended = stage.finish()?;
    ensure!(!ended.shown("greedy").contains(READY), "the guest had enough pages");
    ended.ended_by(ExitCode::GuestOutOfTables)
}
