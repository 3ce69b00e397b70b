//! The machine that a guest leaves: saved to a file, or moved to another machine.

use super::described::Described;
use super::outflow::{Event, Manner, Outflow};
use super::policy::Round;
use super::port::{Frame, PAUSE, Talk};
use super::seal::random;
use super::snapshot::Writer;
use super::wire::{Address, Answer, GREETING_MAX, Gone, Link, Opening, Secret};
use crate::machine::control::{Control, Found, read};
use crate::machine::counters::clock_hz;
use crate::prelude::*;
use hostlink::ctl::record::Sent;
use hostlink::ctl::{Request, SendWay};
use transfer::channel::Sizes;
use transfer::frame::Kind;

/// A guest's machine, and what the guest is besides its state.
pub(crate) struct Origin {
    pub(crate) machine: Found,
    pub(crate) guest: Name,
    pub(super) described: Described,
    pub(super) ram: Arc<Ram>,
    pub(super) hz: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Moved {
    pub(crate) guest: String,
    /// Whether it runs here no more.
    pub(crate) away: bool,
    pub(crate) rounds: Vec<Round>,
    /// Bytes that were written, or sent.
    pub(crate) bytes: u64,
    pub(crate) pages: u64,
    pub(crate) zeros: u64,
    /// For how long it stood still here.
    pub(crate) stopped_seconds: f64,
    /// What the hypervisor did for that.
    pub(crate) stop_work_seconds: f64,
    pub(crate) longest_step_seconds: f64,
    /// From the request to the end.
    pub(crate) seconds: f64,
}

impl Origin {
    pub(crate) fn find(machine: &Found, guest: Name) -> Result<Self> {
        let notice = machine.notice()?.with_context(|| format!("machine {} has ended", machine.name))?;
        let ram = notice.open_ram(true)?;
        let hz = clock_hz(&ram, notice.beacon)?.context("the hypervisor has not begun yet")?;
        let described = Described::of_bundle(&notice.bundle, guest, &notice.arch)?;
        Ok(Self { machine: machine.clone(), guest, described, ram: Arc::new(ram), hz })
    }

    pub(super) fn begin(&self, session: u64, way: SendWay) -> Result<Talk> {
        let control = Control::open(&self.machine)?;
        let request = Request::Send { guest: self.guest, session, way };
        Talk::begin(control, Arc::clone(&self.ram), request, Sizes::SOURCE)
    }

    pub(super) fn outflow(&self, manner: &Manner) -> Outflow {
        Outflow::new(manner, self.described.description.memory(), self.hz)
    }

