//! What each exit means. Handlers change the vCPU's state and say how it goes on; nothing here blocks, but for
//! the bounded wait of a flush.

use core::sync::atomic::Ordering;

use hostlink::counters::Counter;
use memslots::{Gpa, GuestMemory, Pattern};
use stay::in_section;

use super::super::clock;
use super::super::overlay::Overlays;
use super::super::rom::{Busy, count_job};
use super::entry::{RAX, RBX, RCX, RDX};
use super::fpu;
use super::instruction::{decode_control_write, length, read_task};
use super::state::{Activity, VcpuState};
use super::vmcb::{CR4_PAE, CR4_PCIDE, DR6_SINGLE_STEP, RFLAGS_RF, RFLAGS_TF, Vmcb, clean, exit, vintr};
use super::{cpuid, msr};
use crate::amd64::checks::{self, Instruction};
use crate::amd64::nmi::Nmi;
use crate::arch::Context;
use crate::devices::lapic::{self, Effect};
use crate::devices::pci::Pci;
use crate::devices::platform::{Output, PortSize, SerialPort};
use crate::devices::power::PowerEvent;
use crate::emulator::Operand;
#[cfg(feature = "defects")]
use crate::hyperv::defects;
use crate::hyperv::{self, Caller, MsrEffect, MsrRead, Outcome, hypercall};
use crate::vm::{Next, increase};

