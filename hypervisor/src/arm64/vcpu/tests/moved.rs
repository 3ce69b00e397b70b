//! A vCPU that is described on one machine, and goes on in another.

use core::fmt;

use super::*;
use crate::arm64::controls::{Control, counter, hcr};
use crate::arm64::guest::identity;
use crate::arm64::mock::machines;
use crate::arm64::processor::Processor as _;
use crate::arm64::vcpu::saved_state::describe;
use crate::devices::state_checks::{listed, read, written};
use crate::devices::virt::map;
use crate::vm::arch::{Arch, Clock, State};
use crate::vm::{VpIndex, mock};
use baremetal::random::Random;
use memslots::Gpa;
use migration::{Archive, Described, Flaw};

/// A vCPU with what is posted to it.
pub(super) struct Moved {
    vm: MadeVm,
    state: VcpuState<MockArm64>,
    inbox: Inbox,
}

impl Moved {
    pub(super) fn new(vm: MadeVm) -> Self {
        Self { vm, state: vm.guest.new_vcpu(VpIndex(1), 0), inbox: Inbox::default() }
    }

    /// Puts it into its machine, on a CPU, and takes it out again.
    pub(super) fn act(&mut self, act: impl FnOnce(&mut Context<'_, MockArm64>)) {
        let vcpu = &self.vm.vcpus[1];
        pass(&self.inbox, &vcpu.inbox, self.state.activity != Activity::Off);
        let swap = |state: &mut VcpuState<MockArm64>| {
            let _owner = vcpu.target.owner().expect("nobody runs it");
            // SAFETY: the owner was just taken.
            core::mem::swap(unsafe { vcpu.state() }, state);
        };
        swap(&mut self.state);
        turn(self.vm, 0, 1, &mut workspace(0), act);
        swap(&mut self.state);
    }

    /// It runs there.
    pub(super) fn play(&mut self) {
        self.act(|context| {
            take_signals(context);
            devices::expire_alarm(context, MockArm64::now());
            for offset in (0..0x2_0000).step_by(4) {
                let gic = &mut context.state.gic;
                let _ = (gic.read(offset, 4), gic.write(offset, 4, 0x5555_5555));
            }
            context.state.update_activity();
            let _when = context.state.next_deadline(MockArm64::now());
            if context.state.is_running() {
                next_stay(|registers| {
                    assert!(matches!(registers.pstate & 0x1f, 0 | 4 | 5), "{:#x}", registers.pstate);
                    hardware(|hardware| {
                        let mut lists = hardware.lists.iter().map(|&list| ListRegister::from_bits(list));
                        assert!(lists.all(|list| !list.hardware()), "nobody forwarded it");
                    });
                    Vector::Interrupt
                });
                assert!(enter(context));
            }
        });
        pass(&self.vm.vcpus[1].inbox, &self.inbox, self.state.activity != Activity::Off);
    }

    pub(super) fn reset(&mut self) {
        let _ = self.inbox.interrupts.post_private(1 << 5);
        let _ = self.inbox.interrupts.post_spi(40);
        let _it_may_be_on = self.inbox.power.turn_on(Start { entry: 1, context: 2 });
        self.state.reset(&self.inbox);
        self.state.intercept_pause(false);
    }
}

/// What is posted goes from one inbox to another.
fn pass(from: &Inbox, to: &Inbox, is_on: bool) {
    let mut bytes = [0; 128];
    let describe = |inbox: &Inbox, mut archive: Archive<'_>| {
        inbox.interrupts.describe(&mut archive).expect("it was read");
        inbox.power.describe(is_on, &mut archive).expect("it was read");
    };
    describe(from, Archive::writer(&mut bytes));
    describe(to, Archive::reader(&bytes));
}

impl Described for Moved {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        describe(self.vm, &mut self.state, &self.inbox, archive)
    }
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm: _, state, inbox } = self;
        write!(f, "Moved {{ {} inbox: {inbox:x?} }}", listed(state.fields()))
    }
}

/// A whole guest, none of whose vCPUs runs.
struct Guest(MadeVm);

impl Described for Guest {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        MockArm64::describe_shared(self.0, archive)?;
        self.0.vcpus.iter().try_for_each(|vcpu| {
            let _owner = vcpu.target.owner().expect("nobody runs it");
            // SAFETY: the owner was just taken.
            MockArm64::describe_vcpu(self.0, unsafe { vcpu.state() }, &vcpu.inbox, archive)
        })
    }
}

