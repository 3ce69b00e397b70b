//! What the glue hands to the steps that `stay` tests, and to the scheduler: each value is the
//! vCPU's or its guest's own (U62).

use super::*;
use crate::arm64::mock::machines;
use crate::devices::virt::gic::View;
use crate::devices::virt::map::{self, PHYSICAL_TIMER_INTID, VIRTUAL_TIMER_INTID};
use crate::vm::arch::{Arch, Clock, State};
use crate::vm::dma::DmaFlush;
use crate::vm::mock;
use crate::vm::space::FlushScratch;
use paging::{FlushRange, Invalidation, Level};

#[test]
fn u62_a_guests_way_to_unmap_is_its_own() {
    // 16 pages are the machine's limit.
    for (config, has_ranges, pages, expected) in [
        ("", false, 16, &["page", "combined"][..]),
        ("", false, 17, &["everything"]),
        ("flush_pages=20", false, 20, &["page", "combined"]),
        ("flush_pages=20", false, 21, &["everything"]),
        ("stage2_unmap=page", false, 17, &["page", "combined"]),
        ("stage2_unmap=whole", false, 1, &["everything"]),
        ("", true, 18, &["range", "combined"]),
        ("stage2_unmap=page", true, 18, &["page", "combined"]),
    ] {
        let vm = machine_on(config, |hardware| hardware.has_ranges = has_ranges).machine();
        turn(vm, 0, 0, &mut workspace(0), |context| assert!(enter(context)));
        let range = FlushRange { start: 0x4000_0000, len: pages << 12, level: Level::Page4K, tables: false };
        let ranges = [range];
        let invalidation = Invalidation::Ranges(&ranges);
        let _before = told();
        let devices = DmaFlush::new(vm, invalidation);
        assert!(MockArm64::flush_space(vm, invalidation, &devices, &mut FlushScratch::new()).is_ok());
        let mut told: Vec<_> = told()
            .into_iter()
            .filter_map(|told| match told {
                Recorded::Tlb(name @ ("page" | "range" | "combined" | "everything")) => Some(name),
                _ => None,
            })
            .collect();
        let count = told.iter().filter(|&&name| name == "page").count() as u64;
        told.dedup();
        assert_eq!(told, expected, "{config} {pages}");
        assert_eq!(count, if expected.contains(&"page") { pages } else { 0 }, "{config} {pages}");
    }
}

#[test]
fn u62_an_invalidation_is_for_the_guests_own_vmid_and_tables() {
    let vms =
        machines(["name=one\nmemory=16777216\nvcpus=1", "name=other\nmemory=16777216\nvcpus=1"], |_| {});
    let mut loaded = Vec::new();
    let mut place = workspace(0);
    for vm in vms {
        turn(vm, 0, 0, &mut place, |context| assert!(enter(context)));
        let vttbr = hardware(|hardware| hardware.vttbr);
        assert_eq!(vttbr & 0xffff_ffff_fffe, vm.space.root().0);
        assert_eq!(vttbr >> 48, u64::from(vm.guest.tag.vmid.current().expect("it ran")));
        loaded.push(vttbr);
    }
    assert_ne!(loaded[0] >> 48, loaded[1] >> 48);
    // The first one's translations are invalidated under its VMID, while the other's is loaded.
    let _before = told();
    let devices = DmaFlush::new(vms[0], Invalidation::Everything);
    assert!(
        MockArm64::flush_space(vms[0], Invalidation::Everything, &devices, &mut FlushScratch::new()).is_ok()
    );
    let told = told();
    let at = |wanted: Recorded| told.iter().position(|told| *told == wanted);
    let (there, back) = (at(Recorded::Vttbr(loaded[0])), at(Recorded::Vttbr(loaded[1])));
    assert!(
        there < at(Recorded::Tlb("everything")) && at(Recorded::Tlb("everything")) < back && there.is_some()
    );
}

