//! System registers that trap.

use super::*;
use crate::arm64::processor::Processor;
use crate::arm64::vcpu::debug;
use crate::arm64::vcpu::registers::{Name, Treatment};
use crate::vm::arch::Clock;
use crate::vm::mock;

/// The syndrome of an access to a register by `x`.
fn access((op0, op1, crn, crm, op2): Name, x: u64, is_read: bool) -> u64 {
    let name = u64::from(op0) << 20 | u64::from(op2) << 17 | u64::from(op1) << 14 | u64::from(crn) << 10;
    of_class(0x18, name | x << 5 | u64::from(crm) << 1 | u64::from(is_read))
}

fn names() -> impl Iterator<Item = Name> {
    (0..1 << 16).map(|code: u32| (code >> 14, code >> 11 & 7, code >> 7 & 15, code >> 3 & 15, code & 7))
}

#[test]
fn every_encoding_is_answered_or_undefined() {
    with(|context| {
        for name in names() {
            for is_read in [true, false] {
                ready(context);
                // Enabled debug registers would be loaded.
                context.state.registers.x[3] = 0;
                let before = context.state.registers.clone();
                assert_eq!(except(context, access(name, 3, is_read)), Next::Resume);
                let treatment = Treatment::of(name, is_read);
                let mut after = context.state.registers.clone();
                if after.pc == CODE + 4 {
                    assert_ne!(treatment, Treatment::Undefined, "{name:?}");
                    // A read changes its own register alone.
                    after.x[3] = 0;
                    assert_eq!(after.x, before.x, "{name:?}");
                } else {
                    assert_taken(context, UNDEFINED, (CODE, EL1));
                    assert_eq!(context.state.registers.x, before.x, "{name:?}");
                    // Breakpoints beyond the existing ones, and registers that cannot be read or
                    // written.
                    assert!(
                        matches!(treatment, Treatment::Undefined | Treatment::Debug(_)),
                        "{name:?} {treatment:?}"
                    );
                }
            }
        }
    });
}

#[test]
pub(super) fn el0_has_nothing_but_an_open_channel() {
    const CHANNEL: Name = (2, 3, 0, 1, 0);
    with(|context| {
        for name in names().filter(|name| Treatment::of(*name, true) != Treatment::Undefined) {
            ready(context);
            context.state.registers.pstate = EL0;
            assert_eq!(except(context, access(name, 3, true)), Next::Resume);
            match Treatment::of(name, true) {
                // They trap here only if the guest has opened them.
                Treatment::Counter | Treatment::Timer(_) => {
                    assert_eq!(context.state.registers.pc, CODE + 4);
                }
                Treatment::Debug(debug::Register::Channel) => {
                    assert_eq!((context.state.registers.pc, context.state.registers.x[3]), (CODE + 4, 0));
                }
                _ => assert_taken(context, UNDEFINED, (CODE, EL0)),
            }
        }
        // MDSCR_EL1.TDCC closes it.
        ready(context);
        context.state.registers.x[3] = 1 << 12;
        except(context, access((2, 0, 0, 2, 2), 3, false));
        ready(context);
        context.state.registers.pstate = EL0;
        except(context, access(CHANNEL, 3, true));
        assert_taken(context, UNDEFINED, (CODE, EL0));
    });
}

