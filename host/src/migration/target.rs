//! The machine at which a guest arrives: from a file, or from another machine.

use super::port::{Ended, Frame, Meanwhile, PAUSE, Talk};
use super::seal::random;
use super::snapshot::Snapshot;
use super::time::{Relation, goes_on_now, now_ns, stopped_at, with_clock};
use crate::machine::control::{Control, Found, Refused, read};
use crate::prelude::*;
use hostlink::ctl::Request;
use hostlink::ctl::record::Received;
use migration::channel::Sizes;
use migration::frame::Kind;
use migration::handover::{Ended as How, Known};

/// Begins to receive a guest. It gets a generation id that nobody can guess.
pub(super) fn receive(
    machine: &Found,
    ram: &Arc<Ram>,
    guest: Name,
    meanwhile: &mut Meanwhile<'_>,
) -> Result<Talk> {
    let control = Control::open(machine)?;
    let request = Request::Receive { guest, generation: u128::from_le_bytes(random()?) };
    Talk::begin(control, Arc::clone(ram), request, Sizes::TARGET, meanwhile)
}

/// A guest that is arriving.
pub(super) struct Arriving {
    pub(super) talk: Talk,
    clock: Relation,
    /// What the hypervisor has said, and nobody has looked at.
    pub(super) said: Vec<Frame>,
    /// It has said that the guest could run, and that it runs.
    pub(super) is_ready: bool,
    pub(super) runs: bool,
    /// When it began: until then the guest ran at its source.
    since: u64,
    /// What is to be said of its clock.
    pub(super) about_clock: Option<String>,
}

impl Arriving {
    pub(super) fn new(talk: Talk, hz: u64) -> Self {
        let (clock, said, since) = (Relation::new(hz), Vec::new(), now_ns());
        Self { talk, clock, said, is_ready: false, runs: false, since, about_clock: None }
    }

    /// Puts a frame as soon as there is room; takes what the hypervisor says meanwhile.
    pub(super) fn put(&mut self, frame: &Frame) -> Result<()> {
        while !self.talk.port.put(frame)? {
            self.listen_or_wait("the hypervisor takes no more")?;
        }
        Ok(())
    }

    /// Takes what the hypervisor says, or waits a moment; fails if it says nothing any more.
    fn listen_or_wait(&mut self, ended: &'static str) -> Result<()> {
        // Before it is listened to: what it said last is heard.
        let has_ended = self.talk.has_ended();
        if !self.listen()? {
            ensure!(!has_ended, ended);
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Takes what the hypervisor says; false if it says nothing.
    pub(super) fn listen(&mut self) -> Result<bool> {
        let counter = self.talk.port.clock();
        self.clock.look(counter, now_ns());
        let Some(frame) = self.talk.port.next()? else { return Ok(false) };
        match frame.kind {
            Kind::Ready => self.is_ready = true,
            Kind::Runs => self.runs = true,
            Kind::Failed => {}
            kind => bail!("the hypervisor says {kind:?} while it receives a guest"),
        }
        self.said.push(frame);
        Ok(true)
    }

    /// Takes what the hypervisor says of a guest from a file, until that runs.
    fn until_it_runs(&mut self) -> Result<()> {
        while !self.runs {
            self.listen_or_wait("the hypervisor restored only a part of the guest")?;
            self.check("the hypervisor cannot restore the guest: ")?;
        }
        Ok(())
    }

    /// The clock by the counter of this machine, which the hypervisor shows as soon as it listens.
    pub(super) fn on_this_machine(&mut self, frame: &Frame) -> Result<Frame> {
        let begun = Instant::now();
        while self.clock.counter_at(now_ns()).is_none() && begun.elapsed() < Duration::from_secs(10) {
            self.listen()?;
            thread::sleep(PAUSE);
        }
        let (mut told, since) = (None, self.since);
        let frame = with_clock(frame, |clock| {
            let at;
            (at, told) = stopped_at(clock.at, since..now_ns());
            clock.at = self.clock.counter_at(at).context("the machine does not show its counter")?;
            Ok(())
        });
        self.about_clock = told;
        frame
    }

    /// Whether the hypervisor goes on with it.
    pub(super) fn check(&self, about: &str) -> Result<()> {
        let failed = self.said.iter().find(|frame| frame.kind == Kind::Failed);
        failed.map_or(Ok(()), |frame| bail!("{about}{}", frame.text()))
    }

    /// Cuts the channel. What is known then of where the guest runs.
    pub(super) fn end(self) -> (Known, Ended) {
        let mut known = Known::default();
        if self.runs {
            known.runs();
        }
        let ended = self.talk.end();
        known.end(match &ended {
            Ok(_) => How::Well,
            Err(error) if error.is::<Refused>() => How::Refused,
            Err(_) => How::Broken,
        });
        (known, ended)
    }
}

/// Restores a guest from a file whose files have been read.
pub(super) fn restore(talk: Talk, mut from: Snapshot) -> Result<Received> {
    let mut arriving = Arriving::new(talk, 1);
    let result = restore_into(&mut arriving, &mut from);
    let (_, ended) = arriving.end();
    // What the hypervisor says of it is nothing new if the file was at fault.
    result.and_then(|()| read(&ended?))
}

fn restore_into(arriving: &mut Arriving, from: &mut Snapshot) -> Result<()> {
    while let Some(frames) = from.frames()? {
        for frame in frames {
            let frame = if frame.kind == Kind::Clock { with_clock(&frame, goes_on_now)? } else { frame };
            arriving.put(&frame)?;
            arriving.check("the hypervisor cannot restore the guest: ")?;
        }
    }
    // The file was whole.
    arriving.put(&Frame::bare(Kind::Go))?;
    arriving.until_it_runs()
}

#[cfg(test)]
mod tests {
    use super::super::tests::port::Other;
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

    #[test]
    fn m4_a_clock_that_is_off_is_told() {
        let (talk, other, _ends) = Other::talk(Sizes::TARGET, Ok("ok".to_owned()));
        let mut arriving = Arriving::new(talk, 1_000_000_000);
        other.end.show_clock(now_ns());
        let clock = Clock { ticks: 0, wall_ns: 0, at: 7, hz: 1 };
        let frame = Frame::new(Kind::Clock, 0, clock.as_bytes());
        arriving.on_this_machine(&frame).expect("the machine shows its counter");
        assert!(
            arriving.about_clock.is_some_and(|told| told.starts_with("the other machine's clock is behind"))
        );
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
}
