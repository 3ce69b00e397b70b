//! What the glue hands to the steps that `stay` tests: each value is the vCPU's, its guest's or the
//! processor's own (U62).

use alloc::vec::Vec;
use coherence::asid::{AsidSlot, TlbControl};
use coherence::{GvaRange, Hardware, Scope};
use hostlink::counters::Counter;
use memslots::Gpa;
use stay::tagged::Named;

use super::entry::flush;
use super::moved::off;
use super::processor::{CODE, DATA, Guest, MockSvm, board_with, processor};
use super::rows::{IOIO, VMMCALL, port};
use crate::devices::pc::{cmos, ioapic, power};
use crate::devices::wall_clock::NS;
use crate::svm::features::Features;
use crate::vm::arch::{Arch, Clock, Cpus, State};
use crate::vm::mock;
use crate::vm::space::FlushScratch;
use crate::x86::guest::flush::Ipi;
use crate::x86::hyperv::PartitionTraits;
use crate::x86::vcpu::registers::{RAX, RCX, RDX};
use crate::x86::vcpu::signals::{Workspace, expire_timers, take_signals};
use crate::x86::vcpu::state::Activity;
use crate::x86::{CR4_PAE, CR4_PCIDE};

/// Every counter of a way in which a request for a list was carried out.
const WAYS: [Counter; 5] = [
    Counter::FlushWholePcid,
    Counter::FlushWholeLegacy,
    Counter::FlushWholePieces,
    Counter::FlushWholeMerged,
    Counter::FlushRanges,
];

/// With vCPU 0 of a machine of this configuration, which has been entered.
fn with_entered(config: &'static str, act: impl FnOnce(&mut Guest<'_, '_>)) {
    board_with(config).with_vcpu(0, |context| {
        let mut guest = Guest(context);
        guest.begin(&[]);
        assert!(guest.enter(|_, _| {}));
        act(&mut guest);
    });
}

#[test]
fn u62_each_field_of_the_mode_is_what_the_vcpu_has() {
    for bits in 0..8 {
        let [pcid, pae, pieces] = [0, 1, 2].map(|bit| bits >> bit & 1 != 0);
        with_entered("vcpus=2\nmemory=16777216\nnested_page=4K", |guest| {
            flush(guest, &[0x7000]);
            guest.vmcb().cr4 = if pcid { CR4_PCIDE } else { 0 } | if pae { CR4_PAE } else { 0 };
            if pieces {
                let _installed = guest.0.vm.space.fault(Gpa(DATA), true);
            }
            assert_eq!(guest.0.vm.space.has_pieces(), pieces);
            assert!(!guest.enter(|_, _| panic!("nobody enters with a flush pending")));
            let expected = match (pcid, pae, pieces) {
                (true, ..) => Counter::FlushWholePcid,
                (_, false, _) => Counter::FlushWholeLegacy,
                (.., true) => Counter::FlushWholePieces,
                _ => Counter::FlushRanges,
            };
            assert_eq!(guest.count(Counter::FlushWhole), u64::from(expected != Counter::FlushRanges));
            for counter in WAYS {
                let expected = u64::from(counter == expected);
                assert_eq!(guest.count(counter), expected, "{pcid} {pae} {pieces}: {counter:?}");
            }
            let dropped = processor(|processor| processor.dropped.len());
            assert_eq!(dropped, usize::from(expected == Counter::FlushRanges));
        });
    }
}

