//! Guests that move while whatever is between the two machines breaks, or lies.

use super::super::outflow::Manner;
use super::super::place::Listener;
use super::super::source::{Destination, InDoubt, Moved, migrate, target_is_gone};
use super::super::target::receive;
use super::super::wire::{Link, Secret, Side};
use super::machines::{LONG, address, secret, until};
use super::way::{At, BACK, Leads, THERE};
use super::world::World;
use crate::prelude::*;
use hostlink::ctl::SendWay;
use hostlink::guests::GuestState::{Empty, Given, Offered, Running};
use std::sync::atomic::{AtomicU64, Ordering};

/// What falls silent is given up after this, and what is only slow on a busy computer is not.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same in random histories, where either may come of it.
const HASTE: Duration = Duration::from_millis(300);
/// Bytes of magic and nonce, and of a block without bytes.
const GREETING: u64 = 48;
const SIGN: u64 = 4 + 32;
/// Bytes of the block that says that a guest is accepted.
const ACCEPTED: u64 = 4 + "\"accepted\"".len() as u64 + 32;

fn said(result: &Result<Moved>) -> String {
    result.as_ref().map_or_else(|error| format!("{error:#}"), |moved| format!("{moved:?}"))
}

fn is_gone(world: &World, knows_address: bool) -> Result<Moved> {
    let to = knows_address.then(|| world.to(1));
    target_is_gone(&world.sides[0].origin, to.as_ref(), &world.manner(&Signals::default()))
}

#[test]
fn a_guest_that_moves_is_there_and_comes_back() {
    let world = World::new(LONG);
    assert!(said(&is_gone(&world, false)).contains("not in doubt"));
    for from in [0, 1, 0] {
        let moved = world.migrate(from);
        assert_eq!(world.check(from, &moved, "a move"), Some(1 - from));
        let moved = moved.expect("has moved");
        assert!(moved.bytes > 10_000 && !moved.rounds.is_empty(), "{moved:?}");
        let passed = world.ways[1 - from].passed();
        assert!(passed[THERE] > moved.bytes && passed[BACK] > 100, "{passed:?}");
    }
    until("both arrivals are told", || {
        let told = world.sides[1].said.lock().expect("is read");
        let arrived = told.iter().filter(|what| what.starts_with("the guest has arrived"));
        (arrived.count() == 2).then_some(())
    });
}

/// A guest that was given away, when the way to the target broke.
fn in_doubt(at: At, then: impl FnOnce(&World) -> Leads) -> World {
    let world = World::new(PATIENCE);
    let then = then(&world);
    let what = format!("{at:?}, then {then:?}");
    world.ways[1].breaks(at, then);
    let result = world.migrate(0);
    assert!(said(&result).contains("--target-is-gone"), "{what}: {}", said(&result));
    let there = world.check(0, &result, &what);
    assert_eq!(there.is_some(), matches!(at, At::Runs), "{what}: {}", said(&result));
    assert_eq!(world.sides[0].state(), Given, "{what}");
    world
}

const NOWHERE: fn(&World) -> Leads = |_| Leads::Nowhere;

#[test]
fn m2_a_refusal_another_machine_and_silence_prove_nothing() {
    let leads: [fn(&World) -> Leads; 3] =
        [NOWHERE, |world| Leads::To(world.foreign.path.clone()), |_| Leads::Silence];
    for then in leads {
        for at in [At::Go, At::Runs] {
            let world = in_doubt(at, then);
            // By another way, whose address nobody has named before.
            let mut to = world.to(1);
            to.address = address(&world.sides[1].path);
            let patient = Manner { patience: LONG, ..world.manner(&Signals::default()) };
            let again = migrate(&world.sides[0].origin, &to, &patient);
            let runs_at = usize::from(matches!(at, At::Runs));
            assert_eq!(world.check(0, &again, "asked again"), Some(runs_at), "{}", said(&again));
            assert_eq!(runs_at == 0, said(&again).contains("did not arrive"), "{}", said(&again));
        }
    }
}

#[test]
fn m2_a_guest_that_was_there_and_has_left_is_not_taken_back() {
    let world = in_doubt(At::Runs, NOWHERE);
    let (mut to, another) = (world.to(1), world.another());
    to.address = address(&another.path);
    let on = migrate(&world.sides[1].origin, &to, &world.manner(&Signals::default()));
    assert!(on.as_ref().is_ok_and(|moved| moved.away), "{}", said(&on));
    world.mend(1);
    let again = world.migrate(0);
    assert!(again.as_ref().is_ok_and(|moved| moved.away), "{}", said(&again));
    another.until_it_is(Running);
    assert_eq!([world.sides[0].state(), world.sides[1].state()], [Empty; 2]);
}

