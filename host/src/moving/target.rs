//! The machine at which a guest arrives: from a file, or from another machine.

use super::described::Description;
use super::port::{Ended, Frame, PAUSE, Talk};
use super::snapshot::{Snapshot, is_of_a_guest};
use super::time::{Relation, now_ns, with_clock};
use super::wire::{Answer, GREETING_MAX, Link, Listener, Opening, Secret, Side};
use crate::machine::control::{Control, Found, Refused, read};
use crate::prelude::*;
use hostlink::ctl::Request;
use hostlink::ctl::record::Received;
use std::os::fd::OwnedFd;
use transfer::channel::Sizes;
use transfer::frame::{Clock, Kind};

/// Begins to receive a guest.
pub(super) fn receive(machine: &Found, ram: &Arc<Ram>, guest: Name) -> Result<Talk> {
    let control = Control::open(machine)?;
    Talk::begin(control, Arc::clone(ram), Request::Receive { guest }, Sizes::TARGET)
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
}

impl Arriving {
    const fn new(talk: Talk, hz: u64) -> Self {
        Self { talk, clock: Relation::new(hz), said: Vec::new(), is_ready: false, runs: false }
    }

    /// Puts a frame as soon as there is room; takes what the hypervisor says meanwhile.
    fn put(&mut self, frame: &Frame) -> Result<()> {
        while !self.talk.port.put(frame)? {
            if !self.listen()? {
                ensure!(!self.talk.has_ended(), "the hypervisor takes no more");
                thread::sleep(PAUSE);
            }
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

    /// The clock by the counter of this machine, which the hypervisor shows as soon as it listens.
    fn on_this_machine(&mut self, frame: &Frame) -> Result<Frame> {
        let begun = Instant::now();
        while self.clock.counter_at(now_ns()).is_none() && begun.elapsed() < Duration::from_secs(10) {
            self.listen()?;
            thread::sleep(PAUSE);
        }
        with_clock(frame, |clock| {
            clock.at = self.clock.counter_at(clock.at).context("the machine does not show its counter")?;
            Ok(())
        })
    }

    /// Whether the hypervisor goes on with it.
    fn check(&self, about: &str) -> Result<()> {
        let failed = self.said.iter().find(|frame| frame.kind == Kind::Failed);
        failed.map_or(Ok(()), |frame| bail!("{about}{}", frame.text()))
    }

    /// Cuts the channel. What is to be said of where the guest runs.
    fn end(self) -> (Answer, Ended) {
        let runs = self.runs;
        let ended = self.talk.end();
        let answer = match &ended {
            Ok(_) => Answer::Runs,
            _ if runs => Answer::Runs,
            Err(error) if error.is::<Refused>() => Answer::Absent,
            Err(_) => Answer::Unknown,
        };
        (answer, ended)
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
    let mut has_gone = false;
    while !arriving.runs {
        if arriving.is_ready && !has_gone {
            arriving.put(&Frame::bare(Kind::Go))?;
            has_gone = true;
        }
        if !arriving.listen()? {
            ensure!(!arriving.talk.has_ended(), "the hypervisor restored only a part of the guest");
            thread::sleep(PAUSE);
        }
        arriving.check("the hypervisor cannot restore the guest: ")?;
    }
    Ok(())
}

/// It was off: its counter goes on where it was, and its date is today's.
fn goes_on_now(clock: &mut Clock) -> Result<()> {
    clock.wall_ns = clock.wall_ns.saturating_add(now_ns().saturating_sub(clock.at));
    clock.at = Clock::NOW;
    Ok(())
}

/// Takes a guest, again and again, for as long as the machine lives.
pub(crate) struct Host {
    pub(super) listener: Listener,
    pub(super) secret: Secret,
    pub(super) description: Description,
    pub(super) hz: u64,
    pub(super) signals: Signals,
    /// What is to be said of each session.
    pub(super) sessions: BTreeMap<u64, Answer>,
}

impl Host {
    /// One connection after the other, each to its end: what was said in it is known by the next.
    pub(super) fn serve(
        &mut self,
        begin: impl Fn() -> Result<Talk>,
        is_over: impl Fn() -> bool,
        says: impl Fn(&str),
    ) -> Result<()> {
        while let Some(stream) = self.listener.accept(&is_over)? {
            match self.serve_one(stream, &begin) {
                Ok(None) => {}
                Ok(Some(received)) => says(&format!("the guest has arrived: {received}")),
                Err(error) => says(&format!("a guest did not arrive: {error:#}")),
            }
        }
        Ok(())
    }

    fn serve_one(&mut self, stream: OwnedFd, begin: impl Fn() -> Result<Talk>) -> Result<Option<String>> {
        let mut link = Link::greet(stream, &self.secret, Side::Target, &self.signals)?;
        let (session, guest) = match link.hear(GREETING_MAX)? {
            Opening::Offer { session, guest } => (session, guest),
            Opening::Ask { session } => {
                link.say(self.sessions.get(&session).unwrap_or(&Answer::Absent))?;
                return Ok(None);
            }
        };
        let accepted = match self.description.difference(&guest) {
            _ if self.sessions.contains_key(&session) => Err(anyhow!("this session has been")),
            Some(what) => Err(anyhow!("{what}")),
            None => begin(),
        };
        let talk = match accepted {
            Ok(talk) => talk,
            Err(error) => {
                link.say(&Answer::Refused(format!("{error:#}")))?;
                return Err(error);
            }
        };
        // Until it is known what comes of it.
        self.sessions.insert(session, Answer::Unknown);
        let mut arriving = Arriving::new(talk, self.hz);
        let result = link.say(&Answer::Accepted).and_then(|()| carry(&mut arriving, &mut link));
        let (answer, ended) = arriving.end();
        let runs = answer == Answer::Runs;
        self.sessions.insert(session, answer);
        match ended {
            Err(error) if !runs => Err(result.err().unwrap_or(error)),
            ended => Ok(Some(ended.unwrap_or_default())),
        }
    }
}

/// Carries frames in both directions, until the guest runs here or something fails.
fn carry(arriving: &mut Arriving, link: &mut Link) -> Result<()> {
    loop {
        // The guest's pages come close together; otherwise the hypervisor is listened to.
        let block = link.receive(Duration::ZERO)?;
        let is_idle = block.is_none();
        for frame in block.map(|block| Frame::of_block(&block)).transpose()?.unwrap_or_default() {
            let frame = match frame.kind {
                Kind::Clock => arriving.on_this_machine(&frame)?,
                Kind::Go if arriving.is_ready => frame,
                kind if is_of_a_guest(kind) => frame,
                kind => bail!("the source says {kind:?}, which it may not now"),
            };
            arriving.put(&frame)?;
        }
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
        ensure!(!arriving.talk.has_ended(), "the hypervisor ended too early");
        if is_idle {
            thread::sleep(PAUSE);
        }
    }
}
