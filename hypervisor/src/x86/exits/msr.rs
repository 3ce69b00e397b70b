//! RDMSR and WRMSR: dispatches each register to its owner.

use hostlink::counters::Counter;

use super::Then;
use super::effects::{perform_lapic, perform_synthetic};
use crate::devices::pc::lapic;
use crate::vm::{Context, increase};
use crate::x86::guest::overlay::Overlays;
use crate::x86::hyperv::{self, MsrRead};
use crate::x86::processor::X86;
use crate::x86::vcpu::msr;
use crate::x86::vcpu::registers::RCX;

#[inline(always)] // Like the others that make up most exits.
pub(crate) fn on_read<A: X86>(context: &mut Context<'_, A>) -> Then {
    let number = context.state.registers.low(RCX);
    let now = A::now();
    let value = if hyperv::msrs::is_synthetic(number) {
        match context.state.hyperv.read_msr(&context.vm.guest.partition, number, now) {
            Ok(MsrRead::Value(value)) => Some(value),
            Ok(MsrRead::ApicIcr) => Some(hyperv::msrs::icr_from_x2apic(context.state.lapic.icr())),
            Ok(MsrRead::ApicTpr) => {
                context.state.take_apic_back();
                Some(context.state.lapic.tpr().into())
            }
            Ok(MsrRead::RunTime) => Some(run_time(context, now)),
            Err(_) => None,
        }
    } else {
        context.state.read_msr::<A>(number, now).ok()
    };
    match value {
        Some(value) => {
            context.state.registers.set_edx_eax(value);
            Then::RESUME
        }
        None => Then::protection(context),
    }
}

/// For how long the vCPU has had a CPU since its reset, in units of the partition's reference time.
#[cold]
fn run_time<A: X86>(context: &Context<'_, A>, now: u64) -> u64 {
    let ticks = context.vm.ticks_used(context.vcpu, now);
    context.vm.guest.partition.clock().duration(ticks)
}

#[inline(always)] // As above.
pub(crate) fn on_write<A: X86>(context: &mut Context<'_, A>) -> Then {
    let number = context.state.registers.low(RCX);
    let value = context.state.registers.edx_eax();
    let now = A::now();
    // Two registers make up most of the writes.
    if number == lapic::msr::ICR
        && context.state.lapic.is_x2apic()
        && let Some((vector, id)) = context.state.lapic.write_plain_icr(value)
    {
        increase(&context.counters[Counter::IrqIpi as usize], context.vm.post_fixed(id, vector));
        return Then::RESUME;
    }
    if number == lapic::msr::EOI && value == 0 && context.state.lapic.is_x2apic() {
        let effect = context.state.lapic.eoi();
        return Then::Behind(perform_lapic(context, effect));
    }
    if msr::is_lapic(number) {
        if matches!(number, lapic::msr::APIC_BASE | lapic::msr::SVR) {
            // The next entry may be in another mode.
            context.state.take_apic_back();
        }
        return match context.state.write_lapic(number, value, now) {
            Ok(effect) => Then::Behind(perform_lapic(context, effect)),
            Err(_) => Then::protection(context),
        };
    }
    if hyperv::msrs::is_synthetic(number) {
        // Held until the effect is performed, so that pages move in the order of the writes.
        let mut overlays = Overlays::is_moved_by(number).then(|| context.vm.guest.overlays.lock());
        return match context.state.hyperv.write_msr(&context.vm.guest.partition, number, value, now) {
            Ok(effect) => perform_synthetic(context, effect, overlays.as_deref_mut()),
            Err(_) => Then::protection(context),
        };
    }
    match context.state.write_msr::<A>(number, value, now) {
        Ok(()) => Then::RESUME,
        Err(_) => Then::protection(context),
    }
}
