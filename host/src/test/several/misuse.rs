//! A guest misuses its devices, beside one that goes on with its own.

use super::*;

/// Operations of each kind, and how many of configuration space.
const COUNT: u64 = 4000;
const COUNT_LONG: u64 = 40_000;
const CONFIG_COUNT: u64 = 100_000;
const CONFIG_COUNT_LONG: u64 = 1_000_000;
/// The first life of the bad guest is from this seed, the next from the next.
const SEED: u64 = 0x5eed;
const LIVES: u64 = 2;
const TIMEOUT: Duration = Duration::from_secs(600);
const TIMEOUT_LONG: Duration = Duration::from_secs(3600);
/// Bytes of a disk, and what is in the other guest's: the guest reads that again and again.
const DISK: usize = 1 << 20;
const FILLING: &[u8] = b"of the guest that nobody may disturb\n";
/// Where the bad guest has its disk's description written to.
const ANSWER: u64 = 40 << 20;
/// How far the other guest goes on in between.
const TICKS: u32 = 3;

/// What the other guest does: it compares memory and disk with what they were, and looks for
/// interrupts that nobody sends it. Its first block counts the rounds.
const CAREFUL: &str = r#"
[[guest]]
name = "careful"
memory = "128M"
disks = ["careful.img"]
cmdline = "quiet"
exec = '''{COMMAND}'''
"#;

fn command_line() -> String {
    let end = |line: &str| if line.ends_with(['{', '&']) { " " } else { "; " };
    include_str!("careful.sh").lines().flat_map(|line| [line, end(line)]).collect()
}

/// The bad guest lives twice, with other numbers. Each time the hypervisor has all memory back.
pub(super) fn misuse(room: &Room<'_>) -> Result<()> {
    let filling: Vec<u8> = FILLING.iter().copied().cycle().take(DISK).collect();
    room.disk("careful.img", &filling)?;
    room.disk("bad.img", &[0xa5; DISK])?;
    let keys = format!("{MANUAL}\nreset = \"reboot\"\ndisks = [\"bad.img\"]\nnet = \"user\"");
    let careful = CAREFUL.replace("{COMMAND}", &command_line());
    let text = format!("[machine]\ncpus = 2\n{careful}{}", bare("bad", 2, "64M", &keys));
    let limit = if room.is_long { TIMEOUT_LONG } else { TIMEOUT };
    let stage = room.play(&text, limit, |stage| {
        stage.until_shown("careful", "tick", 0)?;
        let mut before: Option<Memory> = None;
        for life in 0..LIVES {
            stage.start("bad")?;
            live(stage, SEED + life, room.is_long)?;
            stage.destroy("bad")?;
            // The first time, the list of vectors gets its length.
            let now = stage.memory()?;
            stage.has_memory(before.get_or_insert(now))?;
            goes_on(stage)?;
        }
        Ok(())
    })?;
    let ended = stage.end("careful", "\n")?;
    ensure!(ended.shown("careful").contains("good bye"), "the other guest did not come to its end");
    let written = fs::read(room.directory.join("careful.img")).context("cannot read the disk")?;
    ensure!(written[..6] == *b"round ", "what the other guest wrote to its disk is not there");
    ensure!(written[512..] == filling[512..], "the other guest's disk has changed");
    let own = fs::read(room.directory.join("bad.img")).context("cannot read the disk")?;
    ensure!(own == vec![0xa5; DISK], "the bad guest's disk has changed, to which nobody has written");
    Ok(())
}

/// All that the bad guest does. Then it is reset, and its disk works.
fn live(stage: &mut Stage<'_>, seed: u64, is_long: bool) -> Result<()> {
    let mut from = stage.until_shown("bad", READY, 0)?;
    let (count, config) = if is_long { (COUNT_LONG, CONFIG_COUNT_LONG) } else { (COUNT, CONFIG_COUNT) };
    for (name, count) in
        [("config", config), ("bars", count), ("messages", count), ("registers", count), ("config", count)]
    {
        from = stage.command("bad", &format!("{name}={seed:#x},{count}"), from)?;
        goes_on(stage)?;
        from = reset(stage, false, from)?;
        from = works(stage, from)?;
    }
    from = reset(stage, true, from)?;
    works(stage, from)?;
    Ok(())
}

/// The bad guest resets itself, by its register or by a triple fault.
fn reset(stage: &mut Stage<'_>, by_fault: bool, from: usize) -> Result<usize> {
    stage.type_text("bad", if by_fault { "triple-fault\n" } else { "reset\n" })?;
    stage.until_shown("bad", READY, from)
}

fn works(stage: &mut Stage<'_>, from: usize) -> Result<usize> {
    let from = stage.command("bad", &format!("zero={ANSWER:#x},4096"), from)?;
    let from = stage.command("bad", &format!("identify={ANSWER:#x}"), from)?;
    stage.type_text("bad", &format!("zero={ANSWER:#x},4096\n"))?;
    stage.until_shown("bad", &format!("load: error: 'zero={ANSWER:#x},4096'"), from)
}

/// The other guest goes on, and finds everything as it was.
fn goes_on(stage: &mut Stage<'_>) -> Result<()> {
    stage.goes_on("careful", "tick", TICKS)?;
    ensure!(!stage.has_shown("careful", "CHANGED", 0)?, "the other guest finds something changed");
    Ok(())
}