/// Pending SPIs from the first one on.
pub(super) const GICD_ISPENDR1: u32 = 0x204;
const SECOND: u64 = 1_000_000_000;
const SGI: u64 = 1;
const ACTIVE: u64 = 5;
const GUEST_TICKS: u64 = 1 << 41;

/// Takes what was posted since the turn began.
fn look(context: &mut Context<'_, MockArm64>) {
    let _events = context.owner.take_events();
    take_signals(context);
}

/// What a guest has done when it is stopped: its boot vCPU has an interrupt pending and another
/// active, an SError, a timer and an alarm, and has told the other one to start.
fn busy(vm: MadeVm) -> u64 {
    vm.clock.set(&vm.host.wall, MockArm64::now(), GUEST_TICKS, 1_800_000_000 * SECOND);
    turn(vm, 0, 0, &mut workspace(0), |context| {
        take_signals(context);
        let gicr = map::redistributors(2).start;
        for (address, value) in [
            (map::GICD, 3),
            (gicr + 0x1_0080, 0xffff_ffff),
            (gicr + 0x1_0100, 1 << 27 | 1 << SGI | 1 << ACTIVE),
            (gicr + 0x1_0200, 1 << SGI | 1 << ACTIVE),
            (gicr + 0x1_0404, 0x80_8000),
            (map::RTC + 0x10, 1),
            (map::RTC + 0x04, 1_800_000_000 + 3),
        ] {
            assert!(devices::write(context, address, 4, value), "{address:#x}");
        }
        look(context);
        next_stay(|_| {
            MockArm64::write(Register::IchVmcr, 0xff << 24 | 3);
            Vector::Interrupt
        });
        assert!(enter(context));
        next_stay(|registers| {
            // It acknowledges one of them.
            hardware(|hardware| {
                let taken = hardware.lists.iter_mut().find(|list| **list & 0xffff == ACTIVE);
                let taken = taken.expect("it pends");
                *taken = *taken & !(1 << 62) | 1 << 63;
            });
            registers.x[7] = 0x7777;
            (registers.pc, registers.pstate) = (0xffff_8000_1234_5678, 0x6000_0005);
            MockArm64::write(Register::Vbar, 0xffff_8000_0000_0800);
            MockArm64::write(Register::VirtualValue, GUEST_TICKS + SECOND);
            MockArm64::write(Register::VirtualControl, 1);
            Vector::Interrupt
        });
        assert!(enter(context));
        hardware(|hardware| hardware.float.v[31] = 31);
        context.state.raise_serror();
        context.state.write_timer(system::PhysicalTimer::Value, GUEST_TICKS + 2 * SECOND);
        context.state.stolen = 5000;
        let start = Start { entry: 0x4008_0000, context: 0xc0 };
        assert!(vm.vcpus[1].inbox.power.turn_on(start).is_ok());
    });
    vm.clock.at(MockArm64::now())
}

