//! The steps with one of them broken, and the scenario that detects it.

use coherence::{Notify, Owner, Space, Target};
use loom::sync::atomic::Ordering::Relaxed;

use super::board::{Cpu, Steps, Vcpu};
use super::scenarios::{halting, halting_under_two, idling, nudging, two_cpus};
use crate::model::explore;
use crate::sched::notify::{self, Reach, Taken};
use crate::sched::{CpuIndex, Nudge, QueueClass, VcpuIndex};

/// Defines a mutant, and the test that it fails: a scenario, and the failure that is seen there.
macro_rules! mutant {
    ($(#[$doc:meta])+ $name:ident fails $test:ident: $scenario:expr, $seen:literal, { $($body:tt)+ }) => {
        $(#[$doc])+
        struct $name;

        impl Steps for $name {
            $($body)+
        }

        #[test]
        #[should_panic(expected = $seen)]
        fn $test() {
            explore(Some(3), $scenario);
        }
    };
}

mutant! {
    /// B before A.
    AnnounceFirst fails event_posted_before_its_thing: halting::<AnnounceFirst>, "maximum number of branches", {
        fn post(here: &impl Reach, vcpu: &Vcpu, index: VcpuIndex) {
            Self::notify(here, index, &vcpu.target, QueueClass::Work);
            vcpu.inbox.fetch_add(1, Relaxed);
        }
    }
}

mutant! {
    /// F before E: the event is taken after the check.
    LookFirst fails event_taken_after_the_look: halting::<LookFirst>, "maximum number of branches", {
        fn settle(cpu: &Cpu<'_>, owner: &mut Owner<'_>, vcpu: &Vcpu) -> bool {
            let makes_room = cpu.look::<Self>(vcpu, Taken::NONE);
            let _posted_before = owner.take_events();
            makes_room
        }
    }
}

mutant! {
    /// The same for a waiter: the queue's state is older than the event that announces the waiter.
    OutlookFirst fails outlook_before_the_event: nudging::<OutlookFirst>, "maximum number of branches", {
        fn settle(cpu: &Cpu<'_>, owner: &mut Owner<'_>, vcpu: &Vcpu) -> bool {
            let makes_room = cpu.look::<Self>(vcpu, Taken::NONE);
            let _posted_before = owner.take_events();
            makes_room
        }
    }
}

mutant! {
    /// G without a check of the word: events since E are discarded unseen.
    HaltRegardless fails halt_without_a_second_look: halting::<HaltRegardless>, "maximum number of branches", {
        fn try_halt(owner: &mut Owner<'_>) -> bool {
            let _unseen = owner.take_events();
            owner.try_halt(Space::UNKNOWN)
        }
    }
}

mutant! {
    /// C without a check of the word: each poster wakes.
    WakeRegardless fails wake_without_a_look_at_the_word: two_cpus::<WakeRegardless>, "runs on another CPU", {
        fn notify(here: &impl Reach, vcpu: VcpuIndex, target: &Target, class: QueueClass) {
            let _ = target.post_event();
            notify::nudge(here, here.scheduler().wake(vcpu, class, 0));
        }
    }
}

mutant! {
    /// The vCPU is not woken: B found it halted.
    WakeNever fails halted_and_not_woken: halting_under_two::<WakeNever>, "maximum number of branches", {
        fn notify(here: &impl Reach, vcpu: VcpuIndex, target: &Target, _: QueueClass) {
            if let Notify::Kick(cpu) = target.post_event() {
                here.kick_guest(vcpu, CpuIndex(cpu.0));
            }
        }
    }
}

mutant! {
    /// J is omitted.
    IdleForgotten fails idle_cpu_not_kicked: idling::<IdleForgotten>, "maximum number of branches", {
        fn notify(here: &impl Reach, vcpu: VcpuIndex, target: &Target, class: QueueClass) {
            if target.post_event() == Notify::Wake {
                let _ = here.scheduler().wake(vcpu, class, 0);
            }
        }
    }
}

mutant! {
    /// Interrupts are taken between K and L, so L waits for one that was taken already.
    TakeBeforeIdle fails interrupt_taken_before_the_wait: idling::<TakeBeforeIdle>, "maximum number of branches", {
        fn idle(cpu: &Cpu<'_>) -> bool {
            cpu.board.lines[cpu.index.place()].swap(0, Relaxed);
            cpu.board.wait(cpu.index)
        }
    }
}

mutant! {
    /// M is omitted: the running vCPU is not told that another waits.
    RunningForgotten fails running_vcpu_not_told: nudging::<RunningForgotten>, "maximum number of branches", {
        fn notify(here: &impl Reach, vcpu: VcpuIndex, target: &Target, class: QueueClass) {
            if target.post_event() == Notify::Wake
                && let Nudge::Idle(cpu) = here.scheduler().wake(vcpu, class, 0)
            {
                here.kick_idle(cpu);
            }
        }
    }
}

mutant! {
    /// M before I: the running vCPU is told before the other one is in the queue.
    TellFirst fails running_vcpu_told_too_early: nudging::<TellFirst>, "maximum number of branches", {
        fn notify(here: &impl Reach, vcpu: VcpuIndex, target: &Target, class: QueueClass) {
            notify::nudge(here, Nudge::Running(VcpuIndex(0)));
            if target.post_event() == Notify::Wake {
                let _told_already = here.scheduler().wake(vcpu, class, 0);
            }
        }
    }
}

mutant! {
    /// E without an order: the queue's state may be older than the event, which is only taken
    /// afterwards.
    TakeRelaxed fails notify_word_read_without_order: nudging::<TakeRelaxed>, "maximum number of branches", {
        fn settle(cpu: &Cpu<'_>, owner: &mut Owner<'_>, vcpu: &Vcpu) -> bool {
            let is_due = owner.target().has_event();
            let makes_room = cpu.look::<Self>(vcpu, Taken::NONE);
            if is_due {
                let _seen_before = owner.take_events();
            }
            makes_room
        }
    }
}
