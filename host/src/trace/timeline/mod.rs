//! Computes timelines from the records of a trace: each CPU's activity, and each flush's targets.
//!
//! Each moment of a CPU belongs to one span: in the guest, in the hypervisor, or idle. A flush that
//! a vCPU requests lasts from its `FlushAsked` to its `FlushDone`; the kicks in between belong to
//! it. The target of a kick has answered at its first exit after the kick. A vCPU that is named,
//! and whose CPU was not kicked, carries out the flush later, before it enters the guest: the flush
//! was deferred. [`ipi`] does the same for interrupts: one that a vCPU sends to another arrives at
//! the receiver's next entry.

mod ipi;

use super::collect::Collected;
use crate::prelude::*;
use hostlink::trace::{Event, NO_VCPU, Record};
pub(crate) use ipi::{Ipi, Receiver};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It runs guest code of a vCPU.
    Guest { vcpu: u16 },
    /// It runs the hypervisor, for a vCPU unless it only looks for the next one.
    Hypervisor { vcpu: Option<u16>, why: Why },
    /// It waits for an interrupt.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// An exit, counted by this counter.
    Exit(Counter),
    /// An entry was cancelled, because an event or a flush request was pending.
    Cancelled,
    /// It takes another vCPU, or looks for one.
    Scheduling,
}

impl Why {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exit(counter) => counter.name(),
            Self::Cancelled => "entry cancelled",
            Self::Scheduling => "scheduling",
        }
    }
}

/// A period in which a CPU does one thing. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) doing: Doing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kicked {
    pub(crate) cpu: u32,
    pub(crate) at: u64,
    /// The vCPU that it ran.
    pub(crate) vcpu: Option<u16>,
    /// When it next left the guest.
    pub(crate) exit: Option<u64>,
}

/// A vCPU that carried out its pending requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) vcpu: u16,
    pub(crate) cpu: u32,
    pub(crate) at: u64,
    /// Whether it dropped all translations of its address space tag.
    pub(crate) whole: bool,
    /// Otherwise, the number of pages that it dropped.
    pub(crate) pages: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flush {
    /// The CPU of its initiator.
    pub(crate) cpu: u32,
    /// The initiator; `None` for a flush of all nested translations.
    pub(crate) vcpu: Option<u16>,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) named: Vec<u16>,
    /// Elements of the list; 0 if everything is flushed.
    pub(crate) elements: u64,
    /// The number of targets, and of these, those that were not in guest mode.
    pub(crate) targets: u32,
    pub(crate) deferred_count: u32,
    /// Of the others, those that another flush had kicked.
    pub(crate) merged: u32,
    pub(crate) kicked: Vec<Kicked>,
    /// Deferred targets that carried it out at a later entry, if that is in the trace.
    pub(crate) deferred: Vec<Taken>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct CpuLine {
    /// In order, without gaps.
    pub(crate) spans: Vec<Span>,
    /// Turns of vCPUs: the vCPU, the beginning and the end.
    pub(crate) turns: Vec<(u16, u64, u64)>,
    pub(crate) lost: u64,
}

/// A run, from its first record on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    /// By number. CPUs that run no vCPUs have no spans.
    pub(crate) cpus: Vec<CpuLine>,
    /// By their start.
    pub(crate) flushes: Vec<Flush>,
    /// Requests that were carried out, by time.
    pub(crate) taken: Vec<Taken>,
    /// By time.
    pub(crate) ipis: Vec<Ipi>,
}

impl Timeline {
    pub(crate) fn new(collected: &Collected) -> Self {
        let first = collected.cpus.iter().filter_map(|cpu| cpu.records.first()).map(|it| it.time).min();
        let clock = Clock { first: first.unwrap_or(0), hz: collected.hz };
        let mut timeline = Self::default();
        for (cpu, records) in (0..).zip(&collected.cpus) {
            let mut lane = Lane { cpu, ..Lane::default() };
            for record in &records.records {
                lane.take(record, clock.ns(record.time));
            }
            timeline.flushes.extend(lane.flushes);
            timeline.taken.extend(lane.taken);
            timeline.ipis.extend(lane.ipis);
            timeline.cpus.push(CpuLine { lost: records.lost, ..lane.line });
        }
        timeline.flushes.sort_by_key(|flush| flush.start);
        timeline.taken.sort_by_key(|taken| taken.at);
        timeline.ipis.sort_by_key(|ipi| ipi.at);
        timeline.connect();
        ipi::connect(&mut timeline.ipis, &timeline.cpus);
        timeline
    }

    /// Finds the exits after kicks, and the entries that carried out deferred flushes.
    fn connect(&mut self) {
        let Self { cpus, flushes, taken, ipis: _ } = self;
        for flush in flushes {
            for kicked in &mut flush.kicked {
                let Some(line) = cpus.get(kicked.cpu as usize) else { continue };
                let at = line.spans.partition_point(|span| span.end <= kicked.at);
                let Some(span) = line.spans.get(at) else { continue };
                if let Doing::Guest { vcpu } = span.doing {
                    (kicked.vcpu, kicked.exit) = (Some(vcpu), Some(span.end));
                }
            }
            let from = taken.partition_point(|taken| taken.at < flush.start);
            let later = &taken[from..];
            for &vcpu in flush.named.iter().filter(|vcpu| Some(**vcpu) != flush.vcpu) {
                if flush.kicked.iter().any(|kicked| kicked.vcpu == Some(vcpu)) {
                    continue;
                }
                flush.deferred.extend(later.iter().find(|taken| taken.vcpu == vcpu));
            }
        }
    }

