//! The protocol with one part broken, and the scenario that finds it.

use std::string::String;

use coherence::interleave::explore;
use loom::sync::atomic::Ordering;

use super::both::{FlushOrder, remove_from_both};
use super::device::{World, invalidate};
use super::scenarios::{one_page, remove, two_pages};
use crate::Port;

/// A page is used by the device and reused by a CPU at the same time.
const RACE: &str = "Causality violation";

/// Defines tests that a scenario fails with a mutant, and the failure.
macro_rules! mutants {
    ($($(#[$doc:meta])+ fn $test:ident() fails by $failure:expr, $preemptions:expr, $scenario:expr;)+) => {$(
        $(#[$doc])+
        #[test]
        fn $test() {
            let failed = std::panic::catch_unwind(|| explore(Some($preemptions), $scenario));
            let why = failed.expect_err("nothing was found");
            let why = why.downcast_ref::<String>().expect("a message");
            assert!(why.contains($failure), "it failed by: {why}");
        }
    )+};
}

mutants! {
    /// The page is reused as soon as the command is in the ring.
    fn p16_no_completion_wait() fails by RACE, 3, || one_page(World::new(true), |world| {
        world.unmap(0);
        let _ticket = world.queue.issue([invalidate(0)]).unwrap();
    });

    /// The device may walk the table after the invalidation, and find the page.
    fn p16_invalidation_before_the_unmap() fails by RACE, 3, || one_page(World::new(true), |world| {
        let ticket = world.queue.issue([invalidate(0)]).unwrap();
        world.unmap(0);
        world.queue.wait(ticket).unwrap();
    });

    /// The command names another page, as that of another domain or size would.
    fn p16_invalidation_of_something_else() fails by RACE, 3, || one_page(World::new(true), |world| {
        world.unmap(0);
        let ticket = world.queue.issue([invalidate(1)]).unwrap();
        world.queue.wait(ticket).unwrap();
    });

    /// What the device did by the former translation is not visible.
    fn p16_the_report_is_read_without_acquire() fails by RACE, 3, || {
        one_page(World::with(true, Ordering::Relaxed, 8), |world| remove(world, 0));
    };

    /// The same where the head is the report.
    fn p16_the_head_is_read_without_acquire() fails by RACE, 3, || {
        one_page(World::with(false, Ordering::Relaxed, 8), |world| remove(world, 0));
    };

    /// The sync that is complete was in front of the command.
    fn p16_the_sync_of_somebody_else() fails by RACE, 3, || two_pages(true, |world, command| {
        let _its_own = world.queue.issue([command]).unwrap();
        world.queue.first_ticket()
    });

    /// A command that the device has read is taken for complete.
    fn p16_read_is_not_complete() fails by RACE, 3, || one_page(World::new(false), |world| {
        world.unmap(0);
        let _ticket = world.queue.queue([invalidate(0)]).unwrap();
        while world.queue.passed() < 1 {
            loom::thread::yield_now();
        }
    });

    /// Two CPUs write the same entry.
    fn p16_two_initiators_without_a_lock() fails by RACE, 3, || two_pages(true, |world, command| {
        world.queue.issue_without_lock(command).unwrap()
    });

    /// The device reads entries that are not written yet.
    fn p16_the_tail_before_the_entries() fails by "the device reads command 0", 3, || one_page(World::new(true), |world| {
        world.unmap(0);
        let ticket = world.queue.issue_behind_the_tail(invalidate(0)).unwrap();
        world.queue.wait(ticket).unwrap();
    });

    /// Commands that the device has not read are overwritten.
    fn p16_a_full_ring_is_overwritten() fails by RACE, 3, || one_page(World::new(true), |world| {
        world.unmap(0);
        let others = (1..8).map(|_| invalidate(1));
        let sync = world.queue.port().sync(9);
        let commands = [invalidate(0)].into_iter().chain(others).chain([sync]);
        let ticket = world.queue.issue_over_others(commands);
        world.queue.wait(ticket).unwrap();
    });

    /// The receipt is made while the device still uses the page.
    fn p16_receipt_without_a_wait_for_the_device() fails by RACE, 3, || remove_from_both(FlushOrder::NotWaited);

    /// The device walks the table again before the page is removed.
    fn p16_device_begun_before_the_unmap() fails by RACE, 3, || remove_from_both(FlushOrder::BeforeTheUnmap);

    /// The vCPUs are flushed, the device is not.
    fn p16_device_not_begun() fails by RACE, 3, || remove_from_both(FlushOrder::NotBegun);

    /// The device is flushed, the vCPU is not.
    fn p16_vcpu_keeps_what_the_device_forgets() fails by RACE, 3, || remove_from_both(FlushOrder::VcpuKeeps);
}