impl Context<'_> {
    /// Runs `look` with guest memory in a [section](in_section).
    pub(crate) fn with_translation<R>(
        &mut self,
        look: impl FnOnce(&mut VcpuState, &GuestMemory<'_>) -> R,
    ) -> R {
        in_section(self, |state, vm| look(state, &vm.space.slots().memory()))
    }

    /// Goes on behind an instruction of `length` bytes.
    pub(crate) fn skip(&mut self, length: u64) {
        let vmcb = &mut *self.state.vmcb;
        let next = vmcb.rip.wrapping_add(length);
        vmcb.rip = if vmcb.is_64bit() { next } else { next & 0xffff_ffff };
        vmcb.interrupt_shadow &= !1;
        if vmcb.rflags & (RFLAGS_TF | RFLAGS_RF) != 0 {
            // RF has done its work, and TF does its own.
            vmcb.rflags &= !RFLAGS_RF;
            if vmcb.rflags & RFLAGS_TF != 0 {
                self.state.raise_debug(DR6_SINGLE_STEP);
            }
        }
    }

    /// Handles the exit that the VMCB describes.
    #[inline(always)] // It has one caller, and saves that one's registers for nothing otherwise.
    pub(crate) fn handle_exit(&mut self) -> Next {
        let (counter, usual) = classify(&self.state.vmcb);
        self.count(counter);
        self.state.end_step();
        match usual {
            Some(usual) => self.complete(usual),
            None => self.handle_event(),
        }
    }

    /// Carries out the instruction that the guest could not, and goes on behind it. If it cannot be read any more, the
    /// guest gets the fault and nothing is done.
    #[inline(always)] // As above.
    fn complete(&mut self, usual: &Pattern) -> Next {
        let length =
            self.with_translation(|state, memory| length(&state.vmcb, memory, &mut state.code, usual));
        let length = match length {
            Ok(length) => length,
            Err(error) => {
                self.state.raise_fetch_error(error);
                return Next::Resume;
            }
        };
        let next = match self.state.vmcb.exit_code {
            exit::MSR => self.on_msr(),
            exit::CPUID => self.on_cpuid(),
            // It may have to be executed again.
            exit::VMMCALL => return self.on_hypercall(length),
            exit::HLT => {
                self.state.activity = Activity::Halted;
                Next::Halt
            }
            exit::PAUSE => Next::Yield,
            exit::XSETBV => self.on_xsetbv(),
            // WBINVD, INVD: the caches are coherent without.
            _ => Next::Resume,
        };
        if self.state.exception.is_none() {
            self.skip(length);
        }
        next
    }

    /// Whether the instruction is refused; then its fault has been raised.
    fn refuses(&mut self, instruction: Instruction) -> bool {
        let refused = checks::check(instruction, self.state.vmcb.conditions());
        if let Err(refusal) = refused {
            self.state.raise_refusal(refusal);
        }
        refused.is_err()
    }

    /// An exit for another reason than an instruction whose encoding is known.
    #[inline(always)] // As above.
    fn handle_event(&mut self) -> Next {
        let code = self.state.vmcb.exit_code;
        match code {
            exit::INTR | exit::NMI | exit::SMI | exit::INIT => Next::Resume,
            exit::VINTR => {
                // The window is open: `prepare_events` injects and withdraws the request.
                self.state.vmcb.interrupt_control &= !vintr::IRQ;
                self.state.vmcb.mark_dirty(clean::TPR);
                Next::Resume
            }
            exit::NESTED_FAULT => self.on_nested_fault(),
            exit::IOIO => self.on_port(),
            exit::IRET => {
                // The next entry steps over it.
                self.state.nmi.insert(Nmi::AT_IRET);
                Next::Resume
            }
            exit::CR_WRITE_0..=exit::CR_WRITE_15 => self.on_control_write(),
            // All that there is to check the processor does when it executes the instruction again.
            exit::DR_READ_0..=exit::DR_WRITE_15 => {
                self.state.load_debug_registers();
                Next::Resume
            }
            exit::SHUTDOWN => Next::Dead,
            exit::RDPMC => self.protection_fault(),
            // Where a control register takes values that VMRUN does not (QEMU: CR0.NW without CD), a guest can get here.
            exit::INVALID | exit::INVALID_LOW => {
                log::error!("VMRUN refuses the state of vCPU {}", self.vcpu.index);
                Next::Dead
            }
            exit::EXCEPTION_MC => panic!("machine check while vCPU {} ran", self.vcpu.index),
            exit::EXCEPTION_0..=exit::EXCEPTION_31 => {
                self.state.reflect_exception();
                self.state.settle_delivery()
            }
            exit::FERR_FREEZE => {
                log::debug!("vCPU {}: exit {code:#x} is not emulated", self.vcpu.index);
                self.protection_fault()
            }
            // Instructions that CPUID does not show: SVM's own, MONITOR and MWAIT, RDPRU, INVLPGB and TLBSYNC (A10).
            exit::INVLPGA
            | exit::VMRUN
            | 0x82..=0x85
            | exit::SKINIT
            | exit::MONITOR..=exit::MWAIT_ARMED
            | exit::RDPRU
            | exit::INVLPGB..=exit::TLBSYNC => {
                self.state.raise_undefined();
                Next::Resume
            }
            _ => {
                log::debug!("vCPU {}: unexpected exit {code:#x}", self.vcpu.index);
                self.state.raise_undefined();
                Next::Resume
            }
        }
    }

    fn protection_fault(&mut self) -> Next {
        self.state.raise_protection();
        Next::Resume
    }

    fn on_cpuid(&mut self) -> Next {
        let registers = &mut self.state.registers;
        let (leaf, subleaf) = (registers.low(RAX), registers.low(RCX));
        let (eax, ebx, ecx, edx) = match hyperv::cpuid::leaf(leaf, self.vm.guest.partition.platform()) {
            Some(leaf) => (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx),
            None => {
                let view = cpuid::View {
                    apic: self.state.lapic.is_on(),
                    osxsave: self.state.vmcb.cr4 & CR4_OSXSAVE != 0,
                    // Asked only where it is shown: it takes a lock.
                    invariant_tsc: leaf == 0x8000_0007 && self.vm.guest.partition.shows_invariant_tsc(),
                    ..self.state.view
                };
                let answer = cpuid::answer(leaf, subleaf, view);
                (answer.eax, answer.ebx, answer.ecx, answer.edx)
            }
        };
        registers.set_low(RAX, eax);
        registers.set_low(RBX, ebx);
        registers.set_low(RCX, ecx);
        registers.set_low(RDX, edx);
        Next::Resume
    }

    fn on_xsetbv(&mut self) -> Next {
        let value = self.state.registers.edx_eax();
        let register = self.state.registers.low(RCX);
        if self.refuses(Instruction::SetExtendedControl) {
            return Next::Resume;
        }
        if register != 0 || !fpu::is_valid_xcr0(value) {
            return self.protection_fault();
        }
        // The guest's XCR0 lives in the processor while the vCPU is on the CPU.
        fpu::write_xcr0(value);
        Next::Resume
    }

    fn on_control_write(&mut self) -> Next {
        if self.refuses(Instruction::Kernels) {
            return Next::Resume;
        }
        self.state.rsp_from_vmcb();
        let decoded = self.with_translation(|state, memory| decode_control_write(&state.vmcb, memory));
        let (number, from, length) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                self.state.raise_fetch_error(error);
                return Next::Resume;
            }
        };
        let value = from.read(&self.state.registers.0);
        match number {
            4 => {
                if !self.write_cr4(value) {
                    return self.protection_fault();
                }
            }
            8 if value < 16 => {
                self.state.set_task_priority((value << 4) as u8);
            }
            _ => return self.protection_fault(),
        }
        self.skip(length);
        Next::Resume
    }

    /// CR4: only what CPUID shows can be set (APM volume 2, section 3.1.3).
    fn write_cr4(&mut self, value: u64) -> bool {
        let vmcb = &mut self.state.vmcb;
        let long = vmcb.efer & super::vmcb::EFER_LMA != 0;
        let enables_pcid = value & !vmcb.cr4 & CR4_PCIDE != 0;
        if value & !self.vm.guest.cr4_mask != 0
            || long && value & CR4_PAE == 0
            || enables_pcid && (!long || vmcb.cr3 & 0xfff != 0)
        {
            return false;
        }
        let old = vmcb.translation_controls();
        vmcb.cr4 = value;
        vmcb.mark_dirty(clean::CRX);
        self.state.settle_translations(old);
        true
    }

    fn on_msr(&mut self) -> Next {
        let number = self.state.registers.low(RCX);
        if self.state.vmcb.exit_info_1 & 1 == 0 { self.read_msr(number) } else { self.write_msr(number) }
    }

    fn read_msr(&mut self, number: u32) -> Next {
        let now = clock::now();
        let value = if hyperv::msrs::is_synthetic(number) {
            match self.state.hyperv.read_msr(&self.vm.guest.partition, number, now) {
                Ok(MsrRead::Value(value)) => Some(value),
                Ok(MsrRead::ApicIcr) => Some(hyperv::msrs::icr_from_x2apic(self.state.lapic.icr())),
                Ok(MsrRead::ApicTpr) => Some(self.state.lapic.tpr().into()),
                Err(_) => None,
            }
        } else {
            self.state.read_msr(number, now).ok()
        };
        match value {
            Some(value) => {
                self.state.registers.set_edx_eax(value);
                Next::Resume
            }
            None => self.protection_fault(),
        }
    }

    fn write_msr(&mut self, number: u32) -> Next {
        let value = self.state.registers.edx_eax();
        let now = clock::now();
        // Two registers make up most of the writes.
        if number == lapic::msr::ICR
            && self.state.lapic.is_x2apic()
            && let Some((vector, id)) = self.state.lapic.write_plain_icr(value)
        {
            increase(&self.counters[Counter::IrqIpi as usize], self.vm.post_fixed(id, vector));
            return Next::Resume;
        }
        if number == lapic::msr::EOI && value == 0 && self.state.lapic.is_x2apic() {
            let effect = self.state.lapic.eoi();
            return self.perform_lapic(effect);
        }
        if msr::is_lapic(number) {
            return match self.state.write_lapic(number, value, now) {
                Ok(effect) => self.perform_lapic(effect),
                Err(_) => self.protection_fault(),
            };
        }
        if hyperv::msrs::is_synthetic(number) {
            // Held until the effect is performed, so that pages move in the order of the writes.
            let mut overlays = Overlays::is_moved_by(number).then(|| self.vm.guest.overlays.lock());
            return match self.state.hyperv.write_msr(&self.vm.guest.partition, number, value, now) {
                Ok(effect) => self.perform_synthetic(effect, overlays.as_deref_mut()),
                Err(_) => self.protection_fault(),
            };
        }
        match self.state.write_msr(number, value, now) {
            Ok(()) => Next::Resume,
            Err(_) => self.protection_fault(),
        }
    }

    /// Carries out what a write to the local APIC asks for.
    #[inline]
    fn perform_lapic(&mut self, effect: Effect) -> Next {
        match effect {
            Effect::None | Effect::Eoi { level: false, .. } => Next::Resume,
            Effect::Ipi(message) => {
                let targets = self.vm.deliver(message, self.state.lapic.apic_id());
                increase(&self.counters[Counter::IrqIpi as usize], targets);
                Next::Resume
            }
            Effect::Eoi { vector, level: true } => {
                self.tell_io_apic(vector);
                Next::Resume
            }
            Effect::TimerChanged => Next::Timers,
            Effect::Readdressed => {
                self.vcpu.inbox.set_address(&self.state.lapic);
                Next::Timers
            }
        }
    }

    /// A level-triggered vector has left service.
    #[inline(never)] // Seldom, and with a buffer that others need not make room for.
    fn tell_io_apic(&mut self, vector: u8) {
        let messages = self.vm.guest.platform.lock().eoi(vector);
        for message in messages {
            self.vm.deliver(message, self.state.lapic.apic_id());
        }
    }

    fn perform_synthetic(&mut self, effect: MsrEffect, overlays: Option<&mut Overlays>) -> Next {
        match effect {
            MsrEffect::None => {}
            MsrEffect::ApicEoi => {
                let effect = self.state.lapic.eoi();
                return self.perform_lapic(effect);
            }
            MsrEffect::ApicIcr(value) => match self.state.lapic.write_icr(value) {
                Ok(effect) => return self.perform_lapic(effect),
                Err(_) => return self.protection_fault(),
            },
            MsrEffect::ApicTpr(value) => {
                self.state.set_task_priority(value);
            }
            MsrEffect::HypercallPage(page) => {
                if let Some(overlays) = overlays {
                    overlays.move_hypercall_page(&self.vm.space.slots().memory(), page);
                }
            }
            MsrEffect::TscPage(page) => {
                if let Some(overlays) = overlays {
                    overlays.move_tsc_page(
                        &self.vm.space.slots().memory(),
                        page,
                        self.vm.guest.partition.clock(),
                    );
                }
            }
            MsrEffect::VpAssistPage(page) => {
                // An assist page without memory behind it is legal; there is nothing to clear then.
                let _ = page.to.map(|gpa| self.vm.space.slots().memory().write_u32(Gpa(gpa), 0));
            }
            MsrEffect::Timers => return Next::Timers,
            MsrEffect::Crash(report) => self.vm.report_crash(self.vcpu.index, &report),
            MsrEffect::CrashAgain => self.count(Counter::CrashesLeftOut),
            MsrEffect::Reset => return Next::Reset,
        }
        Next::Resume
    }

    fn on_port(&mut self) -> Next {
        const INPUT: u64 = 1;
        const STRING: u64 = 1 << 2;
        let info = self.state.vmcb.exit_info_1;
        let next_rip = self.state.vmcb.exit_info_2;
        let port = (info >> 16) as u16;
        let size = (info >> 4 & 7) as usize;
        if self.state.vmcb.cpl != 0 && self.is_port_refused(port, size as u32) {
            return Next::Resume;
        }
        if info & STRING != 0 {
            return self.on_string_port(info);
        }
        let Some(width) = PortSize::from_bytes(size) else { return self.protection_fault() };
        let target = Operand::accumulator(size as u32);
        let next = if info & INPUT != 0 {
            let value = self.vm.port_read(port, width);
            target.write(&mut self.state.registers.0, value.into());
            Next::Resume
        } else {
            let value = target.read(&self.state.registers.0) as u32;
            self.write_port(port, width, value)
        };
        if next != Next::Again {
            let length = next_rip.wrapping_sub(self.state.vmcb.rip);
            self.skip(length);
        }
        next
    }

    /// Whether the current task may not access these ports; then the fault has been raised.
    #[cold]
    #[inline(never)]
    fn is_port_refused(&mut self, port: u16, size: u32) -> bool {
        if !checks::needs_port_map(self.state.vmcb.conditions()) {
            return false;
        }
        let allowed = self.with_translation(|state, memory| {
            let vmcb = &*state.vmcb;
            let task = vmcb.tr;
            checks::allows_ports(task.attributes, task.limit, port, size, |offset| {
                read_task(vmcb, memory, task.base.wrapping_add(offset.into()))
            })
        });
        match allowed {
            Ok(true) => return false,
            Ok(false) => self.state.raise_protection(),
            Err(error) => self.state.raise_fetch_error(error),
        }
        true
    }

    /// Performs a port write and what follows from it.
    pub(crate) fn write_port(&mut self, port: u16, width: PortSize, value: u32) -> Next {
        if Pci::is_data_port(port) {
            return self.write_pci(port, width, value);
        }
        let effect = self.vm.guest.platform.lock().port_write(port, width, value, || self.vm.wall_ns());
        if let Some(message) = effect.interrupt {
            self.vm.deliver(message, self.state.lapic.apic_id());
        }
        match effect.output {
            Output::None => Next::Resume,
            Output::Transmit(serial, byte) => {
                super::super::console::guest_transmit(usize::from(serial == SerialPort::Com2), byte);
                Next::Resume
            }
            Output::Power(PowerEvent::PowerOff) => Next::PowerOff,
            Output::Power(PowerEvent::Reset) => Next::Reset,
        }
    }

    /// Writes to the PCI configuration space. The ROM's slot follows what its device decodes before the guest goes on.
    fn write_pci(&mut self, port: u16, width: PortSize, value: u32) -> Next {
        if self.vm.turn_wanted.load(Ordering::Relaxed) {
            return Next::Again;
        }
        // Held until the slot has moved, so that it moves in the order of the writes. Whoever has it waits for nobody but
        // vCPUs in guest mode.
        let mut rom = self.vm.guest.rom.lock();
        let wanted = {
            let mut platform = self.vm.guest.platform.lock();
            let _ = platform.port_write(port, width, value, || self.vm.wall_ns());
            platform.rom_base().map(Gpa)
        };
        match rom.follow(self.vm, wanted, &mut self.workspace.scratch) {
            Ok(None) => Next::Resume,
            Ok(Some(report)) => {
                count_job(self.counters, &report);
                Next::Resume
            }
            // To write the same once more changes nothing.
            Err(Busy) => Next::Again,
        }
    }

    /// Carries out a hypercall, whose instruction has `length` bytes.
    fn on_hypercall(&mut self, length: u64) -> Next {
        const RFLAGS_VM: u64 = 1 << 17;
        let vmcb = &self.state.vmcb;
        let caller = Caller {
            cpl: vmcb.cpl,
            protected_mode: vmcb.cr0 & super::vmcb::CR0_PE != 0,
            virtual_8086: vmcb.rflags & RFLAGS_VM != 0,
            long_mode_64: vmcb.is_64bit(),
        };
        let parameters = caller.parameters(&self.state.registers.0);
        let (partition, memory) = (&self.vm.guest.partition, self.vm.memory_source());
        let mut services = self.vm.call_services(self.vcpu, &mut self.workspace.scratch);
        let page = &mut self.workspace.page;
        #[cfg(not(feature = "defects"))]
        let outcome = hypercall::handle(&caller, parameters, partition, &memory, &mut services, page);
        #[cfg(feature = "defects")]
        let outcome = match crate::vm::files::defect() {
            Some(defect) => {
                defects::handle(defect, &caller, parameters, partition, &memory, &mut services, page)
            }
            None => hypercall::handle(&caller, parameters, partition, &memory, &mut services, page),
        };
        let (result, next) = match outcome {
            Outcome::Complete(result) => (result, Next::Resume),
            Outcome::Yield(result) => (result, Next::Yield),
            Outcome::Continue(control) => {
                caller.set_control(&mut self.state.registers.0, control);
                // Where the instruction before it holds interrupts off, it does so for the first part only.
                self.state.vmcb.interrupt_shadow &= !1;
                return Next::Resume;
            }
            Outcome::UndefinedOpcode => {
                self.state.raise_undefined();
                return Next::Resume;
            }
            Outcome::GeneralProtection => return self.protection_fault(),
        };
        caller.set_result(&mut self.state.registers.0, result);
        self.skip(length);
        next
    }
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
