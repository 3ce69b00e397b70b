//! This architecture's implementation of VMX's operations.

use baremetal::encodings::task_base;
use coherence::CpuId;
use core::arch::{asm, naked_asm};
use stay::tagged::two_flushes::{Invept, Invvpid, Roots};
use x86_64::instructions::tables::{sgdt, sidt};
use x86_64::registers::control::{Cr0, Cr2, Cr3, Cr4, Efer};
use x86_64::registers::debug::Dr6;
use x86_64::registers::model_specific::Msr;
use x86_64::registers::segmentation::{CS, SS, Segment};

use super::{entry, features, invalidate};
use crate::arch::x86_64::apic;
use crate::image::{On, Processor};
use crate::vm::PerCpu;
use crate::vmx::capabilities::Capabilities;
use crate::vmx::controls::Controls;
use crate::vmx::fields::Named;
use crate::vmx::processor::{OnVmx, Vmx};
use crate::vmx::run::{self, Failed, Instructions};
use crate::vmx::soft_state::Register;
use crate::vmx::switch::HostState;
use crate::vmx::vmcs::Vmcs;
use crate::x86::vcpu::msr;
use crate::x86::vcpu::registers::Registers;
use crate::x86::vectors;

impl Instructions for Processor {
    #[inline(always)]
    fn vmread(field: u32) -> u64 {
        let value;
        // SAFETY: VMX is on, the vCPU's VMCS is current, and the field is one of ours; reading it
        // changes nothing.
        unsafe {
            asm!("vmread {}, {}", out(reg) value, in(reg) u64::from(field), options(nomem, nostack));
        }
        value
    }

    #[inline(always)]
    fn vmwrite(field: u32, value: u64) {
        // SAFETY: VMX is on. A field takes effect only at an entry or its exit, and who enters
        // vouches for what the VMCS has then.
        unsafe {
            asm!("vmwrite {}, {}", "jbe {failed}", in(reg) u64::from(field), in(reg) value,
                failed = label { failed("VMWRITE", &Named(field)) }, options(nomem, nostack));
        }
    }

    fn vmclear(vmcs: &Vmcs) {
        let region = vmcs.region();
        // SAFETY: the page belongs to the VMCS as long as it exists, and nothing else uses it.
        unsafe {
            asm!("vmclear [{}]", "jbe {failed}", in(reg) &raw const region,
                failed = label { failed("VMCLEAR", &region) });
        }
    }

    fn vmptrld(vmcs: &Vmcs) {
        let region = vmcs.region();
        // SAFETY: as above. Before it is dropped the vCPU leaves, which clears it: no processor
        // writes to a page that is free.
        unsafe {
            asm!("vmptrld [{}]", "jbe {failed}", in(reg) &raw const region,
                failed = label { failed("VMPTRLD", &region) });
        }
    }

    fn host_state() -> HostState {
        let task: u16;
        // SAFETY: reads a register.
        unsafe { asm!("str {:x}", out(reg) task, options(nomem, nostack, preserves_flags)) };
        // SAFETY: every processor with VMX has this register; reading it changes nothing.
        let pat = unsafe { Msr::new(msr::PAT).read() };
        let gdt = sgdt().base.as_u64();
        let descriptor = (gdt + u64::from(task & !7)) as *const [u64; 2];
        // SAFETY: the GDT has the descriptor that the register was loaded from.
        let task_base = task_base(unsafe { descriptor.read_unaligned() });
        HostState {
            cr0: Cr0::read_raw(),
            cr3: Cr3::read_raw().0.start_address().as_u64(),
            cr4: Cr4::read_raw(),
            code: CS::get_reg().0,
            data: SS::get_reg().0,
            task: (task, task_base),
            gdt,
            idt: sidt().base.as_u64(),
            pat,
            efer: Efer::read_raw(),
            rip: entry::exit(),
        }
    }

