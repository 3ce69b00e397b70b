//! Takes guests from other machines at a place to listen at.

use super::greeting::{Greeting, Greetings};
use super::manifest::Description;
use super::place::Listener;
use super::port::{Frame, Meanwhile, PAUSE, Talk};
use super::snapshot::is_of_a_guest;
use super::target::Arriving;
use super::wire::{Answer, GREETING_MAX, Link, Opening, Secret, Side};
use crate::prelude::*;
use migration::frame::Kind;
use migration::handover::{Known, SessionStatus};
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;

/// Takes a guest, again and again, for as long as the machine lives.
pub(crate) struct Host {
    pub(super) listener: Listener,
    pub(super) secret: Secret,
    pub(super) description: Description,
    pub(super) hz: u64,
    pub(super) patience: Duration,
    /// What is known of each session that was accepted.
    pub(super) sessions: Mutex<BTreeMap<u64, Known>>,
}

impl Host {
    /// Several connections at a time: whoever is silent keeps nobody else waiting.
    pub(super) fn serve(
        &self,
        begin: impl Fn(&mut Meanwhile<'_>) -> Result<Talk> + Sync,
        is_over: impl Fn() -> bool + Sync,
        says: impl Fn(&str) + Sync,
    ) -> Result<()> {
        let greetings = Greetings::default();
        let end = Signals::default();
        let (begin, says, greetings, end) = (&begin, &says, &greetings, &end);
        thread::scope(|scope| {
            let serves = || -> Result<()> {
                while let Some(stream) = self.listener.accept(&is_over)? {
                    let greeting = greetings.begin(&stream)?;
                    scope.spawn(move || match self.serve_one(stream, begin, end, &greeting) {
                        Ok(told) => told.iter().for_each(|what| says(what)),
                        Err(error) => greeting.failed(&error).iter().for_each(|what| says(what)),
                    });
                }
                Ok(())
            };
            let result = serves();
            // Whoever is still being served is told nothing more.
            end.catch(1);
            result
        })
    }

    /// Serves a connection to its end. Returns what is to be said of it.
    fn serve_one(
        &self,
        stream: OwnedFd,
        begin: impl Fn(&mut Meanwhile<'_>) -> Result<Talk>,
        end: &Signals,
        greeting: &Greeting<'_>,
    ) -> Result<Option<String>> {
        let mut link = Link::greet(stream, &self.secret, Side::Target, end, self.patience)?;
        let opening = link.hear(self.patience.min(GREETING_MAX))?;
        greeting.is_over();
        let (session, guest) = match opening {
            Opening::Offer { session, guest } => (session, guest),
            Opening::Ask { session } => {
                let known = self.sessions().get(&session).copied();
                link.say(&Answer::SessionStatus(SessionStatus::of(known)))?;
                return Ok(None);
            }
        };
        let accepted = match self.description.difference(&guest) {
            Some(what) => Err(anyhow!("{what}")),
            None if self.sessions().contains_key(&session) => Err(anyhow!("this session has been")),
            // Its memory is freed and zeroed before that.
            None => begin(&mut || link.give_sign()),
        };
        let talk = match accepted {
            Ok(talk) => talk,
            Err(error) => {
                link.say(&Answer::Refused(format!("{error:#}")))?;
                return Err(error);
            }
        };
        // Until it is known what comes of it. The hypervisor receives one at a time.
        self.sessions().insert(session, Known::Pending);
        let mut arriving = Arriving::new(talk, self.hz);
        let mut carry = |arriving: &mut Arriving| {
            link.say(&Answer::Accepted)?;
            carry(arriving, &mut link, self.patience, end)
        };
        let (result, about_clock) = (carry(&mut arriving), arriving.about_clock.take());
        let (known, ended) = arriving.end();
        self.sessions().insert(session, known);
        match ended {
            Err(error) if known != Known::Ran => Err(result.err().unwrap_or(error)),
            ended => {
                let arrived = format!("the guest has arrived: {}", ended.unwrap_or_default());
                Ok(Some([Some(arrived), about_clock].into_iter().flatten().collect::<Vec<_>>().join("; ")))
            }
        }
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries frames in both directions, until the guest runs here or something fails.
fn carry(arriving: &mut Arriving, link: &mut Link, patience: Duration, end: &Signals) -> Result<()> {
    let mut heard = Instant::now();
    loop {
        ensure!(end.caught().is_none(), "this machine ends");
        // The guest's pages come close together; otherwise the hypervisor is listened to.
        let block = link.receive(Duration::ZERO)?;
        let is_idle = block.is_none();
        if is_idle {
            ensure!(heard.elapsed() < patience, "the source has said nothing for {:.0?}", heard.elapsed());
            link.give_sign()?;
        } else {
            heard = Instant::now();
        }
        for frame in block.map(|block| Frame::of_block(&block)).transpose()?.unwrap_or_default() {
            let frame = match frame.kind {
                Kind::Clock => arriving.on_this_machine(&frame)?,
                Kind::Go if arriving.is_ready => frame,
                kind if is_of_a_guest(kind) => frame,
                kind => bail!("the source says {kind:?}, which it may not now"),
            };
            arriving.put(&frame)?;
        }
        // As in `listen_or_wait`.
        let has_ended = arriving.talk.has_ended();
        while arriving.listen()? {}
        let mut block = Vec::new();
        arriving.said.iter().for_each(|frame| frame.write_to(&mut block));
        if !block.is_empty() {
            link.send(&block)?;
        }
        arriving.check("")?;
        arriving.said.clear();
        if arriving.runs {
            return Ok(());
        }
        ensure!(!has_ended, "the hypervisor ended too early");
        if is_idle {
            thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::port::Other;
    use super::super::wire::PATIENCE;
    use super::*;
    use migration::channel::Sizes;

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
    fn m2_a_target_that_waits_gives_signs_until_the_source_was_silent_for_too_long() {
        let (why, [signs, _]) = carried(&[], &[], Duration::from_secs(2));
        assert!(why.is_some_and(|why| why.starts_with("the source has said nothing for ")));
        assert!(!signs.is_empty() && signs.iter().all(|kind| *kind == Kind::Hello), "{signs:?}");
    }
}
