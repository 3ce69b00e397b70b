//! A vCPU that is described on one machine, and goes on in another.

use core::fmt;

use super::*;
use crate::arm64::vcpu::described::describe;
use crate::devices::described::moves;
use crate::vm::arch::{Clock, State};
use transfer::{Archive, Described, Flaw};

/// A vCPU with what is posted to it.
struct Moved {
    vm: MadeVm,
    state: VcpuState<MockArm64>,
    inbox: Inbox,
}

impl Moved {
    fn new(vm: MadeVm) -> Self {
        Self { vm, state: vm.guest.new_vcpu(1, 0), inbox: Inbox::default() }
    }

    /// Puts it into its machine, lets it run there, and takes it out again.
    fn play(&mut self) {
        let vcpu = &self.vm.vcpus[1];
        let (mut bytes, is_on) = ([0; 128], self.state.activity != Activity::Off);
        let pass = |inbox: &Inbox, mut archive: Archive<'_>| {
            inbox.interrupts.describe(&mut archive).expect("it was read");
            inbox.power.describe(is_on, &mut archive).expect("it was read");
        };
        pass(&self.inbox, Archive::writer(&mut bytes));
        pass(&vcpu.inbox, Archive::reader(&bytes));
        let swap = |state: &mut VcpuState<MockArm64>| {
            let _owner = vcpu.target.owner().expect("nobody runs it");
            // SAFETY: the owner was just taken.
            core::mem::swap(unsafe { vcpu.state() }, state);
        };
        swap(&mut self.state);
        turn(self.vm, 0, 1, &mut workspace(0), |context| {
            take_signals(context);
            devices::expire_alarm(context, MockArm64::now());
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
        swap(&mut self.state);
    }
}

impl Described for Moved {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        describe(self.vm, &mut self.state, &self.inbox, archive)
    }
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.state.fields(), self.inbox)
    }
}

#[test]
fn m5_m6_a_vcpu_moves_with_all_that_it_is() {
    let vm = machine_on("vcpus=2", |hardware| hardware.preemption_bits = 7).machine();
    moves(|| Moved::new(vm), Moved::play);
}
