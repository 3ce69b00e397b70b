//! HVC and SMC.

use super::*;
use crate::devices::virt::psci::AffinityState;
use memslots::Gpa;

const NOT_SUPPORTED: u64 = -1i64 as u64;
const INVALID: u64 = -2i64 as u64;
const ALREADY_ON: u64 = -4i64 as u64;
const ON_PENDING: u64 = -5i64 as u64;
const CPU_ON: u64 = 0xc400_0003;
const PV_TIME_ST: u64 = 0xc500_0021;

fn call(context: &mut Context<'_, MockArm64>, x: [u64; 4]) -> Next {
    context.state.registers.x[..4].copy_from_slice(&x);
    let next = except(context, of_class(0x16, 0));
    assert_eq!(context.state.registers.pc, CODE, "the PC is behind HVC already");
    next
}

#[test]
pub(super) fn cpu_on_starts_who_is_off() {
    with(|context| {
        let vm = context.vm;
        assert_eq!(call(context, [CPU_ON, 1, RAM + 0x1000, 77]), Next::Resume);
        assert_eq!(context.state.registers.x[0], 0);
        assert_eq!(vm.vcpus[1].inbox.power.affinity(), AffinityState::OnPending);
        assert!(vm.vcpus[1].target.has_event(), "it is told");
        call(context, [CPU_ON, 1, RAM, 78]);
        assert_eq!(context.state.registers.x[0], ON_PENDING);
        let start = vm.vcpus[1].inbox.power.take_start().expect("it was started");
        assert_eq!((start.entry, start.context), (RAM + 0x1000, 77), "the first one counts");
        // A running vCPU, the caller itself, an absent one, and invalid numbers.
        for (target, answer) in [
            (1, ALREADY_ON),
            (0, ALREADY_ON),
            (3, INVALID),
            (255, INVALID),
            (0x100, INVALID),
            (1 << 24, INVALID),
            (1 << 32, INVALID),
            (u64::MAX, INVALID),
        ] {
            assert_eq!(call(context, [CPU_ON, target, RAM, 0]), Next::Resume);
            assert_eq!(context.state.registers.x[0], answer, "{target:#x}");
        }
        // AFFINITY_INFO of each.
        for (target, answer) in [(0, 0), (1, 0), (2, 1), (3, INVALID)] {
            call(context, [0xc400_0004, target, 0, 0]);
            assert_eq!(context.state.registers.x[0], answer, "{target}");
        }
    });
}

#[test]
pub(super) fn every_function_has_an_answer() {
    let owners =
        [0x8000_0000u64, 0x8400_0000, 0xc400_0000, 0xc500_0000, 0x8500_0000, 0x8600_0000, 0xc600_0000]
            .into_iter()
            .chain([0xbf00_ff00, 0, 0xffff_ff00]);
    // They end the vCPU's stay, or the machine's run.
    let others = [0x8400_0001, 0xc400_0001, 0x8400_0002, 0x8400_0008, 0x8400_0009, 0x8400_0012, 0xc400_0012];
    for owner in owners {
        with(|context| {
            for function in (owner..owner + 0x100).filter(|function| !others.contains(function)) {
                let arguments = [function | 0xdead_0000_0000_0000, u64::MAX, u64::MAX, u64::MAX];
                assert_eq!(call(context, arguments), Next::Resume, "{function:#x}");
                let x0 = context.state.registers.x[0];
                let is_status = (-5..=0).contains(&(x0 as i64));
                assert!(
                    is_status || x0 == 2 || x0 == 0x1_0001 || [0x8600_ff01, PV_TIME_ST].contains(&function),
                    "{function:#x}: {x0:#x}"
                );
            }
        });
    }
    with(|context| {
        call(context, [0x8600_ff01, 1, 2, 3]);
        let letters: Vec<u8> = context.state.registers.x[..4]
            .iter()
            .flat_map(|&x| u32::try_from(x).expect("32 bits").to_le_bytes())
            .collect();
        assert_eq!(letters, b"quell hypervisor");
        assert_eq!(context.state.registers.x[4], 0x1_0000_0004, "and nothing else");
    });
}

