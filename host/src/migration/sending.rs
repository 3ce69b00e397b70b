//! The connection on which a guest is sent to another machine, and what that says.

use super::outflow::{Event, Manner, Outflow};
use super::port::{Frame, Talk};
use super::wire::Link;
use crate::prelude::*;
use migration::frame::Kind;

/// When a signal is to end the command, a target that has all of the guest may be silent for so
/// long.
const LAST_WORD: Duration = Duration::from_secs(2);

/// A guest that is sent to another machine.
pub(super) struct Sending<'a> {
    /// The connection, or why it is none any more.
    pub(super) link: Result<Link>,
    /// The hypervisor was told that the target is ready: from now on the guest may run there.
    pub(super) is_ready: bool,
    pub(super) runs: bool,
    /// Since when the target is to say something, while the guest stands still.
    waits: Option<Instant>,
    manner: &'a Manner,
}

impl<'a> Sending<'a> {
    pub(super) const fn new(link: Link, manner: &'a Manner) -> Self {
        Self { link: Ok(link), is_ready: false, runs: false, waits: None, manner }
    }

    /// Returns whether nothing was there in either direction.
    pub(super) fn step(&mut self, talk: &mut Talk, out: &mut Outflow) -> Result<bool> {
        let Ok(link) = &mut self.link else { return Ok(true) };
        let mut lost = None;
        let event = out.step(talk, |block| {
            lost = link.send(block).err();
            Ok(())
        })?;
        let heard = match (lost, event == Event::Go) {
            (Some(why), _) => Err(why),
            (None, true) => {
                let mut block = Vec::new();
                Frame::bare(Kind::Go).write_to(&mut block);
                link.send(&block).and_then(|()| link.receive(Duration::ZERO))
            }
            (None, false) => link.receive(Duration::ZERO),
        };
        let heard = heard.and_then(|block| block.map(|block| Frame::of_block(&block)).transpose());
        if matches!(event, Event::Complete | Event::Go) {
            self.waits = Some(Instant::now());
        }
        let silence = self.waits.map_or(Duration::ZERO, |since| since.elapsed());
        let patience = match self.manner.signals.caught() {
            Some(_) => self.manner.patience.min(LAST_WORD),
            None => self.manner.patience,
        };
        let Ok(link) = &mut self.link else { return Ok(true) };
        match heard {
            Ok(None) if silence > patience => {
                self.lose(anyhow!("the target has had all of the guest for {silence:.0?}, and is silent"));
            }
            Ok(None) => {
                if let Err(why) = link.give_sign() {
                    self.lose(why);
                }
                return Ok(event == Event::Idle);
            }
            Ok(Some(frames)) => frames.iter().try_for_each(|frame| self.hear(talk, frame))?,
            Err(why) => self.lose(why),
        }
        Ok(false)
    }

    fn lose(&mut self, why: Error) {
        if self.link.is_ok() {
            self.link = Err(why);
        }
    }

    fn hear(&mut self, talk: &mut Talk, frame: &Frame) -> Result<()> {
        match frame.kind {
            Kind::Ready => {
                self.is_ready = true;
                talk.port.put_soon(frame)?;
            }
            Kind::Runs if self.is_ready => {
                talk.port.put_soon(frame)?;
                self.runs = true;
            }
            Kind::Failed => self.lose(anyhow!("the target cannot take the guest: {}", frame.text())),
            kind => self.lose(anyhow!("the target says {kind:?}, which it may not now")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::Wanted;
    use super::super::tests::port::Other;
    use super::super::time::now_ns;
    use super::*;
    use migration::channel::Sizes;
    use migration::frame::Clock;
    use zerocopy::{FromBytes, IntoBytes};

    #[test]
    fn m2_a_target_says_that_the_guest_runs_when_it_was_ready_and_nothing_else() {
        let manner = Manner::new(Wanted::STILL, Signals::default());
        let not_now = |kind: &str| Some(format!("the target says {kind}, which it may not now"));
        for (says, is_ready, runs, why) in [
            (&[Kind::Ready][..], true, false, None),
            (&[Kind::Ready, Kind::Runs], true, true, None),
            (&[Kind::Runs], false, false, not_now("Runs")),
            (&[Kind::Go], false, false, not_now("Go")),
            (&[Kind::Ready, Kind::Failed], true, false, Some("the target cannot take the guest: why".into())),
        ] {
            let (mut talk, mut other, _ends) = Other::talk(Sizes::SOURCE, Ok("ok".to_owned()));
            let [link, _there] = Link::pair(manner.patience);
            let mut sending = Sending::new(link, &manner);
            for kind in says {
                sending.hear(&mut talk, &Frame::new(*kind, 0, b"why")).expect("makes sense");
            }
            let lost = sending.link.as_ref().err().map(|why| why.to_string());
            assert_eq!((sending.is_ready, sending.runs, lost), (is_ready, runs, why), "{says:?}");
            let expected = says.iter().filter(|kind| **kind == Kind::Ready || runs);
            assert_eq!(other.heard(), expected.copied().collect::<Vec<_>>());
        }
    }

    #[test]
    fn m2_a_target_that_has_all_of_the_guest_and_is_silent_is_lost_when_patience_ends() {
        let manner =
            Manner { patience: Duration::from_secs(1), ..Manner::new(Wanted::STILL, Signals::default()) };
        let (mut talk, mut other, _ends) = Other::talk(Sizes::SOURCE, Ok("ok".to_owned()));
        let [link, _there] = Link::pair(Duration::from_secs(60));
        let mut sending = Sending::new(link, &manner);
        let mut out = Outflow::new(&manner, 0, 1);
        let mut goes_on = |sending: &mut Sending<'_>| {
            sending.step(&mut talk, &mut out).expect("makes sense");
            sending.link.is_ok()
        };
        assert!(goes_on(&mut sending) && sending.waits.is_none(), "it has not all of it");
        other.say(&Frame::bare(Kind::End));
        assert!(goes_on(&mut sending) && sending.waits.is_some());
        sending.waits = Instant::now().checked_sub(2 * manner.patience);
        assert!(!goes_on(&mut sending));
    }

    #[test]
    fn m4_a_guests_clock_is_sent_as_a_time_of_day() {
        let manner = Manner::new(Wanted::STILL, Signals::default());
        let (mut talk, mut other, _ends) = Other::talk(Sizes::SOURCE, Ok("ok".to_owned()));
        let clock = Clock { ticks: 7, wall_ns: 9, at: 1000, hz: 1_000_000_000 };
        // The counter's ticks are nanoseconds, and it was read 30 of them ago or somewhat longer.
        other.end.show_clock(1030);
        other.say(&Frame::new(Kind::Clock, 0, clock.as_bytes()));
        let (before, mut sent, mut bytes) = (now_ns(), Vec::new(), 0);
        let mut out = Outflow::new(&manner, 0, 1_000_000_000);
        let stepped = out.step(&mut talk, |block| {
            bytes += block.len() as u64;
            sent.extend(Frame::of_block(block)?);
            Ok(())
        });
        assert_eq!((stepped.expect("makes sense"), out.bytes), (Event::Moved, bytes));
        let there = Clock::read_from_bytes(sent[0].content()).expect("is one");
        assert!((before..=now_ns()).contains(&(there.at + 30)), "{there:?}");
        assert_eq!((there.ticks, there.wall_ns), (7, 9));
    }
}