#[test]
fn u62_the_limit_is_the_guests_at_both_ends() {
    // One element of a list: the first page, and how many follow.
    let pages = |first: u64, count: u64| [first | (count - 1)];
    for (config, limit) in
        [("vcpus=2\nmemory=16777216\nflush_pages=20", 20), ("vcpus=2\nmemory=16777216\nflush_pages=40", 40)]
    {
        with_entered(config, |guest| {
            flush(guest, &pages(0x10_0000, limit));
            assert_eq!(guest.count(Counter::FlushLists), 1);
            flush(guest, &pages(0x10_0000, limit + 1));
            assert_eq!(guest.count(Counter::FlushWholePages), 1, "the initiator's");
        });
        // Each request is within the limit, the target finds both.
        with_entered(config, |guest| {
            for (first, pages) in [(0x10_0000, limit), (0x50_0000, 1)] {
                let all = Named::new(&tlfs::Targets::All, 2);
                let ranges = [GvaRange { first, pages }];
                let mut ledger = FlushScratch::new();
                let issued = coherence::issue(guest.0.vm, &all, Scope::Ranges(&ranges), &mut ledger);
                assert!(issued.receipt().is_some(), "nobody is in guest mode");
            }
            assert!(!guest.enter(|_, _| panic!("nobody enters with a flush pending")));
            assert_eq!(guest.count(Counter::FlushWholeMerged), 1, "the target's");
        });
    }
}

#[test]
fn h25_a_list_of_several_parts_is_continued_where_it_was() {
    with_entered("vcpus=2\nmemory=16777216\nflush_pages=2000", |guest| {
        const MOST: u64 = coherence::RANGE_CAPACITY as u64;
        flush(guest, &[]);
        guest.begin(&[0x0f, 0x01, 0xd9]);
        for (page, index) in (0..MOST + 3).zip(3..) {
            guest.write(DATA + 0x6000 + 8 * index, &(page * 0x2000).to_le_bytes());
        }
        let control = 3 | (MOST + 3) << 32;
        guest.set_all(&[(RCX, control), (RDX, DATA + 0x6000), (RAX, 7)]);
        guest.vmcb().interrupt_shadow = 1;
        guest.exit(VMMCALL, 0, 0);
        let found = (guest.advanced(), guest.get(RAX), guest.get(RCX), guest.vmcb().interrupt_shadow);
        assert_eq!(found, (0, 7, control | MOST << 48, 0), "with interrupts in between");
        guest.exit(VMMCALL, 0, 0);
        assert_eq!((guest.advanced(), guest.get(RAX)), (3, (MOST + 3) << 32));
        let counters = [Counter::FlushContinued, Counter::FlushLists, Counter::FlushWholeAsked];
        assert_eq!(counters.map(|counter| guest.count(counter)), [1; 3]);
    });
}

#[test]
fn a_cpu_that_does_not_leave_is_kicked_again_and_then_given_up() {
    with_entered("vcpus=1\nmemory=16777216", |guest| {
        for (turns, goes_on, kicks) in [
            (0, true, 0),
            ((1 << 14) - 1, true, 1),
            (1 << 14, true, 0),
            ((1 << 15) - 1, true, 1),
            ((1 << 32) - 1, true, 1),
            (1 << 32, false, 0),
        ] {
            let before = guest.count(Counter::KickAgain);
            assert_eq!(Ipi::<MockSvm>::of_machine().relax(turns).is_continue(), goes_on, "{turns}");
            assert_eq!(guest.count(Counter::KickAgain) - before, kicks, "{turns}");
            assert_eq!(mock::board_impl::is_interrupted::<MockSvm>(), kicks != 0, "{turns}");
            mock::board_impl::take_what_pends::<MockSvm>();
        }
    });
}

#[test]
fn u62_a_flush_of_all_reaches_as_many_vcpus_as_there_are() {
    for (config, count) in [
        ("vcpus=1\nmemory=16777216", 1),
        ("vcpus=64\nmemory=16777216", 64),
        ("vcpus=65\nmemory=16777216", 65),
        ("vcpus=130\nmemory=16777216", 130),
    ] {
        with_entered(config, |guest| {
            flush(guest, &[]);
            assert_eq!(guest.count(Counter::FlushDeferred), count);
            let asked = guest.0.vm.vcpus.iter().filter(|vcpu| vcpu.row != guest.0.vcpu.row);
            for vcpu in asked {
                let mut owner = vcpu.target.owner().expect("nobody runs it");
                let work = owner.take_flush().expect("it is asked, too");
                work.complete();
            }
        });
    }
}

