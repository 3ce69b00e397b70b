//! What a target hears of its hypervisor and of the source, and what it says then.

use super::super::tests::port::Other;
use super::super::wire::PATIENCE;
use super::*;
use migration::frame::Clock;
use zerocopy::IntoBytes;

#[test]
fn m8_a_hypervisor_that_has_ended_is_heard_to_its_last_word_and_waited_for_no_more() {
    for (says, expected) in [
        (&[Kind::Ready, Kind::Runs][..], None),
        (&[Kind::Ready], Some("the hypervisor restored only a part of the guest")),
        (&[Kind::Failed], Some("the hypervisor cannot restore the guest: why")),
    ] {
        let (talk, mut other, ends) = Other::talk(Sizes::TARGET, Ok("ok".to_owned()));
        says.iter().for_each(|kind| other.say(&Frame::new(*kind, 0, b"why")));
        drop(ends);
        while !talk.has_ended() {
            thread::yield_now();
        }
        let error = Arriving::new(talk, 1).until_it_runs().err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), expected);
    }
}

/// How a target ends that carries what both sides say; and what each side has heard then.
fn carried(hypervisor: &[Kind], source: &[Kind], patience: Duration) -> (Option<String>, [Vec<Kind>; 2]) {
    let (talk, mut other, _ends) = Other::talk(Sizes::TARGET, Ok("ok".to_owned()));
    let [mut there, mut link] = Link::pair(patience);
    let mut arriving = Arriving::new(talk, 1);
    hypervisor.iter().for_each(|kind| other.say(&Frame::new(*kind, 0, b"why")));
    while !hypervisor.is_empty() && arriving.said.len() < hypervisor.len() {
        arriving.listen().expect("makes sense");
    }
    for kind in source {
        let mut block = Vec::new();
        Frame::bare(*kind).write_to(&mut block);
        there.send(&block).expect("is sent");
    }
    let ended = carry(&mut arriving, &mut link, patience, &Signals::default());
    drop(link);
    let mut heard = Vec::new();
    while let Ok(Some(block)) = there.receive(patience) {
        // A sign has none.
        let frames = Frame::of_block(&block).expect("makes sense");
        heard.extend(if block.is_empty() {
            vec![Kind::Hello]
        } else {
            frames.iter().map(|it| it.kind).collect()
        });
    }
    (ended.err().map(|error| error.to_string()), [heard, other.heard()])
}

#[test]
fn m2_the_source_hears_what_the_hypervisor_says_and_goes_on_when_it_may() {
    let failed = (Some("why".to_owned()), [vec![Kind::Ready, Kind::Failed], vec![]]);
    assert_eq!(carried(&[Kind::Ready, Kind::Failed], &[], PATIENCE), failed);
    let runs = (None, [vec![Kind::Ready, Kind::Runs], vec![Kind::Go]]);
    assert_eq!(carried(&[Kind::Ready, Kind::Runs], &[Kind::Go], PATIENCE), runs);
    let not_now = (Some("the source says Go, which it may not now".to_owned()), [vec![], vec![]]);
    assert_eq!(carried(&[], &[Kind::Go], PATIENCE), not_now);
}

#[test]
fn m4_a_clock_that_is_off_is_told() {
    let (talk, other, _ends) = Other::talk(Sizes::TARGET, Ok("ok".to_owned()));
    let mut arriving = Arriving::new(talk, 1_000_000_000);
    other.end.show_clock(now_ns());
    let clock = Clock { ticks: 0, wall_ns: 0, at: 7, hz: 1 };
    let frame = Frame::new(Kind::Clock, 0, clock.as_bytes());
    arriving.on_this_machine(&frame).expect("the machine shows its counter");
    assert!(arriving.about_clock.is_some_and(|told| told.starts_with("the other machine's clock is behind")));
}

#[test]
fn m2_a_target_that_waits_gives_signs_until_the_source_was_silent_for_too_long() {
    let (why, [signs, _]) = carried(&[], &[], Duration::from_millis(100));
    assert!(why.is_some_and(|why| why.starts_with("the source has said nothing for ")));
    assert!(!signs.is_empty() && signs.iter().all(|kind| *kind == Kind::Hello), "{signs:?}");
}

#[test]
fn m8_what_is_known_of_a_guest_is_what_its_hypervisor_said_and_how_the_request_ended() {
    let refused = || anyhow!(Refused("no memory".to_owned()));
    for (says, ended, expected) in [
        (&[][..], Ok("ok".to_owned()), Known::Ran),
        (&[], Err(refused()), Known::Dropped),
        (&[Kind::Ready], Err(refused()), Known::Dropped),
        (&[Kind::Ready], Err(anyhow!("cut")), Known::Lost),
        (&[Kind::Ready, Kind::Runs], Err(anyhow!("cut")), Known::Ran),
        (&[Kind::Failed], Err(refused()), Known::Dropped),
    ] {
        let (talk, mut other, ends) = Other::talk(Sizes::TARGET, ended);
        let mut arriving = Arriving::new(talk, 1);
        says.iter().for_each(|kind| other.say(&Frame::new(*kind, 0, b"why")));
        while arriving.listen().expect("makes sense") {}
        assert_eq!(arriving.said.iter().map(|frame| frame.kind).collect::<Vec<_>>(), says);
        let is = |kind| says.contains(&kind);
        assert_eq!((arriving.is_ready, arriving.runs), (is(Kind::Ready), is(Kind::Runs)));
        let checked = arriving.check("it says: ").map_err(|error| error.to_string());
        assert_eq!(checked, if is(Kind::Failed) { Err("it says: why".to_owned()) } else { Ok(()) });
        drop(ends);
        assert_eq!(arriving.end().0, expected, "{says:?}");
    }
    let (talk, mut other, _ends) = Other::talk(Sizes::TARGET, Ok("ok".to_owned()));
    other.say(&Frame::bare(Kind::Go));
    assert!(Arriving::new(talk, 1).listen().expect_err("is refused").to_string().contains("Go"));
}