#[test]
fn m2_the_operators_word_counts_when_the_target_is_silent_for_good() {
    let mut world = in_doubt(At::Runs, NOWHERE);
    // It is not gone, whatever the operator believes.
    world.mend(1);
    let gone = is_gone(&world, true);
    assert!(gone.as_ref().is_ok_and(|moved| moved.away), "{}", said(&gone));
    assert_eq!(world.states("asked"), [Empty, Running]);

    world = in_doubt(At::Runs, NOWHERE);
    world.kill(1, false);
    world.mend(1);
    let again = world.migrate(0);
    assert!(said(&again).contains("another machine answers"), "{}", said(&again));
    assert_eq!(world.states("it knows nothing of it"), [Given, Empty]);
    let gone = is_gone(&world, true);
    assert!(gone.as_ref().is_ok_and(|moved| !moved.away), "{}", said(&gone));
    world.sides[0].until_it_is(Running);
}

#[test]
fn guests_that_are_refused_or_cancelled_run_on_where_they_are() {
    let world = World::new(LONG);
    let mut to = world.to(1);
    to.secret = Secret::made_up(b"something else entirely");
    let refused = migrate(&world.sides[0].origin, &to, &world.manner(&Signals::default()));
    assert!(said(&refused).contains("the same secret"), "{}", said(&refused));
    world.check(0, &refused, "another secret");
    let another = Destination { address: address(&world.foreign.path), secret: secret() };
    let refused = migrate(&world.sides[0].origin, &another, &world.manner(&Signals::default()));
    assert!(said(&refused).contains("does not take the guest: the kernel"), "{}", said(&refused));
    world.check(0, &refused, "another kernel");
    let signals = Signals::default();
    signals.catch(2);
    let ended = world.migrate_as(0, &signals);
    assert!(said(&ended).contains("signal") || said(&ended).contains("cancelled"), "{}", said(&ended));
    world.check(0, &ended, "cancelled");
    let moved = world.migrate(0);
    assert_eq!(world.check(0, &moved, "at last"), Some(1));
}

#[test]
fn m2_a_target_or_a_source_that_falls_silent_leaves_the_guest_where_it_is() {
    let world = World::new(PATIENCE);
    // It has all of it, and its Ready does not pass: the guest is shown as offered meanwhile.
    world.ways[1].breaks(At::Byte(BACK, GREETING + ACCEPTED), Leads::Silence);
    let (offered, silent) = thread::scope(|scope| {
        let migrating = scope.spawn(|| world.migrate(0));
        let state = until("it is offered", || {
            (world.sides[0].state() == Offered || migrating.is_finished()).then(|| world.sides[0].state())
        });
        (state, migrating.join().expect("ends"))
    });
    assert_eq!(offered, Offered, "{}", said(&silent));
    assert!(
        said(&silent).contains("is silent") && said(&silent).contains("runs on here"),
        "{}",
        said(&silent)
    );
    world.check(0, &silent, "without Ready");
    world.mend(1);
    // Some bytes into the pages: nothing passes any more, and nobody ends the connection.
    world.ways[1].breaks(At::Byte(THERE, 9000), Leads::Silence);
    let silent = world.migrate(0);
    assert!(said(&silent).contains("runs on here"), "{}", said(&silent));
    world.check(0, &silent, "a silent target");
    until("the target has given it up, too", || {
        let told = world.sides[1].said.lock().expect("is read");
        let about = "a guest did not arrive: the source has said nothing";
        told.iter().any(|what| what.starts_with(about)).then_some(())
    });
}

#[test]
fn m2_a_signal_ends_a_command_that_waits_for_the_targets_word() {
    // No silence ends it.
    let world = World::new(2 * LONG);
    world.ways[1].breaks(At::Runs, Leads::Silence);
    let signals = Signals::default();
    let ended = thread::scope(|scope| {
        let migrating = scope.spawn(|| world.migrate_as(0, &signals));
        world.sides[1].until_it_is(Running);
        world.sides[0].until_it_is(Given);
        signals.catch(2);
        until("it ends", || migrating.is_finished().then_some(()));
        migrating.join().expect("ends")
    });
    assert!(ended.as_ref().is_err_and(|error| error.is::<InDoubt>()), "{}", said(&ended));
    assert_eq!(world.check(0, &ended, "ended by a signal"), Some(1));
    world.mend(1);
    let again = world.migrate(0);
    assert_eq!(world.check(0, &again, "asked again"), Some(1), "{}", said(&again));
}

