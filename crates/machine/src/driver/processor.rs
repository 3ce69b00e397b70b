//! The operations that only a processor can do, as performed by the machine's processors, and
//! mistakes of the driver.

use coherence::CpuId;
use coherence::asid::TlbControl;
use stay::{Mistake, Mistakes, broadcast, tagged};

use super::cpu::Cpu;
use super::guest::Exit;
use super::vm::{Activity, Architecture, Vcpu, Vm};
use crate::bug::Bug;

/// The processor refuses the guest's state once in this many entries.
const REFUSED_ONE_IN: usize = 40;

/// The tag and flush for VMRUN: a part of the VMCB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vmcb {
    asid: u32,
    control: TlbControl,
    /// What the processor keeps of the nested tables alone has to go, too. Only where no tag's
    /// flush does that.
    owes_nested: bool,
}

impl Vmcb {
    /// The one of a vCPU that has never run.
    pub(crate) const fn new() -> Self {
        Self { asid: 1, control: TlbControl::DoNothing, owes_nested: false }
    }
}

/// A processor with a vCPU's state.
pub(super) struct Guest<'g, 'm, F: Architecture> {
    pub(super) cpu: &'g mut Cpu<'m>,
    pub(super) vm: &'g Vm<'m, F>,
    pub(super) number: usize,
    pub(super) vcpu: &'g mut Vcpu,
    pub(super) exit: Option<Exit>,
}

impl<'g, 'm, F: Architecture> Guest<'g, 'm, F> {
    pub(super) fn new(cpu: &'g mut Cpu<'m>, vm: &'g Vm<'m, F>, number: usize, vcpu: &'g mut Vcpu) -> Self {
        Self { cpu, vm, number, vcpu, exit: None }
    }

    /// The guest runs under a tag until it leaves guest mode.
    fn run_with(&mut self, tag: u32) {
        let (machine, vm, number) = (self.cpu.machine, self.vm, self.number);
        vm.activity[number].set(Activity::Ready);
        machine.hw.borrow_mut().enter(self.cpu.number, tag, vm.roots(self.vcpu.space));
        machine.note(|| format!("enters vCPU {}.{number} with tag {tag} ({:?})", vm.index, self.vcpu.vmcb));
        let exit = self.run_guest();
        machine.hw.borrow_mut().leave(self.cpu.number);
        machine.note(|| format!("leaves vCPU {}.{number}: {exit:?}", vm.index));
        self.exit = Some(exit);
    }
}

impl<F: Architecture> Mistakes for Guest<'_, '_, F> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.cpu.machine.makes(mistake)
    }
}

impl<F: Architecture> tagged::Processor for Guest<'_, '_, F> {
    fn id(&self) -> CpuId {
        CpuId(self.cpu.number as u32)
    }

    fn set_tag(&mut self, asid: u32, control: TlbControl, _: bool) {
        let control = match control {
            TlbControl::FlushAll if self.cpu.machine.misses_rollover(self.cpu.number) => {
                TlbControl::DoNothing
            }
            control => control,
        };
        self.vcpu.vmcb = Vmcb { asid, control, ..self.vcpu.vmcb };
    }

    fn hold_interrupts(&mut self) {
        self.cpu.machine.point();
    }

    fn run(&mut self) -> bool {
        let (machine, Vmcb { asid, control, owes_nested }) = (self.cpu.machine, self.vcpu.vmcb);
        if machine.below(REFUSED_ONE_IN) == 0 {
            machine.note(|| format!("vCPU {}.{} is refused", self.vm.index, self.number));
            return false;
        }
        machine.point();
        machine.hw.borrow_mut().tlb_control(self.cpu.number, asid, control);
        if owes_nested {
            machine.hw.borrow_mut().flush_nested(self.cpu.number, asid);
            self.vcpu.vmcb.owes_nested = false;
        }
        self.run_with(asid);
        true
    }

    fn take_interrupts(&mut self) {
        self.cpu.machine.point();
        self.cpu.machine.take_interrupt(self.cpu.number);
    }

    fn invalidate_page(&mut self, address: u64, asid: u32) {
        let machine = self.cpu.machine;
        let walk = !machine.has(Bug::WalkCacheKept);
        machine.hw.borrow_mut().invlpga(self.cpu.number, asid, address, walk);
    }

    fn owe_nested_flush(&mut self) {
        self.vcpu.vmcb.owes_nested |= self.cpu.machine.config.two_flushes;
    }

    fn mode(&self) -> tagged::Mode {
        tagged::Mode { pcid: self.cpu.machine.config.pcid, pae: true, pieces: self.vm.space.has_pieces() }
    }
}

impl<F: Architecture> broadcast::Processor for Guest<'_, '_, F> {
    fn id(&self) -> CpuId {
        CpuId(self.cpu.number as u32)
    }

    fn fill_lists(&mut self) {
        self.cpu.machine.point();
    }

    fn run(&mut self) {
        let (machine, cpu) = (self.cpu.machine, self.cpu.number);
        machine.point();
        if !machine.has_loaded(cpu, self.vm.index, self.vm.roots(self.vcpu.space)) {
            machine.fail(|| {
                format!(
                    "CPU {cpu} enters vCPU {}.{} by a translation of another machine",
                    self.vm.index, self.number
                )
            });
        }
        self.run_with(machine.stage2.loaded(cpu));
    }

    fn take_lists_back(&mut self) {
        self.cpu.machine.point();
    }
}
