//! Entry and exit, on a mock processor.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;
use std::cell::RefCell;
use std::rc::Rc;

mod audited;
mod handed;
mod moved;
mod reset;
mod spaces;

use super::exchanged::Register;
use super::*;
use crate::arm64::mock::{MockArm64, Recorded, hardware, machine, machine_on, told};
use crate::arm64::processor::{Features, Processor, Registers};
use crate::devices::virt::gic::ListRegister;
use crate::devices::virt::psci::Start;
use crate::sched::CpuIndex;
use crate::sched::notify::Published;
use crate::vm::arch::{Arch, Cpus, State};
use crate::vm::mock::act_as;

type MadeVm = &'static Vm<MockArm64>;

fn workspace(cpu: u32) -> Workspace {
    Workspace::new(MockArm64::cpu(CpuIndex(cpu)).expect("a CPU"))
}

fn turn<R>(
    vm: MadeVm,
    cpu: u32,
    vcpu: usize,
    place: &mut Workspace,
    act: impl FnOnce(&mut Context<'_, MockArm64>) -> R,
) -> R {
    let vcpu = &vm.vcpus[vcpu];
    act_as(cpu);
    let mut context = Context {
        vm,
        cpu: MockArm64::cpu(CpuIndex(cpu)).expect("a CPU"),
        vcpu,
        counters: vm.host.counters_of(vcpu.row),
        host: vm.host,
        owner: ManuallyDrop::new(vcpu.target.owner().expect("nobody runs it")),
        // SAFETY: the owner was just taken.
        state: unsafe { vcpu.state() },
        workspace: place,
    };
    let _before = told();
    load_state(&mut context);
    let _posted_before = context.owner.take_events();
    let result = act(&mut context);
    MockArm64::save_state(&mut context);
    // SAFETY: the context is not used afterwards.
    unsafe { ManuallyDrop::drop(&mut context.owner) };
    result
}

fn count(context: &Context<'_, MockArm64>, counter: Counter) -> u64 {
    context.counters[counter as usize].load(Ordering::Relaxed)
}

fn next_stay(act: impl FnMut(&mut Registers) -> Vector + 'static) {
    hardware(|hardware| hardware.stays.push_back(Box::new(act)));
}

fn has(told: &[Recorded], instruction: &'static str) -> bool {
    told.contains(&Recorded::Tlb(instruction))
}

#[test]
fn a3_who_arrives_drops_what_the_processor_holds() {
    for (config, reaches_all) in [("vcpus=3", false), ("vcpus=3\nlocal_tlbi=broadcast", true)] {
        let vm = machine(config).machine();
        let mut places = [workspace(0), workspace(1)];
        // CPU, vCPU, and whether it must drop translations.
        for (cpu, vcpu, drops) in [
            (0, 0, false),
            (0, 0, false),
            (0, 1, true),
            (0, 1, false),
            (0, 0, true),
            (1, 0, false),
            (0, 0, !reaches_all),
            (1, 2, true),
            (0, 0, false),
        ] {
            turn(vm, cpu, vcpu, &mut places[cpu as usize], |context| {
                let told = told();
                assert_eq!(has(&told, "local_combined"), drops, "vCPU {vcpu} on CPU {cpu}: {told:?}");
                // The drop is complete before the guest's first access.
                let drop = told.iter().rposition(|told| *told == Recorded::Tlb("local_combined"));
                let wait = told.iter().rposition(|told| *told == Recorded::Tlb("complete_local"));
                assert!(drop.is_none() || drop < wait);
                assert!(enter(context));
                assert!(!has(&self::told(), "local_combined"), "once is enough");
            });
        }
        let dropped: u64 = vm
            .vcpus
            .iter()
            .map(|vcpu| vm.host.counters_of(vcpu.row)[Counter::FlushArrival as usize].load(Ordering::Relaxed))
            .sum();
        assert_eq!(dropped, if reaches_all { 3 } else { 4 });
    }
}

#[test]
fn a4_vmids_that_run_out_are_loaded_anew_before_the_guest_runs() {
    for speculates in [false, true] {
        let vm =
            machine_on("vmid_churn=1\nvmid_bits=2", |hardware| hardware.speculates = speculates).machine();
        let mut place = workspace(0);
        turn(vm, 0, 0, &mut place, |_| MockArm64::write(Register::Tcr, 0x1234));
        turn(vm, 0, 0, &mut place, |context| {
            let seen = Rc::new(RefCell::new(Vec::new()));
            let _before = told();
            for _ in 0..40 {
                let sees = Rc::clone(&seen);
                next_stay(move |_| {
                    let vmid = hardware(|hardware| hardware.vttbr) >> 48;
                    sees.borrow_mut().push((vmid, MockArm64::read(Register::Tcr)));
                    Vector::Synchronous
                });
                let before = count(context, Counter::VmidFlushes);
                assert!(enter(context));
                let told = told();
                let dropped = has(&told, "local_all_vms");
                assert_eq!(count(context, Counter::VmidFlushes) - before, u64::from(dropped));
                assert_eq!(told.last(), Some(&Recorded::Entered), "all is done before");
                let current = vm.guest.tag.vmid.current().expect("it runs");
                assert_eq!(seen_last(&seen), (current.into(), 0x1234), "its own VMID, and its own TCR_EL1");
            }
            assert!(count(context, Counter::VmidFlushes) >= 5);
        });
    }
}

fn seen_last(seen: &Rc<RefCell<Vec<(u64, u64)>>>) -> (u64, u64) {
    *seen.borrow().last().expect("the guest has run")
}

#[test]
fn an_entry_that_is_called_off_takes_interrupts() {
    let vm = machine("vcpus=2").machine();
    turn(vm, 0, 0, &mut workspace(0), |context| {
        vm.notify(context.vcpu, Published::NOTHING);
        context.cpu.arch.timers_fired.set(1 << 27);
        context.state.gic.set_line(20, true);
        assert!(!enter(context), "there is something to look at");
        assert!(!told().contains(&Recorded::Entered));
        assert_eq!(hardware(|hardware| hardware.lists), [0; 16], "list registers are taken back");
        assert_eq!((count(context, Counter::IrqTimer), context.cpu.arch.timers_fired.get()), (1, 0));
        assert!(context.owner.take_events());
        assert!(enter(context), "it has been looked at");
    });
}

#[test]
fn only_interrupts_have_interrupts_looked_for() {
    for (vector, timers, exit) in
        [(Vector::Interrupt, 1, 1), (Vector::Synchronous, 0, 0), (Vector::SError, 0, 3)]
    {
        let vm = machine("").machine();
        turn(vm, 0, 0, &mut workspace(0), |context| {
            next_stay(move |_| {
                MockArm64::cpu(CpuIndex(0)).expect("a CPU").arch.timers_fired.set(1 << 30);
                vector
            });
            assert!(enter(context));
            assert_eq!(count(context, Counter::IrqTimer), timers);
            assert_eq!((context.state.exit, context.cpu.last_exit.load(Ordering::Relaxed)), (vector, exit));
        });
    }
}

/// Opens the vCPU's interface, and enables these private interrupts, in group 1.
fn open(context: &mut Context<'_, MockArm64>, intids: u32) {
    MockArm64::write(Register::IchVmcr, 0xff << 24 | 2);
    let mut distributor = context.vm.guest.distributor.lock();
    let effect = distributor.write(0, 4, 2);
    devices::perform(context.vm, effect, &distributor);
    drop(distributor);
    take_signals(context);
    let _events = context.owner.take_events();
    let _no_effect = context.state.gic.write(0x1_0080, 4, u64::MAX);
    let _no_effect = context.state.gic.write(0x1_0100, 4, intids.into());
}

#[test]
fn a_timer_that_is_due_is_in_the_list_registers() {
    for (intid, register, value) in [
        (27, Register::VirtualControl, Register::VirtualValue),
        (30, Register::PhysicalControl, Register::PhysicalValue),
    ] {
        let vm = machine("").machine();
        let mut place = workspace(0);
        turn(vm, 0, 0, &mut place, |context| {
            open(context, 1 << intid);
            // Enabled, and due.
            MockArm64::write(register, 5);
            MockArm64::write(value, 77);
        });
        assert_eq!(MockArm64::read(register), 0, "it is off while the vCPU is");
        MockArm64::cpu(CpuIndex(0)).expect("a CPU").arch.timers_fired.set(1 << intid);
        turn(vm, 0, 0, &mut place, |context| {
            assert_eq!((MockArm64::read(register), MockArm64::read(value)), (5, 77));
            assert_eq!(count(context, Counter::IrqTimer), 1, "its interrupt would end guest mode at once");
            let lists = Rc::new(RefCell::new(0));
            let found = Rc::clone(&lists);
            next_stay(move |_| {
                *found.borrow_mut() = MockArm64::read_list(0);
                // The guest stops it instead of taking it.
                MockArm64::write(register, 0);
                Vector::Synchronous
            });
            assert!(enter(context));
            let list = ListRegister::from_bits(*lists.borrow());
            let seen = (list.intid(), list.physical(), list.hardware(), list.pending());
            assert_eq!(seen, (intid, intid as u16, true, true));
            assert_eq!(told().last(), Some(&Recorded::Deactivate(intid)), "it is quiet again");
            assert_eq!(hardware(|hardware| hardware.lists), [0; 16]);
        });
        // A timer that is not due is not forwarded.
        MockArm64::cpu(CpuIndex(0)).expect("a CPU").arch.timers_fired.set(1 << intid);
        turn(vm, 0, 0, &mut place, |context| {
            assert_eq!(count(context, Counter::IrqTimer), 1);
            context.cpu.arch.timers_fired.set(0);
        });
    }
}

#[test]
fn what_has_no_list_register_asks_for_maintenance() {
    let vm = machine_on("", |hardware| hardware.list_count = 1).machine();
    turn(vm, 0, 0, &mut workspace(0), |context| {
        open(context, 1 << 20 | 1 << 21);
        context.state.gic.set_line(20, true);
        context.state.gic.set_line(21, true);
        let controls = Rc::new(RefCell::new(0));
        let found = Rc::clone(&controls);
        next_stay(move |_| {
            *found.borrow_mut() = MockArm64::interface_control();
            Vector::Interrupt
        });
        assert!(enter(context));
        assert_ne!(*controls.borrow() & u64::from(Maintenance::NO_PENDING.bits()), 0);
        assert_eq!(MockArm64::interface_control(), 1, "it asks for nothing outside of guest mode");
        // Interrupts arrive and have no effect: the vCPU stops requesting them.
        for _ in 0..100 {
            context.cpu.arch.maintenance_fired.set(true);
            open_window(context);
            assert!(!context.cpu.arch.maintenance_fired.get());
            assert!(enter(context));
        }
        let found = Rc::clone(&controls);
        next_stay(move |_| {
            *found.borrow_mut() = MockArm64::interface_control();
            Vector::Interrupt
        });
        context.cpu.arch.maintenance_fired.set(true);
        open_window(context);
        assert!(enter(context));
        assert_eq!(*controls.borrow(), 1);
    });
}

#[test]
fn who_is_told_to_start_begins_as_after_power_on() {
    let vm = machine("vcpus=2").machine();
    turn(vm, 0, 1, &mut workspace(0), |context| {
        assert_eq!(context.state.activity, Activity::Off);
        take_signals(context);
        context.state.update_activity();
        let found = (context.state.activity, context.state.is_running());
        assert_eq!(found, (Activity::Off, false), "nobody has said so");
        for register in Register::ALL {
            MockArm64::write(*register, 0xdead);
        }
        assert!(vm.vcpus[1].inbox.power.turn_on(Start { entry: 0x4000_1000, context: 9 }).is_ok());
        take_signals(context);
        assert_eq!(context.state.activity, Activity::Running);
        let expected = Registers {
            x: core::array::from_fn(|x| if x == 0 { 9 } else { 0 }),
            pc: 0x4000_1000,
            pstate: 0x3c5,
        };
        assert_eq!(context.state.registers, expected);
        let [sctlr, vbar, tcr, vmcr] =
            [Register::Sctlr, Register::Vbar, Register::Tcr, Register::IchVmcr].map(MockArm64::read);
        assert_eq!((sctlr, vbar, tcr, vmcr), (0x30d0_0800, 0, 0, 0));
        let debug = alloc::format!("{:?}", context.state.debug);
        let disabled = "Debug { control: 0, channel_interrupts: 0, is_locked: true, claims: 0, ";
        assert!(debug.starts_with(disabled), "{debug}");
        // The second time nothing is started.
        context.state.registers.pc = 0x5000;
        take_signals(context);
        assert_eq!(context.state.registers.pc, 0x5000);
    });
}

#[test]
fn a_vcpu_takes_along_all_that_is_its_own_and_nothing_of_others() {
    let optional = Features::POINTER_KEYS | Features::ERRORS | Features::MATRICES;
    for features in [Features::empty(), optional] {
        for bits in 5..=7 {
            let vm = machine_on("vcpus=2", |hardware| {
                (hardware.features, hardware.preemption_bits) = (features, bits);
            })
            .machine();
            let mut place = workspace(0);
            let value = |register: Register, vcpu: u64| (register as u64) << 8 | vcpu;
            // Registers that the processor does not have are not touched.
            let is_there = |register: &Register| match register.name() {
                name if name.starts_with("s3_") => features == optional,
                "ich_ap0r1_el2" | "ich_ap1r1_el2" => bits > 5,
                name if name.starts_with("ich_ap") && !name.contains("r0_") => bits > 6,
                "vmpidr_el2" => false,
                _ => true,
            };
            for vcpu in 0..2 {
                turn(vm, 0, vcpu, &mut place, |context| {
                    for &register in Register::ALL {
                        MockArm64::write(register, value(register, vcpu as u64));
                    }
                    hardware(|hardware| hardware.float.v[31] = vcpu as u128 + 1);
                    context.state.registers.x[30] = vcpu as u64;
                });
            }
            for &register in Register::ALL {
                MockArm64::write(register, 0xbad);
            }
            for vcpu in [0, 1, 0] {
                turn(vm, 0, vcpu, &mut place, |context| {
                    // Nobody else wants the CPU, but somebody was about to.
                    MockArm64::save_state(context);
                    Register::ALL.iter().for_each(|&register| MockArm64::write(register, 0xbad));
                    MockArm64::reload_state(context);
                    for register in Register::ALL.iter().filter(|register| is_there(register)) {
                        assert_eq!(
                            MockArm64::read(*register),
                            value(*register, vcpu as u64),
                            "{}",
                            register.name()
                        );
                    }
                    assert_eq!(MockArm64::read(Register::Vmpidr), 1 << 31 | vcpu as u64);
                    assert_eq!(hardware(|hardware| hardware.float.v[31]), vcpu as u128 + 1);
                    assert_eq!(context.state.registers.x[30], vcpu as u64);
                });
                assert_eq!(
                    (MockArm64::read(Register::VirtualControl), MockArm64::read(Register::PhysicalControl)),
                    (0, 0)
                );
            }
            for register in Register::ALL.iter().filter(|register| !is_there(register)) {
                let expected = if *register == Register::Vmpidr { 1 << 31 } else { 0xbad };
                assert_eq!(MockArm64::read(*register), expected, "{}", register.name());
            }
        }
    }
}

#[test]
fn tcr_is_the_last_that_is_loaded() {
    let vm = machine_on("vcpus=2", |hardware| hardware.speculates = true).machine();
    turn(vm, 0, 0, &mut workspace(0), |_| MockArm64::write(Register::Tcr, 0x77));
    hardware(|hardware| hardware.vttbr = 0);
    let mut elsewhere = workspace(0);
    turn(vm, 0, 0, &mut elsewhere, |_| {
        let told: Vec<_> =
            told().into_iter().filter(|told| matches!(told, Recorded::Tcr(_) | Recorded::Vttbr(_))).collect();
        let [Recorded::Tcr(forbidden), Recorded::Vttbr(_), Recorded::Tcr(0x77)] = told[..] else {
            panic!("{told:?}")
        };
        let found = forbidden & (1 << 7 | 1 << 23);
        assert_eq!(found, 1 << 7 | 1 << 23, "no walks by what is there of another guest");
    });
}
