//! The control channel: requests of the host tool over a serial port (`hostlink::ctl`).
//!
//! The boot CPU serves them between entries into the guest, or while it idles. Long work is done in
//! steps, each short enough not to disturb the vCPU that runs there. While more is left to do, the
//! CPU's timer brings it back soon.
//!
//! Requests about one guest are served in their order. All others are served at the same time, in
//! turn: whatever a request waits for, it holds up none about another guest. `docs/isolation.md`
//! lists what each one waits for.

mod cost;
mod life;
mod migration;
mod refusal;
mod requests;
mod runs;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::marker::PhantomData;
use hostlink::config::MAX_GUESTS;
use hostlink::ctl::request::Numbered;
use hostlink::ctl::{LINE_MAX, LineBuffer, Reply, Request};
use life::Life;
use paging::Progress;
use refusal::Refusal;
use requests::Work;

use super::arch::Arch;
use super::host::Host;
use super::machine::Vm;
use super::percpu::PerCpu;
use crate::sched::{CpuIndex, GroupIndex};

/// While a request is being served, its CPU returns to it after this time, or after the time that
/// the last step took if that was longer.
const PERIOD_US: u64 = 100;

/// Requests that are not answered yet: so many in all. More are refused at once, except for this
/// number about each guest, and about none: those about others leave them their places.
const ANY_MAX: usize = 64;
const OWN_MAX: usize = 4;
const REQUESTS_MAX: usize = ANY_MAX + (MAX_GUESTS as usize + 1) * OWN_MAX;
/// Bytes that are read before the CPU does something else.
const BYTES_MAX: usize = 2 * LINE_MAX;

/// The control channel of a machine.
pub struct Channel<A: Arch> {
    line: LineBuffer,
    /// The requests that are not answered yet, in the order in which they came.
    served: Vec<Served<A>>,
    /// The place of the one whose turn it is.
    turn: usize,
}

struct Served<A: Arch> {
    /// The number of the guest that it is about, whether or not that exists; `None` for requests
    /// about no single guest.
    about: Option<GroupIndex>,
    active: Active<A>,
    answer: Answer,
}

enum Active<A: Arch> {
    /// It is about memory and counters of a guest, and has not begun.
    Waits(Request),
    /// About memory and counters of this guest, which exists: only another request about it, which
    /// waits for this one, destroys it.
    In(&'static Vm<A>, Box<Work<A>>),
    Life(Box<Life<A>>),
}

/// The state of an answer in progress.
pub struct Answer {
    number: u64,
    /// A record has been sent, and the sender of the request has not asked for more yet.
    awaits: bool,
    /// The sender of the request waits for no answer.
    is_abandoned: bool,
}

/// Serves requests for a short while if the calling CPU is the one responsible. `More` if there is
/// more to do at once, and `Waiting` if it has to look again later.
pub fn serve<A: Arch>(host: &'static Host<A>, cpu: &PerCpu<A>) -> Progress {
    if cpu.index != CpuIndex(0) || !host.requests_wait() {
        return Progress::Done;
    }
    let mut channel = host.channel.lock();
    let start = A::now();
    let mut progress = channel.step(host);
    if progress == Progress::Done {
        // Bytes received from here on interrupt again; the next check covers bytes received before.
        let _nobody_is_told = host.set_requests_wait(false);
        if channel.receive(host) || channel.has_work() {
            let _looks_itself = host.set_requests_wait(true);
            progress = Progress::More;
        }
    }
    let now = A::now();
    let took = now - start;
    // The vCPU here has not had this time.
    host.sched.leave_out(cpu.index, took, now);
    cpu.used_until.set((cpu.used_until.get() + took).min(now));
    // The vCPU here gets as much time as the request has had, so that it makes progress while a
    // long request is served.
    let pause = A::ticks_of_us(PERIOD_US).max(took);
    cpu.tick_max.set(match progress {
        Progress::Done => host.tick_max,
        _ => host.tick_max.min(pause),
    });
    progress
}

impl<A: Arch> Channel<A> {
    pub(super) fn new() -> Self {
        // No request takes memory for its place.
        Self { line: LineBuffer::new(), served: Vec::with_capacity(REQUESTS_MAX), turn: 0 }
    }

    /// Reads what has been received, and continues a request. `Done` if nothing can be done before
    /// more bytes are received.
    fn step(&mut self, host: &'static Host<A>) -> Progress {
        let has_more = self.receive(host);
        // One that only waits for something else leaves the turn to the next one.
        for _ in 0..self.served.len() {
            self.turn = if self.turn < self.served.len() { self.turn } else { 0 };
            if self.may_go_on(self.turn) {
                match self.step_one(host, self.turn) {
                    Progress::Waiting => {}
                    Progress::OutOfTables => return Progress::Waiting,
                    _ => return Progress::More,
                }
            }
            self.turn += 1;
        }
        match (has_more, self.has_work()) {
            (true, _) => Progress::More,
            (false, true) => Progress::Waiting,
            (false, false) => Progress::Done,
        }
    }