#[test]
fn u62_tags_are_the_processors() {
    for flush_by_asid in [false, true] {
        with_entered("vcpus=1\nmemory=16777216", |_| {
            processor(|processor| {
                processor.features = if flush_by_asid { Features::PRETENDED } else { Features(0) };
            });
            let mut asids = Workspace::new(MockSvm::this_cpu()).asids;
            let mut slots: Vec<AsidSlot> = (0..8).map(|_| AsidSlot::new()).collect();
            let given: Vec<_> = slots
                .iter_mut()
                .map(|slot| {
                    let assignment = asids.assign(slot);
                    let given = (assignment.asid, assignment.control);
                    asids.executed(slot, assignment);
                    given
                })
                .collect();
            let tags: Vec<u32> = given.iter().map(|&(asid, _)| asid).collect();
            assert_eq!(tags, [1, 2, 3, 4, 5, 6, 7, 1], "7 in all: CPUID says 8 with the host's own");
            assert_eq!(given[7].1, TlbControl::FlushAll, "before a tag is used again");
            slots[7].owe_flush();
            let is_alone = asids.assign(&mut slots[7]).control == TlbControl::FlushAsid;
            assert_eq!(is_alone, flush_by_asid);
        });
    }
}

#[test]
fn u62_the_vmcb_gets_the_tag_and_is_cached_only_where_the_processor_can() {
    for has_clean_bits in [false, true] {
        with_entered("vcpus=1\nmemory=16777216", |guest| {
            let features = if has_clean_bits { Features::PRETENDED } else { Features(0) };
            processor(|processor| processor.features = features);
            assert_eq!(guest.vmcb().asid, 1);
            assert!(guest.enter(move |vmcb, _| {
                assert_eq!((vmcb.asid, vmcb.tlb_control, vmcb.clean_bits != 0), (1, 0, has_clean_bits));
            }));
            // A new tag: nothing may be taken as it was.
            guest.0.state.own.asid = AsidSlot::new();
            assert!(guest.enter(|vmcb, _| assert_eq!((vmcb.asid, vmcb.clean_bits), (2, 0))));
            assert_ne!(guest.vmcb().clean_bits, 0);
            off(guest, |_| {});
            assert_eq!(guest.vmcb().clean_bits, 0, "another CPU knows nothing of it");
        });
    }
}

/// Arms the local APIC's timer for this time of the guest's TSC.
fn arm(guest: &mut Guest<'_, '_>, deadline: u64) {
    const TSC_DEADLINE_MODE: u32 = 2 << 17;
    let lapic = &mut guest.0.state.lapic;
    let _nothing = lapic.write_page(0xfee0_00f0, 0x1ff, 0);
    let _nothing = lapic.write_page(0xfee0_0320, TSC_DEADLINE_MODE | 0x40, 0);
    assert_eq!(guest.write_msr(0x6e0, deadline), crate::vm::Next::Timers);
}

#[test]
fn u62_a_deadline_in_the_guests_time_is_one_in_the_machines() {
    for offset in [0, 1, 1 << 40, 1u64.wrapping_neg(), (1u64 << 20).wrapping_neg(), 1 << 63] {
        with_entered("vcpus=1\nmemory=16777216", |guest| {
            guest.vmcb().tsc_offset = offset;
            let now = MockSvm::now();
            let due = now + 5000;
            // What the guest writes is later by its offset.
            arm(guest, due.wrapping_add(offset));
            guest.0.state.activity = Activity::Halted;
            // If the guest's TSC wraps in between, the deadline has passed for the guest.
            let wraps = due.wrapping_add(offset) < now.wrapping_add(offset);
            let expected = if wraps { now } else { due };
            assert_eq!(guest.0.state.next_deadline(now), expected, "{offset:#x}");
            expire_timers(guest.0, expected - 1);
            let early = guest.0.state.lapic.highest_irr();
            assert_eq!(early, None, "{offset:#x}");
            expire_timers(guest.0, expected);
            assert_eq!(guest.0.state.lapic.highest_irr(), Some(0x40), "{offset:#x}");
        });
    }
}

