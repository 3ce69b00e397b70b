//! What each exit means. Handlers change the vCPU's state and say how it goes on; nothing here blocks, but for
//! the bounded wait of a flush.

use core::sync::atomic::Ordering;

use hostlink::counters::Counter;
use memslots::{Gpa, GuestMemory, Pattern};
use stay::in_section;

use super::checks::{self, Instruction};
use super::fpu;
use super::instruction::{decode_control_write, length, read_task};
use super::nested::on_nested_fault;
use super::nmi::Nmi;
use super::overlay::Overlays;
use super::processor::Amd64;
use super::registers::{RAX, RBX, RCX, RDX};
use super::rom::{Busy, count_job};
use super::state::{Activity, VcpuState};
use super::string_port::on_string_port;
use super::vmcb::{CR4_PAE, CR4_PCIDE, Vmcb, clean, exit, vintr};
use super::{cpuid, msr};
use crate::devices::lapic::{self, Effect};
use crate::devices::pci::Pci;
use crate::devices::platform::{Output, PortSize};
use crate::devices::power::PowerEvent;
use crate::emulator::Operand;
#[cfg(feature = "defects")]
use crate::hyperv::defects;
use crate::hyperv::{self, Caller, MsrEffect, MsrRead, Outcome, hypercall};
use crate::vm::{Context, Next, increase};

/// Runs `look` with guest memory in a [section](in_section).
pub fn with_translation<A: Amd64, R>(
    context: &mut Context<'_, A>,
    look: impl FnOnce(&mut VcpuState, &GuestMemory<'_>) -> R,
) -> R {
    in_section(context, |state, vm| look(state, &vm.space.slots().memory()))
}

/// Handles the exit that the VMCB describes.
#[inline(always)] // It has one caller, and saves that one's registers for nothing otherwise.
pub fn handle_exit<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let (counter, usual) = classify(&context.state.vmcb);
    context.count(counter);
    context.state.end_step();
    match usual {
        Some(usual) => complete(context, usual),
        None => handle_event(context),
    }
}

/// Carries out the instruction that the guest could not, and goes on behind it. If it cannot be read any more, the
/// guest gets the fault and nothing is done.
#[inline(always)] // As above.
fn complete<A: Amd64>(context: &mut Context<'_, A>, usual: &Pattern) -> Next {
    let length =
        with_translation(context, |state, memory| length::<A>(&state.vmcb, memory, &mut state.code, usual));
    let length = match length {
        Ok(length) => length,
        Err(error) => {
            context.state.raise_fetch_error(error);
            return Next::Resume;
        }
    };
    let next = match context.state.vmcb.exit_code {
        exit::MSR => on_msr(context),
        exit::CPUID => on_cpuid(context),
        // It may have to be executed again.
        exit::VMMCALL => return on_hypercall(context, length),
        exit::HLT => {
            context.state.activity = Activity::Halted;
            Next::Halt
        }
        exit::PAUSE => Next::Yield,
        exit::XSETBV => on_xsetbv(context),
        // WBINVD, INVD: the caches are coherent without.
        _ => Next::Resume,
    };
    if context.state.exception.is_none() {
        context.state.skip(length);
    }
    next
}

/// Whether the instruction is refused; then its fault has been raised.
fn refuses<A: Amd64>(context: &mut Context<'_, A>, instruction: Instruction) -> bool {
    let refused = checks::check(instruction, context.state.vmcb.conditions());
    if let Err(refusal) = refused {
        context.state.raise_refusal(refusal);
    }
    refused.is_err()
}

