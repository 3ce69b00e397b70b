//! Guests that share memory.

use super::*;

const TIMEOUT: Duration = Duration::from_secs(240);
/// Exchanges between two guests in each of their lives.
const ROUNDS: u64 = 8;
/// Lives of the second guest.
const LIVES: u64 = 3;
const VECTOR: u64 = 5;

/// Two guests exchange words through the memory, and ring each other. One of them is destroyed, and
/// created again: it finds what was there. A third guest has no such device.
pub(super) fn share_memory(room: &Room<'_>) -> Result<()> {
    let guests = [bare("one", 1, "32M", ""), bare("two", 1, "32M", MANUAL), bare("other", 1, "32M", "")];
    let region = "\n[[shared]]\nname = \"ring\"\nsize = \"2M\"\nguests = [\"one\", \"two\"]\n";
    let mut stage = room.play(&(guests.concat() + region), TIMEOUT, |stage| {
        for name in ["one", "other"] {
            stage.until_shown(name, READY, 0)?;
        }
        let mut before = None;
        for life in 0..LIVES {
            stage.start("two")?;
            stage.until_shown("two", READY, 0)?;
            // So that they listen.
            for (name, count) in [("one", life * ROUNDS), ("two", 0)] {
                does(stage, name, &format!("rung={VECTOR},0"), count)?;
            }
            for round in 1..=ROUNDS {
                exchange(stage, life, round).with_context(|| format!("life {life}, round {round}"))?;
            }
            // No such guest, and no such vector.
            does(stage, "one", &format!("ring=7,{VECTOR}"), 0)?;
            does(stage, "one", "ring=1,100", 0)?;
            does(stage, "two", &format!("rung={VECTOR},0"), ROUNDS)?;
            let log = Request::LogStart { slot: 0, way: LogWay::DirtyBits };
            stage.refused(&log, "the guest shares memory")?;
            stage.destroy("two")?;
            // Nobody is there.
            does(stage, "one", &format!("ring=1,{VECTOR}"), 0)?;
            // The first time, what the machine keeps for guests gets its length.
            let now = stage.memory()?;
            stage.has_memory(before.get_or_insert(now))?;
        }
        for command in ["put=0,1", "ring=0,5"] {
            shows(stage, "other", command, &format!("error: '{command}': this machine has no such thing"))?;
        }
        does(stage, "one", &format!("get=8,{}", (LIVES - 1) * 1000 + ROUNDS), 0)
    })?;
    stage.type_text("other", "poweroff\n")?;
    stage.end("one", "poweroff\n").map(drop)
}

/// A word and a ring in each direction.
fn exchange(stage: &mut Stage<'_>, life: u64, round: u64) -> Result<()> {
    let value = life * 1000 + round;
    let heard = life * ROUNDS + round;
    for (name, command, count) in [
        ("one", format!("put=0,{value}"), 0),
        ("one", format!("ring=1,{VECTOR}"), 0),
        ("two", format!("rung={VECTOR},{round}"), round),
        ("two", format!("get=0,{value}"), 1),
        ("two", format!("put=8,{value}"), 1),
        ("two", format!("ring=0,{VECTOR}"), 1),
        ("one", format!("rung={VECTOR},{heard}"), heard),
        ("one", format!("get=8,{value}"), 0),
    ] {
        does(stage, name, &command, count)?;
    }
    Ok(())
}

/// Types a command, and waits until it has counted this: the guest's number, or its rings.
fn does(stage: &mut Stage<'_>, name: &str, command: &str, count: u64) -> Result<()> {
    shows(stage, name, command, &format!("done: {command} count={count} "))
}

/// Types a command, and waits until its end is shown like this.
fn shows(stage: &mut Stage<'_>, name: &str, command: &str, end: &str) -> Result<()> {
    let from = stage.length(name)?;
    stage.type_text(name, &format!("{command}\n"))?;
    let error = format!("error: '{command}': ");
    stage.until(&format!("{name} shows '{end}'"), |stage| {
        let is_right = stage.has_shown(name, end, from)?;
        // Of an error that is expected, a part may be shown.
        let has_failed = !end.contains(&error) && stage.has_shown(name, &error, from)?;
        ensure!(is_right || !has_failed, "{name} has failed to do '{command}'");
        Ok(is_right.then_some(()))
    })
}
