//! Guests that leave for another machine or a file, and guests that arrive.
//!
//! Both are requests like others: they are served in steps, between which vCPUs run. What is sent
//! goes through a [channel](migration::channel) to the host tool, which carries it. The tool
//! decides when the last round begins; who runs the guest is decided here, by
//! [`migration::handover`].
//!
//! # The order of a page and its flush
//!
//! A page is copied after its mark was taken and the flush for that is over (`memslots`, the table
//! of dirty logs): a store through a translation that was cached before is in the copy, or in the
//! next fetch. The last fetch is made while no vCPU runs, and its flush is over before anything is
//! copied. What the source's vCPUs owe as flushes is not sent: the target begins with tags that
//! nobody has used, and with empty caches of addresses without memory.

mod frames;
mod receive;
mod rounds;
mod send;
mod stop;
mod throttle;

pub(super) use receive::Receiving;
pub(super) use send::Sending;

use hostlink::architecture::Architecture;
use memslots::Slot;
use migration::frame::{Section, VERSION};
use migration::{Archive, Flaw};

use crate::stopping;
use crate::vm::Vm;
use crate::vm::arch::Arch;
use crate::vm::shown::DEVICE_SLOT;
use crate::vm::vcpu::Vcpu;

/// A step that copies goes on for so long, in microseconds, or ends with a frame behind that.
const STEP_US: u64 = 50;

/// What both sides must agree on before anything is sent.
fn describe_beginning<A: Arch>(vm: &Vm<A>, archive: &mut Archive<'_>) -> Result<(), Flaw> {
    archive.same("the version of the stream", VERSION.into())?;
    archive.same("the instruction set (0 AMD64, 1 Arm64)", (A::MACHINE == Architecture::Arm64).into())?;
    archive.same("the number of vCPUs", vm.vcpu_count().into())?;
    archive.same("the guest's memory", vm.files.config.memory)
}

/// The section after this one.
fn next_section<A: Arch>(vm: &Vm<A>, section: Section) -> Option<Section> {
    let next = match section {
        Section::Shared => 0,
        Section::Vcpu(index) => index + 1,
    };
    (next < vm.vcpu_count()).then_some(Section::Vcpu(next))
}

/// Writes or reads the state of a guest whose vCPUs have all stopped, or never ran.
fn describe<A: Arch>(vm: &Vm<A>, section: Section, archive: &mut Archive<'_>) -> Result<(), Flaw> {
    let Section::Vcpu(index) = section else { return A::describe_shared(vm, archive) };
    let vcpu = vm.vcpus.get(index as usize).ok_or(Flaw::Value("the index of a vCPU"))?;
    with_state(vcpu, |state| A::describe_vcpu(vm, state, &vcpu.inbox, archive))
}

fn with_state<A: Arch>(
    vcpu: &Vcpu<A>,
    act: impl FnOnce(&mut A::State) -> Result<(), Flaw>,
) -> Result<(), Flaw> {
    let _owner = vcpu.target.owner().ok_or(Flaw::Unmovable("one of its vCPUs runs"))?;
    // SAFETY: the owner was just taken and is held meanwhile, so no other reference is alive.
    act(unsafe { vcpu.state() })
}

/// The guest has stopped, and the last round has not begun: its vCPUs leave guests of its own.
fn leave_inner<A: Arch>(vm: &Vm<A>) -> Result<(), Flaw> {
    vm.vcpus.iter().try_for_each(|vcpu| with_state(vcpu, |state| A::leave_inner(vm, state)))
}

/// Lets a guest go on that has stopped, unless it has ended.
fn go_on<A: Arch>(vm: &Vm<A>) {
    // Looked at when all have left: whichever of them ended it has said so before.
    if vm.attention() & stopping::END == 0
        && let Some(shown) = vm.host.shown_as_running(vm)
    {
        vm.go_on(shown);
    }
}

/// Whether a slot is the memory of a device, which follows from the device's state.
fn is_devices(slot: &Slot) -> bool {
    slot.id == DEVICE_SLOT || slot.is_device()
}

#[test]
fn what_follows_from_devices_is_no_memory_of_a_stream() {
    use memslots::{Gpa, PhysAddr, SlotFlags, SlotId};
    let device = SlotFlags::DEVICE;
    for (id, flags, expected) in [
        (SlotId(7), SlotFlags::empty(), false),
        (SlotId(7), SlotFlags::READ_ONLY, false),
        (DEVICE_SLOT, SlotFlags::empty(), true),
        (SlotId(7), device, true),
    ] {
        let slot = Slot { id, gpa: Gpa(0), size: 4096, host: PhysAddr(0), flags };
        assert_eq!(is_devices(&slot), expected, "{id:?} {flags:?}");
    }
}