/// An exit for another reason than an instruction whose encoding is known.
#[inline(always)] // As above.
fn handle_event<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let code = context.state.vmcb.exit_code;
    match code {
        exit::INTR | exit::NMI | exit::SMI | exit::INIT => Next::Resume,
        exit::VINTR => {
            // The window is open: `prepare_events` injects and withdraws the request.
            context.state.vmcb.interrupt_control &= !vintr::IRQ;
            context.state.vmcb.mark_dirty(clean::TPR);
            Next::Resume
        }
        exit::NESTED_FAULT => on_nested_fault(context),
        exit::IOIO => on_port(context),
        exit::IRET => {
            // The next entry steps over it.
            context.state.nmi.insert(Nmi::AT_IRET);
            Next::Resume
        }
        exit::CR_WRITE_0..=exit::CR_WRITE_15 => on_control_write(context),
        // All that there is to check the processor does when it executes the instruction again.
        exit::DR_READ_0..=exit::DR_WRITE_15 => {
            context.state.load_debug_registers::<A>();
            Next::Resume
        }
        exit::SHUTDOWN => Next::Dead,
        exit::RDPMC => protection_fault(context),
        // Where a control register takes values that VMRUN does not (QEMU: CR0.NW without CD), a guest can get here.
        exit::INVALID | exit::INVALID_LOW => {
            log::error!("VMRUN refuses the state of vCPU {}", context.vcpu.index);
            Next::Dead
        }
        exit::EXCEPTION_MC => panic!("machine check while vCPU {} ran", context.vcpu.index),
        exit::EXCEPTION_0..=exit::EXCEPTION_31 => {
            context.state.reflect_exception();
            context.state.settle_delivery()
        }
        exit::FERR_FREEZE => {
            log::debug!("vCPU {}: exit {code:#x} is not emulated", context.vcpu.index);
            protection_fault(context)
        }
        // Instructions that CPUID does not show: SVM's own, MONITOR and MWAIT, RDPRU, INVLPGB and TLBSYNC (A10).
        exit::INVLPGA
        | exit::VMRUN
        | 0x82..=0x85
        | exit::SKINIT
        | exit::MONITOR..=exit::MWAIT_ARMED
        | exit::RDPRU
        | exit::INVLPGB..=exit::TLBSYNC => {
            context.state.raise_undefined();
            Next::Resume
        }
        _ => {
            log::debug!("vCPU {}: unexpected exit {code:#x}", context.vcpu.index);
            context.state.raise_undefined();
            Next::Resume
        }
    }
}

fn protection_fault<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    context.state.raise_protection();
    Next::Resume
}

fn on_cpuid<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let registers = &mut context.state.registers;
    let (leaf, subleaf) = (registers.low(RAX), registers.low(RCX));
    let (eax, ebx, ecx, edx) = match hyperv::cpuid::leaf(leaf, context.vm.guest.partition.platform()) {
        Some(leaf) => (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx),
        None => {
            let view = cpuid::View {
                apic: context.state.lapic.is_on(),
                osxsave: context.state.vmcb.cr4 & CR4_OSXSAVE != 0,
                // Asked only where it is shown: it takes a lock.
                invariant_tsc: leaf == 0x8000_0007 && context.vm.guest.partition.shows_invariant_tsc(),
                ..context.state.view
            };
            let answer = cpuid::answer::<A>(leaf, subleaf, view);
            (answer.eax, answer.ebx, answer.ecx, answer.edx)
        }
    };
    registers.set_low(RAX, eax);
    registers.set_low(RBX, ebx);
    registers.set_low(RCX, ecx);
    registers.set_low(RDX, edx);
    Next::Resume
}

fn on_xsetbv<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let value = context.state.registers.edx_eax();
    let register = context.state.registers.low(RCX);
    if refuses(context, Instruction::SetExtendedControl) {
        return Next::Resume;
    }
    if register != 0 || !fpu::is_valid_xcr0(value, A::components()) {
        return protection_fault(context);
    }
    // The guest's XCR0 lives in the processor while the vCPU is on the CPU.
    A::write_xcr0(value);
    Next::Resume
}

fn on_control_write<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    if refuses(context, Instruction::Kernels) {
        return Next::Resume;
    }
    context.state.rsp_from_vmcb();
    let decoded = with_translation(context, |state, memory| decode_control_write::<A>(&state.vmcb, memory));
    let (number, from, length) = match decoded {
        Ok(decoded) => decoded,
        Err(error) => {
            context.state.raise_fetch_error(error);
            return Next::Resume;
        }
    };
    let value = from.read(&context.state.registers.0);
    match number {
        4 => {
            if !write_cr4(context, value) {
                return protection_fault(context);
            }
        }
        8 if value < 16 => {
            context.state.set_task_priority((value << 4) as u8);
        }
        _ => return protection_fault(context),
    }
    context.state.skip(length);
    Next::Resume
}

