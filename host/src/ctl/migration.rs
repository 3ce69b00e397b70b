//! `quell ctl guest save` and `migrate`.

use super::print;
use crate::cli::{CtlArgs, MigrateArgs, SaveArgs};
use crate::machine::control::Found;
use crate::migration::{self, Destination, Manner, Moved, Origin, Secret, Wanted};
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
    let moved = migration::save(&origin, &of.file, of.keep_running, &manner(args, wanted, of.bandwidth)?)?;
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
        Some(to) if !of.target_is_gone => migration::migrate(&origin, to, &manner)?,
        to => migration::target_is_gone(&origin, to.as_ref(), &manner)?,
    };
    print(args, json!(moved), || {
        let name = &moved.guest;
        match &to {
            Some(to) if moved.away => format!("{name} runs at {}{}", to.address, sent(&moved)),
            _ => format!("{name} runs on here"),
        }
    });
    Ok(())
}

fn sent(moved: &Moved) -> String {
    match moved.rounds.len() {
        // An earlier command sent it.
        0 => String::new(),
        rounds => format!(" ({} in {rounds} rounds){}", size::display(moved.bytes), times(moved)),
    }
}

/// For how long it stood still; nothing if an earlier command sent it, which knew that.
fn times(moved: &Moved) -> String {
    let (stopped, seconds) = (moved.stopped_seconds * 1e3, moved.seconds);
    match moved.pages + moved.zeros {
        0 => String::new(),
        _ => format!(": it stood still for {stopped:.1} ms of {seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_finds_out_about_another_ones_guest_tells_no_figures_of_its_own() {
        let moved = Moved {
            guest: "web".to_owned(),
            away: true,
            rounds: Vec::new(),
            bytes: 12288,
            pages: 3,
            zeros: 0,
            stopped_seconds: 0.002,
            stop_work_seconds: 0.001,
            longest_step_seconds: 0.001,
            seconds: 0.5,
        };
        assert_eq!(times(&moved), ": it stood still for 2.0 ms of 0.5 s");
        let found_out = Moved { pages: 0, stopped_seconds: 0.0, ..moved };
        assert_eq!([sent(&found_out), times(&found_out)], ["", ""]);
    }
}
