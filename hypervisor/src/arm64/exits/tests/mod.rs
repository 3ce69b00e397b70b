//! Mock exits on a mock processor: the effect of each on the vCPU, and on devices.
//!
//! [`every_row_has_its_tests`] runs them row by row.

mod calls;
mod faults;
mod registers;
mod simple;

use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use hostlink::counters::Counter;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;

use super::*;
use crate::arm64::guest::devices;
use crate::arm64::mock::{Hardware, MockArm64, Recorded, hardware, machine, store, told};
use crate::arm64::processor::Registers;
use crate::arm64::vcpu::exchanged::Register;
use crate::arm64::vcpu::state::Activity;
use crate::devices::virt::map::{PCI_ECAM, PCI_MEMORY};
use crate::vm::arch::Arch;
use crate::vm::mock::creation::EXITS;

/// Where memory begins.
const RAM: u64 = 0x4000_0000;
/// PSTATE at EL1 with its own stack pointer, and at EL0.
const EL1: u64 = 5;
const EL0: u64 = 0;
/// The instruction had 32 bits.
const LONG: u64 = 1 << 25;
/// Addresses of the guest's vectors, and of its code.
const VECTORS: u64 = 0xffff_8000_0000_1000;
const CODE: u64 = 0xffff_8000_0008_0000;

thread_local! {
    /// Rows that had an exit.
    static SEEN: RefCell<BTreeSet<Row>> = const { RefCell::new(BTreeSet::new()) };
}

fn of_class(class: u8, rest: u64) -> u64 {
    u64::from(class) << 26 | LONG | rest
}