#[test]
pub(super) fn what_is_written_has_its_effect() {
    with(|context| {
        let vm = context.vm;
        let write = |context: &mut Context<'_, MockArm64>, name: Name, value: u64| {
            ready(context);
            context.state.registers.x[3] = value;
            assert_eq!(except(context, access(name, 3, false)), Next::Resume);
            assert_eq!(context.state.registers.pc, CODE + 4, "{name:?}");
        };
        // ICC_SGI1R_EL1: INTID 5 to all others, then to vCPU 2, to an absent vCPU, with all bits.
        for (value, told) in [
            (1 << 40 | 5 << 24, [false, true, true]),
            (5 << 24 | 4, [false, false, true]),
            (0xff << 16 | 1, [false; 3]),
        ] {
            let before = count(context, Counter::IrqIpi);
            write(context, (3, 0, 12, 11, 5), value);
            for (vcpu, told) in vm.vcpus.iter().zip(told) {
                assert_eq!(!vcpu.inbox.interrupts.is_empty(), told, "{value:#x}");
                // It is taken, so that the next one can be told apart.
                if vcpu.index != context.vcpu.index {
                    // SAFETY: the vCPU is not running.
                    let _spis = unsafe { vcpu.state() }.gic.look(&vcpu.inbox.interrupts);
                }
            }
            let found = count(context, Counter::IrqIpi) - before;
            assert_eq!(found, told.iter().filter(|told| **told).count() as u64);
        }
        write(context, (3, 0, 12, 11, 5), u64::MAX);
        write(context, (3, 0, 12, 11, 7), u64::MAX);
        // ICC_DIR_EL1 of any number, active or not.
        for intid in [0, 27, 33, 1019, 1023, u64::MAX] {
            write(context, (3, 0, 12, 11, 1), intid);
            assert_eq!(told(), [Recorded::ReadSyndrome], "{intid:#x} is deactivated below");
        }
        // Constants keep their value; XZR stays zero.
        write(context, (3, 0, 12, 12, 5), 0);
        for (name, value) in
            [((3, 0, 12, 12, 5), 7), ((3, 0, 1, 0, 1), 0xac), ((3, 0, 0, 0, 6), 0x1111_1111_1111_0601)]
        {
            ready(context);
            except(context, access(name, 3, true));
            assert_eq!(context.state.registers.x[3], value);
            ready(context);
            let before = context.state.registers.x;
            except(context, access(name, 31, true));
            assert_eq!((context.state.registers.x, context.state.registers.pc), (before, CODE + 4));
        }
        // MDSCR_EL1.MDE, with the OS lock open: breakpoints are loaded. When it is cleared again
        // they are not.
        write(context, (2, 0, 1, 0, 4), 0);
        write(context, (2, 0, 0, 2, 2), 1 << 15);
        assert_eq!(told(), [Recorded::ReadSyndrome, Recorded::LoadDebug(1 << 15)]);
        write(context, (2, 0, 0, 2, 2), 0);
        assert_eq!(told(), [Recorded::ReadSyndrome, Recorded::StopDebug]);
    });
}

#[test]
fn m4_physical_counter_and_timer_go_on_by_the_guests_clock() {
    let counter = |op2| (3, 3, 14, 0, op2);
    let [left, control, value] = [0, 1, 2].map(|op2| (3, 3, 14, 2, op2));
    with(|context| {
        let vm = context.vm;
        mock::board_impl::advance::<MockArm64>(10_000);
        // Ahead of the machine and behind it, and the machine's first and last time.
        for (base, first_time, last_time) in
            [(1 << 40, 0, u64::MAX - (1 << 40)), (500_u64.wrapping_neg(), 500, u64::MAX)]
        {
            vm.clock.set(&vm.host.wall, 10_000, base.wrapping_add(10_000), 0);
            context.state.base = vm.clock.base();
            assert_eq!(context.state.base, base);
            let read = |context: &mut Context<'_, MockArm64>, name: Name| {
                ready(context);
                assert_eq!(except(context, access(name, 3, true)), Next::Resume);
                assert_eq!(context.state.registers.pc, CODE + 4);
                context.state.registers.x[3]
            };
            let write = |context: &mut Context<'_, MockArm64>, name: Name, value: u64| {
                ready(context);
                context.state.registers.x[3] = value;
                assert_eq!(except(context, access(name, 3, false)), Next::Resume);
            };
            let before = vm.clock.at(MockArm64::now());
            let (first, second) = (read(context, counter(1)), read(context, counter(5)));
            assert!(before < first && first < second && second < before + 100);
            write(context, counter(1), 7);
            assert_taken(context, UNDEFINED, (CODE, EL1));
            // The processor's timer is by the machine's counter, and the guest does not notice.
            write(context, value, first + 5000);
            write(context, control, 0xf5);
            assert_eq!(MockArm64::read(Register::PhysicalValue), first.wrapping_sub(base) + 5000);
            assert_eq!((read(context, value), read(context, control)), (first + 5000, 1));
            let remain = read(context, left);
            assert!((4000..5000).contains(&remain), "{remain}");
            write(context, left, 3000);
            assert!((first + 3000..first + 3500).contains(&read(context, value)));
            write(context, left, u64::from(-10_i32 as u32));
            assert!(read(context, value) < first + 500 && read(context, left) > 0xffff_f000);
            for (at, expected) in [(0, first_time), (u64::MAX, last_time)] {
                write(context, value, at);
                assert_eq!((MockArm64::read(Register::PhysicalValue), read(context, value)), (expected, at));
            }
        }
    });
}
