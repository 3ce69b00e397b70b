//! A made-up hypervisor: it speaks the frames of a real one, by the same hand-over, about a guest
//! that is a few pages.

use super::super::port::{Frame, PAUSE, Talk};
use crate::prelude::*;
use hostlink::ctl::record::{Channel, Received, Sent};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc;
use transfer::channel::{End, Sizes};
use transfer::frame::{Clock, HEADER, Header, Kind, PAGE, Round, Section};
use transfer::handover::{Act, Heard, Source, Target};
use transfer::{Archive, Described};
use zerocopy::{FromBytes, IntoBytes};

pub(super) const HZ: u64 = 1_000_000_000;
pub(super) const PAGES: usize = 40;

/// A guest, on one side.
pub(super) struct Guest {
    pub(super) memory: Vec<[u8; PAGE]>,
    pub(super) clock: Clock,
}

impl Guest {
    pub(super) fn new(seed: u8) -> Self {
        let page = |number: usize| {
            [if number.is_multiple_of(3) { 0 } else { seed.wrapping_add(number as u8) }; PAGE]
        };
        let clock = Clock { ticks: 7 * HZ, wall_ns: 1_700_000_000_000_000_000, at: 0, hz: HZ };
        Self { memory: (0..PAGES).map(page).collect(), clock }
    }
}

/// Where a guest runs: on how many sides at this moment.
#[derive(Default)]
pub(super) struct Runs(AtomicU8);

impl Runs {
    pub(super) fn begin(&self) {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "it runs twice");
    }

    pub(super) fn stop(&self) {
        assert_eq!(self.0.fetch_sub(1, Ordering::SeqCst), 1, "it did not run");
    }

    pub(super) fn count(&self) -> u8 {
        self.0.load(Ordering::SeqCst)
    }
}

/// One side: its hypervisor, whose machine may be killed at any time.
pub(super) struct Side {
    pub(super) guest: Mutex<Option<Guest>>,
    pub(super) source: Mutex<Source>,
    pub(super) session: Mutex<u64>,
    pub(super) runs: Arc<Runs>,
    pub(super) is_killed: AtomicBool,
    /// What its counter is ahead of the time of day.
    pub(super) ahead: u64,
}

impl Side {
    pub(super) fn new(guest: Option<Guest>, runs: &Arc<Runs>, ahead: u64) -> Arc<Self> {
        if guest.is_some() {
            runs.begin();
        }
        Arc::new(Self {
            guest: Mutex::new(guest),
            source: Mutex::default(),
            session: Mutex::default(),
            runs: Arc::clone(runs),
            is_killed: AtomicBool::new(false),
            ahead,
        })
    }

    pub(super) fn now(&self) -> u64 {
        super::super::time::now_ns() + self.ahead
    }

    /// Sends its guest, in so many rounds.
    pub(super) fn send(self: &Arc<Self>, session: u64, rounds: u64) -> Talk {
        let given = *self.source.lock().unwrap() == Source::Given;
        if !given {
            *self.session.lock().unwrap() = session;
        }
        let session = *self.session.lock().unwrap();
        self.talk(Sizes::SOURCE, session, given, move |side, line| {
            let away = side.serve_sending(line, given, rounds)?;
            let (stopped, worked, longest, hz) = (HZ / 100, 7, 5, HZ);
            let (rounds, pages, zeros) = (rounds as u32, PAGES as u64, 0);
            Ok(Sent { away: away.into(), rounds, pages, zeros, stopped, worked, longest, hz }.to_string())
        })
    }

    pub(super) fn receive(self: &Arc<Self>) -> Talk {
        self.talk(Sizes::TARGET, 0, false, move |side, line| {
            side.serve_receiving(line)?;
            Ok(Received { pages: PAGES as u64, stopped: HZ / 100, paused: 0, hz: HZ }.to_string())
        })
    }