/// CR4: only what CPUID shows can be set (APM volume 2, section 3.1.3).
fn write_cr4<A: Amd64>(context: &mut Context<'_, A>, value: u64) -> bool {
    let vmcb = &mut context.state.vmcb;
    let long = vmcb.efer & super::EFER_LMA != 0;
    let enables_pcid = value & !vmcb.cr4 & CR4_PCIDE != 0;
    if value & !context.vm.guest.cr4_mask != 0
        || long && value & CR4_PAE == 0
        || enables_pcid && (!long || vmcb.cr3 & 0xfff != 0)
    {
        return false;
    }
    let old = vmcb.translation_controls();
    vmcb.cr4 = value;
    vmcb.mark_dirty(clean::CRX);
    context.state.settle_translations(old);
    true
}

fn on_msr<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let number = context.state.registers.low(RCX);
    if context.state.vmcb.exit_info_1 & 1 == 0 {
        read_msr(context, number)
    } else {
        write_msr(context, number)
    }
}

fn read_msr<A: Amd64>(context: &mut Context<'_, A>, number: u32) -> Next {
    let now = A::now();
    let value = if hyperv::msrs::is_synthetic(number) {
        match context.state.hyperv.read_msr(&context.vm.guest.partition, number, now) {
            Ok(MsrRead::Value(value)) => Some(value),
            Ok(MsrRead::ApicIcr) => Some(hyperv::msrs::icr_from_x2apic(context.state.lapic.icr())),
            Ok(MsrRead::ApicTpr) => Some(context.state.lapic.tpr().into()),
            Err(_) => None,
        }
    } else {
        context.state.read_msr::<A>(number, now).ok()
    };
    match value {
        Some(value) => {
            context.state.registers.set_edx_eax(value);
            Next::Resume
        }
        None => protection_fault(context),
    }
}

fn write_msr<A: Amd64>(context: &mut Context<'_, A>, number: u32) -> Next {
    let value = context.state.registers.edx_eax();
    let now = A::now();
    // Two registers make up most of the writes.
    if number == lapic::msr::ICR
        && context.state.lapic.is_x2apic()
        && let Some((vector, id)) = context.state.lapic.write_plain_icr(value)
    {
        increase(&context.counters[Counter::IrqIpi as usize], context.vm.post_fixed(id, vector));
        return Next::Resume;
    }
    if number == lapic::msr::EOI && value == 0 && context.state.lapic.is_x2apic() {
        let effect = context.state.lapic.eoi();
        return perform_lapic(context, effect);
    }
    if msr::is_lapic(number) {
        return match context.state.write_lapic(number, value, now) {
            Ok(effect) => perform_lapic(context, effect),
            Err(_) => protection_fault(context),
        };
    }
    if hyperv::msrs::is_synthetic(number) {
        // Held until the effect is performed, so that pages move in the order of the writes.
        let mut overlays = Overlays::is_moved_by(number).then(|| context.vm.guest.overlays.lock());
        return match context.state.hyperv.write_msr(&context.vm.guest.partition, number, value, now) {
            Ok(effect) => perform_synthetic(context, effect, overlays.as_deref_mut()),
            Err(_) => protection_fault(context),
        };
    }
    match context.state.write_msr::<A>(number, value, now) {
        Ok(()) => Next::Resume,
        Err(_) => protection_fault(context),
    }
}

/// Carries out what a write to the local APIC asks for.
#[inline]
fn perform_lapic<A: Amd64>(context: &mut Context<'_, A>, effect: Effect) -> Next {
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
            context.vcpu.inbox.set_address(&context.state.lapic);
            Next::Timers
        }
    }
}

/// A level-triggered vector has left service.
#[inline(never)] // Seldom, and with a buffer that others need not make room for.
fn tell_io_apic<A: Amd64>(context: &mut Context<'_, A>, vector: u8) {
    let messages = context.vm.guest.platform.lock().eoi(vector);
    for message in messages {
        context.vm.deliver(message, context.state.lapic.apic_id());
    }
}