#[test]
fn m4_m5_a_guest_goes_on_where_it_was() {
    let there = machine("vcpus=2").machine();
    let left = busy(there);
    let bytes = written(&mut Guest(there));
    // On a machine that has run for longer, and on one that has begun just now.
    for uptime in [0, 1 << 42] {
        let here = machine("vcpus=2").machine();
        mock::board_impl::advance::<MockArm64>(uptime);
        // It has stood still for five seconds: what it waited for is due.
        let ticks = left + 5 * SECOND;
        here.clock.set(&here.host.wall, MockArm64::now(), ticks, 1_800_000_005 * SECOND);
        read(&mut Guest(here), &bytes).expect("is read");
        assert!(written(&mut Guest(here)) == bytes);
        let mut stolen = [0; 8];
        let place = Gpa(map::stolen_time(VpIndex(0)) + 8);
        here.space.slots().memory().read(place, &mut stolen).expect("is memory");
        assert_eq!(u64::from_le_bytes(stolen), here.guest.ns_per_tick.ns(5000));
        let mut place = workspace(0);
        turn(here, 0, 0, &mut place, |context| {
            take_signals(context);
            let now = MockArm64::now();
            assert!(here.clock.at(now) >= ticks, "no step back");
            context.state.activity = Activity::Halted;
            let due = context.state.next_deadline(now);
            assert!(due <= now, "{due} {now}");
            devices::expire_alarm(context, now);
            assert!(context.state.alarm > now, "it rings once");
            look(context);
            context.state.activity = Activity::Running;
            next_stay(move |registers| {
                assert_eq!((registers.x[7], registers.pc), (0x7777, 0xffff_8000_1234_5678));
                assert_eq!(registers.pstate, 0x6000_0005);
                assert_eq!(MockArm64::read(Register::VirtualValue), GUEST_TICKS + SECOND);
                assert_eq!(MockArm64::read(Register::VirtualControl), 1);
                assert_eq!(MockArm64::read(Register::Vbar), 0xffff_8000_0000_0800);
                hardware(|hardware| {
                    assert_eq!(hardware.float.v[31], 31);
                    assert_ne!(hardware.configuration & hcr::VSE, 0);
                    let is = [Control::Cntvoff, Control::Cnthctl].map(|one| hardware.controls[one as usize]);
                    assert_eq!(is, <[u64; 2]>::from(counter(here.clock.base())));
                    let list = |intid| {
                        let found = hardware.lists.iter().find(|list| **list & 0xffff == intid);
                        found.map(|&list| list >> 61 & 7)
                    };
                    let spi = u64::from(map::RTC_INTID);
                    assert_eq!((list(SGI), list(ACTIVE), list(spi)), (Some(2), Some(4), None));
                });
                Vector::Interrupt
            });
            assert!(enter(context));
            // Both timers, at this machine's times; the physical one as the guest has it.
            MockArm64::write(Register::VirtualControl, 0);
            assert_eq!(context.state.read_timer(system::PhysicalTimer::Value), GUEST_TICKS + 2 * SECOND);
        });
        // The alarm's interrupt pends.
        let (pending, _effect) = here.guest.distributor.lock().read(0x204, 4);
        assert_eq!(pending, 1 << (map::RTC_INTID - 32));
        turn(here, 0, 1, &mut place, |context| {
            assert_eq!(context.state.activity, Activity::Off);
            take_signals(context);
            assert_eq!(context.state.activity, Activity::Running);
            assert_eq!((context.state.registers.pc, context.state.registers.x[0]), (0x4008_0000, 0xc0));
        });
        // A reset keeps the clock.
        let state_of = |vcpu: usize| {
            let _owner = here.vcpus[vcpu].target.owner().expect("nobody runs it");
            // SAFETY: the owner was just taken.
            unsafe { here.vcpus[vcpu].state() }
        };
        state_of(0).reset(&here.vcpus[0].inbox);
        assert_eq!(state_of(0).base, here.clock.base());
    }
}

#[test]
fn m4_the_next_guest_on_a_cpu_has_its_own_counter() {
    let vms =
        machines(["name=one\nmemory=16777216\nvcpus=1", "name=other\nmemory=16777216\nvcpus=1"], |_| {});
    let mut place = workspace(0);
    vms[0].clock.set(&vms[0].host.wall, MockArm64::now(), GUEST_TICKS, 0);
    for vm in [vms[0], vms[1], vms[1], vms[0]] {
        turn(vm, 0, 0, &mut place, |context| {
            let is = [Control::Cntvoff, Control::Cnthctl].map(MockArm64::control);
            assert_eq!(is, <[u64; 2]>::from(counter(vm.clock.base())));
            assert_eq!(is[1], if vm.clock.base() == 0 { 3 } else { 0 });
            assert!(enter(context), "and the auditor agrees");
        });
    }
}

#[test]
fn m6_states_to_which_there_is_no_return_are_refused() {
    let vm = machine("vcpus=2").machine();
    for pstate in (0..32).chain([1 << 33 | 5, u64::MAX]) {
        let mut there = Moved::new(vm);
        there.state.registers.pstate = pstate;
        let mut bytes = alloc::vec![0; 1 << 16];
        let mut archive = Archive::writer(&mut bytes);
        // EL1 and EL0, and none of AArch32, which this processor has not.
        let len = there.describe(&mut archive).map(|()| archive.finish().expect("has an end"));
        let is_read = len.and_then(|len| read(&mut Moved::new(vm), &bytes[..len]));
        let expected = if matches!(pstate, 0 | 4 | 5) { Ok(()) } else { Err(Flaw::Value("pstate")) };
        assert_eq!(is_read, expected, "{pstate:#x}");
    }
}