#[test]
fn u62_the_partition_says_what_there_is_and_the_timer_has_that_rate() {
    for (config, flush_hypercall) in [("flush=hypercall", true), ("flush=ipi", false)] {
        let config: &'static str = alloc::format!("{config}\nmemory=16777216").leak();
        with_entered(config, |guest| {
            let traits = *guest.0.vm.guest.partition.platform();
            let (may_nest, tsc_hz) = (false, MockSvm::hz());
            let all = PartitionTraits::ALL;
            assert_eq!(traits, PartitionTraits { flush_hypercall, may_nest, tsc_hz, ..all });
            let lapic = &mut guest.0.state.lapic;
            // One-shot, by 1.
            for (register, value) in [(0xf0, 0x1ff), (0x320, 0x40), (0x3e0, 0xb), (0x380, 5000)] {
                let _effect = lapic.write_page(0xfee0_0000 + register, value, 0);
            }
            assert_eq!(lapic.next_deadline(), Some(5000 * traits.tsc_hz / traits.apic_hz));
        });
    }
}

#[test]
fn u62_what_a_vcpu_had_before_init_is_dropped() {
    with_entered("vcpus=1\nmemory=16777216", |guest| {
        assert!(guest.enter(|_, _| {}));
        let (asid, control) = (guest.vmcb().asid, guest.vmcb().tlb_control);
        assert_eq!(control, 0, "nothing is to be dropped");
        guest.0.state.set_init_state();
        guest.begin(&[]);
        assert!(guest.enter(|_, _| {}));
        assert!(guest.vmcb().asid != asid || guest.vmcb().tlb_control != 0);
    });
}

fn out(guest: &mut Guest<'_, '_>, number: u16, value: u8) {
    guest.set(RAX, value.into());
    guest.exit(IOIO, port(number, 1, false), CODE + 1);
}

/// The vector that the local APIC has been sent, which is then served.
fn served(guest: &mut Guest<'_, '_>) -> Option<u8> {
    take_signals(guest.0);
    let vector = guest.0.state.lapic.highest_irr()?;
    guest.0.state.lapic.begin_service(vector);
    let _effect = guest.0.state.lapic.eoi();
    Some(vector)
}

/// With pins 8 and 9 of the I/O APIC sent as vectors 0x48 and 0x49.
fn with_pins(act: impl FnOnce(&mut Guest<'_, '_>)) {
    with_entered("vcpus=1\nmemory=16777216", |guest| {
        let _nothing = guest.0.state.lapic.write_page(0xfee0_00f0, 0x1ff, 0);
        for (pin, entry) in [(cmos::PIN, 0x48), (power::PIN, 0x8049)] {
            let mut platform = guest.0.vm.guest.platform.lock();
            assert!(platform.mmio_write(ioapic::BASE, 0x10 + 2 * u32::from(pin)).is_empty());
            assert!(platform.mmio_write(ioapic::BASE + 0x10, entry).is_empty());
        }
        act(guest);
    });
}

