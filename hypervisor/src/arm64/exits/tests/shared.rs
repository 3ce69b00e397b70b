//! Memory that guests share: its function, and its line. The only guest is at both ends.

use memslots::Gpa;
use paging::Progress;

use super::*;
use crate::arm64::guest::devices;
use crate::devices::virt::map::{GICD, PCI_ECAM};
use crate::vm::dma::Devices;

const FUNCTION: u64 = PCI_ECAM + (1 << 15);
const COMMAND: u64 = FUNCTION + 4;
const BAR: u64 = FUNCTION + 0x10;
/// Where the guest finds registers and memory first.
const REGISTERS: u64 = 0x2fff_f000;
const PLACED: u64 = 0x2fff_c000;
const MASK: u64 = REGISTERS;
const STATUS: u64 = REGISTERS + 4;
const DOORBELL: u64 = REGISTERS + 12;
/// The bits of the command register: memory; no pin.
const MEMORY: u64 = 2;
const NO_PIN: u64 = 1 << 10;
/// The interrupt's bit among those from 32 on.
const BIT: u32 = 39 - 32;

fn with_region(act: impl FnOnce(&mut Context<'_, MockArm64>)) {
    machine("vcpus=2\nshared=ring:8192:3").with_vcpu(0, |context| {
        ready(context);
        act(context);
    });
}

fn read(context: &mut Context<'_, MockArm64>, gpa: u64) -> u64 {
    devices::read(context, gpa, 4).expect("a register")
}

fn write(context: &mut Context<'_, MockArm64>, gpa: u64, value: u64) {
    assert!(devices::write(context, gpa, 4, value));
}

/// Writes to configuration space as often as that must be retried.
fn configure(context: &mut Context<'_, MockArm64>, gpa: u64, value: u64) {
    for _ in 0..10 {
        let configured = devices::configure(context, gpa, 4, value).expect("configuration space");
        while context.vm.step_change(None) != Progress::Done {}
        if configured.is_ok() {
            return;
        }
    }
    panic!("it is retried for ever");
}

/// Whether the line is high: GICD_ISPENDR.
fn is_high(context: &mut Context<'_, MockArm64>) -> bool {
    read(context, GICD + 0x204) >> BIT & 1 != 0
}

fn sees_memory(context: &Context<'_, MockArm64>, gpa: u64) -> bool {
    context.vm.space.slots().memory().read(Gpa(gpa), &mut [0; 8]).is_ok()
}

#[test]
fn the_function_has_no_messages_but_a_pin() {
    with_region(|context| {
        assert_eq!(read(context, FUNCTION), 0x1110_1af4);
        assert_eq!([0, 4, 8, 12].map(|at| read(context, BAR + at)), [REGISTERS, 0, PLACED | 0xc, 0]);
        assert_eq!(read(context, FUNCTION + 0x34), 0, "there are no capabilities");
        assert_eq!(read(context, FUNCTION + 0x3c), 1 << 8 | 39, "pin A, and its interrupt");
        assert_eq!(read(context, FUNCTION + (1 << 15)), 0xffff_ffff);
        configure(context, COMMAND, MEMORY);
        assert_eq!(read(context, REGISTERS + 8), 3, "its number");
        assert!(sees_memory(context, PLACED) && !sees_memory(context, PLACED + 0x2000));
        configure(context, BAR + 8, 0x2100_0000);
        assert!(sees_memory(context, 0x2100_0000) && !sees_memory(context, PLACED));
        for gone in [RAM, 0x3000_0000, REGISTERS & !0x1fff] {
            configure(context, BAR + 8, gone);
            assert!(!sees_memory(context, 0x2100_0000) && !sees_memory(context, PLACED), "{gone:#x}");
        }
    });
}

#[test]
fn its_line_is_high_until_the_status_is_read() {
    with_region(|context| {
        configure(context, COMMAND, MEMORY);
        write(context, DOORBELL, 3 << 16);
        assert!(!is_high(context), "it is masked");
        write(context, MASK, 1);
        assert!(is_high(context), "what has come is not lost");
        assert_eq!((read(context, STATUS), is_high(context), read(context, STATUS)), (1, false, 0));
        // Another number, and no such vector.
        for nothing in [0, 2 << 16, 3 << 16 | 8, 0xffff_ffff] {
            write(context, DOORBELL, nothing);
            assert!(!is_high(context), "{nothing:#x}");
        }
        write(context, DOORBELL, 3 << 16 | 7);
        assert!(is_high(context));
        configure(context, COMMAND, MEMORY | NO_PIN);
        assert!(!is_high(context));
        configure(context, COMMAND, MEMORY);
        assert!(is_high(context));
        write(context, MASK, 0xffff_fffe);
        assert!(!is_high(context));
        write(context, MASK, 1);
        write(context, STATUS, 0);
        assert!(!is_high(context));
    });
}

#[test]
fn after_a_reset_the_line_is_low() {
    with_region(|context| {
        configure(context, COMMAND, MEMORY);
        write(context, MASK, 1);
        write(context, DOORBELL, 3 << 16);
        let vm = context.vm;
        while !MockArm64::reset_slots(vm, context.cpu) {
            while vm.step_change(None) != Progress::Done {}
        }
        MockArm64::reset_devices(vm);
        assert_eq!(<MockArm64 as Arch>::Devices::step_reset(vm), Progress::Done);
        assert!(!is_high(context));
        assert!(!sees_memory(context, PLACED), "nothing is decoded");
        configure(context, COMMAND, MEMORY);
        assert_eq!((read(context, STATUS), read(context, MASK)), (0, 0));
    });
}

#[test]
fn without_regions_there_is_no_bus() {
    with(|context| {
        assert_eq!(devices::read(context, FUNCTION, 4), None);
        assert!(devices::configure(context, COMMAND, 4, MEMORY).is_none());
        assert!(!devices::write(context, REGISTERS, 4, 1));
    });
}
