//! The interrupt controller without list registers, inboxes or owners: each interrupt is one
//! record.

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Irq {
    pub(super) enabled: bool,
    pub(super) group1: bool,
    pub(super) priority: u8,
    pub(super) edge: bool,
    pub(super) line: bool,
    pub(super) latch: bool,
    pub(super) active: Option<u8>,
    /// The vCPU that an SPI is routed to.
    pub(super) target: u8,
}

impl Irq {
    const fn is_pending(&self) -> bool {
        self.latch || self.line && !self.edge
    }
}

pub(super) struct Reference {
    private: Vec<[Irq; 32]>,
    spis: [Irq; 256],
    pub(super) groups: u8,
}

impl Reference {
    pub(super) fn new(vcpu_count: u8) -> Self {
        let mut private = [Irq::default(); 32];
        private[..16].iter_mut().for_each(|sgi| sgi.edge = true);
        Self { private: vec![private; usize::from(vcpu_count)], spis: [Irq::default(); 256], groups: 0 }
    }

    pub(super) fn irq(&mut self, vcpu: u8, intid: u8) -> &mut Irq {
        if intid < 32 {
            &mut self.private[usize::from(vcpu)][usize::from(intid)]
        } else {
            &mut self.spis[usize::from(intid)]
        }
    }

    pub(super) fn set_line(&mut self, vcpu: u8, intid: u8, level: bool) {
        let irq = self.irq(vcpu, intid);
        irq.latch |= irq.edge && level && !irq.line;
        irq.line = level;
    }

    /// Whether it is pending for this vCPU and may be signalled, if the CPU interface admits it.
    pub(super) fn is_deliverable(&mut self, vcpu: u8, intid: u8) -> bool {
        let groups = self.groups;
        let irq = self.irq(vcpu, intid);
        irq.is_pending()
            && irq.enabled
            && irq.active.is_none()
            && groups >> u8::from(irq.group1) & 1 != 0
            && (intid < 32 || irq.target == vcpu)
    }

    /// The interrupt of highest priority `among` those that `admits` accepts.
    pub(super) fn highest(
        &mut self,
        vcpu: u8,
        among: &[u8],
        admits: impl Fn(u8, bool) -> bool,
    ) -> Option<u8> {
        let admitted = among.iter().filter_map(|&intid| {
            let irq = *self.irq(vcpu, intid);
            let is_seen = self.is_deliverable(vcpu, intid) && admits(irq.priority, irq.group1);
            is_seen.then_some(irq.priority)
        });
        admitted.min()
    }
}
