//! `quell ctl guest save` and `migrate`.

use super::print;
use crate::cli::{CtlArgs, MigrateArgs, SaveArgs};
use crate::machine::control::Found;
use crate::moving::{self, Destination, Manner, Moved, Origin, Secret, Wanted};
use crate::prelude::*;

/// A snapshot's last round takes no longer if that can be had in so many rounds.
const KEPT_RUNNING: Wanted =
    Wanted { downtime: Duration::from_millis(50), rounds: 30, throttle: false, at_any_cost: true };

fn manner(args: &CtlArgs, wanted: Wanted, bandwidth: Option<u64>) -> Result<Manner> {
    Ok(Manner { wanted, bandwidth, shows: !args.json, signals: Signals::install()? })
}

pub(super) fn save(args: &CtlArgs, machine: &Found, of: &SaveArgs) -> Result<()> {
    let origin = Origin::find(machine, of.name)?;
    let wanted = if of.keep_running { KEPT_RUNNING } else { Wanted::STILL };
    let moved = moving::save(&origin, &of.file, of.keep_running, &manner(args, wanted, of.bandwidth)?)?;
    print(args, json!(moved), || {
        let (name, file, size) = (&moved.guest, of.file.display(), size::display(moved.bytes));
        let what = if of.keep_running { "runs on" } else { "is gone here" };
        format!("{name} is saved in {file} ({size}) and {what}{}", times(&moved))
    });
    Ok(())
}

pub(super) fn migrate(args: &CtlArgs, machine: &Found, of: &MigrateArgs) -> Result<()> {
    let to = Destination { address: of.to.clone(), secret: Secret::read(&of.secret)? };
    let origin = Origin::find(machine, of.name)?;
    let MigrateArgs { downtime, rounds, throttle, .. } = *of;
    let wanted = Wanted { downtime, rounds, throttle, at_any_cost: false };
    let moved = moving::migrate(&origin, &to, &manner(args, wanted, of.bandwidth)?)?;
    print(args, json!(moved), || {
        let (name, size) = (&moved.guest, size::display(moved.bytes));
        let rounds = moved.rounds.len();
        format!("{name} runs at {} ({size} in {rounds} rounds){}", of.to, times(&moved))
    });
    Ok(())
}

fn times(moved: &Moved) -> String {
    let (stopped, seconds) = (moved.stopped_seconds * 1e3, moved.seconds);
    format!(": it stood still for {stopped:.1} ms of {seconds:.1} s")
}