/// Runs with the boot vCPU of a machine that has three: at EL1, at `CODE`, with numbers in X0 to
/// X30 that identify the register.
fn with(act: impl FnOnce(&mut Context<'_, MockArm64>)) {
    machine("vcpus=3").with_vcpu(0, |context| {
        ready(context);
        act(context);
    });
}

fn ready(context: &mut Context<'_, MockArm64>) {
    hardware(|hardware| {
        hardware.registers.insert(Register::Vbar, VECTORS);
        // SCTLR_EL1.SPAN: exceptions leave PAN unchanged.
        hardware.registers.insert(Register::Sctlr, 1 << 23);
    });
    let registers = &mut context.state.registers;
    (0..).zip(&mut registers.x).for_each(|(index, x)| *x = 0x1_0000_0000 + index);
    (registers.pc, registers.pstate) = (CODE, EL1);
}

fn count(context: &Context<'_, MockArm64>, counter: Counter) -> u64 {
    context.counters[counter as usize].load(Ordering::Relaxed)
}

/// The vCPU exits through `vector`. Exactly one counter counts it, which is the row's.
fn leave(context: &mut Context<'_, MockArm64>, vector: Vector, change: impl FnOnce(&mut Hardware)) -> Next {
    hardware(change);
    let _before = told();
    let exit = capture::<MockArm64, _>(vector, |exit| exit);
    SEEN.with_borrow_mut(|seen| seen.insert(exit.row()));
    let counts = |context: &Context<'_, MockArm64>| EXITS.map(|counter| count(context, counter));
    let before = counts(context);
    let _captured = told();
    let next = handle_next(context, vector);
    for ((counter, before), after) in EXITS.iter().zip(before).zip(counts(context)) {
        let expected = before + u64::from(*counter == exit.counter());
        assert_eq!(after, expected, "{}: {:?}", exit.row().name(), counter.name());
    }
    next
}

fn except(context: &mut Context<'_, MockArm64>, syndrome: u64) -> Next {
    leave(context, Vector::Synchronous, |hardware| hardware.syndrome = syndrome)
}

/// Checks that the guest has taken an exception with this syndrome at EL1, from PSTATE `from` at
/// `pc`.
#[track_caller]
fn assert_taken(context: &Context<'_, MockArm64>, syndrome: u64, (pc, from): (u64, u64)) {
    let [esr, elr, spsr] = [Register::Esr, Register::Elr, Register::Spsr].map(MockArm64::read);
    let found = (esr, elr, spsr);
    assert_eq!(found, (syndrome, pc, from), "ESR_EL1 {esr:#x}, ELR_EL1 {elr:#x}, SPSR_EL1 {spsr:#x}");
    let offset = match from & 0x1f {
        4 => 0,
        5 => 0x200,
        0 => 0x400,
        _ => 0x600,
    };
    assert_eq!(context.state.registers.pc, VECTORS + offset);
    assert_eq!(context.state.registers.pstate & 0x3df, 0x3c5, "EL1h, everything masked");
}

const UNDEFINED: u64 = LONG;

/// The tests of a row. A new row does not compile before it has some.
fn tests_of(row: Row) -> &'static [fn()] {
    match row {
        Row::Interrupt => &[simple::an_interrupt_goes_back_with_nothing_read],
        Row::SError => &[simple::an_serror_is_the_guests, simple::an_serror_that_is_harmless_is_not],
        Row::Unknown | Row::Float | Row::IllegalState | Row::Scalable | Row::Other => {
            &[simple::what_is_not_shown_is_undefined, simple::what_fails_its_condition_is_passed_over]
        }
        Row::Wait => &[
            simple::wfi_halts_and_wfe_yields,
            simple::what_fails_its_condition_is_passed_over,
            simple::wfe_in_a_wait_for_memory_stays_where_it_is,
        ],
        Row::Hypercall => &[
            calls::cpu_on_starts_who_is_off,
            calls::every_function_has_an_answer,
            calls::stolen_time_is_offered_and_each_vcpu_has_its_own,
            calls::power_functions_say_how_to_go_on,
        ],
        Row::SecureCall => &[calls::smc_is_refused_whatever_it_asks],
        Row::SystemRegister => {
            &[registers::el0_has_nothing_but_an_open_channel, registers::what_is_written_has_its_effect]
        }
        Row::Fetch => &[faults::a_fetch_from_a_device_is_an_abort, faults::memory_appears],
        Row::Data => &[
            faults::memory_appears,
            faults::registers_of_devices_are_read_and_written,
            faults::where_nothing_is_the_guest_gets_an_abort,
            faults::an_address_beyond_all_is_an_abort,
            faults::aborts_in_walks_are_the_guests,
            faults::pairs_and_write_back_are_done_from_the_instruction,
            faults::an_instruction_that_is_another_is_not_done,
            faults::a_stale_translation_is_tried_again,
            faults::read_only_memory_keeps_what_it_has,
            faults::broken_memory_is_the_guests,
        ],
    }
}

#[test]
fn every_row_has_its_tests() {
    for &row in Row::ALL {
        let tests = tests_of(row);
        assert!(!tests.is_empty(), "nothing tests {}", row.name());
        SEEN.with_borrow_mut(BTreeSet::clear);
        tests.iter().for_each(|test| test());
        assert!(SEEN.with_borrow(|seen| seen.contains(&row)), "no test has an exit by {}", row.name());
    }
}

#[test]
fn each_class_is_captured_as_its_row() {
    hardware(|hardware| (hardware.address, hardware.page) = (0x1234, 0x5670));
    for class in 0..64 {
        hardware(|hardware| hardware.syndrome = of_class(class, 0x7));
        let _before = told();
        let exit = capture::<MockArm64, _>(Vector::Synchronous, |exit| exit);
        let expected = Row::ALL.iter().copied().find(|row| row.class() == Some(class)).unwrap_or(Row::Other);
        assert_eq!(exit.row(), expected, "class {class:#x}");
        // The address is read only for exits that have one.
        let is_abort = matches!(expected, Row::Fetch | Row::Data);
        let addresses = [Recorded::ReadPage, Recorded::ReadAddress];
        let expected = if is_abort { &addresses[..] } else { &[] };
        assert_eq!(told().strip_prefix(&[Recorded::ReadSyndrome]).expect("the syndrome is first"), expected);
    }
    let _before = told();
    assert_eq!(capture::<MockArm64, _>(Vector::Interrupt, |exit| exit), Exit::Interrupt(()));
    assert_eq!(told(), []);
    assert_eq!(capture::<MockArm64, _>(Vector::SError, |exit| exit).row(), Row::SError);
    assert_eq!(told(), [Recorded::ReadSyndrome]);
}

