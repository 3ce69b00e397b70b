use super::*;
use crate::moment::{Moment, each_moment};
use std::boxed::Box;
use std::sync::Mutex;
use std::vec::Vec;

const ENTRIES: u32 = 4;

/// A controller with one queue, whose status of a command is that command's first word.
#[derive(Default)]
struct Made {
    moment: Moment,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pages: Option<&'static [Page; 2]>,
    is_ready: bool,
    /// By its doorbells: commands up to here, completions up to here.
    bells: [u32; 2],
    done: Vec<u64>,
    stands_still: bool,
}

impl State {
    fn do_next(&mut self) {
        let [at, round] = [self.done.len() as u32 % ENTRIES, self.done.len() as u32 / ENTRIES];
        let Some(pages) = self.pages.filter(|_| !self.stands_still && at != self.bells[0]) else {
            return;
        };
        assert_ne!((at + 1) % ENTRIES, self.bells[1], "it has no place for the completion");
        let command = pages[0].words()[at as usize * COMMAND_WORDS].load(Ordering::Acquire);
        let phase = if round % 2 == 0 { PHASE } else { 0 };
        let place = &pages[1].words()[at as usize * COMPLETION_WORDS + 1];
        place.store(command << STATUS_SHIFT | phase, Ordering::Release);
        self.done.push(command);
    }
}

impl Registers for &Made {
    fn read(&self, register: u64) -> u32 {
        self.moment.pass();
        assert_eq!(register, STATUS);
        self.state.lock().unwrap().is_ready.into()
    }

    fn write(&self, register: u64, value: u32) {
        self.moment.pass();
        let mut state = self.state.lock().unwrap();
        match register {
            CONFIGURATION => state.is_ready = value == ENABLED,
            BELLS | 0x1004 => state.bells[usize::from(register != BELLS)] = value,
            _ => assert!(!state.is_ready, "it is in use"),
        }
    }

    fn wait_until(&self, mut is_so: impl FnMut() -> bool) -> bool {
        (0..8).any(|_| {
            let is_so = is_so();
            self.state.lock().unwrap().do_next();
            is_so
        })
    }
}

fn made() -> (&'static Made, Controller<&'static Made>, Queue) {
    let made: &'static Made = Box::leak(Box::default());
    let pages: &'static [Page; 2] = Box::leak(Box::default());
    made.state.lock().unwrap().pages = Some(pages);
    let (controller, mut queue) = (Controller(made), Queue::new(0, ENTRIES, pages));
    controller.start(&mut queue).expect("it starts");
    (made, controller, queue)
}

const fn command(number: u64) -> Command {
    [number, 0, 0, 0, 0, 0, 0, 0]
}

#[test]
fn commands_that_are_done_at_any_moment_are_done_once_and_taken_in_order() {
    each_moment(|at| {
        let (made, controller, mut queue) = made();
        made.moment.set(at, || (0..ENTRIES).for_each(|_| made.state.lock().unwrap().do_next()));
        for number in 1..6 {
            assert_eq!(queue.execute(&controller, &command(number)), Err(Refused::Status(number as u32)));
        }
        let (mut pushed, mut taken) = (5, 5);
        while taken < 20 {
            while pushed < 20 && pushed - taken < ENTRIES - 1 {
                pushed += 1;
                queue.push(&command(pushed.into()));
            }
            queue.ring(&controller);
            while let Some(status) = queue.take() {
                taken += 1;
                assert_eq!(status, taken, "before access {at}");
            }
            queue.release(&controller);
            made.state.lock().unwrap().do_next();
        }
        assert_eq!(made.state.lock().unwrap().done, (1..=20).collect::<Vec<_>>(), "before access {at}");
        made.moment.has_come()
    });
}

#[test]
fn a_command_that_is_done_too_late_is_not_taken_for_the_next_one() {
    each_moment(|at| {
        let (made, controller, mut queue) = made();
        made.moment.set(at, || made.state.lock().unwrap().stands_still = true);
        let mut ended = Vec::new();
        for number in 1..4 {
            ended.push(queue.execute(&controller, &command(number)));
            let mut state = made.state.lock().unwrap();
            state.stands_still &= ended.last() != Some(&Err(Refused::Silent));
            state.do_next();
        }
        let silent = ended.iter().position(|end| *end == Err(Refused::Silent)).unwrap_or(3);
        let is_right = |(number, end): (usize, &_)| match number < silent {
            true => *end == Err(Refused::Status(number as u32 + 1)),
            false => *end == Err(Refused::Silent),
        };
        assert!(ended.iter().enumerate().all(is_right), "before access {at}: {ended:?}");
        made.moment.has_come()
    });
}
