//! A guest that is sent to nobody, and stays: what a cancelled migration costs.

use super::outflow::Manner;
use super::policy::Wanted;
use super::port::PAUSE;
use super::source::{Moved, Origin};
use crate::prelude::*;
use hostlink::ctl::SendWay;

/// Sends a guest that runs, cancels after so many rounds of what was written meanwhile, and waits
/// until all that it changed is undone. After each round `observe` sees its number.
pub(crate) fn in_vain(of: &Origin, rounds: u32, mut observe: impl FnMut(u64) -> Result<()>) -> Result<Moved> {
    // Not short enough ever.
    let wanted = Wanted { downtime: Duration::ZERO, rounds: u32::MAX, throttle: false, at_any_cost: false };
    let manner = Manner { wanted, bandwidth: None, shows: false, signals: Signals::default() };
    let mut talk = of.begin(0, SendWay::Live)?;
    let (mut out, mut seen) = (of.outflow(&manner), 0);
    while out.rounds.len() <= rounds as usize {
        let before = out.bytes;
        out.step(&mut talk, |_| Ok(()))?;
        for round in out.rounds.iter().skip(seen) {
            observe(round.round)?;
        }
        seen = out.rounds.len();
        if talk.has_ended() {
            bail!(talk.end().err().unwrap_or_else(|| anyhow!("it ended too early")));
        }
        if out.bytes == before {
            thread::sleep(PAUSE);
        }
    }
    let moved = of.moved(&talk.end()?, &out)?;
    ensure!(!moved.away, "the guest has gone, though nobody took it");
    Ok(moved)
}
