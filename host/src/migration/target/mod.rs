//! The machine at which a guest arrives: from a file, or from another machine.

use super::greeting::{Greeting, Greetings};
use super::manifest::Description;
use super::place::Listener;
use super::port::{Ended, Frame, Meanwhile, PAUSE, Talk};
use super::seal::random;
use super::snapshot::{Snapshot, is_of_a_guest};
use super::time::{Relation, goes_on_now, now_ns, stopped_at, with_clock};
use super::wire::{Answer, GREETING_MAX, Link, Opening, Secret, Side};
use crate::machine::control::{Control, Found, Refused, read};
use crate::prelude::*;
use hostlink::ctl::Request;
use hostlink::ctl::record::Received;
use migration::channel::Sizes;
use migration::frame::Kind;
use migration::handover::{Ended as How, Known, SessionStatus};
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;

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
struct Arriving {
    talk: Talk,
    clock: Relation,
    /// What the hypervisor has said, and nobody has looked at.
    said: Vec<Frame>,
    /// It has said that the guest could run, and that it runs.
    is_ready: bool,
    runs: bool,
    /// When it began: until then the guest ran at its source.
    since: u64,
    /// What is to be said of its clock.
    about_clock: Option<String>,
}

impl Arriving {
    fn new(talk: Talk, hz: u64) -> Self {
        let (clock, said, since) = (Relation::new(hz), Vec::new(), now_ns());
        Self { talk, clock, said, is_ready: false, runs: false, since, about_clock: None }
    }

    /// Puts a frame as soon as there is room; takes what the hypervisor says meanwhile.
    fn put(&mut self, frame: &Frame) -> Result<()> {
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
    fn listen(&mut self) -> Result<bool> {
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
    fn on_this_machine(&mut self, frame: &Frame) -> Result<Frame> {
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
    fn check(&self, about: &str) -> Result<()> {
        let failed = self.said.iter().find(|frame| frame.kind == Kind::Failed);
        failed.map_or(Ok(()), |frame| bail!("{about}{}", frame.text()))
    }

    /// Cuts the channel. What is known then of where the guest runs.
    fn end(self) -> (Known, Ended) {
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
mod tests;
