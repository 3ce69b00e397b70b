//! Delivery of interrupt messages to a guest's vCPUs: from vCPUs, and from devices.

use coherence::Notify;
use core::sync::atomic::Ordering;
use hostlink::trace::Event;

use crate::devices::pc::apic_ids::ApicId;
use crate::devices::pc::message::{Address, Logical, Message, MessageKind, Trigger};
use crate::iommu::routes::Receiver;
use crate::sched::CpuIndex;
use crate::sched::notify::Published;
use crate::vm::{Vcpu, Vm, VpIndex, trace};
use crate::x86::processor::{Vendor, X86};
use crate::x86::vectors;

impl<A: X86> Vm<A> {
    /// Delivers an interrupt message; returns the number of vCPUs that got it.
    #[inline]
    pub fn deliver(&self, message: Message, sender: ApicId) -> u64 {
        match (message.kind, message.destination.single(sender)) {
            (MessageKind::Lowest(_), _) | (_, None) => self.deliver_by_search(message, sender),
            (_, Some(id)) => self.post_message(self.guest.vcpu_of(id), message),
        }
    }

    #[inline(never)]
    fn deliver_by_search(&self, message: Message, sender: ApicId) -> u64 {
        self.targets_of(message, sender).map(|vcpu| self.post_message(vcpu, message)).sum()
    }

    /// The vCPUs that a message is for, by the addresses that local APICs have.
    fn targets_of(&self, message: Message, sender: ApicId) -> impl Iterator<Item = VpIndex> + '_ {
        let all = (0..self.vcpu_count()).map(ApicId).filter_map(|id| {
            let logical = self.vcpu_with_apic_id(id)?.inbox.logical();
            Some(Address { id, logical })
        });
        let (one, several) = match message.kind {
            MessageKind::Lowest(vector) => (message.destination.arbitrate(vector, all, sender), None),
            _ => (None, Some(all.filter(move |target| message.destination.matches(*target, sender)))),
        };
        let ids = one.into_iter().chain(several.into_iter().flatten().map(|target| target.id));
        ids.map(|id| self.guest.vcpu_of(id))
    }

    #[inline]
    fn vcpu_with_apic_id(&self, apic_id: ApicId) -> Option<&Vcpu<A>> {
        self.vcpus.get(self.guest.vcpu_of(apic_id).place())
    }

    /// Delivers a fixed, edge-triggered interrupt to one vCPU; returns the number of vCPUs that got
    /// it, which is 0 if there is no such vCPU.
    pub fn post_fixed(&self, apic_id: ApicId, vector: u8) -> u64 {
        let Some(vcpu) = self.vcpu_with_apic_id(apic_id) else { return 0 };
        self.post_fixed_to(vcpu, vector);
        1
    }

    /// The same for a known vCPU.
    #[inline]
    pub fn post_fixed_to(&self, vcpu: &Vcpu<A>, vector: u8) {
        trace::here::<A>(Event::Posted, vcpu.row, vector.into(), [0; 2]);
        if A::takes_posted() {
            return self.post_to_processor(vcpu, vector);
        }
        self.notify(vcpu, vcpu.inbox.post_fixed(vector, Trigger::Edge));
    }

    /// The same where a processor in guest mode takes it by itself, if it is one for that.
    fn post_to_processor(&self, vcpu: &Vcpu<A>, vector: u8) {
        if !vcpu.inbox.is_for_processor(vector) {
            return self.notify(vcpu, vcpu.inbox.post_to_owner(vector));
        }
        match vcpu.inbox.post_to_processor(vector, vcpu.target) {
            None => {}
            Some(Notify::Kick(cpu)) => A::cpu(CpuIndex(cpu.0)).into_iter().for_each(<A as Vendor>::tell),
            Some(note) => self.notified(vcpu, note),
        }
    }

    /// A disabled local APIC accepts nothing. Plain vectors can be posted without a check, because
    /// it drops them.
    fn post_message(&self, vcpu: VpIndex, message: Message) -> u64 {
        let Some(vcpu) = self.vcpus.get(vcpu.place()) else { return 0 };
        if vcpu.inbox.logical() == Logical::Off {
            return 0;
        }
        if let MessageKind::Fixed(vector) | MessageKind::Lowest(vector) = message.kind {
            if message.trigger == Trigger::Edge {
                self.post_fixed_to(vcpu, vector);
                return 1;
            }
            trace::here::<A>(Event::Posted, vcpu.row, vector.into(), [0; 2]);
        }
        self.notify(vcpu, vcpu.inbox.post(message.kind, message.trigger));
        1
    }

    /// Delivers the messages that have arrived for several vCPUs. In a vCPU's turn.
    #[cold]
    pub fn spread_messages(&self) {
        // Pairs with `tell`: what has arrived before is found.
        if self.guest.has_messages.swap(false, Ordering::Acquire) {
            self.guest.owned.functions.lock().spread(self);
        }
    }

    /// A local APIC's address has changed. In its vCPU's turn.
    pub fn readdressed(&self) {
        if self.guest.has_functions {
            self.guest.owned.functions.lock().readdressed();
        }
    }
}

impl<A: X86> Receiver for Vm<A> {
    fn destination(&self, cpu: CpuIndex) -> Option<u8> {
        let cpu = A::cpu(cpu).filter(|cpu| cpu.presence.is_online() && self.may_use(cpu.index))?;
        vectors::destination(cpu.id)
    }

    fn single(&self, message: Message) -> Option<VpIndex> {
        message.destination.single(ApicId::NONE).map(|id| self.guest.vcpu_of(id))
    }

    fn post(&self, vcpu: VpIndex, message: Message) {
        self.post_message(vcpu, message);
    }

    fn tell(&self, vcpu: VpIndex) {
        // Pairs with `spread_messages`. The vCPU that is told looks, if no other one has.
        self.guest.has_messages.store(true, Ordering::Release);
        let noted = Published::here();
        if let Some(vcpu) = self.vcpus.get(vcpu.place()).or(self.vcpus.first()) {
            self.notify(vcpu, noted);
        }
    }

    fn spread(&self, message: Message) -> Option<VpIndex> {
        let (mut only, mut count) = (None, 0);
        for vcpu in self.targets_of(message, ApicId::NONE) {
            self.post_message(vcpu, message);
            (only, count) = (Some(vcpu), count + 1);
        }
        only.filter(|_| count == 1)
    }
}
