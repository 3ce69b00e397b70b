//! Paravirtualised time: the time that a vCPU waited for a CPU, as its guest reads it (Arm DEN
//! 0057A, chapter 3).
//!
//! Each vCPU has a structure of 64 bytes in memory that the guest may only read: the revision and
//! the attributes, which are 0, then the stolen time in nanoseconds. A guest finds it by the call
//! PV_TIME_ST. It is brought up to date when a turn of the vCPU begins, so a vCPU always reads the
//! time up to its present turn.
//!
//! Stolen is the time for which the vCPU could have run and did not, because other vCPUs had the
//! CPUs or its guest's cap held it: what the counter `sched.steal` counts. A vCPU that waits for
//! an interrupt, is off, or is paused with its guest loses nothing. A reset starts the time at zero
//! again, because a kernel takes all that it finds at its start for its own loss.

use core::sync::atomic::Ordering;
use memslots::Gpa;

use crate::arm64::processor::Arm64;
use crate::devices::virt::map;
use crate::vm::shown::ShownMemory;
use crate::vm::{Context, Vm, VpIndex};

const WORDS: usize = (map::STOLEN_TIME_BYTES / 8) as usize;
const TIME: usize = 1;
/// Words before the first structure.
const FIRST: usize = ((map::STOLEN_TIME - map::GENERATION) / 8) as usize;
const NS: u64 = 1_000_000_000;

/// The page of the generation id, and behind it the structures of so many vCPUs, whose times are
/// zero.
pub fn memory(vcpus: u32) -> ShownMemory {
    ShownMemory::new(Gpa(map::GENERATION), FIRST as u64 * 8 + u64::from(vcpus) * map::STOLEN_TIME_BYTES)
}

/// Converts ticks of the clock to nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Scale(u64);

impl Scale {
    /// For a clock of this rate.
    pub const fn new(hz: u64) -> Self {
        Self(((NS as u128) << 32).div_ceil(if hz == 0 { 1 } else { hz as u128 }) as u64)
    }

    /// Nanoseconds, which never decrease as ticks grow.
    #[inline]
    pub const fn ns(self, ticks: u64) -> u64 {
        ((ticks as u128 * self.0 as u128) >> 32) as u64
    }
}

/// The turn of a vCPU begins, for which it has waited so long.
#[inline]
pub fn add<A: Arm64>(context: &mut Context<'_, A>, ticks: u64) {
    if ticks == 0 {
        return;
    }
    context.state.stolen = context.state.stolen.wrapping_add(ticks);
    tell(context.vm, context.vcpu.index, context.state.stolen);
}

/// Tells the guest for how long this vCPU has waited.
#[inline]
pub fn tell<A: Arm64>(vm: &Vm<A>, vcpu: VpIndex, stolen: u64) {
    store(vm, vcpu.place(), vm.guest.ns_per_tick.ns(stolen));
}

/// The guest is reset.
pub fn reset<A: Arm64>(vm: &Vm<A>) {
    (0..vm.vcpus.len()).for_each(|vcpu| store(vm, vcpu, 0));
}

#[inline]
fn store<A: Arm64>(vm: &Vm<A>, vcpu: usize, ns: u64) {
    if let Some(word) = vm.shown.as_ref().and_then(|shown| shown.words().get(FIRST + vcpu * WORDS + TIME)) {
        // Relaxed: it is one word, which a guest reads at once, and nothing goes with it.
        word.store(ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm64::mock::{MockArm64, machine};
    use crate::sched::Turn;
    use crate::vm::arch::{Arch, State};
    use hostlink::counters::Counter;

    #[test]
    fn nanoseconds_are_exact_to_one_and_never_decrease() {
        for hz in [1, 1_000_000, 24_000_000, 25_000_000, 54_000_000, 62_500_000, 1_000_000_000, 3_000_000_000]
        {
            let scale = Scale::new(hz);
            let mut last = 0;
            for ticks in (0..1000).chain([hz - 1, hz, hz + 1, 3600 * hz, 3600 * hz + 1]) {
                let ns = scale.ns(ticks);
                let exact = u128::from(ticks) * u128::from(NS) / u128::from(hz);
                // An hour is exact to a few microseconds.
                let slack = 1 + exact / (1 << 30);
                assert!(u128::from(ns).abs_diff(exact) <= slack, "{ticks} at {hz}: {ns}");
                assert!(ns >= last || ticks < 1000, "{ticks} at {hz}");
                last = ns;
            }
        }
        assert_eq!(Scale::new(62_500_000).ns(12_345), 12_345 * 16);
        let _no_division = Scale::new(0);
    }

    /// The time that the guest reads in the vCPU's structure.
    fn read(vm: &Vm<MockArm64>, vcpu: u64) -> [u64; 8] {
        let mut bytes = [0; 64];
        let place = Gpa(map::stolen_time(VpIndex(vcpu as u32)));
        vm.space.slots().memory().read(place, &mut bytes).expect("there is memory");
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        words
    }

    #[test]
    fn each_vcpu_reads_what_it_waited_which_is_what_the_counter_says() {
        let board = machine("vcpus=3");
        let vm = board.machine();
        let counted = |vcpu: u32| {
            let row = vm.host.counters_of(vm.vcpus[vcpu as usize].row);
            row[Counter::SchedSteal as usize].load(Ordering::Relaxed)
        };
        let mut waited = [0_u64; 3];
        for (step, ticks) in (0_u64..).zip([5, 0, 1, 70_000, 3, 1 << 40, 0, 12_345]) {
            let vcpu = (step % 3) as u32;
            let before = read(vm, vcpu.into());
            board.with_turn(
                Turn { vcpu: vm.vcpus[vcpu as usize].row, migrated: false, waited: ticks },
                |_| (),
            );
            waited[vcpu as usize] += ticks;
            for other in 0..3 {
                assert_eq!(counted(other), waited[other as usize]);
                let expected = vm.guest.ns_per_tick.ns(waited[other as usize]);
                assert_eq!(read(vm, other.into()), [0, expected, 0, 0, 0, 0, 0, 0], "vCPU {other}");
            }
            assert!(read(vm, vcpu.into())[TIME] >= before[TIME]);
        }
    }

    #[test]
    fn a_reset_starts_at_zero_and_the_guest_cannot_write() {
        let board = machine("vcpus=2");
        let vm = board.machine();
        let wait = |ticks| {
            let turn = Turn { vcpu: vm.vcpus[1].row, migrated: true, waited: ticks };
            board.with_turn(turn, |context| {
                assert_eq!(context.state.stolen, vm.guest.ns_per_tick.ns(read(vm, 1)[TIME]));
            });
        };
        wait(1000);
        assert!(vm.space.slots().memory().write(Gpa(map::stolen_time(VpIndex(1))), &[1; 16]).is_err());
        assert_eq!(read(vm, 1)[TIME], 1000, "the board's clock ticks once in a nanosecond");
        board.with_turn(Turn { vcpu: vm.vcpus[1].row, migrated: false, waited: 0 }, |context| {
            MockArm64::save_state(context);
            context.state.reset(&context.vcpu.inbox);
            MockArm64::reload_state(context);
        });
        MockArm64::reset_devices(vm);
        assert_eq!(read(vm, 1)[TIME], 0);
        wait(70);
        assert_eq!(read(vm, 1)[TIME], 70);
    }
}