    pub(super) fn moved(&self, sent: &str, out: &Outflow) -> Result<Moved> {
        let Sent { away, pages, zeros, stopped, worked, longest, hz, .. } = read(sent)?;
        #[expect(clippy::cast_precision_loss, reason = "durations that are shown")]
        let [stopped_seconds, stop_work_seconds, longest_step_seconds] =
            [stopped, worked, longest].map(|ticks| ticks as f64 / hz.max(1) as f64);
        Ok(Moved {
            guest: self.guest.to_string(),
            away: away != 0,
            rounds: out.rounds.clone(),
            bytes: out.bytes,
            pages,
            zeros,
            stopped_seconds,
            stop_work_seconds,
            longest_step_seconds,
            seconds: out.seconds(),
        })
    }
}

/// Saves a guest to a file, which is complete or absent. The guest runs on, or is gone.
pub(crate) fn save(of: &Origin, path: &Path, keeps_running: bool, manner: &Manner) -> Result<Moved> {
    let session = u64::from_le_bytes(random()?);
    let way = if keeps_running { SendWay::Live } else { SendWay::Still };
    let file = Writer::create(path, &of.described)?;
    save_by(of, of.begin(session, way)?, file, keeps_running, manner)
}

pub(super) fn save_by(
    of: &Origin,
    mut talk: Talk,
    mut file: Writer,
    keeps_running: bool,
    manner: &Manner,
) -> Result<Moved> {
    ensure!(
        talk.channel.given == 0,
        "the guest {} was given to another machine, and it is not known what came of it: \
         ./quell ctl guest migrate with the address of that machine finds out",
        of.guest
    );
    let mut out = of.outflow(manner);
    loop {
        match out.step(&mut talk, |block| file.put(block))? {
            Event::Complete => break,
            Event::Go => bail!("the hypervisor gives a guest away that is not complete"),
            Event::Moved => {}
            Event::Idle if talk.has_ended() => bail!(ended(talk)),
            Event::Idle => thread::sleep(PAUSE),
        }
        ensure!(
            manner.signals.caught().is_none(),
            "ended by a signal: the guest runs on, nothing was written"
        );
    }
    if keeps_running {
        // It goes on while the file is still being written.
        let sent = talk.end()?;
        file.finish()?;
        return of.moved(&sent, &out);
    }
    file.finish()?;
    talk.port.put_soon(&Frame::bare(Kind::Ready))?;
    while out.step(&mut talk, |_| bail!("something follows the guest's end"))? != Event::Go {
        ensure!(!talk.has_ended(), ended(talk));
        thread::sleep(PAUSE);
    }
    talk.port.put_soon(&Frame::bare(Kind::Runs))?;
    of.moved(&talk.end()?, &out)
}

/// Why a request has ended that should not have.
fn ended(talk: Talk) -> Error {
    match talk.end() {
        Ok(last) => anyhow!("the hypervisor ended too early: {last}"),
        Err(error) => error,
    }
}

/// Where a guest is moved to.
#[derive(Clone)]
pub(crate) struct Destination {
    pub(crate) address: Address,
    pub(crate) secret: Secret,
}

/// Moves a guest. Whatever fails, it runs on exactly one of both machines; an error says where it
/// is if that is not here.
pub(crate) fn migrate(of: &Origin, to: &Destination, manner: &Manner) -> Result<Moved> {
    let session = u64::from(to.address.tag()) << 32 | u64::from(u32::from_le_bytes(random()?));
    migrate_by(of, of.begin(session, SendWay::Live)?, session, to, manner)
}

pub(super) fn migrate_by(
    of: &Origin,
    mut talk: Talk,
    session: u64,
    to: &Destination,
    manner: &Manner,
) -> Result<Moved> {
    let mut out = of.outflow(manner);
    if talk.channel.given != 0 {
        return resolve(of, talk, to, &out, "an earlier command ended before that was known", manner);
    }
    let mut link = Link::connect(&to.address, &to.secret, &manner.signals)?;
    let guest = Box::new(of.described.description.clone());
    link.say(&Opening::Offer { session, guest })?;
    match link.hear(PREPARED_MAX)? {
        Answer::Accepted => {}
        Answer::Refused(why) => bail!("{} does not take the guest: {why}", to.address),
        other => bail!("{} answers {other:?} to a guest", to.address),
    }
    let mut source = Sending { link: Ok(link), is_ready: false, runs: false };
    while !source.runs && source.link.is_ok() {
        let cancelled = manner.signals.caught().is_some() && !source.is_ready;
        ensure!(!cancelled, "cancelled: the guest runs on here");
        let is_idle = source.step(&mut talk, &mut out)?;
        if is_idle && talk.has_ended() {
            bail!(ended(talk));
        }
        if is_idle {
            thread::sleep(PAUSE);
        }
    }
    match source.link {
        Ok(_) => of.moved(&talk.end()?, &out),
        Err(why) if source.is_ready => resolve(of, talk, to, &out, &format!("{why:#}"), manner),
        // The hypervisor has not heard that the target is ready: it has given nothing away.
        Err(why) => Err(why.context("the guest was not moved, and runs on here")),
    }
}

/// In this time a target has to have made room for a guest: its memory is zeroed.
const PREPARED_MAX: Duration = Duration::from_secs(120);

struct Sending {
    /// The connection, or why it is none any more.
    link: Result<Link>,
    /// The hypervisor was told that the target is ready: from now on the guest may run there.
    is_ready: bool,
    runs: bool,
}

impl Sending {
    /// Returns whether nothing was there in either direction.
    fn step(&mut self, talk: &mut Talk, out: &mut Outflow) -> Result<bool> {
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
        match heard {
            Ok(None) => return Ok(event == Event::Idle),
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

/// Finds out where a guest runs that may have been given away, as often as it takes.
fn resolve(
    of: &Origin,
    mut talk: Talk,
    to: &Destination,
    out: &Outflow,
    why: &str,
    manner: &Manner,
) -> Result<Moved> {
    let (session, guest, address) = (talk.channel.session, of.guest, &to.address);
    ensure!(
        session >> 32 == u64::from(address.tag()),
        "the guest {guest} was given to a machine at another address than {address}: name that one"
    );
    let mut last = String::new();
    let kind = loop {
        match ask(to, session, &manner.signals) {
            Ok(Answer::Runs) => break Kind::Runs,
            Ok(Answer::Absent) => break Kind::Absent,
            Err(error) if error.is::<Gone>() => break Kind::Absent,
            answer => {
                let now =
                    answer.map_or_else(|error| format!("{error:#}"), |other| format!("it says {other:?}"));
                if now != last {
                    eprintln!(
                        "quell: the guest {guest} stands still until {address} says whether it runs there: {now}"
                    );
                    last = now;
                }
            }
        }
        ensure!(
            manner.signals.caught().is_none(),
            "the guest {guest} stands still here, and may run at {address}: the same command asks again"
        );
        ensure!(!talk.has_ended(), "the machine has ended: the guest {guest} may run at {address}");
        thread::sleep(Duration::from_millis(100));
    };
    talk.port.put_soon(&Frame::bare(kind))?;
    let moved = of.moved(&talk.end()?, out)?;
    ensure!(kind == Kind::Runs, "the guest {guest} did not arrive, and runs on here: {why}");
    Ok(moved)
}

fn ask(to: &Destination, session: u64, signals: &Signals) -> Result<Answer> {
    let mut link = Link::connect(&to.address, &to.secret, signals)?;
    link.say(&Opening::Ask { session })?;
    link.hear(GREETING_MAX)
}