    pub(crate) fn spans(&self) -> impl Iterator<Item = (u32, Span)> + '_ {
        (0..).zip(&self.cpus).flat_map(|(cpu, line)| line.spans.iter().map(move |span| (cpu, *span)))
    }

    pub(crate) fn lost(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.lost).sum()
    }
}

/// Converts ticks to nanoseconds since the first record.
#[derive(Clone, Copy)]
struct Clock {
    first: u64,
    hz: u64,
}

impl Clock {
    fn ns(self, time: u64) -> u64 {
        let ticks = u128::from(time.saturating_sub(self.first));
        u64::try_from(ticks * 1_000_000_000 / u128::from(self.hz.max(1))).unwrap_or(u64::MAX)
    }
}

/// The state of one CPU while its records are read.
#[derive(Default)]
struct Lane {
    cpu: u32,
    line: CpuLine,
    flushes: Vec<Flush>,
    taken: Vec<Taken>,
    ipis: Vec<Ipi>,
    /// When its current activity began, and that activity.
    now: Option<(u64, Doing)>,
    turn: Option<(u16, u64)>,
    flush: Option<Flush>,
    /// The last bank of its targets.
    bank: Option<u32>,
}

impl Lane {
    fn take(&mut self, record: &Record, at: u64) {
        let vcpu = Some(record.vcpu).filter(|&vcpu| vcpu != NO_VCPU);
        let hypervisor = |why| Doing::Hypervisor { vcpu, why };
        match record.event {
            Event::Enter => self.switch(at, Doing::Guest { vcpu: record.vcpu }),
            Event::EntryCancelled => {
                // The guest did not run: the span that has just begun belongs to the hypervisor.
                let since = self.now.map_or(at, |(since, _)| since);
                self.now = Some((since, hypervisor(Why::Cancelled)));
            }
            Event::Exit => {
                let counter = Counter::ALL.get(record.detail as usize).copied();
                self.switch(at, hypervisor(Why::Exit(counter.unwrap_or(Counter::ExitOther))));
            }
            Event::TurnBegins => {
                self.end_turn(at);
                self.turn = vcpu.map(|vcpu| (vcpu, at));
                self.switch(at, hypervisor(Why::Scheduling));
            }
            Event::TurnEnds => {
                self.end_turn(at);
                self.switch(at, Doing::Hypervisor { vcpu: None, why: Why::Scheduling });
            }
            Event::IdleBegins => {
                self.end_turn(at);
                self.switch(at, Doing::Idle);
            }
            Event::IdleEnds => self.switch(at, hypervisor(Why::Scheduling)),
            Event::FlushAsked => self.ask(record, vcpu, at),
            Event::SpaceFlushBegins => {
                self.bank = None;
                self.flush = Some(self.begin(None, at));
            }
            Event::Kick => {
                if let Some(flush) = &mut self.flush {
                    flush.kicked.push(Kicked { cpu: record.detail, at, vcpu: None, exit: None });
                }
            }
            Event::FlushDone => self.finish(record, at),
            Event::SpaceFlushEnds => self.finish(&Record { a: 0, b: 0, ..*record }, at),
            Event::FlushTaken => {
                let (whole, pages) = (record.detail != 0, record.a);
                self.taken.push(Taken { vcpu: record.vcpu, cpu: self.cpu, at, whole, pages });
            }
            Event::Posted => self.post(record, at),
        }
    }

    /// An interrupt is posted. Those of devices and timers, and a vCPU's own, are left out.
    fn post(&mut self, record: &Record, at: u64) {
        let Some((_, Doing::Hypervisor { vcpu: Some(from), .. })) = self.now else { return };
        if from != record.vcpu {
            let (cpu, to, vector) = (self.cpu, record.vcpu, record.detail);
            self.ipis.push(Ipi { cpu, from, to, at, vector, receiver: Receiver::Waiting, entry: None });
        }
    }

    fn switch(&mut self, at: u64, doing: Doing) {
        if let Some((start, before)) = self.now.replace((at, doing))
            && start < at
        {
            self.line.spans.push(Span { start, end: at, doing: before });
        }
    }

    fn end_turn(&mut self, at: u64) {
        if let Some((vcpu, since)) = self.turn.take() {
            self.line.turns.push((vcpu, since, at));
        }
    }

    fn begin(&self, vcpu: Option<u16>, at: u64) -> Flush {
        Flush { cpu: self.cpu, vcpu, start: at, end: at, ..Flush::default() }
    }

    /// A bank of a flush's targets: the first one begins the flush.
    fn ask(&mut self, record: &Record, vcpu: Option<u16>, at: u64) {
        // Banks ascend. A call that had nothing to flush has no end record.
        if self.bank.replace(record.detail).is_none_or(|before| before >= record.detail) {
            self.flush = Some(self.begin(vcpu, at));
        }
        let Some(flush) = &mut self.flush else { return };
        flush.elements = record.b;
        let named = (0..64).filter(|bit| record.a & 1 << bit != 0);
        let named = named.map(|bit| record.detail.saturating_add(bit));
        flush.named.extend(named.filter_map(|vcpu| u16::try_from(vcpu).ok()));
    }

    fn finish(&mut self, record: &Record, at: u64) {
        let half = |word: u64, shift: u32| u32::try_from(word >> shift & u64::from(u32::MAX)).unwrap_or(0);
        self.bank = None;
        if let Some(flush) = self.flush.take() {
            self.flushes.push(Flush {
                end: at,
                targets: half(record.a, 0),
                deferred_count: half(record.a, 32),
                merged: half(record.b, 32),
                ..flush
            });
        }
    }
}

#[cfg(test)]
mod tests;
