//! The machine that a guest leaves: saved to a file, or moved to another machine.

use super::manifest::Described;
use super::outflow::{Event, Manner, Outflow};
use super::place::Address;
use super::policy::Round;
use super::port::{Frame, PAUSE, Talk};
use super::seal::random;
use super::sending::Sending;
use super::snapshot::{Writer, is_whole};
use super::wire::{Answer, GREETING_MAX, Link, Opening, Secret};
use crate::machine::control::{Control, Found, read};
use crate::machine::counters::clock_hz;
use crate::prelude::*;
use hostlink::ctl::record::Sent;
use hostlink::ctl::{Request, SendWay};
use migration::channel::Sizes;
use migration::frame::Kind;
use migration::handover::{Message, SessionStatus};

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

    pub(super) fn begin(&self, session: u64, way: SendWay, signals: &Signals) -> Result<Talk> {
        let control = Control::open(&self.machine)?;
        let request = Request::Send { guest: self.guest, session, way };
        Talk::begin(control, Arc::clone(&self.ram), request, Sizes::SOURCE, &mut || {
            let is_over = signals.caught().is_some();
            let served = "while another request about the guest was served: nothing was done";
            ensure!(!is_over, "ended by a signal, {served}");
            Ok(())
        })
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

/// Where a guest is that was given away is not known, or was not when a command ended.
#[derive(Debug)]
pub(crate) struct InDoubt(String);

impl fmt::Display for InDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InDoubt {}

fn in_doubt(guest: Name, why: &str) -> Error {
    InDoubt(format!(
        "the guest {guest} stands still: it was given away, and {why}. ./quell ctl guest migrate with --to \
         and the address of the other machine, or guest save with the same file, finds out; if you know that \
         this machine or this file is gone for good: ./quell ctl guest migrate {guest} --target-is-gone"
    ))
    .into()
}

/// Saves a guest to a file, which is complete or absent. The guest runs on, or is gone.
pub(crate) fn save(of: &Origin, path: &Path, keeps_running: bool, manner: &Manner) -> Result<Moved> {
    let way = if keeps_running { SendWay::Live } else { SendWay::Still };
    let file = Writer::create(path, &of.described)?;
    let talk = of.begin(file.session(), way, &manner.signals)?;
    save_by(of, talk, file, keeps_running, manner)
}

pub(super) fn save_by(
    of: &Origin,
    talk: Talk,
    mut file: Writer,
    keeps_running: bool,
    manner: &Manner,
) -> Result<Moved> {
    let mut out = of.outflow(manner);
    if talk.channel.given != 0 {
        return save_again(of, talk, file.path(), out);
    }
    let talk = fill(talk, &mut out, &mut file, &manner.signals)?;
    if keeps_running {
        // It goes on while the file is still being written.
        let sent = talk.end()?;
        file.finish()?;
        return of.moved(&sent, &out);
    }
    file.finish()?;
    let mut talk = give(talk, &mut out)?;
    talk.port.put_soon(&Frame::bare(Kind::Runs))?;
    of.moved(&talk.end()?, &out)
}

/// Writes all of the guest.
pub(super) fn fill(mut talk: Talk, out: &mut Outflow, file: &mut Writer, signals: &Signals) -> Result<Talk> {
    loop {
        match out.step(&mut talk, |block| file.put(block))? {
            Event::Complete => return Ok(talk),
            Event::Go => bail!("the hypervisor gives a guest away that is not complete"),
            Event::Moved => {}
            Event::Idle if talk.has_ended() => bail!(ended(talk)),
            Event::Idle => thread::sleep(PAUSE),
        }
        ensure!(signals.caught().is_none(), "ended by a signal: the guest runs on, nothing was written");
    }
}

/// All of the guest is elsewhere: waits until the hypervisor has given it away.
pub(super) fn give(mut talk: Talk, out: &mut Outflow) -> Result<Talk> {
    talk.port.put_soon(&Frame::bare(Kind::Ready))?;
    while out.step(&mut talk, |_| bail!("something follows the guest's end"))? != Event::Go {
        ensure!(!talk.has_ended(), ended(talk));
        thread::sleep(PAUSE);
    }
    Ok(talk)
}

/// The command that saved it ended before the hypervisor knew that the file is complete.
fn save_again(of: &Origin, mut talk: Talk, path: &Path, mut out: Outflow) -> Result<Moved> {
    let session = talk.channel.session;
    out.bytes = is_whole(path, session)
        .map_err(|error| in_doubt(of.guest, &format!("not to this file, or it was damaged: {error:#}")))?;
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

/// Moves a guest. Whatever fails, it never runs on both machines; an error says where it is if that
/// is not here.
pub(crate) fn migrate(of: &Origin, to: &Destination, manner: &Manner) -> Result<Moved> {
    let session = u64::from_le_bytes(random()?);
    let mut talk = of.begin(session, SendWay::Live, &manner.signals)?;
    let mut out = of.outflow(manner);
    if talk.channel.given != 0 {
        return resolve(of, talk, to, &out, "an earlier command ended before that was known", manner);
    }
    let mut link = Link::connect(&to.address, &to.secret, &manner.signals, manner.patience)?;
    let guest = Box::new(of.described.description.clone());
    link.say(&Opening::Offer { session, guest })?;
    match link.hear(manner.patience)? {
        Answer::Accepted => {}
        Answer::Refused(why) => bail!("{} does not take the guest: {}", to.address, foreign(&why)),
        other => bail!("{} answers {other:?} to a guest", to.address),
    }
    let mut source = Sending::new(link, manner);
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

/// Finds out where a guest runs that was given away: asks for as long as its machine may still say
/// it, and somewhat longer.
fn resolve(
    of: &Origin,
    talk: Talk,
    to: &Destination,
    out: &Outflow,
    why: &str,
    manner: &Manner,
) -> Result<Moved> {
    let (session, guest, address) = (talk.channel.session, of.guest, &to.address);
    let (mut last, mut since) = (String::new(), Instant::now());
    let heard = loop {
        let (told, now) = ask(to, session, manner);
        if let Some(heard) = told.decides(false) {
            break heard;
        }
        if told == SessionStatus::Pending {
            since = Instant::now();
        }
        if now != last {
            eprintln!(
                "quell: the guest {guest} stands still until it is known whether it runs at {address}: {now}"
            );
            last = now;
        }
        let is_over = manner.signals.caught().is_some() || since.elapsed() > manner.patience;
        ensure!(!is_over, in_doubt(guest, &format!("may run at {address}: {last}")));
        ensure!(!talk.has_ended(), "the machine has ended: the guest {guest} may run at {address}");
        thread::sleep(Duration::from_millis(100));
    };
    let moved = settle(of, talk, out, heard)?;
    ensure!(moved.away, "the guest {guest} did not arrive, and runs on here: {why}");
    Ok(moved)
}

/// What a source is told, in words.
const fn about(told: SessionStatus) -> &'static str {
    match told {
        SessionStatus::Runs => "it runs there, or did",
        SessionStatus::Absent => "it does not run there, and never will",
        SessionStatus::Pending => "it is still arriving there",
        SessionStatus::Lost => "that machine's tool has lost its hypervisor, and does not know",
        SessionStatus::Stranger => "another machine answers there, which knows nothing of it",
        SessionStatus::Nobody => "nobody answers there",
    }
}

/// Tells the hypervisor what became known.
fn settle(of: &Origin, mut talk: Talk, out: &Outflow, heard: Message) -> Result<Moved> {
    let kind = match heard {
        Message::Runs => Kind::Runs,
        Message::Absent => Kind::Absent,
        heard => bail!("{heard:?} does not say where the guest is"),
    };
    talk.port.put_soon(&Frame::bare(kind))?;
    of.moved(&talk.end()?, out)
}

/// Ends the doubt about a guest by the operator's word: it runs on here, because the machine or the
/// file that it was given to is gone. If an address is named whoever answers there is asked before.
pub(crate) fn target_is_gone(of: &Origin, to: Option<&Destination>, manner: &Manner) -> Result<Moved> {
    let talk = of.begin(0, SendWay::Live, &manner.signals)?;
    // Otherwise the channel is cut before anything is sent.
    ensure!(talk.channel.given != 0, "the guest {} is not in doubt: it runs on, nothing was done", of.guest);
    let session = talk.channel.session;
    let (told, now) = to.map_or((SessionStatus::Nobody, String::new()), |to| ask(to, session, manner));
    let Some(heard) = told.decides(true) else {
        bail!("the machine that the guest {} was given to is not gone: {now}", of.guest)
    };
    settle(of, talk, &of.outflow(manner), heard)
}

/// What a source is told there, and that in words. An error is nobody's word.
fn ask(to: &Destination, session: u64, manner: &Manner) -> (SessionStatus, String) {
    let asked = || {
        let mut link = Link::connect(&to.address, &to.secret, &manner.signals, manner.patience)?;
        link.say(&Opening::Ask { session })?;
        link.hear_block(GREETING_MAX.min(manner.patience))
    };
    match asked().map(|block| serde_json::from_slice(&block)) {
        Ok(Ok(Answer::SessionStatus(told))) => (told, about(told).to_owned()),
        // Whoever has the secret is not gone, whatever it says.
        Ok(_) => (SessionStatus::Lost, "a machine of another version answers there".to_owned()),
        Err(error) => (SessionStatus::Nobody, foreign(&format!("{error:#}"))),
    }
}
