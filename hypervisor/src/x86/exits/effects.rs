//! Carries out the effects of register writes: messages to other vCPUs, page moves, the end of the
//! machine.

use hostlink::counters::Counter;
use memslots::Gpa;

use super::Then;
use crate::devices::pc::lapic::Effect;
use crate::devices::pc::platform::{Output, SerialPort};
use crate::devices::pc::power::PowerEvent;
use crate::vm::{Context, Next, Vm, increase};
use crate::x86::guest::overlay::Overlays;
use crate::x86::hyperv::MsrEffect;
use crate::x86::processor::X86;

/// Carries out the effect of a write to the local APIC.
#[inline(always)] // Most have none.
pub(crate) fn perform_lapic<A: X86>(context: &mut Context<'_, A>, effect: Effect) -> Next {
    match effect {
        Effect::None | Effect::Eoi { level: false, .. } => Next::Resume,
        effect => perform_rest(context, effect),
    }
}

#[inline(never)] // Apart from the usual case.
fn perform_rest<A: X86>(context: &mut Context<'_, A>, effect: Effect) -> Next {
    match effect {
        Effect::None | Effect::Eoi { level: false, .. } => Next::Resume,
        Effect::Ipi(message) => {
            let targets = context.vm.deliver(message, context.state.lapic.apic_id());
            increase(&context.counters[Counter::IrqIpi as usize], targets);
            Next::Resume
        }
        Effect::Eoi { vector, level: true } => {
            tell_io_apic(context, vector);
            Next::Resume
        }
        Effect::TimerChanged => Next::Timers,
        Effect::Readdressed => {
            readdress(context);
            Next::Timers
        }
    }
}

/// The local APIC may have another address now.
pub(super) fn readdress<A: X86>(context: &Context<'_, A>) {
    if context.vcpu.inbox.set_address(&context.state.lapic) {
        context.vm.readdressed();
    }
}

/// A level-triggered vector has left service.
#[inline(never)] // Rare, and with a buffer that others need not make room for.
fn tell_io_apic<A: X86>(context: &mut Context<'_, A>, vector: u8) {
    let messages = context.vm.guest.platform.lock().eoi(vector);
    for message in messages {
        context.vm.deliver(message, context.state.lapic.apic_id());
    }
}

/// Carries out the effect of a write to a synthetic register. `overlays` is given where a page may
/// move.
pub(super) fn perform_synthetic<A: X86>(
    context: &mut Context<'_, A>,
    effect: MsrEffect,
    overlays: Option<&mut Overlays>,
) -> Then {
    match effect {
        MsrEffect::None => {}
        MsrEffect::ApicEoi => {
            context.state.take_apic_back();
            let effect = context.state.lapic.eoi();
            return Then::Behind(perform_lapic(context, effect));
        }
        MsrEffect::ApicIcr(value) => match context.state.lapic.write_icr(value) {
            Ok(effect) => return Then::Behind(perform_lapic(context, effect)),
            Err(_) => return Then::protection(context),
        },
        MsrEffect::ApicTpr(value) => {
            context.state.take_apic_back();
            context.state.set_task_priority(value);
        }
        MsrEffect::HypercallPage(page) => {
            if let Some(overlays) = overlays {
                overlays.move_hypercall_page(&context.vm.space.slots().memory(), page, A::HYPERCALL);
            }
        }
        MsrEffect::TscPage(page) => {
            if let Some(overlays) = overlays {
                overlays.move_tsc_page(
                    &context.vm.space.slots().memory(),
                    page,
                    &context.vm.guest.partition.clock(),
                );
            }
        }
        MsrEffect::VpAssistPage(page) => {
            // An assist page without memory behind it is legal; there is nothing to clear then.
            let _ = page.to.map(|gpa| context.vm.space.slots().memory().write_u32(Gpa(gpa), 0));
        }
        MsrEffect::Timers => return Then::Behind(Next::Timers),
        MsrEffect::Crash(report) => context.vm.report_crash(context.vcpu.index, &report),
        MsrEffect::CrashAgain => context.count(Counter::CrashesLeftOut),
        MsrEffect::Reset => return Then::Behind(Next::Reset),
    }
    Then::RESUME
}

/// Carries out the effect of a port write, except its interrupt.
pub(super) fn perform_output<A: X86>(vm: &Vm<A>, output: Output) -> Next {
    match output {
        Output::None => Next::Resume,
        Output::Transmit(serial, byte) => {
            let port = usize::from(serial == SerialPort::Com2);
            vm.transmit(port, byte, || A::transmit(serial, byte));
            if let Some(turns) = vm.guest.turns.as_ref().filter(|_| serial == SerialPort::Com2) {
                vm.hear(turns, byte);
            }
            Next::Resume
        }
        Output::Power(PowerEvent::PowerOff) => Next::PowerOff,
        Output::Power(PowerEvent::Reset) => Next::Reset,
    }
}