#[test]
pub(super) fn stolen_time_is_offered_and_each_vcpu_has_its_own() {
    const ARCH_FEATURES: u64 = 0x8000_0001;
    const PV_TIME_FEATURES: u64 = 0xc500_0020;
    let board = machine("vcpus=3");
    for vcpu in 0..3 {
        board.with_vcpu(vcpu, |context| {
            let vm = context.vm;
            context.state.registers.pc = CODE;
            let mut answer = |x| {
                assert_eq!(call(context, x), Next::Resume);
                context.state.registers.x[0]
            };
            assert_eq!(answer([ARCH_FEATURES, PV_TIME_FEATURES, 0, 0]), 0);
            // PV_TIME_ST itself is not for ARCH_FEATURES, and the 32-bit calls do not exist.
            for absent in [PV_TIME_ST, 0x8500_0020, 0xc500_0022] {
                assert_eq!(answer([ARCH_FEATURES, absent, 0, 0]), NOT_SUPPORTED, "{absent:#x}");
            }
            for (asked, expected) in [
                (PV_TIME_FEATURES, 0),
                (PV_TIME_ST, 0),
                // Only the low half is an argument.
                (PV_TIME_ST | 0xdead << 32, 0),
                (0xc500_0022, NOT_SUPPORTED),
                (0x8500_0021, NOT_SUPPORTED),
                (0, NOT_SUPPORTED),
                (u64::MAX, NOT_SUPPORTED),
            ] {
                assert_eq!(answer([PV_TIME_FEATURES, asked, 0, 0]), expected, "{asked:#x}");
            }
            for garbage in [0, u64::MAX] {
                let place = answer([PV_TIME_ST, garbage, garbage, garbage]);
                assert_eq!(place, 0x090a_0000 + 64 * u64::from(vcpu));
                let mut structure = [1; 64];
                vm.space.slots().memory().read(Gpa(place), &mut structure).expect("there is memory");
                assert_eq!(structure, [0; 64], "revision 0, attributes 0, and nothing stolen yet");
            }
            for absent in [0x8500_0020, 0x8500_0021, 0xc500_0022] {
                assert_eq!(answer([absent, 0, 0, 0]), NOT_SUPPORTED, "{absent:#x}");
            }
        });
    }
}

#[test]
pub(super) fn power_functions_say_how_to_go_on() {
    for (function, next, activity) in [
        (0xc400_0001, Next::Halt, Activity::Halted),
        (0x8400_0002, Next::Timers, Activity::Off),
        (0x8400_0008, Next::PowerOff, Activity::Running),
        (0x8400_0009, Next::Reset, Activity::Running),
        (0x8400_0012, Next::Reset, Activity::Running),
    ] {
        with(|context| {
            assert_eq!(call(context, [function, 0, 0, 0]), next, "{function:#x}");
            assert_eq!(context.state.activity, activity);
            assert_eq!(context.vcpu.inbox.power.is_on(), activity != Activity::Off);
        });
    }
    // Power states and resets that do not exist.
    for (function, first, answer) in
        [(0xc400_0001, 1, INVALID), (0x8400_0012, 1, INVALID), (0xc400_0012, 0x8000_0000, NOT_SUPPORTED)]
    {
        with(|context| {
            assert_eq!(call(context, [function, first, 0, 0]), Next::Resume);
            assert_eq!(context.state.registers.x[0], answer);
        });
    }
    // It turns itself off, and another vCPU starts it again.
    with(|context| {
        assert_eq!(call(context, [0x8400_0002, 0, 0, 0]), Next::Timers);
        let start = crate::devices::virt::psci::Start { entry: RAM, context: 5 };
        assert!(context.vcpu.inbox.power.turn_on(start).is_ok());
        MockArm64::take_signals(context);
        let registers = &context.state.registers;
        assert_eq!((registers.pc, registers.x[0], registers.pstate), (RAM, 5, 0x3c5));
        assert_eq!(context.state.activity, Activity::Running);
    });
}

#[test]
pub(super) fn smc_is_refused_whatever_it_asks() {
    for function in [0, CPU_ON, 0x8400_0008, 0x8600_ff01, u64::MAX] {
        for rest in [0, 0xffff, 0x1ff_ffff] {
            with(|context| {
                context.state.registers.x[0] = function;
                assert_eq!(except(context, of_class(0x17, rest)), Next::Resume);
                assert_eq!(context.state.registers.x[0], NOT_SUPPORTED);
                assert_eq!(context.state.registers.pc, CODE + 4, "trapped SMC is not behind itself");
            });
        }
    }
}