#[test]
fn a_target_that_has_no_room_yet_shows_that_it_is_there() {
    let world = World::new(LONG);
    let there = &world.sides[1].origin;
    // Another guest is arriving in its place.
    let other = receive(&there.machine, &there.ram, Name::GUEST, &mut || Ok(())).expect("begins");
    let moved = thread::scope(|scope| {
        let migrating = scope.spawn(|| world.migrate(0));
        until("it gives two signs", || (world.ways[1].passed()[BACK] >= GREETING + 2 * SIGN).then_some(()));
        other.end().expect_err("does not arrive");
        migrating.join().expect("ends")
    });
    assert_eq!(world.check(0, &moved, "at last"), Some(1));
    // It is given up when it gives none.
    let silent = World::new(PATIENCE);
    silent.ways[1].breaks(At::Byte(BACK, GREETING), Leads::Silence);
    let silence = silent.migrate(0);
    assert!(said(&silence).contains("says nothing"), "{}", said(&silence));
    silent.check(0, &silence, "before it has accepted");
}

#[test]
fn a_second_command_about_a_guest_hears_signals_while_it_waits() {
    let world = World::new(LONG);
    let first = world.sides[0].origin.begin(1, SendWay::Live, &Signals::default()).expect("begins");
    let signals = Signals::default();
    let second = thread::scope(|scope| {
        let second = scope.spawn(|| world.migrate_as(0, &signals));
        // However long it has waited.
        thread::sleep(Duration::from_millis(300));
        assert!(!second.is_finished(), "requests about a guest are served one after the other");
        signals.catch(15);
        second.join().expect("ends")
    });
    assert!(said(&second).contains("ended by a signal"), "{}", said(&second));
    first.end().expect("was cut");
    // What the second one had asked for has ended with it.
    let third = world.migrate(0);
    assert_eq!(world.check(0, &third, "a third one"), Some(1));
}

#[test]
fn m2_a_machine_whose_answer_nobody_understands_is_not_gone() {
    let world = in_doubt(At::Runs, NOWHERE);
    let path = world.ways[1].path.with_extension("other");
    let listener = Listener::bind(&address(&path)).expect("binds");
    world.ways[1].set(Leads::To(path));
    let gone = thread::scope(|scope| {
        scope.spawn(|| {
            let stream = listener.accept(|| false).expect("listens").expect("somebody asks");
            let greeted = Link::greet(stream, &secret(), Side::Target, &Signals::default(), LONG);
            let mut link = greeted.expect("has the secret");
            link.hear_block(LONG).expect("asks");
            link.send(b"of another version").expect("is sent");
        });
        is_gone(&world, true)
    });
    assert!(said(&gone).contains("is not gone: a machine of another version"), "{}", said(&gone));
    assert_eq!(world.states("nothing was decided"), [Given, Running]);
}

/// What happens to a command, drawn from a seed.
struct Step {
    at: At,
    then: u64,
    ends_after: Option<Duration>,
    has_second: bool,
    kills: Option<usize>,
}

impl Step {
    fn draw(random: &mut baremetal::random::Random, lengths: [u64; 2]) -> Self {
        let at = match random.below(6) {
            0 => At::Never,
            1 => At::Go,
            2 => At::Runs,
            3 => At::Byte(BACK, random.below(lengths[BACK])),
            4 => At::Byte(THERE, lengths[THERE].saturating_sub(random.below(300))),
            _ => At::Byte(THERE, random.below(lengths[THERE])),
        };
        let ends_after = (random.below(4) == 0).then(|| Duration::from_millis(random.below(60)));
        let kills = (random.below(8) == 0).then(|| random.below(2) as usize);
        Self { at, then: random.below(4), ends_after, has_second: random.below(5) == 0, kills }
    }
}