    fn talk(
        self: &Arc<Self>,
        sizes: Sizes,
        session: u64,
        given: bool,
        serve: impl FnOnce(&Self, &mut Line<'_>) -> Result<String> + Send + 'static,
    ) -> Talk {
        let ram = Arc::new(Ram::new(sizes.total(), 0).expect("makes"));
        let (says, heard) = mpsc::channel();
        says.send(Channel { channel: 0, session, given: given.into() }).expect("is heard");
        let (side, memory) = (Arc::clone(self), Arc::clone(&ram));
        let asking = thread::spawn(move || {
            let at = memory.piece(0, sizes.total()).expect("is one");
            // SAFETY: zero, mapped for as long as `memory` lives, and of these two ends only.
            let end = unsafe { End::of_hypervisor(at, sizes) };
            let mut line = Line { end, side: &side };
            (serve(&side, &mut line), None)
        });
        Talk::of(ram, &heard, asking, sizes).expect("begins")
    }

    fn serve_sending(&self, line: &mut Line<'_>, given: bool, rounds: u64) -> Result<bool> {
        if !given && (!self.send_rounds(line, rounds)? || !self.send_rest(line)?) {
            return self.cut_source(line);
        }
        loop {
            let frame = line.hear()?;
            let heard = match frame.kind {
                Kind::Cut => return self.cut_source(line),
                Kind::Ready => Heard::Ready,
                Kind::Runs => Heard::Runs,
                Kind::Absent => Heard::Absent,
                other => bail!("{other:?}"),
            };
            self.source_hears(heard, line)?;
        }
    }

    fn source_hears(&self, heard: Heard, line: &mut Line<'_>) -> Result<()> {
        let mut source = self.source.lock().unwrap();
        match source.hear(heard) {
            Act::Say(_) => line.say(&Frame::bare(Kind::Go))?,
            Act::Run(_) if !self.is_killed.load(Ordering::SeqCst) => self.runs.begin(),
            Act::Destroy => drop(self.guest.lock().unwrap().take()),
            Act::Wait | Act::Run(_) => {}
        }
        Ok(())
    }

    fn cut_source(&self, line: &mut Line<'_>) -> Result<bool> {
        self.source_hears(Heard::Cut, line)?;
        Ok(*self.source.lock().unwrap() == Source::Away)
    }

    /// The machine is no more, and its guest neither.
    pub(super) fn kill(&self) {
        let (source, mut guest) = (self.source.lock().unwrap(), self.guest.lock().unwrap());
        if guest.take().is_some() && *source == Source::Here {
            self.runs.stop();
        }
        // Last: whoever waits for it looks at the rest at once.
        self.is_killed.store(true, Ordering::SeqCst);
    }

    /// False if it was cut.
    fn send_rounds(&self, line: &mut Line<'_>, rounds: u64) -> Result<bool> {
        line.say(&Frame::new(Kind::Hello, 0, &[7; 17]))?;
        for round in 0..rounds {
            self.send_pages(line)?;
            let sent = Round { pages: 1, zeros: 0, ticks: (HZ / 100) >> round, hz: HZ };
            line.say(&described(Kind::Round, round, sent))?;
            match line.hear()?.kind {
                Kind::Next if round + 1 == rounds => line.say(&Frame::new(Kind::Failed, 0, b"no more"))?,
                Kind::Next => {}
                Kind::Finish => return Ok(true),
                Kind::Cut => return Ok(false),
                other => bail!("{other:?}"),
            }
        }
        Ok(line.hear()?.kind != Kind::Cut)
    }

    fn send_pages(&self, line: &mut Line<'_>) -> Result<()> {
        let memory = self.guest.lock().unwrap().as_ref().context("the machine ended")?.memory.clone();
        for (number, page) in memory.iter().enumerate() {
            let address = (number * PAGE) as u64;
            if page.iter().all(|byte| *byte == 0) {
                line.say(&Frame {
                    header: Header::new(Kind::Zeros, address, 1),
                    kind: Kind::Zeros,
                    body: Vec::new(),
                })?;
            } else {
                line.say(&Frame::new(Kind::Pages, address, page))?;
            }
        }
        Ok(())
    }

    fn send_rest(&self, line: &mut Line<'_>) -> Result<bool> {
        let mut source = self.source.lock().unwrap();
        ensure!(!self.is_killed.load(Ordering::SeqCst), "the machine ended");
        source.offer();
        self.runs.stop();
        drop(source);
        let clock = Clock { at: self.now(), ..Guest::new(0).clock };
        line.say(&described(Kind::Clock, 0, clock))?;
        line.say(&Frame::new(Kind::State, Section::Vcpu(0).argument(), b"a processor"))?;
        line.say(&Frame::new(Kind::End, 1, &[]))?;
        Ok(true)
    }

    fn serve_receiving(&self, line: &mut Line<'_>) -> Result<()> {
        let mut target = Target::Arriving;
        let mut guest = Guest { memory: vec![[0xee; PAGE]; PAGES], clock: Clock::default() };
        loop {
            let frame = line.hear()?;
            let page = (frame.header.argument as usize / PAGE).min(PAGES - 1);
            let act = match frame.kind {
                Kind::Hello | Kind::Round | Kind::State => Act::Wait,
                Kind::Zeros => {
                    guest.memory[page] = [0; PAGE];
                    Act::Wait
                }
                Kind::Pages => {
                    guest.memory[page].copy_from_slice(&frame.body);
                    Act::Wait
                }
                Kind::Clock => {
                    let mut archive = Archive::reader(&frame.body);
                    guest.clock.describe(&mut archive).map_err(|flaw| anyhow!("{flaw}"))?;
                    Act::Wait
                }
                Kind::End => target.complete(),
                Kind::Go => target.hear(Heard::Go),
                Kind::Cut => {
                    target.hear(Heard::Cut);
                    ensure!(target == Target::Running, crate::machine::control::Refused("it was cut".into()));
                    return Ok(());
                }
                other => bail!("{other:?}"),
            };
            match act {
                Act::Say(_) => line.say(&Frame::bare(Kind::Ready))?,
                Act::Run(_) => {
                    let arrived = std::mem::replace(&mut guest, Guest::new(0));
                    let mut place = self.guest.lock().unwrap();
                    ensure!(!self.is_killed.load(Ordering::SeqCst), "the machine ended");
                    *place = Some(arrived);
                    self.runs.begin();
                    drop(place);
                    line.say(&Frame::bare(Kind::Runs))?;
                }
                Act::Wait | Act::Destroy => {}
            }
        }
    }
}

fn described(kind: Kind, argument: u64, mut what: impl Described) -> Frame {
    let mut bytes = [0; 64];
    let mut archive = Archive::writer(&mut bytes);
    what.describe(&mut archive).expect("fits");
    let len = archive.finish().expect("fits");
    Frame::new(kind, argument, &bytes[..len])
}

/// The hypervisor's end.
struct Line<'a> {
    end: End<'static>,
    side: &'a Side,
}