fn vectors() -> impl Strategy<Value = Vector> {
    prop_oneof![8 => Just(Vector::Synchronous), 1 => Just(Vector::Interrupt), 1 => Just(Vector::SError)]
}

/// Values at the edges of memory, devices and numbers, and arbitrary ones.
fn addresses() -> impl Strategy<Value = u64> {
    const PLACES: [u64; 9] =
        [0, 0x0800_0000, 0x080a_0000, 0x0900_0000, 0x0901_0000, RAM, RAM + 0xff_f000, 1 << 39, 1 << 51];
    prop_oneof![
        any::<u64>(),
        (prop::sample::select(&PLACES[..]), 0u64..0x2_0000).prop_map(|(place, more)| place + more),
        (0u32..64).prop_map(|bit| 1 << bit),
    ]
}

fn syndromes() -> impl Strategy<Value = u64> {
    let classes: Vec<u8> = Row::ALL.iter().filter_map(|row| row.class()).collect();
    prop_oneof![
        any::<u64>(),
        (prop::sample::select(classes), any::<u64>())
            .prop_map(|(class, rest)| of_class(class, rest & 0x1ff_ffff)),
        // Aborts of stage 2 with the highest weight.
        (any::<u64>(), 0u64..4, any::<bool>()).prop_map(|(rest, kind, data)| {
            of_class(if data { 0x24 } else { 0x20 }, rest & 0x1ff_ffc0 | kind << 2 | rest & 3)
        }),
    ]
}

#[test]
fn a_guest_without_functions_has_no_bus() {
    with(|context| {
        assert_eq!(devices::read(context, PCI_ECAM, 4), None);
        assert!(devices::configure(context, PCI_ECAM, 4, 1).is_none());
        assert!(!devices::write(context, PCI_MEMORY.start, 4, 1));
    });
}

#[test]
fn whatever_a_guest_does_it_goes_on_or_ends() {
    let board = machine("vcpus=3");
    let exits = (vectors(), syndromes(), addresses(), addresses());
    let guest = (prop::collection::vec(addresses(), 31), addresses(), any::<u64>(), any::<u32>());
    let pages = (addresses(), prop_oneof![Just(1), Just(1 | 1 << 9), addresses()]);
    let config = ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |((vector, syndrome, address, page) in exits, (x, pc, pstate, code) in guest, (at, par) in pages)| {
        board.with_vcpu(0, |context| {
            // As it was left.
            let _events = context.owner.take_events();
            prop_assert!(MockArm64::enter(context));
            ready(context);
            let pc = if pstate & 1 << 40 == 0 { CODE } else { pc };
            store(context, RAM + 0x8_0000, &[code]);
            context.state.registers = Registers { x: x.try_into().expect("31"), pc, pstate };
            let next = leave(context, vector, |hardware| {
                (hardware.syndrome, hardware.address, hardware.page) = (syndrome, address, page);
                hardware.pages = [(CODE, RAM + 0x8_0000), (at & !0xfff, par)].into();
            });
            match next {
                Next::Resume | Next::Yield => {
                    prop_assert_eq!(context.state.activity, Activity::Running);
                    let _events = context.owner.take_events();
                    let _before = told();
                    prop_assert!(MockArm64::enter(context), "it cannot be entered again");
                    prop_assert!(told().contains(&Recorded::Entered));
                }
                Next::Halt => prop_assert_eq!(context.state.activity, Activity::Halted),
                Next::Timers => prop_assert_eq!(context.state.activity, Activity::Off),
                Next::Reset | Next::PowerOff => {}
                other => prop_assert!(false, "{other:?}"),
            }
            context.state.activity = Activity::Running;
            Ok(())
        })?;
    });
}
