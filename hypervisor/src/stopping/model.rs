//! The stop under loom: vCPUs that run until they are told, and whoever tells them.

use super::{ARRIVED, END, LEFT, PAUSE, RESET, Role, Stopping};
use crate::model::explored;
use crate::sched::notify::{self, Published, Taken};
use crate::sync::{AtomicU32, Ordering};
use coherence::Target;
use loom::sync::Arc;
use loom::thread;

const COUNT: u32 = 2;
/// How the guest ends.
const CODE: u32 = 7;

struct Guest {
    stopping: Stopping,
    told: [Target; COUNT as usize],
    /// Relaxed: only the protocol orders them. What each vCPU has saved, and what the reset leaves.
    saved: [AtomicU32; COUNT as usize],
    memory: AtomicU32,
    resets: AtomicU32,
}

impl Guest {
    fn new() -> Arc<Self> {
        let words = || [AtomicU32::new(0), AtomicU32::new(0)];
        let (memory, resets) = (AtomicU32::new(1), AtomicU32::new(0));
        let told = [Target::new(), Target::new()];
        Arc::new(Self { stopping: Stopping::default(), told, saved: words(), memory, resets })
    }

    fn begin(&self, why: u32) {
        self.tell(self.stopping.begin(why));
    }

    fn tell(&self, begun: Option<Published>) {
        if begun.is_some() {
            self.told.iter().for_each(|told| _ = told.post_event());
        }
    }

    fn take_event(&self, vcpu: usize) -> Option<Taken> {
        notify::take_events(&mut self.told[vcpu].owner().expect("free"))
    }

    /// A vCPU that is told stops. Returns whether it has reset the guest and goes on.
    fn run(&self, vcpu: usize, leave: fn(&Self, usize)) -> Option<bool> {
        let _told = self.take_event(vcpu)?;
        assert_ne!(self.stopping.attention() & super::STOP, 0, "it is told for a reason");
        match self.stopping.arrive(COUNT) {
            Role::Leaves => {
                leave(self, vcpu);
                Some(false)
            }
            Role::Resets => {
                while self.stopping.left() + 1 != COUNT {
                    thread::yield_now();
                }
                assert_eq!(self.saved[1 - vcpu].load(Ordering::Relaxed), 1, "the other has been saved");
                self.memory.store(2, Ordering::Relaxed);
                self.resets.fetch_add(1, Ordering::Relaxed);
                let goes_on = self.stopping.end_reset(COUNT);
                if !goes_on {
                    leave(self, vcpu);
                }
                Some(goes_on)
            }
        }
    }
}

/// B as it is.
fn save_and_leave(guest: &Guest, vcpu: usize) {
    guest.saved[vcpu].store(1, Ordering::Relaxed);
    guest.stopping.leave(COUNT, |_| {});
}

/// A mistake: the vCPU counts itself before it is saved.
fn leave_and_save(guest: &Guest, vcpu: usize) {
    guest.stopping.leave(COUNT, |_| {});
    guest.saved[vcpu].store(1, Ordering::Relaxed);
}

/// Both vCPUs run; one of them asks for a reset.
fn reset(leave: fn(&Guest, usize)) {
    let guest = Guest::new();
    guest.begin(RESET);
    let other = {
        let guest = guest.clone();
        thread::spawn(move || guest.run(1, leave))
    };
    let own = guest.run(0, leave);
    let other = other.join().unwrap();
    assert!(own.is_some() && other.is_some(), "each is told");
    assert_eq!([own, other].iter().filter(|role| **role == Some(true)).count(), 1, "one resets");
    assert_eq!((guest.stopping.attention(), guest.stopping.left()), (0, 0));
}

explored! {
    fn the_last_vcpu_resets_a_guest_whose_others_are_saved(None): || reset(save_and_leave);
    fn a_vcpu_that_counts_itself_too_early_is_found(None) fails "the other has been saved":
        || reset(leave_and_save);
}

/// One vCPU has left; the other is about to end the reset.
fn in_reset() -> Arc<Guest> {
    let guest = Guest::new();
    guest.begin(RESET);
    assert_eq!(guest.stopping.arrive(COUNT), Role::Leaves);
    save_and_leave(&guest, 1);
    assert_eq!(guest.stopping.arrive(COUNT), Role::Resets);
    guest
}

