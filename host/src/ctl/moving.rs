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
    Ok(Manner { bandwidth, shows: !args.json, ..Manner::new(wanted, Signals::install()?) })
}

pub(super) fn save(args: &CtlArgs, machine: &Found, of: &SaveArgs) -> Result<()> {
    let origin = Origin::find(machine, of.name)?;
    let wanted = if of.keep_running { KEPT_RUNNING } else { Wanted::STILL };
    let moved = moving::save(&origin, &of.file, of.keep_running, &manner(args, wanted, of.bandwidth)?)?;
    print(args, json!(moved), || {
        let (name, file, size) = (&moved.guest, of.file.display(), size::display(moved.bytes));
        let what = if moved.away { "is gone here" } else { "runs on" };
        format!("{name} is saved in {file} ({size}) and {what}{}", times(&moved))
    });
    Ok(())
}

pub(super) fn migrate(args: &CtlArgs, machine: &Found, of: &MigrateArgs) -> Result<()> {
    let place = of.to.clone().zip(of.secret.as_deref());
    let to =
        place.map(|(address, secret)| Ok::<_, Error>(Destination { address, secret: Secret::read(secret)? }));
    let to = to.transpose()?;
    let origin = Origin::find(machine, of.name)?;
    let MigrateArgs { downtime, rounds, throttle, .. } = *of;
    let wanted = Wanted { downtime, rounds, throttle, at_any_cost: false };
    let manner = manner(args, wanted, of.bandwidth)?;
    let moved = match &to {
        Some(to) if !of.target_is_gone => moving::migrate(&origin, to, &manner)?,
        to => moving::target_is_gone(&origin, to.as_ref(), &manner)?,
    };
    print(args, json!(moved), || {
        let (name, size, rounds) = (&moved.guest, size::display(moved.bytes), moved.rounds.len());
        match &to {
            Some(to) if moved.away => {
                format!("{name} runs at {} ({size} in {rounds} rounds){}", to.address, times(&moved))
            }
            _ => format!("{name} runs on here"),
        }
    });
    Ok(())
}

fn times(moved: &Moved) -> String {
    let (stopped, seconds) = (moved.stopped_seconds * 1e3, moved.seconds);
    format!(": it stood still for {stopped:.1} ms of {seconds:.1} s")
}