    fn has_work(&self) -> bool {
        (0..self.served.len()).any(|place| self.may_go_on(place))
    }

    /// Whether the request in this place is the first about its guest, and its record has been
    /// taken.
    fn may_go_on(&self, place: usize) -> bool {
        let Some(Served { about, answer, .. }) = self.served.get(place) else { return false };
        let is_first = || self.served.iter().take(place).all(|earlier| earlier.about != *about);
        !answer.awaits && (about.is_none() || is_first())
    }

    /// Makes a step of the request in this place, and answers it at its end. The next one has the
    /// next turn.
    fn step_one(&mut self, host: &'static Host<A>, place: usize) -> Progress {
        let Some(Served { about, active, answer }) = self.served.get_mut(place) else {
            return Progress::Waiting;
        };
        let stepped = match active {
            Active::Waits(request) => match about.and_then(|number| host.guest(number)) {
                Some(vm) => {
                    *active = Active::In(vm, Box::new(Work::new(vm, *request)));
                    Ok(Progress::More)
                }
                None => Err(Refusal::NoneSuch),
            },
            // A vCPU that has stopped does not finish the change that it began.
            Active::In(vm, _) if vm.has_stopped() && vm.step_change(None) != Progress::Done => {
                Ok(Progress::More)
            }
            Active::In(vm, work) => work.step(vm, answer),
            Active::Life(life) => life.step(host, answer),
        };
        let number = answer.number;
        match stepped {
            Ok(Progress::Done) => answer.end::<A>(format_args!("{number} ok")),
            Ok(progress) => {
                self.turn += usize::from(progress != Progress::Waiting);
                return progress;
            }
            Err(why) => answer.end::<A>(format_args!("{number} error {why}")),
        }
        self.served.remove(place);
        Progress::Done
    }

    /// Reads bytes that have been received; returns whether there may be more.
    fn receive(&mut self, host: &'static Host<A>) -> bool {
        for _ in 0..BYTES_MAX {
            let Some(byte) = A::receive_control() else { return false };
            let line = self.line.push(byte, |line| match line.trim() {
                "" => None,
                line => Some(Reply::parse(line).ok_or_else(|| Box::new(Request::parse(line)))),
            });
            match line.flatten() {
                None => {}
                Some(Ok(reply)) => self.take_reply(reply),
                Some(Err(request)) => match *request {
                    Ok(numbered) => self.take(host, numbered),
                    Err((number, error)) => {
                        say::<A>(format_args!("{} error {error}", number.unwrap_or(0)));
                    }
                },
            }
        }
        true
    }

    fn take_reply(&mut self, reply: Reply) {
        let (Reply::Next(number) | Reply::Gone(number)) = reply;
        for Served { answer, .. } in self.served.iter_mut().filter(|served| served.answer.number == number) {
            answer.awaits = false;
            answer.is_abandoned |= matches!(reply, Reply::Gone(_));
        }
    }

    fn take(&mut self, host: &'static Host<A>, (number, guest, request): Numbered) {
        let (about, active) = match Life::new(request) {
            Some((about, life)) => {
                let about = about.map(|guest| host.number_of(guest).ok_or(Refusal::NoGuest(guest)));
                (about, Active::Life(Box::new(life)))
            }
            None => {
                let guest = match guest {
                    Some(guest) => host.number_of(guest),
                    None => host.first_guest().map(|vm| vm.number),
                };
                (Some(guest.ok_or(Refusal::NoneSuch)), Active::Waits(request))
            }
        };
        let same = |about| self.served.iter().filter(|served| served.about == about).count();
        let has_place = |about| self.served.len() < ANY_MAX || same(about) < OWN_MAX;
        match about.transpose() {
            Err(why) => say::<A>(format_args!("{number} error {why}")),
            Ok(about) if !has_place(about) => say::<A>(format_args!("{number} error {}", Refusal::TooMany)),
            Ok(about) => {
                let answer = Answer { number, awaits: false, is_abandoned: false };
                self.served.push(Served { about, active, answer });
            }
        }
    }
}

impl Answer {
    /// One that nobody waits for.
    const fn unheard() -> Self {
        Self { number: 0, awaits: false, is_abandoned: true }
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

#[test]
fn a_line_is_cut_to_what_the_host_accepts() {
    use crate::vm::mock::processor::{MockArch, board};
    let board = board(1, "vcpus=1\nmemory=4194304", &[]);
    for len in [0, LINE_MAX - 1, LINE_MAX, LINE_MAX + 1] {
        say::<MockArch>(format_args!("{}", "x".repeat(len)));
        assert_eq!(board.answers().pop().map(|line| line.len()), Some(len.min(LINE_MAX)));
    }
}