#[test]
fn u62_a_halted_vcpu_wakes_for_the_timer_that_is_first() {
    const ENABLED: u64 = 1;
    const MASKED: u64 = 2;
    let vm = machine("").machine();
    turn(vm, 0, 0, &mut workspace(0), |context| {
        // Both count from the machine's own zero: before and after now, and as far as can be.
        for value in [0, 1, 999, 5000, i64::MAX as u64, 1 << 63, u64::MAX - 1] {
            for (control, counts) in [(0, false), (ENABLED, true), (ENABLED | MASKED, false), (MASKED, false)]
            {
                for (control_register, value_register, other) in [
                    (Register::VirtualControl, Register::VirtualValue, Register::PhysicalControl),
                    (Register::PhysicalControl, Register::PhysicalValue, Register::VirtualControl),
                ] {
                    MockArm64::write(control_register, control);
                    MockArm64::write(value_register, value);
                    MockArm64::write(other, 0);
                    context.state.activity = Activity::Halted;
                    let expected = if counts { value } else { u64::MAX };
                    assert_eq!(context.state.next_deadline(1000), expected, "{value} {control}");
                    context.state.activity = Activity::Running;
                    assert_eq!(context.state.next_deadline(1000), u64::MAX, "it interrupts on its own");
                    assert!(context.state.is_running());
                }
            }
        }
        context.state.activity = Activity::Halted;
        MockArm64::write(Register::VirtualControl, ENABLED);
        MockArm64::write(Register::PhysicalControl, ENABLED);
        MockArm64::write(Register::VirtualValue, 7000);
        MockArm64::write(Register::PhysicalValue, 6000);
        assert_eq!(context.state.next_deadline(1000), 6000, "the earlier one");
        // One that has been forwarded waits for the guest, not for the time.
        context.state.gic.forward(PHYSICAL_TIMER_INTID);
        assert_eq!(context.state.next_deadline(1000), 7000);
        context.state.gic.forward(VIRTUAL_TIMER_INTID);
        assert_eq!(context.state.next_deadline(1000), u64::MAX);
    });
}

#[test]
fn m4_a_timer_that_the_processor_has_lost_is_written_again() {
    const PERIOD: u64 = mock::HZ / 1000;
    let vm = machine("vcpus=2").machine();
    vm.clock.set(&vm.host.wall, MockArm64::now(), 1 << 50, 0);
    turn(vm, 0, 0, &mut workspace(0), |context| {
        let looks = |context: &mut Context<'_, MockArm64>, [control, left]: [u64; 2]| {
            MockArm64::write(Register::VirtualControl, control);
            MockArm64::write(Register::VirtualValue, vm.clock.at(MockArm64::now()) + left);
            mock::board_impl::advance::<MockArm64>(mock::HZ);
            open_window(context);
            (MockArm64::read(Register::VirtualControl), context.state.next_deadline(1000))
        };
        // It is off, masked, or not yet due.
        for (control, left) in [(0, 5), (3, 5), (1, 2 * mock::HZ)] {
            assert_eq!(looks(context, [control, left]), (control, u64::MAX));
        }
        assert_eq!(looks(context, [1, 5]), (5, 1000 + PERIOD));
        assert_eq!(looks(context, [1, 2 * mock::HZ]), (1, 1000 + PERIOD), "another may be lost");
    });
    // The machine's own counter wraps nowhere.
    turn(machine("").machine(), 0, 0, &mut workspace(0), |context| {
        MockArm64::write(Register::VirtualControl, 1);
        open_window(context);
        assert_eq!(MockArm64::read(Register::VirtualControl), 1);
        assert_eq!(context.state.next_deadline(1000), u64::MAX);
    });
}

#[test]
fn an_exception_sets_pan_and_ssbs_as_sctlr_says() {
    const PAN: u64 = 1 << 22;
    const SSBS: u64 = 1 << 12;
    let _machine = machine("");
    for (span, dssbs, former) in (0..16).map(|bits: u64| (bits & 1, (bits >> 1) & 1, bits >> 2)) {
        MockArm64::write(Register::Sctlr, span << 23 | dssbs << 44);
        let before = 5 + (former & 1) * PAN + (former >> 1) * SSBS;
        let mut registers = Registers { pstate: before, ..Registers::default() };
        inject::undefined::<MockArm64>(&mut registers);
        let pan = if span == 0 { PAN } else { before & PAN };
        assert_eq!(registers.pstate, 0x3c5 + pan + dssbs * SSBS, "SPAN {span}, DSSBS {dssbs}, {before:#x}");
        assert_eq!((MockArm64::read(Register::Spsr), MockArm64::read(Register::Esr)), (before, 1 << 25));
    }
}

#[test]
fn the_running_priority_is_of_the_active_priorities_that_the_processor_has() {
    let registers = [
        [Register::IchAp0r0, Register::IchAp1r0],
        [Register::IchAp0r1, Register::IchAp1r1],
        [Register::IchAp0r2, Register::IchAp1r2],
        [Register::IchAp0r3, Register::IchAp1r3],
    ];
    for (bits, count) in [(5, 1), (6, 2), (7, 4)] {
        let vm = machine_on("", |hardware| hardware.preemption_bits = bits).machine();
        turn(vm, 0, 0, &mut workspace(0), |context| {
            for (word, group) in (0..4).flat_map(|word| [(word, 0), (word, 1)]) {
                registers.as_flattened().iter().for_each(|&register| MockArm64::write(register, 0));
                MockArm64::write(registers[word][group], 1 << 3 | 1 << 9);
                let priority = ((word as u8) * 32 + 3) << (8 - bits);
                let expected = View::new(0, if word < count { priority } else { 0xff });
                assert_eq!(context.state.view(), expected, "{bits} bits, word {word}, group {group}");
            }
        });
    }
}

