//! The control channel: requests of the host tool over a serial port, one at a time
//! (`hostlink::ctl`).
//!
//! The boot CPU serves them between entries into the guest, or while it idles. Long work is done in
//! steps, each short enough not to disturb the vCPU that runs there. While more is left to do, the
//! CPU's timer brings it back soon.

mod life;
mod migrate;
mod refusal;
mod requests;
mod runs;

use core::fmt::{self, Write};
use core::marker::PhantomData;

use hostlink::ctl::{LINE_MAX, LineBuffer, NEXT, Request};

use super::arch::Arch;
use super::host::Host;
use super::machine::Vm;
use super::percpu::PerCpu;
use life::Life;
use paging::Progress;
use requests::Work;

/// While a request is being served, its CPU returns to it after this time, or after the time that
/// the last step took if that was longer.
const PERIOD_US: u64 = 100;

/// The control channel of a machine.
pub struct Channel<A: Arch> {
    line: LineBuffer,
    /// The request that is being served.
    active: Option<Active<A>>,
    answer: Answer,
}

/// A request that is being served.
enum Active<A: Arch> {
    /// About memory and counters of this guest, which exists: only another request destroys it.
    In(&'static Vm<A>, Work<A>),
    /// About the life of guests.
    Life(Life<A>),
}

/// The state of an answer in progress.
pub struct Answer {
    number: u64,
    /// A record has been sent, and the sender of the request has not asked for more yet.
    awaits: bool,
    /// The sender of the request has disconnected.
    is_abandoned: bool,
}

/// Serves requests for a short while if the calling CPU is the one responsible; returns whether
/// there is more to do at once.
pub fn serve<A: Arch>(host: &'static Host<A>, cpu: &PerCpu<A>) -> bool {
    if cpu.index != 0 || !host.requests_wait() {
        return false;
    }
    let mut channel = host.channel.lock();
    let start = A::now();
    if !channel.step(host) {
        // Bytes received from here on interrupt again; the next check covers bytes received before.
        host.set_requests_wait(false);
        if channel.is_ready(host) {
            host.set_requests_wait(true);
        }
    }
    let now = A::now();
    let took = now - start;
    // The vCPU here has not had this time.
    host.sched.leave_out(cpu.index, took, now);
    cpu.used_until.set((cpu.used_until.get() + took).min(now));
    let goes_on = host.requests_wait();
    // The vCPU here gets as much time as the request has had, so that it makes progress while a
    // long request is served.
    let pause = A::ticks_of_us(PERIOD_US).max(took);
    cpu.tick_max.set(if goes_on { host.tick_max.min(pause) } else { host.tick_max });
    goes_on
}

impl<A: Arch> Channel<A> {
    /// A channel that has received nothing yet.
    pub(super) const fn new() -> Self {
        Self { line: LineBuffer::new(), active: None, answer: Answer::new() }
    }

    /// Continues the request, or begins the next one; false if nothing can be done before more
    /// bytes are received.
    fn step(&mut self, host: &'static Host<A>) -> bool {
        if !self.is_ready(host) {
            return false;
        }
        let Some(active) = &mut self.active else { return true };
        let number = self.answer.number;
        let stepped = match active {
            // A vCPU that has stopped does not finish the change that it began.
            Active::In(vm, _) if vm.has_stopped() && vm.step_change(None) != Progress::Done => {
                return true;
            }
            Active::In(vm, work) => work.step(vm, &mut self.answer),
            Active::Life(life) => life.step(host, &mut self.answer),
        };
        match stepped {
            Ok(Progress::Done) => self.answer.end::<A>(format_args!("{number} ok")),
            Ok(_) => return true,
            Err(why) => self.answer.end::<A>(format_args!("{number} error {why}")),
        }
        self.active = None;
        true
    }

    /// Reads the received bytes until there is something to do; returns whether there is.
    fn is_ready(&mut self, host: &'static Host<A>) -> bool {
        while self.active.is_none() || self.answer.awaits {
            let Some(byte) = A::receive_control() else { return false };
            if self.answer.awaits {
                self.answer.awaits = false;
                if byte == NEXT {
                    continue;
                }
                // The beginning of a new sender's request. The current request continues, and is
                // not answered.
                self.answer.is_abandoned = true;
            }
            self.take(host, byte);
        }
        true
    }

    fn take(&mut self, host: &'static Host<A>, byte: u8) {
        let parsed = self.line.push(byte, |line| match line.trim() {
            "" => None,
            line => Some(Request::parse(line)),
        });
        match parsed.flatten() {
            None => {}
            Some(Ok((number, guest, request))) => {
                self.answer = Answer { number, ..Answer::new() };
                self.active = match Life::new(host, request) {
                    Some(life) => Some(Active::Life(life)),
                    None => match host.find_guest(guest) {
                        Some(vm) => Some(Active::In(vm, Work::new(vm, request))),
                        None => {
                            self.answer.end::<A>(format_args!("{number} error there is no such guest"));
                            None
                        }
                    },
                };
            }
            Some(Err((number, error))) => say::<A>(format_args!("{} error {error}", number.unwrap_or(0))),
        }
    }
}

impl Answer {
    const fn new() -> Self {
        Self { number: 0, awaits: false, is_abandoned: false }
    }

    /// Sends a record: one per step.
    pub fn record<A: Arch>(&mut self, fields: &dyn fmt::Display) {
        if !self.is_abandoned {
            say::<A>(format_args!("{} : {fields}", self.number));
            self.awaits = true;
        }
    }

    fn end<A: Arch>(&self, line: fmt::Arguments<'_>) {
        if !self.is_abandoned {
            say::<A>(line);
        }
    }
}

/// Sends a line, cut to the maximum that the host accepts.
fn say<A: Arch>(text: fmt::Arguments<'_>) {
    let mut line = Line::<A> { left: LINE_MAX, port: PhantomData };
    // Truncation is its only failure.
    let _ = line.write_fmt(text);
    A::send_control(b'\n');
}

struct Line<A> {
    left: usize,
    port: PhantomData<A>,
}

impl<A: Arch> Write for Line<A> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            A::send_control(byte);
        }
        Ok(())
    }
}
