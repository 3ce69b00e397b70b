//! Creation of a machine, and the ways in which it may fail.

use super::*;
use crate::vm::CreateError;
use crate::vm::mock::End;
use crate::vm::mock::processor::{board, create};
use hostlink::exit::ExitCode;

fn refusal(cpus: usize, bytes: u64, config: &'static str) -> String {
    match create(cpus, bytes, config, &[&[Op::Done]]) {
        Ok(_) => panic!("{config:?} makes a machine"),
        Err(why) => why.to_string(),
    }
}

#[test]
fn a_machine_that_cannot_be_is_refused_with_what_to_do() {
    for (cpus, bytes, config, text) in [
        (1, 32 << 20, "memory=4194304\nboot_cpu=serve", "boot_cpu=serve needs a second CPU"),
        (1, 2 << 20, "memory=4194304", "no 2 MiB of free memory for the guest"),
        (1, 32 << 20, "memory=134217728", "no 64 MiB of free memory for the guest"),
        (1, 6 << 20, "memory=4194304\ntables=1000000", "no memory is left for nested page tables"),
        (1, 32 << 20, "vcpus=0", "vcpus"),
        (1, 32 << 20, "color=blue", "color"),
    ] {
        let why = refusal(cpus, bytes, config);
        assert!(why.contains(text), "{config:?}: {why}");
    }
}

#[test]
fn a_guest_that_runs_out_of_tables_ends() {
    // A root, and too few tables for one page.
    let end = End::Exit(ExitCode::GuestOutOfTables);
    run_to(end, 1, "vcpus=1\nmemory=4194304\ntables=2", 1, &[&[Op::Store(0, 1), Op::Done]]);
}

#[test]
fn memory_is_zeroed_and_in_the_ranges_of_the_architecture() {
    let program: &[Op] = &[
        Op::Load(0, 0),
        Op::Load((2 << 20) - 8, 0),
        Op::Load(1 << 32, 0),
        Op::Load((1 << 32) + (2 << 20) - 8, 0),
        Op::Try(2 << 20),
        Op::Store(0x1000, 7),
        Op::Store((1 << 32) + 0x1000, 9),
        Op::Load(0x1000, 7),
        Op::Load((1 << 32) + 0x1000, 9),
        Op::Done,
    ];
    let end = End::Exit(ExitCode::GuestPowerOff);
    for pages in ["nested_page=4K", "nested_page=2M", "nested_page=1G"] {
        let config: &'static str = String::leak(format!("vcpus=1\nmemory=4194304\n{pages}"));
        run_to(end, 1, config, 1, &[program]);
        // The memory of the previous machine, with its guest's data still there.
        run_to(end, 1, config, 1, &[program]);
    }
}

#[test]
fn a_vcpu_is_run_by_one_cpu_at_a_time() {
    let board = board(1, "vcpus=2\nmemory=4194304", &[&[Op::Done]]);
    let vm = board.machine();
    let end = board.end_of(|| {
        board.with_vcpu(1, |context| {
            assert!(vm.vcpus[0].target.owner().is_some());
            assert!(vm.vcpus[1].target.owner().is_none());
            context.count(hostlink::counters::Counter::ExitOther);
        });
        assert!(vm.vcpus[1].target.owner().is_some(), "it has let go of it");
        crate::vm::end::refuse::<crate::vm::mock::processor::MockArch>(ExitCode::BadConfig, &"a test");
    });
    assert_eq!(end, Some(End::Exit(ExitCode::BadConfig)));
}

#[test]
fn files_that_are_no_bundle_are_refused() {
    use crate::vm::files::Bundle;
    let why = |bytes: &'static [u8]| match Bundle::read(bytes) {
        Ok(_) => panic!("that is no bundle"),
        Err(why) => why,
    };
    assert!(matches!(why(b""), CreateError::NotABundle));
    assert!(matches!(why(&[0; 511]), CreateError::NotABundle));
    assert!(matches!(why(&[0; 1024]), CreateError::NotABundle));
}
