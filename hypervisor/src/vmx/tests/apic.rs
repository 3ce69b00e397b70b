//! The local APIC by the processor and by the model: the same operations have the same effects.

use alloc::rc::Rc;
use baremetal::random::Random;
use core::cell::RefCell;
use hostlink::counters::Counter;

use super::delivery::{Cpu, Seen, is_processors};
use super::mock::Stay;
use super::processor::{ACKNOWLEDGED, Guest, TOLD, Tested, with_guest_of, written};
use super::said::Said;
use crate::devices::pc::apic_ids::ApicId;
use crate::devices::pc::lapic::msr::{APIC_BASE, EOI, ESR, LVT_ERROR, SELF_IPI, SVR, TPR};
use crate::devices::pc::message::{Destination, Message, MessageKind, Trigger};
use crate::devices::pc::platform::PortSize;
use crate::vm::arch::State;
use crate::vmx::apic::ApicLocation;
use crate::vmx::controls::{ACKNOWLEDGE, DELIVERY, POSTED, Word};
use crate::vmx::fields as f;
use crate::x86::RFLAGS_IF;
use crate::x86::vcpu::block::Field::Rflags;
use crate::x86::vcpu::registers::{RAX, RCX, RDX};
use crate::x86::vcpu::signals;
use crate::x86::vcpu::state::Activity;

/// Hyper-V's register for the end of an interrupt.
const HYPERV_EOI: u32 = 0x4000_0070;
/// To whoever sends it.
const NMI: Message =
    Message { kind: MessageKind::Nmi, destination: Destination::SelfOnly, trigger: Trigger::Edge };
const HLT: u64 = 12;
const WRMSR: u64 = 32;
const WINDOW: u64 = 7;

struct Driver<'g, 'c, 'a> {
    guest: &'g mut Guest<'c, 'a>,
    cpu: Rc<RefCell<Cpu>>,
}

