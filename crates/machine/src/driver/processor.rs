//! The operations that only a processor can do, as performed by the machine's processors, and
//! mistakes of the driver.

use coherence::CpuId;
use coherence::asid::TlbControl;
use paging::Stamp;
use stay::tagged::two_flushes::{self, Invept, Invvpid, Roots, TwoFlushes};
use stay::{Mistake, Mistakes, broadcast, tagged};
use std::cell::Cell;

use super::cpu::Cpu;
use super::guest::Exit;
use super::vm::{Activity, Architecture, Vcpu, Vm};
use crate::bug::Bug;
use crate::hw::format::Arch;

/// The processor refuses the guest's state once in this many entries.
const REFUSED_ONE_IN: usize = 40;

/// The tag and flush for VMRUN: a part of the VMCB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vmcb {
    asid: u32,
    control: TlbControl,
}

impl Vmcb {
    /// The one of a vCPU that has never run.
    pub(crate) const fn new() -> Self {
        Self { asid: 1, control: TlbControl::DoNothing }
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
        let listed = machine.hw.borrow_mut().take_listed(self.cpu.number);
        if !machine.has(Bug::ListedLater) {
            self.vcpu.listed.extend(&listed);
        }
        if vm.space.has_lists() {
            let (listed, memory) = (core::mem::take(&mut self.vcpu.listed), vm.space.slots().memory());
            memory.mark_listed(listed);
        }
        if machine.has(Bug::ListedLater) {
            self.vcpu.listed.extend(&listed);
        }
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

    fn set_tag(&mut self, asid: u32, control: TlbControl, changed: bool) {
        let control = match control {
            TlbControl::FlushAll if self.cpu.machine.misses_rollover(self.cpu.number) => {
                TlbControl::DoNothing
            }
            control => control,
        };
        self.vcpu.vmcb = match self.cpu.machine.config.arch {
            Arch::Intel64 => {
                let vpid = two_flushes::begin_entry(self, asid, control, changed);
                let is_former = changed && self.cpu.machine.has(Bug::FormerVpid) && vpid != 0;
                let vpid = if is_former { self.vcpu.vmcb.asid } else { vpid.into() };
                Vmcb { asid: vpid, control: TlbControl::DoNothing }
            }
            _ => Vmcb { asid, control },
        };
    }

    fn hold_interrupts(&mut self) {
        self.cpu.machine.point();
    }

    fn run(&mut self) -> bool {
        let (machine, Vmcb { asid, control }) = (self.cpu.machine, self.vcpu.vmcb);
        if machine.below(REFUSED_ONE_IN) == 0 {
            machine.note(|| format!("vCPU {}.{} is refused", self.vm.index, self.number));
            return false;
        }
        machine.point();
        if asid == 0 && machine.config.vpids {
            machine.fail(|| "an entry with VPID 0".into());
        }
        machine.hw.borrow_mut().tlb_control(self.cpu.number, asid, control);
        self.run_with(asid);
        true
    }

    fn take_interrupts(&mut self) {
        self.cpu.machine.point();
        self.cpu.machine.take_interrupt(self.cpu.number);
    }

    fn invalidate_page(&mut self, address: u64, asid: u32) {
        let machine = self.cpu.machine;
        if machine.config.arch == Arch::Intel64 {
            return two_flushes::invalidate_page(self, address, asid);
        }
        let walk = !machine.has(Bug::WalkCacheKept);
        machine.hw.borrow_mut().invlpga(self.cpu.number, asid, address, walk);
    }

    fn owe_nested_flush(&mut self) {
        if self.cpu.machine.config.arch == Arch::Intel64 {
            two_flushes::owe_nested(self);
        }
    }

    fn mode(&self) -> tagged::Mode {
        let config = &self.cpu.machine.config;
        // INVVPID drops translations of all PCIDs.
        let pcid = config.pcid && config.arch == Arch::Amd64;
        tagged::Mode { pcid, pae: true, pieces: self.vm.space.has_pieces() }
    }
}

impl<F: Architecture> TwoFlushes for Guest<'_, '_, F> {
    fn has_vpids(&self) -> bool {
        self.cpu.machine.config.vpids
    }

    fn invvpid(&self, named: Invvpid) {
        let (machine, cpu) = (self.cpu.machine, self.cpu.number);
        machine.note(|| format!("INVVPID: {named:x?}"));
        if let Invvpid::Vpid(0) | Invvpid::ButGlobals(0) | Invvpid::Address { vpid: 0, .. } = named {
            machine.fail(|| "INVVPID of VPID 0".into());
        }
        machine.hw.borrow_mut().invvpid(cpu, named);
    }

    fn invept(&self, named: Invept) {
        self.cpu.machine.invept(self.cpu.number, named);
    }

    fn nested_debt(&self) -> &Cell<bool> {
        &self.vcpu.nested_debt
    }

    fn roots(&self) -> &Roots {
        &self.cpu.machine.roots[self.cpu.number]
    }

    fn stamp(&self) -> Stamp {
        self.vm.space.stamp()
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