#[test]
fn u67_the_clock_wakes_the_vcpu_that_has_set_it() {
    with_pins(|guest| {
        // Interrupts of each second, and the event that they are.
        out(guest, 0x70, 0xb);
        let _events = guest.0.owner.take_events();
        out(guest, 0x71, 0x12);
        assert!(guest.0.owner.take_events(), "its deadline is looked at before it goes on");
        out(guest, power::EVENTS + 3, 4);
        out(guest, 0x70, 0xc);
        for round in 1..4 {
            let second = guest.0.vm.wall_ns() / NS + 1;
            let due = guest.0.vm.host.wall.ticks(second * NS);
            for activity in [Activity::Halted, Activity::Running, Activity::WaitForStartup] {
                guest.0.state.activity = activity;
                assert_eq!(guest.0.state.next_deadline(0), due, "{round} {activity:?}");
            }
            expire_timers(guest.0, due - 1);
            assert_eq!(served(guest), None);
            crate::vm::mock::board_impl::advance::<MockSvm>(due - MockSvm::now());
            expire_timers(guest.0, due);
            assert_eq!(guest.0.state.next_deadline(0), u64::MAX, "until it is served");
            assert_eq!([(); 3].map(|()| served(guest)), [Some(0x49), Some(0x48), None]);
            out(guest, power::EVENTS + 1, 4);
            assert!(guest.0.vm.guest.platform.lock().eoi(0x49).is_empty(), "its status is cleared");
            let _events = guest.0.owner.take_events();
            guest.exit(IOIO, port(0x71, 1, true), CODE + 1);
            assert!(guest.0.owner.take_events(), "nor is the next second missed");
        }
    });
}

#[test]
fn u67_the_operators_wake_is_a_sleep_button_that_the_guest_has_enabled() {
    with_pins(|guest| {
        let vm = guest.0.vm;
        MockSvm::wake(vm);
        assert_eq!(served(guest), None);
        out(guest, power::GENERAL, 1);
        out(guest, power::GENERAL + 1, 1);
        assert_eq!(served(guest), None, "what was not enabled was cleared");
        MockSvm::wake(vm);
        out(guest, power::GENERAL, 1);
        assert_eq!([served(guest), served(guest)], [Some(0x49), None]);
        assert_eq!(guest.0.state.next_deadline(0), u64::MAX);
    });
}

/// They differ from the vCPUs' indices, as those of all guests but the first one do.
#[cfg(feature = "trace")]
#[test]
fn a_trace_has_the_rows_of_vcpus() {
    use crate::devices::pc::apic_ids::ApicId;
    use crate::devices::pc::message::{Destination, Message, MessageKind, Trigger};
    use hostlink::trace::Event::{Exit, FlushAsked, FlushDone, FlushTaken, Posted};
    super::processor::with_guest(&[], |guest| {
        let (host, vm, cpu) = (guest.0.host, guest.0.vm, guest.0.cpu);
        let [own, other] = [0, 1].map(|vcpu: usize| vm.vcpus[vcpu].row.0);
        assert!(own > 1);
        assert!(guest.enter(|_, _| {}));
        host.attach_trace(cpu);
        flush(guest, &[0x7000, 0x9001]);
        assert!(!guest.enter(|_, _| panic!("nobody enters with a flush pending")));
        flush(guest, &[]);
        assert!(!guest.enter(|_, _| panic!("nobody enters with a flush pending")));
        for (vector, trigger) in [(0x51, Trigger::Edge), (0x52, Trigger::Level)] {
            let destination = Destination::Physical(ApicId(1));
            let message = Message { kind: MessageKind::Fixed(vector), destination, trigger };
            assert_eq!(vm.deliver(message, ApicId(0)), 1);
        }
        let records = host.trace.records(cpu.index).filter(|record| record.event != Exit);
        let found: Vec<_> = records
            .map(|record| (record.event, u32::from(record.vcpu), record.detail, [record.a, record.b]))
            .collect();
        let both = 2 | 2 << 32;
        let expected = [
            (FlushAsked, own, own, [0b11, 2]),
            (FlushDone, own, 0, [both, 0]),
            (FlushTaken, own, 0, [3, 0]),
            (FlushAsked, own, own, [0b11, 0]),
            (FlushDone, own, 0, [both, 0]),
            (FlushTaken, own, 1, [0, 0]),
            (Posted, other, 0x51, [0, 0]),
            (Posted, other, 0x52, [0, 0]),
        ];
        assert_eq!(found, expected, "vCPUs by name, targets and those that are deferred, pages");
    });
}
