//! The control channel: requests of the host tool over the real COM4, one at a time (`hostlink::ctl`).
//!
//! The boot CPU serves them between entries into the guest, or while it idles. What takes long is done in steps, each short enough
//! not to be noticed by the vCPU that runs there; its timer brings the CPU back soon while there is more to do.

mod requests;
mod runs;

use core::fmt::{self, Write};

use hostlink::ctl::{LINE_MAX, LineBuffer, Request};
use spin::Mutex;

use super::machine::{Machine, machine};
use super::percpu::PerCpu;
use super::{clock, console};
use requests::{Progress, Work};

/// While a request is being served its CPU comes back to it after so long.
const PERIOD_US: u64 = 100;

static CHANNEL: Mutex<Channel> = Mutex::new(Channel { line: LineBuffer::new(), active: None });

struct Channel {
    line: LineBuffer,
    active: Option<Active>,
}

/// The request that is being served.
struct Active {
    number: u64,
    work: Work,
}

/// Serves requests for a short while if the calling CPU is the one that does; whether there is more to do at once.
pub(super) fn serve(cpu: &PerCpu) -> bool {
    let vm = machine();
    if cpu.index != 0 || !vm.requests_wait() {
        return false;
    }
    let mut channel = CHANNEL.lock();
    let has_more = channel.step(vm);
    if !has_more {
        // What comes in from here on interrupts again; what came in before is looked for once more.
        vm.set_requests_wait(false);
        if channel.receive(vm) {
            vm.set_requests_wait(true);
        }
    }
    let goes_on = vm.requests_wait();
    cpu.tick_max.set(if goes_on { vm.tick_max.min(clock::ticks_of_us(PERIOD_US)) } else { vm.tick_max });
    goes_on
}

impl Channel {
    /// Goes on with the request, or begins the next one; false if there is none.
    fn step(&mut self, vm: &'static Machine) -> bool {
        if self.active.is_none() && !self.receive(vm) {
            return false;
        }
        let Some(Active { number, work }) = &mut self.active else { return true };
        let answer = match work.step(vm, &mut Answer { number: *number }) {
            Progress::More => return true,
            Progress::Done => Ok(()),
            Progress::Refused(why) => Err(why),
        };
        let number = *number;
        match answer {
            Ok(()) => say(format_args!("{number} ok")),
            Err(why) => say(format_args!("{number} error {why}")),
        }
        self.active = None;
        true
    }

    /// Reads what has come in until it makes a request; whether it does.
    fn receive(&mut self, vm: &'static Machine) -> bool {
        while let Some(byte) = console::receive_control() {
            let Some(parsed) = self.line.push(byte, |line| match line.trim() {
                "" => None,
                line => Some(Request::parse(line)),
            }) else {
                continue;
            };
            match parsed {
                None => {}
                Some(Ok((number, request))) => {
                    self.active = Some(Active { number, work: Work::new(vm, request) });
                    return true;
                }
                Some(Err((number, error))) => say(format_args!("{} error {error}", number.unwrap_or(0))),
            }
        }
        false
    }
}

/// Where records of an answer go.
pub(super) struct Answer {
    number: u64,
}

impl Answer {
    /// Sends a record.
    pub(super) fn record(&mut self, fields: fmt::Arguments<'_>) {
        say(format_args!("{} : {fields}", self.number));
    }
}

/// Sends a line, cut to the longest that the other side takes.
fn say(text: fmt::Arguments<'_>) {
    let mut line = Line { left: LINE_MAX };
    // Cutting it is its only failure.
    let _ = line.write_fmt(text);
    console::send_control(b'\n');
}

struct Line {
    left: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            console::send_control(byte);
        }
        Ok(())
    }
}
