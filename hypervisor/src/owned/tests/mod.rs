//! PCI functions that a guest owns, on a made [machine](crate::iommu::mock): the guest writes to
//! ports and registers as a driver does, and the functions do DMA and interrupt.

mod coherence;
mod faults;
mod interrupts;
mod life;
mod pins;
mod refused;
mod registers;
mod resets;
mod spread;

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use std::cell::RefCell;

use crate::devices::pc::apic_ids::ApicId;
use crate::devices::pc::lapic::{Lapic, TimerClock};
use crate::devices::pc::pci::{CONFIG_ADDRESS, CONFIG_DATA};
use crate::iommu::mock::{Machine, set_machine};
use crate::svm::tests::memory::{WRITE, out};
use crate::svm::tests::processor::{self, Guest, MockSvm, board_with};
use crate::svm::tests::rows::NESTED;
use crate::vm::mock::MockBoard as Board;
use crate::vm::{Next, Vm};
use crate::x86::vcpu::block::Segment;
use crate::x86::vcpu::registers::{RAX, RBX};

const COMMAND: u32 = 4;
const BAR: u32 = 0x10;
/// Bits of the command register: memory is decoded; DMA.
const MEMORY: u32 = 2;
const MASTER: u32 = 4;
/// The numbers of the first and of the second owned function's devices.
const FIRST: u32 = 2;
const SECOND: u32 = 3;

/// A guest on a made machine: vCPU 0 is given to `act`.
fn with_owned<R>(config: &'static str, act: impl FnOnce(&'static Machine, &mut Guest<'_, '_>) -> R) -> R {
    let machine = Machine::new();
    on(machine, config, |guest| act(machine, guest))
}

/// The same on a machine that is there.
fn on<R>(machine: &'static Machine, config: &'static str, act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    set_machine(Some(machine));
    board_with(config).with_vcpu(0, |context| {
        let mut guest = Guest(context);
        guest.begin(&[]);
        act(&mut guest)
    })
}

fn board_of_several(machine: &'static Machine, configs: &[&'static str]) -> &'static Board<MockSvm> {
    board_of(machine, 1, configs)
}

/// The same with so many CPUs.
fn board_of(machine: &'static Machine, count: usize, configs: &[&'static str]) -> &'static Board<MockSvm> {
    set_machine(Some(machine));
    processor::board_of(count, configs)
}

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what each thread warns of.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.with_borrow_mut(|lines| lines.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// What the calling thread warns of.
fn warnings(act: impl FnOnce()) -> Vec<String> {
    // A second logger is refused: it would be the same.
    let _ = log::set_logger(&Warnings);
    log::set_max_level(log::LevelFilter::Warn);
    LINES.take();
    act();
    LINES.take()
}

/// Instructions by size: a load from EBX to AL, AX, EAX, and a store.
const LOADS: [(u8, &[u8]); 3] = [(1, &[0x8a, 0x03]), (2, &[0x66, 0x8b, 0x03]), (4, &[0x8b, 0x03])];
const STORES: [(u8, &[u8]); 3] = [(1, &[0x88, 0x03]), (2, &[0x66, 0x89, 0x03]), (4, &[0x89, 0x03])];

fn code(of: [(u8, &'static [u8]); 3], size: u8) -> &'static [u8] {
    of.into_iter().find(|&(bytes, _)| bytes == size).expect("a size").1
}

/// The vectors that were posted to a vCPU of a guest since the last call.
fn arrived(vm: &Vm<MockSvm>, vcpu: usize) -> Vec<u8> {
    let inbox = &vm.vcpus[vcpu].inbox;
    let found = inbox.pending().iter().collect();
    let clock = TimerClock { tsc_hz: 1_000_000_000, apic_hz: 1_000_000_000 };
    let _signals = inbox.take_vectors(&mut Lapic::new(ApicId(vcpu as u32), false, clock), false);
    found
}

impl Guest<'_, '_> {
    fn select(&mut self, device: u32, register: u32) {
        assert_eq!(out(self, CONFIG_ADDRESS, u64::from(1 << 31 | device << 11 | register)), Next::Resume);
    }

    /// Writes to configuration space as often as the access is retried; returns how often.
    fn write_config(&mut self, device: u32, register: u32, value: u32) -> u32 {
        self.select(device, register);
        let mut retries = 0;
        while out(self, CONFIG_DATA, value.into()) != Next::Resume {
            retries += 1;
            assert!(retries < 30, "it is retried for ever");
        }
        retries
    }

    fn read_config(&mut self, device: u32, register: u32) -> u32 {
        self.select(device, register);
        self.0.vm.port_read(CONFIG_DATA, crate::devices::pc::platform::PortSize::Dword)
    }

    /// Where the first function's capability of this number is.
    fn capability(&mut self, id: u32) -> u32 {
        let mut at = self.read_config(FIRST, 0x34) & 0xff;
        while at != 0 {
            let word = self.read_config(FIRST, at);
            if word & 0xff == id {
                return at;
            }
            at = word >> 8 & 0xff;
        }
        panic!("there is no capability {id}")
    }

    /// An access that the processor cannot complete, in 32-bit code without paging.
    fn access(&mut self, code: &[u8], gpa: u64, info_1: u64) {
        self.begin(code);
        self.legacy_mode(Segment::DEFAULT_32);
        self.set(RBX, gpa);
        let next = self.exit(NESTED, info_1, gpa);
        assert!(matches!(next, Next::Resume | Next::Timers), "{next:?}");
        assert_eq!(self.raised(), None);
    }

    fn load(&mut self, gpa: u64, size: u8) -> u32 {
        self.set(RAX, 0);
        self.access(code(LOADS, size), gpa, 0);
        self.get(RAX) as u32
    }

    fn store(&mut self, gpa: u64, size: u8, value: u32) {
        self.set(RAX, value.into());
        self.access(code(STORES, size), gpa, WRITE);
    }

    /// The slots of devices: where, how many bytes, and what is there on the host.
    fn device_slots(&self) -> Vec<(u64, u64, u64)> {
        let mut found = Vec::new();
        self.0.vm.space.slots().memory().for_each(|slot| {
            if slot.is_device() {
                found.push((slot.gpa.0, slot.size, slot.host.0));
            }
        });
        found
    }

    /// The vectors that were posted to a vCPU since the last call.
    fn arrived(&self, vcpu: usize) -> Vec<u8> {
        arrived(self.0.vm, vcpu)
    }

    fn write_entry(&mut self, table: u64, number: u64, address: u32, data: u32) {
        for (word, value) in [(0, address), (1, 0), (2, data)] {
            self.store(table + number * 16 + word * 4, 4, value);
        }
    }

    fn set_mask(&mut self, table: u64, number: u64, is_masked: bool) {
        self.store(table + number * 16 + 12, 4, is_masked.into());
    }

    /// Everything is reset as by a reset of the guest, and memory is loaded again.
    fn reset(&mut self) {
        let (vm, cpu) = (self.0.vm, self.0.cpu);
        let mut steps = 0;
        while !vm.reset_pci(cpu) {
            while vm.step_change(None) != paging::Progress::Done {}
            steps += 1;
            assert!(steps < 30, "it goes on for ever");
        }
        vm.reset_devices();
        let mut load = crate::vm::load::Load::new(vm).expect("the files were loaded before");
        while load.step(vm) != paging::Progress::Done {}
    }
}