/// A pause is requested at any moment of a reset: either the guest goes on, and then all are told,
/// or all have stopped.
fn pause_beside_reset(end: fn(&Stopping) -> bool) {
    let guest = in_reset();
    assert!((0..COUNT as usize).all(|vcpu| guest.take_event(vcpu).is_some()), "all were told of the reset");
    let pausing = {
        let guest = guest.clone();
        thread::spawn(move || guest.begin(PAUSE))
    };
    guest.memory.store(2, Ordering::Relaxed);
    let goes_on = end(&guest.stopping);
    if !goes_on {
        guest.stopping.leave(COUNT, |_| {});
    }
    pausing.join().unwrap();
    assert_eq!(guest.stopping.attention(), PAUSE);
    if goes_on {
        assert!(guest.told.iter().all(Target::has_event), "all are told of the pause");
        assert_eq!(guest.stopping.left(), 0, "none has stopped yet");
    } else {
        assert_eq!(guest.stopping.left(), COUNT, "all have stopped");
    }
}

explored! {
    fn a_pause_at_the_end_of_a_reset_is_not_lost(None):
        || pause_beside_reset(|stopping| stopping.end_reset(COUNT));
    fn an_end_of_a_reset_that_looks_only_once_is_found(None) fails "the pause": || {
        pause_beside_reset(|stopping| {
            let goes_on = stopping.attention() & super::STOP == RESET;
            let left = if goes_on { 0 } else { COUNT * ARRIVED + (COUNT - 1) * LEFT };
            stopping.stopped.store(left, Ordering::Relaxed);
            stopping.clear(RESET);
            goes_on
        });
    };
}

/// A reset of two steps, between which the guest may be paused. Who resumes it lets it go on by
/// `go_on`, which learns whether a reset is in progress.
fn reset_paused(go_on: fn(&Stopping, bool)) {
    let guest = in_reset();
    // Relaxed: the protocol orders it. Whether a reset is in progress.
    let resets = Arc::new(AtomicU32::new(1));
    let operator = {
        let (guest, resets) = (guest.clone(), resets.clone());
        thread::spawn(move || {
            guest.begin(PAUSE);
            while guest.stopping.left() != COUNT {
                if guest.stopping.attention() & RESET == 0 {
                    return; // The reset was over first.
                }
                thread::yield_now();
            }
            assert_eq!(guest.memory.load(Ordering::Relaxed), guest.saved[0].load(Ordering::Relaxed));
            let in_progress = resets.load(Ordering::Relaxed) == 1;
            go_on(&guest.stopping, in_progress);
            // Another vCPU, which is woken early: it must not run on memory that is half reset.
            let runs = guest.stopping.attention() & super::STOP == 0;
            assert!(!runs || guest.memory.load(Ordering::Relaxed) == 3, "memory is half reset");
        })
    };
    for step in 2..=3 {
        if guest.stopping.attention() & PAUSE != 0 {
            guest.saved[0].store(guest.memory.load(Ordering::Relaxed), Ordering::Relaxed);
            guest.stopping.leave(COUNT, |_| {});
            while guest.stopping.attention() & PAUSE != 0 {
                thread::yield_now();
            }
        }
        guest.memory.store(step, Ordering::Relaxed);
    }
    guest.saved[0].store(3, Ordering::Relaxed);
    resets.store(0, Ordering::Relaxed);
    if !guest.stopping.end_reset(COUNT) {
        guest.stopping.leave(COUNT, |_| {});
    }
    operator.join().unwrap();
    assert_eq!(guest.stopping.attention() & RESET, 0, "the reset is over");
}

explored! {
    fn a_reset_that_is_paused_goes_on_alone(Some(2)): || {
        reset_paused(|stopping, in_progress| match in_progress {
            true => stopping.go_on_with_reset(COUNT),
            false => stopping.go_on(),
        });
    };
    fn a_guest_that_goes_on_in_the_middle_of_its_reset_is_found(Some(2)) fails "memory is half reset":
        || reset_paused(|stopping, _| stopping.go_on());
    fn who_finds_no_reset_finds_memory_reset(None): || {
        let guest = in_reset();
        let other = {
            let guest = guest.clone();
            thread::spawn(move || {
                let is_over = guest.stopping.attention() & RESET == 0;
                (is_over, guest.memory.load(Ordering::Relaxed))
            })
        };
        guest.memory.store(2, Ordering::Relaxed);
        assert!(guest.stopping.end_reset(COUNT));
        let (is_over, memory) = other.join().unwrap();
        assert!(!is_over || memory == 2, "{memory}");
    };
}

