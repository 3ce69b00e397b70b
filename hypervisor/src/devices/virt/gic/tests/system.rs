//! A VM with one CPU for each vCPU: everything that the hypervisor's loop does with the parts, and
//! nothing more. A vCPU leaves the guest only when it is notified or when its maintenance interrupt
//! arrives.

use super::cpu::Cpu;
use crate::devices::virt::gic::{
    Deactivate, Distributor, Effect, INTIDS_MAX, Inbox, Private, RegisterEffect, Sgi, SgiGroup,
};

pub(super) const SGI_FRAME: u32 = 0x1_0000;

pub(super) struct Vcpu {
    pub(super) cpu: Cpu,
    pub(super) private: Private,
    pub(super) inbox: Inbox,
    notified: bool,
}

pub(super) struct System {
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) distributor: Distributor,
}

impl System {
    /// All vCPUs are in the guest.
    pub(super) fn new(vcpu_count: u8, list_count: usize) -> Self {
        let vcpu = |index| Vcpu {
            cpu: Cpu::new(list_count),
            private: Private::new(index, vcpu_count),
            inbox: Inbox::default(),
            notified: true,
        };
        let vcpus = (0..vcpu_count).map(vcpu).collect();
        let mut system = Self { vcpus, distributor: Distributor::new(vcpu_count, INTIDS_MAX) };
        system.settle();
        system
    }

    pub(super) fn exit(&mut self, vcpu: u8) {
        let Vcpu { cpu, private, .. } = &mut self.vcpus[usize::from(vcpu)];
        let is_maintenance_due = cpu.is_maintenance_due();
        let eoi_count = core::mem::take(&mut cpu.eoi_count);
        let Deactivate(ppis) = private.sync(cpu, eoi_count);
        assert_eq!(cpu.physical & ppis, ppis);
        cpu.physical &= !ppis;
        assert_eq!(cpu.lists, [0; 16], "all are 0 outside the guest");
        if is_maintenance_due {
            private.note_maintenance(&cpu.view());
        }
        for ppi in 16..32 {
            assert_eq!(private.is_linked(ppi), cpu.physical >> ppi & 1 != 0, "PPI {ppi}");
        }
    }

    pub(super) fn enter(&mut self, vcpu: u8) {
        let index = usize::from(vcpu);
        let Vcpu { private, inbox, notified, .. } = &mut self.vcpus[index];
        *notified = false;
        if private.look(inbox) {
            let effect = private.settle(&mut self.distributor);
            self.perform(effect);
        }
        let Vcpu { cpu, private, .. } = &mut self.vcpus[index];
        let signalled = private.signalled(&cpu.view());
        assert_eq!(private.can_wake(&cpu.view()), signalled.is_some());
        let (view, has_none) = (cpu.view(), private.has_none());
        cpu.maintenance = private.fill(cpu, &view);
        let is_filled = !cpu.maintenance.is_empty() || !private.loaded().is_empty();
        assert!(!(has_none && is_filled), "an entry would leave it out");
        assert_eq!(cpu.signalled().is_some(), signalled.is_some(), "what wakes is signalled");
    }

    pub(super) fn perform(&mut self, effect: Effect) {
        for post in effect.posts(&self.distributor) {
            let vcpu = &mut self.vcpus[usize::from(post.vcpu)];
            let _ = vcpu.inbox.post_spi(post.intid);
            vcpu.notified = true;
        }
        if let Some(groups) = effect.groups {
            for vcpu in &mut self.vcpus {
                let _ = vcpu.inbox.post_groups(groups);
                vcpu.notified = true;
            }
        }
    }

    /// Runs until no vCPU must leave the guest any more.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            let due = self.vcpus.iter().position(|vcpu| vcpu.notified || vcpu.cpu.is_maintenance_due());
            let Some(index) = due else { return };
            self.exit(index as u8);
            self.enter(index as u8);
        }
        panic!("exits without end");
    }

    pub(super) fn set_line(&mut self, spi: u8, level: bool) {
        let effect = self.distributor.set_line(spi, level);
        self.perform(effect);
    }

    pub(super) fn send(&mut self, from: u8, value: u64, group: SgiGroup) {
        let sgi = Sgi::new(value);
        for target in sgi.targets(from, self.vcpus.len() as u8) {
            let vcpu = &mut self.vcpus[usize::from(target)];
            let _ = vcpu.inbox.post_sgi(sgi, group);
            vcpu.notified = true;
        }
    }

    pub(super) fn write(&mut self, offset: u32, size: u8, value: u64) {
        let effect = self.distributor.write(offset, size, value);
        self.perform(effect);
    }

    pub(super) fn read(&mut self, offset: u32, size: u8) -> u64 {
        let (value, effect) = self.distributor.read(offset, size);
        self.perform(effect);
        value
    }

    /// Acts on the vCPU outside of the guest.
    pub(super) fn with<T>(&mut self, vcpu: u8, action: impl FnOnce(&mut Vcpu) -> T) -> T {
        self.exit(vcpu);
        let result = action(&mut self.vcpus[usize::from(vcpu)]);
        self.enter(vcpu);
        result
    }

    pub(super) fn write_own(&mut self, vcpu: u8, offset: u32, size: u8, value: u64) {
        self.with(vcpu, |vcpu| {
            let effect = vcpu.private.write(SGI_FRAME + offset, size, value);
            let RegisterEffect { deactivate: Deactivate(ppis), awake } = effect;
            assert_eq!((vcpu.cpu.physical & ppis, awake), (ppis, None));
            vcpu.cpu.physical &= !ppis;
        });
    }

    /// A write of one interrupt's bit in the bank at `offset`; private interrupts are those of
    /// `vcpu`.
    pub(super) fn write_bit(&mut self, vcpu: u8, bank: u32, intid: u8) {
        let (word, value) = (u32::from(intid / 32), 1_u64 << (intid % 32));
        if word == 0 { self.write_own(vcpu, bank, 4, value) } else { self.write(bank + 4 * word, 4, value) }
    }

    pub(super) fn set_priority(&mut self, vcpu: u8, intid: u8, priority: u8) {
        let (offset, value) = (0x400 + u32::from(intid), u64::from(priority));
        if intid < 32 { self.write_own(vcpu, offset, 1, value) } else { self.write(offset, 1, value) }
    }

    /// The physical interrupt of a PPI arrives, unless it is active.
    pub(super) fn forward(&mut self, vcpu: u8, ppi: u8) {
        self.with(vcpu, |vcpu| {
            vcpu.cpu.physical |= 1 << ppi;
            vcpu.private.forward(ppi);
        });
    }

    pub(super) fn leave(&mut self, vcpu: u8) {
        self.with(vcpu, |vcpu| {
            let Deactivate(ppis) = vcpu.private.leave();
            assert_eq!(vcpu.cpu.physical, ppis);
            vcpu.cpu.physical = 0;
        });
    }

    pub(super) fn deactivate(&mut self, vcpu: u8, intid: u8) {
        use crate::devices::virt::gic::Maintenance;
        let cpu = &mut self.vcpus[usize::from(vcpu)].cpu;
        if !cpu.maintenance.contains(Maintenance::TRAP_DEACTIVATION) {
            return cpu.deactivate(intid);
        }
        self.with(vcpu, |vcpu| {
            let Deactivate(ppis) = vcpu.private.deactivate(u64::from(intid), &vcpu.cpu.view());
            vcpu.cpu.physical &= !ppis;
        });
    }
}
