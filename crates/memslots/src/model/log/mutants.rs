//! The protocol of a dirty log with one operation broken, and the scenario that detects it.

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use quell_coherence::mutants;

use super::{ModelState, Protocol, WRITABLE, emulating, faulting, following, giving_up, tracking};

mutants! {
    /// a and b are swapped: the mark is fetched before the leaf is writable.
    MarkFirst fails p14_page_marked_before_it_is_writable: faulting::<MarkFirst>, "a store was lost", {
        fn fault(machine: &ModelState) {
            machine.marks().mark(0, 0);
            machine.leaf.fetch_or(WRITABLE, Relaxed);
        }
    }

    /// t and u are swapped: the page is copied between them.
    StoreLast fails p14_page_marked_before_the_store: emulating::<StoreLast>, "a store was lost", {
        fn emulate(machine: &ModelState, value: u64) {
            machine.marks().mark(0, 0);
            machine.page.store(value, Relaxed);
        }
    }

    /// An existing mark is relied on: the check overtakes the store.
    MarkIfClear fails p14_mark_left_out_if_it_is_there: emulating::<MarkIfClear>, "a store was lost", {
        fn emulate(machine: &ModelState, value: u64) {
            machine.page.store(value, Relaxed);
            if machine.words[0].load(Acquire) == 0 {
                machine.marks().mark(0, 0);
            }
        }
    }

    /// u does not release the store.
    MarkRelaxed fails p14_mark_without_release: emulating::<MarkRelaxed>, "a store was lost", {
        fn emulate(machine: &ModelState, value: u64) {
            machine.page.store(value, Relaxed);
            machine.words[0].fetch_or(1, Relaxed);
        }
    }
}

/// The real fetch in mode [`Mode::Protect`], with A and D replaced.
fn fetch_by(machine: &ModelState, take: impl FnOnce() -> u64, look: impl FnOnce() -> u64) -> u64 {
    let taken = take();
    let dirty = machine.protect(taken);
    machine.flush();
    dirty | look()
}

mutants! {
    /// A does not acquire the store.
    TakeRelaxed fails p14_take_without_acquire: emulating::<TakeRelaxed>, "a store was lost", {
        fn fetch(machine: &ModelState) -> u64 {
            fetch_by(machine, || machine.words[0].swap(0, Relaxed), || machine.marks().look(0))
        }
    }

    /// A reads the marks, and then clears them: a mark in between is lost.
    TakeInTwoSteps fails p14_marks_read_and_then_cleared: emulating::<TakeInTwoSteps>, "a store was lost", {
        fn fetch(machine: &ModelState) -> u64 {
            let take = || {
                let taken = machine.words[0].load(Acquire);
                machine.words[0].store(0, Relaxed);
                taken
            };
            fetch_by(machine, take, || machine.marks().look(0))
        }
    }

    /// B comes before A: a page marked in between loses its mark, and its leaf stays writable.
    ProtectFirst fails p14_marks_taken_after_the_protection: faulting::<ProtectFirst>, "a store was lost", {
        fn fetch(machine: &ModelState) -> u64 {
            machine.protect(machine.marks().look(0));
            let taken = machine.marks().take(0);
            machine.flush();
            taken | machine.marks().look(0)
        }
    }

    /// There is no flush: a vCPU continues to store through its cached leaf.
    FlushNever fails p14_no_flush_after_the_protection: faulting::<FlushNever>, "a store was lost", {
        fn fetch(machine: &ModelState) -> u64 {
            machine.protect(machine.marks().take(0)) | machine.marks().look(0)
        }
    }

    /// There is no flush after dirty bits were cleared.
    CleanWithoutFlush fails p14_no_flush_after_cleaning: tracking::<CleanWithoutFlush>, "a store was lost", {
        fn fetch(machine: &ModelState) -> u64 {
            machine.protect(machine.marks().take(0)) | machine.marks().look(0)
        }
    }

    /// The page is copied before the flush.
    FlushLast fails p14_page_copied_before_the_flush: faulting::<FlushLast>, "a store was lost", {
        fn fetch(machine: &ModelState) -> u64 {
            let dirty = machine.protect(machine.marks().take(0)) | machine.marks().look(0);
            if dirty != 0 {
                machine.copy.store(machine.page.load(Relaxed), Relaxed);
            }
            machine.flush();
            // There is no other copy.
            0
        }
    }

    /// D is omitted.
    LookNever fails p14_marks_not_looked_at_again: following::<LookNever>, "not in the result", {
        fn fetch(machine: &ModelState) -> u64 {
            fetch_by(machine, || machine.marks().take(0), || 0)
        }
    }

    /// D comes before C: the fault may still be in progress.
    LookEarly fails p14_marks_looked_at_again_before_the_flush: following::<LookEarly>, "not in the result", {
        fn fetch(machine: &ModelState) -> u64 {
            let dirty = machine.protect(machine.marks().take(0)) | machine.marks().look(0);
            machine.flush();
            dirty
        }
    }

    /// C is omitted if B has changed nothing.
    FlushIfProtected fails p14_no_flush_if_nothing_was_protected:
    following::<FlushIfProtected>, "not in the result", {
        fn fetch(machine: &ModelState) -> u64 {
            let dirty = machine.protect(machine.marks().take(0));
            if dirty != 0 {
                machine.flush();
            }
            dirty | machine.marks().look(0)
        }
    }

    /// D takes the marks: their leaves stay writable, unrecorded.
    LookAndTake fails p14_marks_taken_when_looked_at_again: faulting::<LookAndTake>, "a store was lost", {
        fn fetch(machine: &ModelState) -> u64 {
            fetch_by(machine, || machine.marks().take(0), || machine.marks().take(0))
        }
    }

    /// Taken marks are not put back.
    GiveUpAll fails p14_marks_not_put_back: giving_up::<GiveUpAll>, "a store was lost", {
        fn give_up(machine: &ModelState) {
            machine.marks().take(0);
        }
    }

    /// Taken marks are put back by a store, which overwrites later marks.
    PutBackByStore fails p14_marks_put_back_by_a_store: giving_up::<PutBackByStore>, "a store was lost", {
        fn give_up(machine: &ModelState) {
            let taken = machine.marks().take(0);
            machine.words[0].store(taken, Release);
        }
    }
}