/// One vCPU stops for a pause, and the other one ends the guest: whichever is the last to leave
/// records the end, before anybody finds that all have left.
fn end_beside_pause(leave: fn(&Stopping, &AtomicU32)) {
    let guest = Guest::new();
    let recorded = Arc::new(AtomicU32::new(0));
    guest.begin(PAUSE);
    let pausing = {
        let (guest, recorded) = (guest.clone(), recorded.clone());
        thread::spawn(move || {
            assert_eq!(guest.stopping.arrive(COUNT), Role::Leaves);
            leave(&guest.stopping, &recorded);
        })
    };
    let destroying = {
        let (guest, recorded) = (guest.clone(), recorded.clone());
        thread::spawn(move || (guest.stopping.left() == COUNT, recorded.load(Ordering::Relaxed)))
    };
    let _all_have_been_told = guest.stopping.end(CODE);
    assert_eq!(guest.stopping.arrive(COUNT), Role::Leaves);
    leave(&guest.stopping, &recorded);
    let (has_stopped, records) = destroying.join().unwrap();
    assert!(!has_stopped || records == 1, "whoever finds that all have left finds the end");
    pausing.join().unwrap();
    assert_eq!(recorded.load(Ordering::Relaxed), 1, "the end is recorded once");
}

explored! {
    fn the_last_vcpu_to_leave_records_the_end(Some(2)): || {
        end_beside_pause(|stopping, recorded| {
            stopping.leave(COUNT, |ended| {
                recorded.fetch_add(u32::from(ended == Some(CODE)), Ordering::Relaxed);
            });
        });
    };
    fn a_vcpu_that_looks_for_the_end_before_it_leaves_is_found(Some(2)) fails "the end is recorded once":
        || {
            end_beside_pause(|stopping, recorded| {
                let ends = stopping.attention() & END != 0;
                stopping.leave(COUNT, |_| {
                    recorded.fetch_add(ends.into(), Ordering::Relaxed);
                });
            });
        };
    fn an_end_that_is_recorded_after_the_vcpu_has_left_is_found(Some(2)) fails "whoever finds that all have left":
        || {
            end_beside_pause(|stopping, recorded| {
                let mut is_end = false;
                stopping.leave(COUNT, |ended| is_end = ended == Some(CODE));
                recorded.fetch_add(is_end.into(), Ordering::Relaxed);
            });
        };
}

/// The guest is ended by something else than its vCPUs, while all of them leave for a pause.
fn end_beside_last_vcpu(end: fn(&Stopping)) {
    let guest = Guest::new();
    let ending = {
        let guest = guest.clone();
        thread::spawn(move || end(&guest.stopping))
    };
    for _ in 0..COUNT {
        assert_eq!(guest.stopping.arrive(COUNT), Role::Leaves);
        guest.stopping.leave(COUNT, |ended| assert!(ended.is_none_or(|code| code == CODE), "how it ended"));
    }
    ending.join().unwrap();
}

explored! {
    fn whoever_finds_that_a_guest_has_ended_finds_how(None):
        || end_beside_last_vcpu(|stopping| _ = stopping.end(CODE));
    fn an_end_before_its_code_is_found(None) fails "how it ended": || {
        end_beside_last_vcpu(|stopping| {
            let _ = stopping.begin(END);
            stopping.ended.store(CODE, Ordering::Relaxed);
        });
    };
    /// Whoever finds that all vCPUs of a new guest have stopped finds why.
    fn a_guest_that_pauses_from_the_beginning_has_stopped_for_that(None): || {
        let guest = Guest::new();
        let other = {
            let guest = guest.clone();
            thread::spawn(move || (guest.stopping.left() == COUNT).then(|| guest.stopping.attention()))
        };
        guest.stopping.pause_from_the_beginning(COUNT);
        assert!(other.join().unwrap().is_none_or(|reasons| reasons == PAUSE), "for no reason");
    };
}
