//! What a guest is sent as, on its way from the hypervisor's channel to a file or another tool.

use super::policy::{Bandwidth, Policy, Round, Step, Wanted};
use super::port::{Frame, Talk};
use super::seal::BLOCK_MAX;
use super::snapshot::is_of_a_guest;
use super::time::{Relation, now_ns, with_clock};
use super::wire::PATIENCE;
use crate::prelude::*;
use indicatif::ProgressBar;
use migration::frame::{self, HEADER, Kind, PAGE};
use zerocopy::FromBytes;

/// What is asked for besides when the guest is stopped.
#[derive(Clone)]
pub(crate) struct Manner {
    pub(crate) wanted: Wanted,
    /// Bytes per second at most.
    pub(crate) bandwidth: Option<u64>,
    /// Whether progress is shown on a terminal.
    pub(crate) shows: bool,
    pub(crate) signals: Signals,
    /// The other side may be silent for so long.
    pub(crate) patience: Duration,
}

impl Manner {
    /// As fast as it goes, without progress on a terminal.
    pub(crate) const fn new(wanted: Wanted, signals: Signals) -> Self {
        Self { wanted, bandwidth: None, shows: false, signals, patience: PATIENCE }
    }
}

/// What a step has come upon.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Nothing was there.
    Idle,
    /// Frames were passed on.
    Moved,
    /// The guest is complete.
    Complete,
    /// The hypervisor has given the guest away.
    Go,
}

pub(super) struct Outflow {
    policy: Policy,
    bandwidth: Bandwidth,
    clock: Relation,
    bar: ProgressBar,
    pub(super) rounds: Vec<Round>,
    pub(super) bytes: u64,
    begun: Instant,
}

impl Outflow {
    /// Of a guest with so many bytes of memory, on a machine whose counter has this rate.
    pub(super) fn new(manner: &Manner, memory: u64, hz: u64) -> Self {
        let template = "{spinner} {elapsed}  {wide_bar} {bytes}, {binary_bytes_per_sec} {msg}";
        let bar = if manner.shows { crate::steps::bar(template, memory) } else { ProgressBar::hidden() };
        Self {
            policy: Policy::new(manner.wanted),
            bandwidth: Bandwidth::new(manner.bandwidth),
            clock: Relation::new(hz),
            bar,
            rounds: Vec::new(),
            bytes: 0,
            begun: Instant::now(),
        }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Passes on what is there, at most a block. What is put into it has to be sent by `far`.
    pub(super) fn step(
        &mut self,
        talk: &mut Talk,
        mut far: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<Event> {
        // The time is taken last: a pause in between makes the counter older, not newer.
        let counter = talk.port.clock();
        self.clock.look(counter, now_ns());
        let wait = self.bandwidth.wait(Instant::now());
        if !wait.is_zero() {
            thread::sleep(wait.min(Duration::from_millis(5)));
            return Ok(Event::Moved);
        }
        let mut block = Vec::new();
        let mut event = Event::Idle;
        while block.len() + HEADER + frame::BODY_MAX <= BLOCK_MAX && !is_end(&event) {
            let Some(frame) = talk.port.next()? else { break };
            event = self.pass(talk, frame, &mut block)?;
        }
        if !block.is_empty() {
            self.bytes += block.len() as u64;
            self.bandwidth.sent(block.len());
            far(&block)?;
            if !self.bar.is_hidden() {
                self.show();
            }
        }
        Ok(event)
    }

    fn pass(&mut self, talk: &mut Talk, frame: Frame, block: &mut Vec<u8>) -> Result<Event> {
        let frame = match frame.kind {
            Kind::Go => return Ok(Event::Go),
            Kind::Failed => bail!("the hypervisor cannot send the guest: {}", frame.text()),
            Kind::Clock => with_clock(&frame, |clock| {
                let at = self.clock.time_of(clock.at).context("the machine's clock was not seen yet")?;
                clock.at = at;
                Ok(())
            })?,
            Kind::Round => {
                for next in self.decide(&frame)? {
                    talk.port.put_soon(&next)?;
                }
                frame
            }
            kind if is_of_a_guest(kind) => frame,
            kind => bail!("the hypervisor says {kind:?} while it sends a guest"),
        };
        frame.write_to(block);
        Ok(if frame.kind == Kind::End { Event::Complete } else { Event::Moved })
    }

    fn decide(&mut self, frame: &Frame) -> Result<Vec<Frame>> {
        let sent = frame::Round::read_from_bytes(frame.content());
        let sent = sent.map_err(|_| anyhow!("a round's end has a wrong length"))?;
        #[expect(clippy::cast_precision_loss, reason = "a duration that is shown and compared")]
        let seconds = sent.ticks as f64 / sent.hz.max(1) as f64;
        let round = Round { round: frame.header.argument, pages: sent.pages, zeros: sent.zeros, seconds };
        self.rounds.push(round);
        Ok(match self.policy.decide(&round) {
            Step::Finish => vec![Frame::bare(Kind::Finish)],
            Step::Next { slower: 0 } => vec![Frame::bare(Kind::Next)],
            Step::Next { slower } => vec![Frame::new(Kind::Slow, slower, &[]), Frame::bare(Kind::Next)],
            Step::GiveUp => bail!(
                "given up after {} rounds: the guest writes memory faster than it is sent, the last round \
                 took {:.0} ms. It runs on here. Ask for a longer --downtime, or for --throttle",
                self.rounds.len(),
                seconds * 1e3
            ),
        })
    }

    /// What the guest has written in the last round's time.
    fn show(&self) {
        #[expect(clippy::cast_precision_loss, reason = "a rate that is shown")]
        let written = match &self.rounds[..] {
            [.., before, last] => {
                let bytes = (last.pages + last.zeros) * PAGE as u64;
                let rate = bytes as f64 / before.seconds.max(1e-6) / MIB as f64;
                format!(", the guest writes {rate:.0} MiB/s, {} remain", size::display(bytes))
            }
            _ => String::new(),
        };
        self.bar.set_position(self.bytes);
        self.bar.set_message(format!("round {}{written}", self.rounds.len()));
    }
}

const fn is_end(event: &Event) -> bool {
    matches!(event, Event::Complete | Event::Go)
}
