//! Ports.

use core::sync::atomic::Ordering;
use memslots::Gpa;

use super::effects::perform_output;
pub use super::string_port::StringAccess;
use super::string_port::on_string_port;
use super::{protection_fault, with_translation};
use crate::devices::pc::cmos;
use crate::devices::pc::pci::Pci;
use crate::devices::pc::platform::{PortSize, SerialPort};
use crate::owned::{Busy, Followed};
use crate::sched::notify::Published;
use crate::vm::{Context, Next};
use crate::x86::emulator::Operand;
use crate::x86::processor::X86;
use crate::x86::vcpu::block::Field::Rip;
use crate::x86::vcpu::block::{ControlBlock, SegmentName};
use crate::x86::vcpu::checks;
use crate::x86::vcpu::instruction::read_task;
use crate::x86::vcpu::signals::ring;

/// An access to a port.
#[derive(Clone, Copy, Debug)]
pub struct PortAccess {
    /// The port.
    pub port: u16,
    /// Size in bytes.
    pub size: u32,
    /// IN or INS.
    pub is_input: bool,
    /// INS or OUTS.
    pub string: Option<StringAccess>,
    /// The address of the next instruction.
    pub next_rip: u64,
}

/// IN, OUT, INS or OUTS.
#[inline(always)] // Like the others that make up most exits.
pub(crate) fn on_port<A: X86>(context: &mut Context<'_, A>, access: PortAccess) -> Next {
    let PortAccess { port, size, is_input, string, next_rip } = access;
    if context.state.block.cpl() != 0 && is_port_refused(context, port, size) {
        return Next::Resume;
    }
    if let Some(string) = string {
        return on_string_port(context, access, string);
    }
    let Some(width) = PortSize::from_bytes(size as usize) else { return protection_fault(context) };
    let target = Operand::accumulator(size);
    let next = if is_input {
        let value = read_port(context, port, width);
        target.write(&mut context.state.registers.0, value.into());
        Next::Resume
    } else {
        let value = target.read(&context.state.registers.0) as u32;
        write_port(context, port, width, value)
    };
    if next != Next::Again {
        let length = next_rip.wrapping_sub(context.state.block.read(Rip));
        context.state.skip(length);
    }
    next
}

/// Whether the current task may not access these ports; if so, the fault has been raised.
#[cold]
#[inline(never)]
fn is_port_refused<A: X86>(context: &mut Context<'_, A>, port: u16, size: u32) -> bool {
    if !checks::needs_port_map(context.state.block.conditions()) {
        return false;
    }
    let allowed = with_translation(context, |state, memory| {
        let block = &*state.block;
        let task = block.segment(SegmentName::Tr);
        checks::allows_ports(task.attributes, task.limit, port, size, |offset| {
            read_task::<A>(block, memory, task.base.wrapping_add(offset.into()))
        })
    });
    match allowed {
        Ok(true) => return false,
        Ok(false) => context.state.raise_protection(),
        Err(error) => context.state.raise_fetch_error(error),
    }
    true
}

pub(super) fn read_port<A: X86>(context: &mut Context<'_, A>, port: u16, width: PortSize) -> u32 {
    let value = context.vm.port_read(port, width);
    if port == cmos::DATA {
        look_at_clock(context);
    }
    value
}

#[cold]
#[inline(never)]
fn look_at_clock<A: X86>(context: &mut Context<'_, A>) {
    ring(context);
    // Its next deadline has changed.
    context.vm.notify(context.vcpu, Published::NOTHING);
}

/// Control of the serial port's FIFO and modem: writes may make room for the real console's input,
/// which does not interrupt again until all of it was read.
const MAKES_ROOM: [u16; 2] = [SerialPort::Com1.base() + 2, SerialPort::Com1.base() + 4];

pub(super) fn write_port<A: X86>(
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
    if MAKES_ROOM.contains(&port) && context.vm.has_input() {
        context.vm.receive_console();
    }
    perform_output(context.vm, effect.output)
}

/// Writes to the PCI configuration space. The ROM's slot, and those of owned functions, are moved
/// to where the devices decode them before the guest continues.
fn write_pci<A: X86>(context: &mut Context<'_, A>, port: u16, width: PortSize, value: u32) -> Next {
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