impl Line<'_> {
    fn wait(&self) -> Result<()> {
        self.end.show_clock(self.side.now());
        ensure!(!self.side.is_killed.load(Ordering::SeqCst), "the machine ended before it had answered");
        thread::sleep(PAUSE);
        Ok(())
    }

    fn say(&mut self, frame: &Frame) -> Result<()> {
        while self.end.room().expect("makes sense") < frame.bytes() {
            self.wait()?;
        }
        self.end.show_clock(self.side.now());
        let bytes = [frame.header.as_bytes(), &frame.body].concat();
        let mut left = &bytes[..];
        let put = self.end.write(0, bytes.len(), |piece| {
            let (now, later) = left.split_at(piece.len());
            piece.copy_from_slice(now);
            left = later;
        });
        put.expect("has room");
        self.end.publish(bytes.len());
        Ok(())
    }

    fn hear(&mut self) -> Result<Frame> {
        let read = |end: &End<'_>, ahead, len| {
            let mut bytes = Vec::new();
            end.read(ahead, len, |piece| bytes.extend_from_slice(piece)).expect("is there");
            bytes
        };
        while self.end.filled().expect("makes sense") < HEADER {
            self.wait()?;
        }
        let header = Header::read_from_bytes(&read(&self.end, 0, HEADER)).expect("is one");
        while self.end.filled().expect("makes sense") < HEADER + header.body() {
            self.wait()?;
        }
        let body = read(&self.end, HEADER, header.body());
        self.end.take(HEADER + header.body());
        Ok(Frame { header, kind: header.kind().expect("is one"), body })
    }
}