    #[inline(always)]
    fn read_soft(register: Register) -> u64 {
        match register.msr() {
            // SAFETY: every processor of 64 bits has these registers, and reading changes nothing.
            Some(number) => unsafe { Msr::new(number).read() },
            None if register == Register::Cr2 => Cr2::read_raw(),
            None => Dr6::read_raw(),
        }
    }

    #[inline(always)]
    fn write_soft(register: Register, value: u64) {
        // SAFETY: the hypervisor uses none of them. The guest's values were checked when it wrote
        // them.
        unsafe {
            match register.msr() {
                Some(number) => Msr::new(number).write(value),
                None if register == Register::Cr2 => {
                    asm!("mov cr2, {}", in(reg) value, options(nomem, nostack, preserves_flags));
                }
                None => asm!("mov dr6, {}", in(reg) value, options(nomem, nostack, preserves_flags)),
            }
        }
    }

    #[inline(always)]
    unsafe fn enter(
        registers: &mut Registers,
        is_launched: bool,
        host_stack: &mut u64,
    ) -> Result<(), Failed> {
        // SAFETY: the caller vouches for VMCS and registers.
        match unsafe { entry::run_guest(registers, is_launched.into(), host_stack) } {
            0 => Ok(()),
            1 => Err(Failed::Invalid),
            _ => Err(Failed::Valid),
        }
    }

    fn take_nmi() {
        // SAFETY: the handler returns by IRET, which ends the blocking of NMIs by the exit.
        unsafe { asm!("int 2") };
    }
}

/// Bytes of each piece of [`interrupts`].
const INTERRUPT_BYTES: usize = 4;

/// For each vector a function that interrupts its caller by it, as the machine would have.
#[unsafe(naked)]
extern "C" fn interrupts() {
    naked_asm!(
        ".set vector, 0",
        ".rept 256",
        "  .byte 0xcd, vector", // INT
        "  ret",
        "  int3",
        "  .set vector, vector + 1",
        ".endr",
    )
}

#[cold]
fn failed(name: &str, operand: &dyn core::fmt::Display) -> ! {
    panic!("{name} of {operand} has failed")
}

impl Vmx for On<OnVmx<Processor>> {
    fn chosen() -> (&'static Capabilities, Controls) {
        features::chosen()
    }

    fn vmread(field: u32) -> u64 {
        Processor::vmread(field)
    }

    fn read_soft(register: Register) -> u64 {
        <Processor as Instructions>::read_soft(register)
    }

    #[inline(always)]
    fn arrive(cpu: &PerCpu<Self>, vmcs: &mut Vmcs) {
        run::arrive::<Processor>(CpuId(cpu.index.0), vmcs);
    }

    #[inline(always)]
    fn leave(vmcs: &mut Vmcs) {
        run::leave::<Processor>(vmcs);
    }

    #[inline(always)]
    fn release_interrupts(acknowledged: Option<u8>) {
        match acknowledged {
            // SAFETY: handlers need nothing but the stack; no lock is held here.
            None => unsafe { asm!("sti", "nop", "cli", options(nostack)) },
            // SAFETY: the same. The place is that of this vector's INT.
            Some(vector) => unsafe {
                asm!("call {}", in(reg) interrupts as *const () as usize + usize::from(vector) * INTERRUPT_BYTES);
            },
        }
    }

    fn tell(cpu: &PerCpu<Self>) {
        apic::send_fixed(cpu.id, vectors::POSTED);
    }

    #[inline(always)]
    unsafe fn run(cpu: &PerCpu<Self>, vmcs: &mut Vmcs, registers: &mut Registers) -> bool {
        // SAFETY: the caller vouches for VMCS and registers; interrupts are off.
        unsafe { run::run::<Processor>((CpuId(cpu.index.0), &cpu.arch.held), vmcs, registers) }
    }

    fn invalidate(named: Invvpid) {
        invalidate::guests(named);
    }

    fn invalidate_nested(named: Invept) {
        invalidate::nested(named);
    }

    #[inline(always)]
    fn roots(cpu: &PerCpu<Self>) -> &Roots {
        &cpu.arch.roots
    }
}