fn perform_synthetic<A: Amd64>(
    context: &mut Context<'_, A>,
    effect: MsrEffect,
    overlays: Option<&mut Overlays>,
) -> Next {
    match effect {
        MsrEffect::None => {}
        MsrEffect::ApicEoi => {
            let effect = context.state.lapic.eoi();
            return perform_lapic(context, effect);
        }
        MsrEffect::ApicIcr(value) => match context.state.lapic.write_icr(value) {
            Ok(effect) => return perform_lapic(context, effect),
            Err(_) => return protection_fault(context),
        },
        MsrEffect::ApicTpr(value) => {
            context.state.set_task_priority(value);
        }
        MsrEffect::HypercallPage(page) => {
            if let Some(overlays) = overlays {
                overlays.move_hypercall_page(&context.vm.space.slots().memory(), page);
            }
        }
        MsrEffect::TscPage(page) => {
            if let Some(overlays) = overlays {
                overlays.move_tsc_page(
                    &context.vm.space.slots().memory(),
                    page,
                    context.vm.guest.partition.clock(),
                );
            }
        }
        MsrEffect::VpAssistPage(page) => {
            // An assist page without memory behind it is legal; there is nothing to clear then.
            let _ = page.to.map(|gpa| context.vm.space.slots().memory().write_u32(Gpa(gpa), 0));
        }
        MsrEffect::Timers => return Next::Timers,
        MsrEffect::Crash(report) => context.vm.report_crash(context.vcpu.index, &report),
        MsrEffect::CrashAgain => context.count(Counter::CrashesLeftOut),
        MsrEffect::Reset => return Next::Reset,
    }
    Next::Resume
}

fn on_port<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    const INPUT: u64 = 1;
    const STRING: u64 = 1 << 2;
    let info = context.state.vmcb.exit_info_1;
    let next_rip = context.state.vmcb.exit_info_2;
    let port = (info >> 16) as u16;
    let size = (info >> 4 & 7) as usize;
    if context.state.vmcb.cpl != 0 && is_port_refused(context, port, size as u32) {
        return Next::Resume;
    }
    if info & STRING != 0 {
        return on_string_port(context, info);
    }
    let Some(width) = PortSize::from_bytes(size) else { return protection_fault(context) };
    let target = Operand::accumulator(size as u32);
    let next = if info & INPUT != 0 {
        let value = context.vm.port_read(port, width);
        target.write(&mut context.state.registers.0, value.into());
        Next::Resume
    } else {
        let value = target.read(&context.state.registers.0) as u32;
        write_port(context, port, width, value)
    };
    if next != Next::Again {
        let length = next_rip.wrapping_sub(context.state.vmcb.rip);
        context.state.skip(length);
    }
    next
}

/// Whether the current task may not access these ports; then the fault has been raised.
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

/// Performs a port write and what follows from it.
pub fn write_port<A: Amd64>(context: &mut Context<'_, A>, port: u16, width: PortSize, value: u32) -> Next {
    if Pci::is_data_port(port) {
        return write_pci(context, port, width, value);
    }
    let effect = context.vm.guest.platform.lock().port_write(port, width, value, || context.vm.wall_ns());
    if let Some(message) = effect.interrupt {
        context.vm.deliver(message, context.state.lapic.apic_id());
    }
    match effect.output {
        Output::None => Next::Resume,
        Output::Transmit(serial, byte) => {
            A::transmit(serial, byte);
            Next::Resume
        }
        Output::Power(PowerEvent::PowerOff) => Next::PowerOff,
        Output::Power(PowerEvent::Reset) => Next::Reset,
    }
}

/// Writes to the PCI configuration space. The ROM's slot follows what its device decodes before the guest goes on.
fn write_pci<A: Amd64>(context: &mut Context<'_, A>, port: u16, width: PortSize, value: u32) -> Next {
    if context.vm.turn_wanted.load(Ordering::Relaxed) {
        return Next::Again;
    }
    // Held until the slot has moved, so that it moves in the order of the writes. Whoever has it waits for nobody but
    // vCPUs in guest mode.
    let mut rom = context.vm.guest.rom.lock();
    let wanted = {
        let mut platform = context.vm.guest.platform.lock();
        let _ = platform.port_write(port, width, value, || context.vm.wall_ns());
        platform.rom_base().map(Gpa)
    };
    match rom.follow(context.vm, wanted, &mut context.workspace.scratch) {
        Ok(None) => Next::Resume,
        Ok(Some(report)) => {
            count_job(context.counters, &report);
            Next::Resume
        }
        // To write the same once more changes nothing.
        Err(Busy) => Next::Again,
    }
}