#[test]
fn m7_a_processor_that_a_guest_would_not_recognize_is_named() {
    let vm = machine("vcpus=2").machine();
    let bytes = written(&mut Guest(vm));
    let named = |word: usize| {
        let mut changed = bytes.clone();
        // More, in a field that may have less.
        changed[word * 8] ^= 3;
        match read(&mut Guest(vm), &changed) {
            Err(Flaw::Differs(name, here, there) | Flaw::Rates(name, here, there)) => {
                assert_eq!(here ^ there, 3);
                name
            }
            other => panic!("{word}: {other:?}"),
        }
    };
    let names: Vec<_> = (0..40).map(named).collect();
    assert_eq!(names[..5], ["MIDR_EL1", "REVIDR_EL1", "ACTLR_EL1", "CTR_EL0", "DCZID_EL0"]);
    assert_eq!(names[29..32], ["ID_AA64PFR0_EL1", "ID_AA64PFR1_EL1", "ID_AA64DFR0_EL1"]);
    assert_eq!(names[37..], ["ID_AA64MMFR2_EL1", "CNTFRQ_EL0", "width of physical addresses"]);
    assert!(names.iter().all(|name| names.iter().filter(|other| *other == name).count() == 1));
}

/// There may be more instructions, but no other widths of addresses.
#[test]
fn m7_a_guest_sees_what_it_has_seen_where_there_is_more() {
    for (word, less) in [(32, 1), (35, 0)] {
        let vm = machine("vcpus=2").machine();
        let mut bytes = written(&mut Guest(vm));
        bytes[word * 8] -= 1;
        assert_eq!(read(&mut Guest(vm), &bytes).is_ok(), less != 0);
        assert_eq!(written(&mut Guest(vm)) == bytes, less != 0, "it goes back");
        let processors = identity::shown(6, 0, MockArm64::identification(6, 0));
        assert_eq!(processors - identity::visible::<MockArm64>(&vm.guest.former, 6, 0), less);
    }
}

#[test]
fn m9_instructions_of_before_are_dropped_when_memory_is_there() {
    let vm = machine("vcpus=2").machine();
    let _before = told();
    assert!(MockArm64::follow_state(vm, MockArm64::cpu(CpuIndex(0)).expect("a CPU")));
    let expected = ["instruction_cache", "complete", "context_sync"].map(Recorded::Tlb);
    assert_eq!(told(), expected);
}

#[test]
fn m6_a_guest_whose_stream_was_changed_harms_nobody() {
    let there = machine("vcpus=2").machine();
    let _ticks = busy(there);
    let bytes = written(&mut Guest(there));
    let here = machine("vcpus=2").machine();
    here.clock.set(&here.host.wall, MockArm64::now(), GUEST_TICKS, 1_800_000_005 * SECOND);
    let mut random = Random::new(mock::number("QUELL_STREAMS_SEED").unwrap_or(1));
    let rounds = 1000 * mock::number("QUELL_STREAMS_RUNS").unwrap_or(3);
    let (mut read_well, mut place) = (0, workspace(0));
    for round in 0..rounds {
        let mut changed = bytes.clone();
        for _ in 0..=round % 3 {
            let at = random.below(bytes.len() as u64) as usize;
            changed[at] =
                if random.one_in(2) { changed[at] ^ 1 << random.below(8) } else { random.word() as u8 };
        }
        if read(&mut Guest(here), &changed).is_err() {
            continue;
        }
        read_well += 1;
        for vcpu in 0..2 {
            turn(here, 0, vcpu, &mut place, |context| {
                look(context);
                devices::expire_alarm(context, MockArm64::now());
                context.state.update_activity();
                let _when = context.state.next_deadline(MockArm64::now());
                look(context);
                if context.state.is_running() {
                    let _is_entered = enter(context);
                }
            });
        }
        for port in [0, 1] {
            let _taken = MockArm64::type_in(here, port, b"typed");
        }
        MockArm64::receive_console(Some(here));
        MockArm64::wake(here);
    }
    assert!(read_well > rounds / 3, "{read_well}");
    // What is cut off is too short, wherever that is, but where no more is to come.
    for _ in 0..200 {
        let end = random.below(bytes.len() as u64) as usize;
        assert_eq!(read(&mut Guest(here), &bytes[..end]), Err(Flaw::Short), "{end}");
    }
    read(&mut Guest(here), &bytes).expect("and what is whole is read still");
}