/// Moves a guest back and forth in so many steps; returns how often it went, stayed, and was in
/// doubt.
fn history(seed: u64, steps: u64) -> [u64; 3] {
    let mut random = baremetal::random::Random::new(seed);
    let mut world = World::new(HASTE);
    let (mut from, mut counts) = (0, [0; 3]);
    let mut lengths = [20_000, 300];
    for number in 0..steps {
        let before = world.ways[1 - from].passed();
        let step = Step::draw(&mut random, lengths);
        let to = 1 - from;
        let what = format!("seed {seed}, step {number}: from {from}, {:?}, then {}", step.at, step.then);
        let then = match step.then {
            0 => Leads::Nowhere,
            1 => Leads::To(world.foreign.path.clone()),
            2 => Leads::Silence,
            _ => Leads::To(world.sides[to].path.clone()),
        };
        world.ways[to].breaks(step.at, then);
        let signals = Signals::default();
        let result = thread::scope(|scope| {
            if let Some(after) = step.ends_after {
                let signals = signals.clone();
                scope.spawn(move || {
                    thread::sleep(after);
                    signals.catch(2);
                });
            }
            let second = step.has_second.then(|| scope.spawn(|| world.migrate(from)));
            let first = world.migrate_as(from, &signals);
            // Whichever came later had the last word.
            match second.map(|second| second.join().expect("ends")) {
                Some(Ok(moved)) => Ok(moved),
                Some(Err(error)) if first.is_err() && !error.is::<InDoubt>() => first.and(Err(error)),
                _ => first,
            }
        });
        let runs_at =
            if step.has_second { runs_somewhere(&world, &what) } else { world.check(from, &result, &what) };
        let is_given = world.states(&what)[from] == Given;
        counts[if is_given { 2 } else { usize::from(runs_at == Some(from)) }] += 1;
        if let Some(killed) = step.kills {
            // Its guest is gone with it, unless the other one has it or may run it.
            let other = 1 - killed;
            let is_left = world.states(&what)[other] != Empty;
            world.kill(killed, !is_left);
        }
        if world.sides[from].state() == Given {
            end_doubt(&world, from, step.kills, &what);
        }
        world.mend(to);
        world.mend(from);
        from = usize::from(world.states(&what)[1] == Running);
        world.sides[from].until_it_is(Running);
        let passed = world.ways[to].passed();
        if matches!(step.at, At::Never) && from == to && !step.has_second {
            lengths = [THERE, BACK].map(|way| passed[way] - before[way]);
        }
    }
    counts
}

/// It runs at one side, or stands still in doubt, whoever of two had the last word.
fn runs_somewhere(world: &World, what: &str) -> Option<usize> {
    let states = until(what, || {
        let states = world.states(what);
        states.iter().any(|state| [Running, Given].contains(state)).then_some(states)
    });
    states.iter().position(|state| *state == Running)
}

/// The same command finds out; if the target is gone, the operator says so.
fn end_doubt(world: &World, from: usize, killed: Option<usize>, what: &str) {
    world.mend(1 - from);
    let signals = Signals::default();
    if killed == Some(1 - from) {
        let gone = target_is_gone(&world.sides[from].origin, None, &world.manner(&signals));
        assert!(gone.as_ref().is_ok_and(|moved| !moved.away), "{what}: {}", said(&gone));
        return;
    }
    let patient = Manner { patience: LONG, ..world.manner(&signals) };
    let again = migrate(&world.sides[from].origin, &world.to(1 - from), &patient);
    assert!(!again.as_ref().is_err_and(|error| error.is::<InDoubt>()), "{what}: {}", said(&again));
    world.check(from, &again, what);
}

#[test]
fn m2_whatever_happens_to_a_moving_guest_it_runs_on_one_side() {
    const HISTORIES: u64 = 2;
    const STEPS: u64 = 100;
    let totals = [const { AtomicU64::new(0) }; 3];
    thread::scope(|scope| {
        for seed in 1..=HISTORIES {
            let totals = &totals;
            scope.spawn(move || {
                for (total, count) in totals.iter().zip(history(seed, STEPS)) {
                    total.fetch_add(count, Ordering::Relaxed);
                }
            });
        }
    });
    let [went, stayed, doubted] = totals.map(AtomicU64::into_inner);
    eprintln!(
        "{} steps: it went {went} times, stayed {stayed} times, and was in doubt {doubted} times",
        HISTORIES * STEPS
    );
    assert!(went > 20 && stayed > 20 && doubted > 20, "{went} {stayed} {doubted}");
}