/// Carries out a hypercall, whose instruction has `length` bytes.
fn on_hypercall<A: Amd64>(context: &mut Context<'_, A>, length: u64) -> Next {
    const RFLAGS_VM: u64 = 1 << 17;
    let vmcb = &context.state.vmcb;
    let caller = Caller {
        cpl: vmcb.cpl,
        protected_mode: vmcb.cr0 & super::CR0_PE != 0,
        virtual_8086: vmcb.rflags & RFLAGS_VM != 0,
        long_mode_64: vmcb.is_64bit(),
    };
    let parameters = caller.parameters(&context.state.registers.0);
    let (partition, memory) = (&context.vm.guest.partition, context.vm.memory_source());
    let mut services = context.vm.call_services(context.vcpu, &mut context.workspace.scratch);
    let page = &mut context.workspace.page;
    #[cfg(not(feature = "defects"))]
    let outcome = hypercall::handle(&caller, parameters, partition, &memory, &mut services, page);
    #[cfg(feature = "defects")]
    let outcome = match crate::vm::files::defect() {
        Some(defect) => defects::handle(defect, &caller, parameters, partition, &memory, &mut services, page),
        None => hypercall::handle(&caller, parameters, partition, &memory, &mut services, page),
    };
    let (result, next) = match outcome {
        Outcome::Complete(result) => (result, Next::Resume),
        Outcome::Yield(result) => (result, Next::Yield),
        Outcome::Continue(control) => {
            caller.set_control(&mut context.state.registers.0, control);
            // Where the instruction before it holds interrupts off, it does so for the first part only.
            context.state.vmcb.interrupt_shadow &= !1;
            return Next::Resume;
        }
        Outcome::UndefinedOpcode => {
            context.state.raise_undefined();
            return Next::Resume;
        }
        Outcome::GeneralProtection => return protection_fault(context),
    };
    caller.set_result(&mut context.state.registers.0, result);
    context.state.skip(length);
    next
}

const CR4_OSXSAVE: u64 = 1 << 18;

/// What an exit is counted as; and how the instruction that causes it is usually encoded, or `None` if no instruction
/// does, if the exit itself says where the next one is, or if what it says has to be decoded.
#[inline]
fn classify(vmcb: &Vmcb) -> (Counter, Option<&'static Pattern>) {
    macro_rules! usual {
        ($($byte:literal)+) => { Some(const { &Pattern::new(&[$($byte),+]) }) };
    }
    match vmcb.exit_code {
        exit::MSR if vmcb.exit_info_1 & 1 == 0 => (Counter::ExitRdmsr, usual!(0x0f 0x32)),
        exit::MSR => (Counter::ExitWrmsr, usual!(0x0f 0x30)),
        exit::CPUID => (Counter::ExitCpuid, usual!(0x0f 0xa2)),
        exit::VMMCALL => (Counter::ExitHypercall, usual!(0x0f 0x01 0xd9)),
        exit::HLT => (Counter::ExitHlt, usual!(0xf4)),
        exit::PAUSE => (Counter::ExitPause, usual!(0xf3 0x90)),
        exit::XSETBV => (Counter::ExitControl, usual!(0x0f 0x01 0xd1)),
        exit::WBINVD => (Counter::ExitOther, usual!(0x0f 0x09)),
        exit::INVD => (Counter::ExitOther, usual!(0x0f 0x08)),
        exit::IOIO => (Counter::ExitIo, None),
        exit::NESTED_FAULT => (Counter::ExitNpf, None),
        exit::INTR | exit::NMI => (Counter::ExitIntr, None),
        exit::VINTR => (Counter::ExitVintr, None),
        exit::CR_WRITE_0..=exit::DR_WRITE_15 => (Counter::ExitControl, None),
        _ => (Counter::ExitOther, None),
    }
}