#[test]
fn input_that_the_device_has_no_room_for_waits_up_to_a_limit() {
    let vm = machine("").machine();
    let typed: Vec<u8> = (0..4097_u32).map(|byte| byte as u8).collect();
    assert_eq!(MockArm64::type_in(vm, 1, &typed), None, "there is one port");
    assert_eq!(MockArm64::type_in(vm, 0, &typed), Some(4096));
    let mut uart = vm.guest.uart.lock();
    // It is enabled, and has its FIFO.
    let _effects = [uart.device.write(0x30, 1 | 1 << 9), uart.device.write(0x2c, 1 << 4)];
    let mut taken = Vec::new();
    while taken.len() < 4096 {
        uart.pass_on();
        assert_eq!(uart.device.read(0x18) & 1 << 4, 0, "there is some behind {}", taken.len());
        taken.push(uart.device.read(0) as u8);
    }
    assert_eq!(taken, typed[..4096]);
}

#[test]
fn an_interrupt_wakes_a_vcpu_that_waits_and_none_that_is_off() {
    let vm = machine("").machine();
    turn(vm, 0, 0, &mut workspace(0), |context| {
        open(context, 1 << 20);
        // The boot vCPU has begun meanwhile.
        MockArm64::write(Register::IchVmcr, 0xff << 24 | 2);
        for pends in [false, true] {
            context.state.gic.set_line(20, pends);
            for activity in [Activity::Running, Activity::Halted, Activity::Off] {
                context.state.activity = activity;
                context.state.update_activity();
                let woken = activity == Activity::Halted && pends;
                let expected = if woken { Activity::Running } else { activity };
                assert_eq!(context.state.activity, expected, "{pends}");
            }
        }
    });
}

#[test]
fn u25_the_clocks_alarm_wakes_the_vcpu_that_has_set_it() {
    const MATCH: u64 = map::RTC + 4;
    const MASK: u64 = map::RTC + 0x10;
    const CLEAR: u64 = map::RTC + 0x1c;
    let vm = machine("vcpus=2").machine();
    let mut place = workspace(0);
    let is_pending = |vm: &Vm<MockArm64>| {
        let (value, _effect) =
            vm.guest.distributor.lock().read(0x200 + u32::from(map::RTC_INTID) / 32 * 4, 4);
        value >> (map::RTC_INTID % 32) & 1 != 0
    };
    turn(vm, 0, 1, &mut place, |context| {
        context.state.activity = Activity::Halted;
        assert_eq!(context.state.next_deadline(0), u64::MAX);
        let second = vm.wall_ns() / 1_000_000_000;
        assert!(devices::write(context, MASK, 4, 1));
        assert!(devices::write(context, MATCH, 4, second + 2));
        assert!(context.owner.take_events(), "its deadline is looked at before it goes on");
        let due = vm.host.wall.ticks((second + 2) * 1_000_000_000);
        for activity in [Activity::Halted, Activity::Running, Activity::Off] {
            context.state.activity = activity;
            assert_eq!(context.state.next_deadline(0), due, "{activity:?}");
        }
        devices::expire_alarm(context, due - 1);
        assert!(!is_pending(vm));
        mock::board_impl::advance::<MockArm64>(due - MockArm64::now());
        devices::expire_alarm(context, due);
        assert!(is_pending(vm));
        assert!(devices::write(context, CLEAR, 4, 1));
        assert!(!is_pending(vm));
        assert!(context.state.next_deadline(0) > due, "when the counter has come around");
    });
    turn(vm, 0, 0, &mut place, |context| {
        context.state.activity = Activity::Halted;
        assert_eq!(context.state.next_deadline(0), u64::MAX, "it has set none");
    });
    // The operator wakes by the same interrupt, whether or not the alarm's is masked.
    MockArm64::wake(vm);
    assert!(is_pending(vm));
    let mut distributor = vm.guest.distributor.lock();
    let _effect =
        distributor.write(0x280 + u32::from(map::RTC_INTID) / 32 * 4, 4, 1 << (map::RTC_INTID % 32));
    drop(distributor);
    assert!(!is_pending(vm), "it is no level");
}
