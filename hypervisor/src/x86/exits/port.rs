//! Ports.

use core::sync::atomic::Ordering;

use memslots::Gpa;

use super::effects::perform_output;
use super::string_port::on_string_port;
use super::{Exit, protection_fault, with_translation};
use crate::devices::pc::cmos;
use crate::devices::pc::pci::Pci;
use crate::devices::pc::platform::PortSize;
use crate::owned::{Busy, Followed};
use crate::svm::processor::Amd64;
use crate::vm::{Context, Next};
use crate::x86::emulator::Operand;
use crate::x86::vcpu::checks;
use crate::x86::vcpu::instruction::read_task;
use crate::x86::vcpu::signals::ring;

/// IN, OUT, INS or OUTS.
#[inline(always)] // Like the others that make up most exits.
pub(crate) fn on_port<A: Amd64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
    const INPUT: u64 = 1;
    const STRING: u64 = 1 << 2;
    let info = exit.info_1;
    let port = (info >> 16) as u16;
    let size = (info >> 4 & 7) as usize;
    if context.state.vmcb.cpl != 0 && is_port_refused(context, port, size as u32) {
        return Next::Resume;
    }
    if info & STRING != 0 {
        return on_string_port(context, exit);
    }
    let Some(width) = PortSize::from_bytes(size) else { return protection_fault(context) };
    let target = Operand::accumulator(size as u32);
    let next = if info & INPUT != 0 {
        let value = read_port(context, port, width);
        target.write(&mut context.state.registers.0, value.into());
        Next::Resume
    } else {
        let value = target.read(&context.state.registers.0) as u32;
        write_port(context, port, width, value)
    };
    if next != Next::Again {
        let length = exit.info_2.wrapping_sub(context.state.vmcb.rip);
        context.state.skip(length);
    }
    next
}

/// Whether the current task may not access these ports; if so, the fault has been raised.
#[cold]
#[inline(never)]
fn is_port_refused<A: Amd64>(context: &mut Context<'_, A>, port: u16, size: u32) -> bool {
    if !checks::needs_port_map(context.state.vmcb.conditions()) {
        return false;
    }
    let allowed = with_translation(context, |state, memory| {
        let vmcb = &*state.vmcb;
        let task = vmcb.tr;
        checks::allows_ports(task.attributes, task.limit, port, size, |offset| {
            read_task::<A>(vmcb, memory, task.base.wrapping_add(offset.into()))
        })
    });
    match allowed {
        Ok(true) => return false,
        Ok(false) => context.state.raise_protection(),
        Err(error) => context.state.raise_fetch_error(error),
    }
    true
}

/// Reads a port.
pub(super) fn read_port<A: Amd64>(context: &mut Context<'_, A>, port: u16, width: PortSize) -> u32 {
    let value = context.vm.port_read(port, width);
    if port == cmos::DATA {
        look_at_clock(context);
    }
    value
}

#[cold]
#[inline(never)]
fn look_at_clock<A: Amd64>(context: &mut Context<'_, A>) {
    ring(context);
    // Its next deadline has changed.
    context.vm.notify(context.vcpu);
}

/// Performs a port write and its effects.
pub(super) fn write_port<A: Amd64>(
    context: &mut Context<'_, A>,
    port: u16,
    width: PortSize,
    value: u32,
) -> Next {
    if Pci::is_data_port(port) {
        return write_pci(context, port, width, value);
    }
    let effect = context.vm.guest.platform.lock().port_write(port, width, value, || context.vm.wall_ns());
    if let Some(message) = effect.interrupt {
        context.vm.deliver(message, context.state.lapic.apic_id());
    }
    if port == cmos::DATA {
        look_at_clock(context);
    }
    perform_output(context.vm, effect.output)
}

/// Writes to the PCI configuration space. The ROM's slot, and those of owned functions, are moved
/// to where the devices decode them before the guest continues.
fn write_pci<A: Amd64>(context: &mut Context<'_, A>, port: u16, width: PortSize, value: u32) -> Next {
    if context.vm.turn_wanted.load(Ordering::Relaxed) {
        return Next::Again;
    }
    // Held until the slot moves, so that it moves in the order of the writes.
    let mut rom = context.vm.guest.rom.lock();
    let wanted = {
        let mut platform = context.vm.guest.platform.lock();
        let _ = platform.port_write(port, width, value, || context.vm.wall_ns());
        platform.rom_base().map(Gpa)
    };
    let (vm, by) = (context.vm, context.vcpu.index);
    let followed = rom.follow(vm, context.cpu, by, wanted).and_then(|_| vm.follow_functions(context.cpu, by));
    match followed {
        Ok(Followed::WasThere | Followed::Goes) => Next::Resume,
        // The retry writes the same value, which changes nothing.
        Err(Busy) => Next::Again,
    }
}