impl Driver<'_, '_, '_> {
    /// The guest runs until nothing happens any more. It may begin with another priority.
    fn run(&mut self, priority: Option<u64>) {
        let cpu = Rc::clone(&self.cpu);
        let before = self.cpu.borrow().seen.len();
        assert!(self.guest.enter(move |stay, _| {
            let mut cpu = cpu.borrow_mut();
            priority.into_iter().for_each(|priority| cpu.set_priority(priority));
            cpu.run(stay);
        }));
        self.guest.handle();
        self.check_map();
        let is_open = self.guest.field(Rflags) & RFLAGS_IF != 0 && self.guest.windows()[0];
        if is_open {
            self.guest.leave(WINDOW, 0, 0);
        }
        if is_open || self.cpu.borrow().seen.len() != before {
            self.run(None);
        }
    }

    fn check_map(&mut self) {
        let vmcs = self.guest.vmcs();
        let is_mapped = written(f::MSR_BITMAPS.raw()) != vmcs.maps[1];
        assert_eq!(is_mapped, is_processors());
        assert!(!is_mapped || written(f::MSR_BITMAPS.raw()) == vmcs.maps[1] + 0x1000);
    }

    /// The guest does this.
    fn stay(&mut self, mut act: impl FnMut(&mut Cpu, &mut Stay) + 'static) {
        let cpu = Rc::clone(&self.cpu);
        assert!(self.guest.enter(move |stay, _| act(&mut cpu.borrow_mut(), stay)));
        self.guest.handle();
    }

    fn is_processors(&mut self) -> bool {
        self.guest.vmcs().control(Word::Secondary, DELIVERY)
    }

    fn see(&self, seen: Seen) {
        self.cpu.borrow_mut().seen.push(seen);
    }

    fn write_msr(&mut self, number: u32, value: u64) {
        self.guest.set_all(&[(RCX, number.into()), (RAX, value), (RDX, 0)]);
        self.guest.leave(WRMSR, 2, 0);
        // What it has sent to itself.
        if self.guest.0.owner.take_events() {
            signals::take_signals(self.guest.0);
        }
    }

    fn eoi(&mut self) {
        if !self.is_processors() {
            let lapic = &mut self.guest.0.state.lapic;
            let ended = lapic.highest_isr();
            let is_level = ended.is_some_and(|vector| lapic.sets().2.contains(vector));
            self.see(Seen::Level(is_level));
            return self.write_msr(EOI, 0);
        }
        self.stay(Cpu::end);
    }

    fn self_ipi(&mut self, vector: u8) {
        if !self.is_processors() {
            return self.write_msr(SELF_IPI, vector.into());
        }
        self.stay(move |cpu, stay| cpu.interrupt_itself(stay, vector));
    }

    fn write_tpr(&mut self, value: u64) {
        if !self.is_processors() {
            return self.write_msr(TPR, value);
        }
        self.stay(move |cpu, _| cpu.write_tpr(value));
    }

    fn look(&mut self) {
        self.guest.0.state.take_apic_back();
        let lapic = &mut self.guest.0.state.lapic;
        let (irr, isr, _) = lapic.sets();
        let sets = [*irr, *isr];
        let errors = lapic.read_msr(ESR, 0).unwrap_or(0);
        let seen = Seen::Registers(sets, lapic.ppr(), errors);
        self.see(seen);
    }

    fn switch_on(&mut self) {
        self.write_msr(APIC_BASE, 0xfee0_0d00);
        self.write_msr(SVR, 0x1ff);
        self.write_msr(LVT_ERROR, 0x33);
    }

    fn step(&mut self, random: &mut Random) {
        let vector = random.one_of([0x1e, 0x31, 0x35, 0x42, 0x43, 0x6f, 0x80, 0xbf, 0xc0, 0xf7, 0xff]) as u8;
        match random.below(16) {
            0..=2 => {
                let trigger = if random.one_in(3) { Trigger::Level } else { Trigger::Edge };
                self.guest.0.state.lapic.accept_fixed(vector, trigger);
            }
            3 => self.guest.set_field(Rflags, 2 | (RFLAGS_IF * random.below(2))),
            4 if random.one_in(2) => self.write_tpr(random.below(256)),
            4 => {
                let priority = random.below(16);
                self.run(Some(priority));
            }
            5..=7 => self.eoi(),
            8 | 9 => self.self_ipi(vector),
            10 => self.self_ipi(7),
            11 => {
                if random.one_in(2) {
                    // It comes between the guest's look and HLT.
                    self.self_ipi(vector);
                }
                self.guest.leave(HLT, 1, 0);
                let wakes = self.guest.0.state.wakes_from_halt();
                self.see(Seen::Wakes(wakes));
                self.guest.0.state.activity = Activity::Running;
            }
            12 => self.cpu.borrow_mut().cuts = true,
            13 => self.write_msr(HYPERV_EOI, 0),
            14 if random.one_in(3) => {
                // INIT, a change of mode, or off and on.
                match random.below(3) {
                    0 => {
                        self.guest.0.state.lapic.init();
                        self.guest.0.state.set_init_state();
                        self.guest.begin(&[]);
                    }
                    1 => self.write_msr(APIC_BASE, 0xfee0_0100),
                    _ => self.write_msr(SVR, 0xff),
                }
                self.run(None);
                self.write_msr(APIC_BASE, 0xfee0_0900);
                self.write_msr(SVR, 0x1ff);
                self.switch_on();
            }
            14 => self.write_msr(ESR, 0),
            _ => self.look(),
        }
        self.run(None);
    }
}

fn seen(config: &'static str, seed: u64) -> (Vec<Seen>, bool) {
    with_guest_of(config, |guest| {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut driver = Driver { guest, cpu: Rc::default() };
        driver.switch_on();
        for _ in 0..300 {
            driver.step(&mut random);
        }
        driver.look();
        (driver.cpu.take().seen, driver.guest.vmcs().apic.location != ApicLocation::Never)
    })
}

#[test]
fn i12_the_processor_is_the_same_local_apic_as_the_model() {
    for seed in 0..40 {
        let (by_model, is_offered) = seen("emulated_apic=on\nmemory=16777216", seed);
        assert!(!is_offered);
        let (by_processor, is_offered) = seen("memory=16777216", seed);
        assert!(is_offered);
        // The processor does not make a vector edge-triggered where the guest sends it to itself.
        // An end too many for the I/O APIC does no harm.
        let differs = |(&model, &other): (&Seen, &Seen)| {
            model != other && (model, other) != (Seen::Level(false), Seen::Level(true))
        };
        let first = by_model.iter().zip(&by_processor).position(differs);
        let about = first.map(|at| (&by_model[..=at], by_processor[at]));
        assert_eq!((about, by_model.len()), (None, by_processor.len()), "seed {seed}");
        assert!(by_model.iter().any(|seen| matches!(seen, Seen::CutShort(_))), "seed {seed}");
    }
}

