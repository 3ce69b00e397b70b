//! System registers that trap.

use hostlink::counters::Counter;
use hostlink::trace::Event;

use super::{Syndrome, inject, skip};
use crate::arm64::guest::identity;
use crate::arm64::processor::Arm64;
use crate::arm64::vcpu::registers::Treatment;
use crate::arm64::vcpu::system::{self, PhysicalTimer};
use crate::devices::virt::gic::{self, Sgi, SgiGroup};
use crate::vm::{Context, Next, increase, trace};

pub(super) fn counter(syndrome: &Syndrome) -> Counter {
    if syndrome.is_read() { Counter::ExitRegisterRead } else { Counter::ExitRegisterWrite }
}

pub(super) fn handle<A: Arm64>(context: &mut Context<'_, A>, syndrome: Syndrome) -> Next {
    let field = |shift: u32, mask: u64| (syndrome.0 >> shift & mask) as u32;
    let name = (field(20, 3), field(14, 7), field(10, 15), field(1, 15), field(17, 7));
    let register = field(5, 31) as usize;
    let is_read = syndrome.is_read();
    let mut treatment = Treatment::of(name, is_read);
    if inject::is_from_el0(&context.state.registers) {
        treatment = treatment.at_el0(context.state.debug.opens_channel());
    }
    let is_known = if is_read {
        match read(context, treatment) {
            Some(value) => {
                if let Some(place) = context.state.registers.x.get_mut(register) {
                    *place = value;
                }
                true
            }
            None => false,
        }
    } else {
        let value = context.state.registers.x.get(register).copied().unwrap_or(0);
        write(context, treatment, value)
    };
    if is_known {
        skip(context, syndrome);
    } else {
        log::debug!("vCPU {}: no system register {name:?}", context.vcpu.index);
        inject::undefined::<A>(&mut context.state.registers);
    }
    Next::Resume
}

fn read<A: Arm64>(context: &Context<'_, A>, treatment: Treatment) -> Option<u64> {
    match treatment {
        Treatment::Identification { crm, op2 } => {
            Some(identity::visible::<A>(&context.vm.guest.former, crm, op2))
        }
        Treatment::Revision => Some(A::identification(0, 6)),
        Treatment::Constant(value) => Some(value),
        Treatment::Auxiliary => Some(A::auxiliary_control()),
        Treatment::Debug(register) => context.state.debug.read(register, A::debug_counts()),
        Treatment::Counter | Treatment::Timer(_) => read_clock(context, treatment),
        Treatment::SendGroup1
        | Treatment::SendGroup0
        | Treatment::Deactivate
        | Treatment::SetWay
        | Treatment::Undefined => None,
    }
}

fn write<A: Arm64>(context: &mut Context<'_, A>, treatment: Treatment, value: u64) -> bool {
    match treatment {
        Treatment::SendGroup1 => send(context, Sgi::new(value), SgiGroup::Group1),
        Treatment::SendGroup0 => send(context, Sgi::new(value), SgiGroup::Group0),
        Treatment::Deactivate => {
            let view = context.state.view();
            let gic::Deactivate(intids) = context.state.gic.deactivate(value, &view);
            system::deactivate::<A>(intids);
        }
        Treatment::Debug(register) => {
            let is_done = context.state.debug.write(register, A::debug_counts(), value);
            context.state.apply_debug();
            return is_done;
        }
        Treatment::Timer(register) => write_clock(context, register, value),
        Treatment::Constant(_) | Treatment::Auxiliary | Treatment::SetWay => {}
        Treatment::Identification { .. }
        | Treatment::Revision
        | Treatment::Counter
        | Treatment::Undefined => return false,
    }
    true
}

/// The physical counter and its timer, of a guest that has been moved.
#[cold]
#[inline(never)] // Guests that have not are not to pay for it.
fn read_clock<A: Arm64>(context: &Context<'_, A>, treatment: Treatment) -> Option<u64> {
    match treatment {
        Treatment::Counter => Some(context.vm.clock.at(A::now())),
        Treatment::Timer(register) => Some(context.state.read_timer(register)),
        _ => None,
    }
}

#[cold]
#[inline(never)] // As above.
fn write_clock<A: Arm64>(context: &mut Context<'_, A>, register: PhysicalTimer, value: u64) {
    context.state.write_timer(register, value);
}

fn send<A: Arm64>(context: &Context<'_, A>, sgi: Sgi, group: SgiGroup) {
    let mut sent = 0;
    for index in sgi.targets(context.vcpu.index.0 as u8, context.vm.vcpu_count() as u8) {
        let Some(vcpu) = context.vm.vcpus.get(usize::from(index)) else { continue };
        trace::here::<A>(Event::Posted, vcpu.row, sgi.intid().into(), [0; 2]);
        context.vm.notify(vcpu, vcpu.inbox.interrupts.post_sgi(sgi, group));
        sent += 1;
    }
    increase(&context.counters[Counter::IrqIpi as usize], sent);
}
