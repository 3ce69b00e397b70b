//! Guests that move while whatever is between the two machines breaks.

use super::super::wire::Secret;
use super::hypervisor::{Guest, HZ};
use super::world::{After, World};
use crate::prelude::*;
use std::sync::atomic::Ordering;
use transfer::handover::Source;

#[test]
fn a_guest_that_moves_is_there_with_its_memory_and_its_clock() {
    let world = World::new(None);
    let moved = world.migrate().expect("moves");
    assert!(moved.away && world.check("moved") && moved.rounds.len() >= 2, "{moved:?}");
    let guest = world.there.side.guest.lock().unwrap().take().expect("is there");
    // The counter there is ahead by two seconds: the clock has to be as long ago there as here.
    let ago = world.there.side.now() - guest.clock.at;
    assert!(ago < 5 * HZ, "its clock was stopped {ago} ns ago");
    assert_eq!(guest.clock.ticks, Guest::new(5).clock.ticks);
    assert_eq!(*world.here.source.lock().unwrap(), Source::Away);
}

/// Bytes that pass in each direction while a guest moves.
fn lengths() -> [u64; 2] {
    let whole = World::new(None);
    whole.migrate().expect("moves");
    let lengths = [0, 1].map(|way| whole.proxy.passed[way].load(Ordering::Relaxed));
    assert!(lengths[0] > 10_000 && lengths[1] > 100, "{lengths:?}");
    lengths
}

/// The place of a cut: anywhere, or near the end, where is said who runs the guest.
fn place(number: u64, lengths: [u64; 2]) -> (usize, u64) {
    let random = (number + 7).wrapping_mul(6_364_136_223_846_793_005).rotate_left(17) >> 8;
    let way = usize::from(number % 2 == 1);
    match number % 4 {
        0 => (way, random % lengths[way]),
        2 => (way, lengths[way] - random % lengths[way].min(200)),
        _ => (way, random % (lengths[way] + 1)),
    }
}

/// Calls `each` with so many numbers, several at a time; returns how often it was true.
fn count(numbers: u64, each: impl Fn(u64) -> bool + Sync) -> u64 {
    const AT_A_TIME: u64 = 16;
    let each = &each;
    let one = move |first: u64| (first..numbers).step_by(AT_A_TIME as usize).filter(|it| each(*it)).count();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_A_TIME).map(|first| scope.spawn(move || one(first))).collect();
        threads.into_iter().map(|thread| thread.join().expect("holds") as u64).sum()
    })
}

#[test]
fn m2_connections_that_are_cut_at_any_byte_lose_no_guest_and_double_none() {
    const CUTS: u64 = 1000;
    let lengths = lengths();
    let moved = count(CUTS, |number| {
        let cut = place(number, lengths);
        let what = format!("cut {number} at {cut:?}");
        let world = World::new(Some(cut));
        let result = world.migrate();
        let is_there = world.check(&what);
        assert_eq!(result.is_ok(), is_there, "{what}: {result:?}");
        is_there
    });
    eprintln!("{CUTS} cuts: 0 guests lost, 0 twice; {moved} moved all the same");
    assert!(moved > CUTS / 50 && moved < CUTS, "{moved} of {CUTS}");
}

#[test]
fn m2_a_target_that_is_killed_at_any_byte_has_the_guest_or_its_source_runs_it() {
    let lengths = lengths();
    let kept = count(100, |number| {
        let cut = place(number, lengths);
        let world = World::with(Some(cut), |_, there| After::Kill(Arc::clone(there)));
        let result = world.migrate();
        world.await_kill();
        if *world.here.source.lock().unwrap() == Source::Away {
            assert!(result.is_ok() && world.runs.count() == 0, "it was there, and is gone with its machine");
            return false;
        }
        assert!(!world.check(&format!("killed at {cut:?}")) && result.is_err(), "{cut:?}: {result:?}");
        true
    });
    assert!(kept > 50, "{kept}");
}

#[test]
fn m2_a_source_that_is_killed_at_any_byte_leaves_one_guest_at_most() {
    let lengths = lengths();
    count(100, |number| {
        let cut = place(number, lengths);
        let world = World::with(Some(cut), |here, _| After::Kill(Arc::clone(here)));
        let result = world.migrate();
        world.await_kill();
        let begun = Instant::now();
        // A Go that was under way still arrives, or the connection's end.
        while world.runs.count() != u8::from(world.there.side.guest.lock().unwrap().is_some()) {
            assert!(begun.elapsed() < Duration::from_secs(5), "{cut:?}: {result:?}");
        }
        true
    });
}

#[test]
fn m2_a_command_that_ended_in_doubt_is_given_again_and_finds_out() {
    let lengths = lengths();
    // The target's last block says that it runs the guest, or is lost with the Go that it follows.
    const LAST: u64 = 4 + 16 + 32;
    for (cut, is_there) in [((1, lengths[1] - 1), true), ((1, lengths[1] - LAST), false)] {
        let mut world = World::with(Some(cut), |_, _| After::Silence);
        let signals = Signals::default();
        let result = thread::scope(|scope| {
            let moving = scope.spawn(|| world.migrate_as(&signals));
            let begun = Instant::now();
            while *world.here.source.lock().unwrap() != Source::Given {
                assert!(begun.elapsed() < Duration::from_secs(10), "it is not given away");
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(50));
            signals.catch(2);
            moving.join().expect("ends")
        });
        let error = format!("{:#}", result.expect_err("is in doubt"));
        assert!(error.contains("the same command asks again"), "{error}");
        assert_eq!(*world.here.source.lock().unwrap(), Source::Given, "it stands still");

        world.mend();
        let elsewhere = super::super::wire::Address::parse("tcp:127.0.0.1:9").expect("is one");
        let right = std::mem::replace(&mut world.to.address, elsewhere);
        let session = (u64::from(right.tag()) << 32) | 7;
        let error = format!("{:#}", world.migrate().expect_err("asks nobody else"));
        assert!(error.contains("another address"), "{error}");
        world.to.address = right;
        assert_eq!(world.session(), session);
        assert_eq!((world.migrate().is_ok(), world.check("asked again")), (is_there, is_there));
    }
}

#[test]
fn guests_that_are_refused_run_on_where_they_are() {
    let mut world = World::new(None);
    let right = std::mem::replace(&mut world.to.secret, Secret::made_up(b"something else entirely"));
    let error = format!("{:#}", world.migrate().expect_err("is refused"));
    assert!(error.contains("the same secret"), "{error}");
    assert!(!world.check("another secret"));
    world.to.secret = right;
    let signals = Signals::default();
    signals.catch(2);
    let error = format!("{:#}", world.migrate_as(&signals).expect_err("is cancelled"));
    assert!(error.contains("runs on here") || error.contains("signal"), "{error}");
    assert!(!world.check("cancelled"));
    assert!(world.migrate().is_ok() && world.check("at last"));
}