#[test]
fn i12_a_guest_is_told_of_the_quickest_way_to_end_an_interrupt() {
    for (config, is_exit) in [("emulated_apic=on\nmemory=16777216", true), ("memory=16777216", false)] {
        with_guest_of(config, |guest| {
            assert_eq!(guest.0.vm.guest.partition.platform().eoi_exits, is_exit);
            assert!(<Tested as crate::x86::processor::Vendor>::has_apic());
        });
    }
}

#[test]
fn i12_the_end_of_a_level_triggered_interrupt_reaches_the_io_apic() {
    const VECTOR: u8 = 0x61;
    const LEVEL: u32 = 1 << 15;
    with_guest_of("memory=16777216", |guest| {
        let mut driver = Driver { guest, cpu: Rc::default() };
        driver.switch_on();
        driver.guest.set_field(Rflags, 2 | RFLAGS_IF);
        // The first serial port can always send, and says so by its pin, 4.
        let message = {
            let mut platform = driver.guest.0.vm.guest.platform.lock();
            for (register, value) in [(0, 0x18), (0x10, LEVEL | u32::from(VECTOR))] {
                assert_eq!(platform.mmio_write(0xfec0_0000 + register, value).len(), 0);
            }
            let _no_interrupt = platform.port_write(0x3fc, PortSize::Byte, 8, || 0);
            platform.port_write(0x3f9, PortSize::Byte, 2, || 0).interrupt.expect("its pin is asserted")
        };
        assert_eq!(driver.guest.0.vm.deliver(message, ApicId::NONE), 1);
        for _ in 0..3 {
            // The line stays asserted.
            assert!(driver.guest.0.owner.take_events());
            signals::take_signals(driver.guest.0);
            driver.run(None);
            assert_eq!(driver.cpu.borrow_mut().seen.pop(), Some(Seen::Taken(VECTOR)));
            driver.eoi();
            assert_eq!(driver.cpu.borrow_mut().seen.pop(), Some(Seen::Level(true)));
        }
    });
}

#[test]
fn i11_who_is_in_guest_mode_is_told_once_and_not_kicked() {
    with_guest_of("memory=16777216", |guest| {
        let mut driver = Driver { guest, cpu: Rc::default() };
        driver.switch_on();
        driver.run(None);
        let vm = driver.guest.0.vm;
        let (id, inbox) = (driver.guest.0.state.lapic.apic_id(), &vm.vcpus[0].inbox);
        assert!(driver.guest.enter(move |stay, _| {
            assert_eq!(stay.read(f::PIN_CONTROLS) >> POSTED & 1, 1);
            assert_eq!(stay.read(f::POSTED), core::ptr::from_ref(inbox.posted()).addr() as u64);
            TOLD.take();
            assert_eq!([0x51, 0x52].map(|vector| vm.post_fixed(id, vector)), [1; 2]);
            assert_eq!(TOLD.take(), [0], "it takes both");
            // As if it had taken them.
            inbox.posted().clear_told();
            assert_eq!((vm.post_fixed(id, 0x53), TOLD.take()), (1, vec![0]));
            // A signal needs an exit.
            assert_eq!(vm.deliver(NMI, id), 1);
        }));
        assert_eq!((driver.guest.count(Counter::KickEvent), TOLD.take()), (1, vec![]));
        assert!(driver.guest.0.owner.take_events(), "what it has not taken is taken before the next entry");
        signals::take_signals(driver.guest.0);
        assert_eq!(driver.guest.0.state.lapic.highest_irr(), Some(0x53));
        assert_eq!((vm.post_fixed(id, 8), driver.guest.0.owner.take_events()), (1, true), "the model's");
    });
}

#[test]
fn i10_the_handler_of_an_interrupt_that_an_exit_has_taken_runs_once() {
    with_guest_of("memory=16777216", |guest| {
        assert!(guest.vmcs().control(Word::Exit, ACKNOWLEDGE));
        assert!(guest.enter(|stay, _| stay.said.exception = 0x31));
        assert_eq!(ACKNOWLEDGED.take(), [0x31]);
        assert!(guest.enter(|stay, _| stay.said = Said::of(WINDOW, 0, 0)));
        assert_eq!(ACKNOWLEDGED.take(), []);
    });
}
