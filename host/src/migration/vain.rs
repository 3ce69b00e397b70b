//! A guest that is sent to nobody, and stays: what a cancelled migration costs.

use super::outflow::{Event, Manner};
use super::policy::Wanted;
use super::port::PAUSE;
use super::source::{Moved, Origin};
use crate::prelude::*;
use hostlink::ctl::SendWay;

/// Sends a guest that runs, cancels after so many rounds of what was written meanwhile, and waits
/// until all that it changed is undone. If it `stops` it stands still for one round more, and is
/// complete before that. After each round `observe` sees its number.
pub(crate) fn in_vain(
    of: &Origin,
    rounds: u32,
    stops: bool,
    mut observe: impl FnMut(u64) -> Result<()>,
) -> Result<Moved> {
    // No round is short enough, so it is given up after the last one.
    let wanted = Wanted { downtime: Duration::ZERO, rounds, throttle: false, at_any_cost: stops };
    let manner = Manner::new(wanted, Signals::default());
    let mut talk = of.begin(0, SendWay::Live, &manner.signals)?;
    let (mut out, mut seen) = (of.outflow(&manner), 0);
    loop {
        let before = out.bytes;
        let stepped = out.step(&mut talk, |_| Ok(()));
        for round in out.rounds.iter().skip(seen) {
            observe(round.round)?;
        }
        seen = out.rounds.len();
        match stepped {
            Err(_) | Ok(Event::Complete) if seen > rounds as usize => break,
            stepped => _ = stepped?,
        }
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

#[cfg(test)]
mod tests {
    use super::super::tests::machines::LONG;
    use super::super::tests::world::World;
    use super::*;
    use hostlink::guests::GuestState::Running;

    #[test]
    fn a_guest_that_is_sent_in_vain_stays_and_each_round_is_seen_once() {
        let world = World::new(LONG);
        for (stops, rounds) in [(false, [0, 1, 2]), (true, [0, 1, 2])] {
            let mut seen = Vec::new();
            let observe = |round| {
                seen.push(round);
                Ok(())
            };
            let moved = in_vain(&world.sides[0].origin, 2, stops, observe).expect("is cancelled");
            assert_eq!((moved.away, &seen[..]), (false, &rounds[..]), "{stops}");
            world.sides[0].until_it_is(Running);
        }
    }
}
