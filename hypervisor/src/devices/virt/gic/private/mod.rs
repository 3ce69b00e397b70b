//! One vCPU's part of the interrupt controller: its private interrupts and the SPIs that it holds.

mod lists;
mod own_registers;
mod progress;

use migration::{Archive, Described, Flaw, fields};

use super::distributor::Claimed;
use super::registers::Setup;
use super::{Bits, Distributor, Effect, Groups, Inbox, LIST_MAX, ListRegister, PRIVATE_COUNT, View};

/// Physical PPIs that the caller must deactivate on this CPU (ICC_DIR_EL1), one bit for each INTID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Deactivate(pub u32);

/// The effect of a write to the vCPU's own redistributor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct RegisterEffect {
    /// Physical interrupts to deactivate.
    pub deactivate: Deactivate,
    /// The vCPU has changed whether it is awake: for [`Distributor::set_awake`].
    pub awake: Option<bool>,
}

/// One vCPU's interrupts, used by the CPU that has the vCPU. The CPU interface's other registers
/// are not included: the caller must save and restore ICH_VMCR_EL2 and the active priorities.
///
/// # Hardware-linked interrupts
///
/// The virtual timer's PPI is *forwarded*. EL2 runs with ICC_CTLR_EL1.EOImode = 1. On the physical
/// interrupt it acknowledges and drops the priority (ICC_IAR1_EL1, ICC_EOIR1_EL1), which leaves the
/// interrupt active, so that it is not signalled again, and calls [`forward`](Self::forward). The
/// guest's deactivation deactivates the physical interrupt.
///
/// The link is specific to this CPU, so it ends when the vCPU leaves: save and mask the timer
/// (CNTV_CTL_EL0), then deactivate the interrupts that [`leave`](Self::leave) returns. A pending
/// one is forgotten, because the timer's condition raises it again: when the vCPU returns, possibly
/// elsewhere, CNTV_CTL_EL0 is restored and the interrupt, if still due, is taken and forwarded
/// again. An interrupt that the guest has acknowledged stays active for the guest; if it is
/// forwarded again meanwhile, it is linked again. While the vCPU is away, a CPU that waits for the
/// timer compares CNTV_CVAL_EL0 with the clock.
#[derive(Clone, Debug)]
pub struct Private {
    pub(super) vcpu: u8,
    /// There is no redistributor after this one.
    pub(super) is_last: bool,
    /// GICR_WAKER.ProcessorSleep is 0. It does not hold interrupts back.
    awake: bool,
    groups: Groups,
    setup: Setup,
    line: Bits,
    /// Pending by an edge or by a write, regardless of the line.
    latch: Bits,
    active: Bits,
    /// PPIs whose physical interrupt is active on this CPU for this vCPU.
    linked: Bits,
    /// SPIs whose state is here.
    held: Bits,
    /// The held SPIs that are here only until they end.
    elsewhere: Bits,
    /// SPIs to be settled with the distributor.
    unsettled: Bits,
    /// The contents of the list registers while the guest runs.
    loaded: [ListRegister; LIST_MAX],
    loaded_count: usize,
    /// Counts list registers that came back changed, and interrupts outside of them that ended; it
    /// wraps around.
    changes: u32,
    progress: progress::FutileWaits,
}

const PRIVATE: Bits = Bits::from_word(0, u32::MAX);

impl Described for Private {
    /// The vCPU has [left](Self::leave) its CPU, so no interrupt is linked, and none comes to be by
    /// what is read: of the machine's interrupts a list register names those alone that its CPU has
    /// forwarded.
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        if !self.linked.is_empty() || self.loaded_count != 0 {
            return Err(Flaw::Unmovable("a vCPU is on a CPU"));
        }
        // Whether it is the last one follows from their number. Whether maintenance helps is found
        // out again.
        fields!(self, archive: awake, groups, setup, held [|held| held.without(PRIVATE)],
            elsewhere [|set| set.and(*held)], line [|set| set.and(held.or(PRIVATE))],
            latch [|set| set.and(held.or(PRIVATE))], active [|set| set.and(held.or(PRIVATE))],
            unsettled [|set| set.without(PRIVATE)];
            same vcpu; stays is_last, linked, loaded, loaded_count, changes, progress)
    }
}

impl Private {
    /// The state of vCPU `vcpu` of `vcpu_count`, after reset.
    pub fn new(vcpu: u8, vcpu_count: u8) -> Self {
        Self {
            vcpu,
            is_last: vcpu as u32 + 1 >= vcpu_count as u32,
            awake: false,
            groups: Groups::NONE,
            setup: Setup::new(),
            line: Bits::EMPTY,
            latch: Bits::EMPTY,
            active: Bits::EMPTY,
            linked: Bits::EMPTY,
            held: Bits::EMPTY,
            elsewhere: Bits::EMPTY,
            unsettled: Bits::EMPTY,
            loaded: [ListRegister::new(); LIST_MAX],
            loaded_count: 0,
            changes: 0,
            progress: progress::FutileWaits::default(),
        }
    }

    /// Takes the posted items. The owner calls it after it has taken the notify word. `true`: call
    /// [`settle`](Self::settle) next, under the distributor's lock.
    #[must_use]
    #[inline]
    pub fn look(&mut self, inbox: &Inbox) -> bool {
        if !inbox.is_empty() {
            self.accept(inbox);
        }
        self.is_unsettled()
    }

    fn accept(&mut self, inbox: &Inbox) {
        let posted = inbox.take();
        let group0 = posted.group0 & !self.setup.group1.word(0);
        self.latch = self.latch.or(Bits::from_word(0, posted.private | group0));
        self.unsettled = self.unsettled.or(posted.spis.without(PRIVATE));
        self.groups = posted.groups.unwrap_or(self.groups);
    }

    /// Whether [`settle`](Self::settle) must be called. Also to be checked before the vCPU gives up
    /// its CPU.
    pub const fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Returns SPIs that other vCPUs must see, and claims those that were posted. The effect must
    /// be performed like that of any access to the distributor.
    pub fn settle(&mut self, distributor: &mut Distributor) -> Effect {
        let unsettled = core::mem::take(&mut self.unsettled);
        let mut unclaimed = Bits::EMPTY;
        for intid in unsettled.iter() {
            self.give_back(intid, distributor);
            match distributor.claim(intid, self.vcpu) {
                Some(claimed) => self.hold(intid, claimed),
                None => unclaimed.insert(intid),
            }
        }
        distributor.offer(unclaimed)
    }

    /// Returns every SPI: the vCPU is turned off. Interrupts that are still due for it are posted
    /// to it, for when it is turned on again.
    pub fn release(&mut self, distributor: &mut Distributor) -> Effect {
        let held = self.held.or(core::mem::take(&mut self.unsettled));
        held.iter().for_each(|intid| self.give_back(intid, distributor));
        distributor.offer(held)
    }

    fn give_back(&mut self, intid: u8, distributor: &mut Distributor) {
        if self.held.has(intid) {
            distributor.give_back(intid, self.latch.has(intid), self.active.has(intid));
            for set in
                [&mut self.held, &mut self.elsewhere, &mut self.latch, &mut self.line, &mut self.active]
            {
                set.remove(intid);
            }
        }
    }

    fn hold(&mut self, intid: u8, claimed: Claimed) {
        self.held.insert(intid);
        self.latch.set(intid, claimed.latch);
        self.line.set(intid, claimed.line);
        self.active.set(intid, claimed.active);
        self.elsewhere.set(intid, claimed.is_elsewhere);
        self.setup.enabled.set(intid, claimed.enabled);
        self.setup.group1.set(intid, claimed.group1);
        self.setup.edge.set(intid, claimed.edge);
        self.setup.priority[usize::from(intid)] = claimed.priority;
    }

    /// Sets the level of the line of a PPI that is generated in software. Others are ignored.
    pub fn set_line(&mut self, ppi: u8, level: bool) {
        if (super::SGI_COUNT..PRIVATE_COUNT).contains(&ppi) && !self.linked.has(ppi) {
            if level && !self.line.has(ppi) && self.setup.edge.has(ppi) {
                self.latch.insert(ppi);
            }
            self.line.set(ppi, level);
        }
    }

    /// The physical interrupt of this PPI was acknowledged on this CPU and is active now: it
    /// belongs to the guest.
    pub fn forward(&mut self, ppi: u8) {
        if (super::SGI_COUNT..PRIVATE_COUNT).contains(&ppi) {
            self.linked.insert(ppi);
            self.line.insert(ppi);
        }
    }

    /// The vCPU leaves this CPU: ends all links.
    pub fn leave(&mut self) -> Deactivate {
        let linked = self.linked;
        self.unlink(linked)
    }

    /// PPIs that are linked and that the guest has not acknowledged, one bit each. Their source may
    /// no longer assert them: then [`withdraw`](Self::withdraw) must be called.
    #[inline]
    pub const fn linked_waiting(&self) -> u32 {
        self.linked.word(0) & !self.active.word(0)
    }

    /// The physical interrupt's condition has ended before the guest acknowledged it, for instance
    /// because the guest reprogrammed its timer: withdraws it. There is nothing to deactivate if
    /// the guest has acknowledged it.
    pub fn withdraw(&mut self, ppi: u8) -> Deactivate {
        let gone = self.linked.and(Bits::one(ppi)).without(self.active);
        self.unlink(gone)
    }

    fn unlink(&mut self, gone: Bits) -> Deactivate {
        self.linked = self.linked.without(gone);
        self.line = self.line.without(gone);
        Deactivate(gone.word(0))
    }

    /// Whether this PPI's physical interrupt is active on this CPU for the guest.
    pub const fn is_linked(&self, ppi: u8) -> bool {
        self.linked.has(ppi)
    }

    /// The guest wrote `intid` to ICC_DIR_EL1, and the write trapped
    /// ([`Maintenance::TRAP_DEACTIVATION`]). Ignored if the interrupt is not active, or if an end
    /// of interrupt deactivates.
    ///
    /// [`Maintenance::TRAP_DEACTIVATION`]: super::Maintenance::TRAP_DEACTIVATION
    pub fn deactivate(&mut self, intid: u64, view: &View) -> Deactivate {
        match u8::try_from(intid & 0xff_ffff) {
            Ok(intid) if view.splits_eoi() => self.deactivate_one(intid),
            _ => Deactivate::default(),
        }
    }

    fn deactivate_one(&mut self, intid: u8) -> Deactivate {
        if !self.active.has(intid) {
            return Deactivate::default();
        }
        self.active.remove(intid);
        if self.held.has(intid) {
            self.unsettled.insert(intid);
        }
        self.unlink(self.linked.and(Bits::one(intid)))
    }

    /// Whether any interrupt ends a WFI: pending, enabled, not active, of higher priority than the
    /// mask and the running priority. To be called after [`look`](Self::look) and
    /// [`settle`](Self::settle).
    pub fn can_wake(&self, view: &View) -> bool {
        self.signalled(view).is_some()
    }

    /// The interrupt that is signalled to the vCPU, if any.
    pub fn signalled(&self, view: &View) -> Option<u8> {
        let waiting = self.waiting();
        let waiting = waiting.and(view.groups().members(self.setup.group1));
        let highest = self.highest(waiting)?;
        let priority = self.setup.priority[usize::from(highest)];
        view.admits(priority, self.setup.group1.has(highest)).then_some(highest)
    }

    const fn pending(&self) -> Bits {
        // A linked interrupt is pending while it is linked, regardless of its configuration.
        self.latch.or(self.line.and(self.setup.edge.not().or(self.linked)))
    }

    /// Pending, and held back neither by the distributor nor by the redistributor.
    const fn wanted(&self) -> Bits {
        let pending = self.pending();
        if pending.is_empty() {
            return pending;
        }
        pending.and(self.setup.enabled).and(self.groups.members(self.setup.group1))
    }

    /// The interrupts to be signalled: an active one is not signalled before it is deactivated.
    const fn waiting(&self) -> Bits {
        self.wanted().without(self.active)
    }

    /// The interrupt of highest priority; among equals the lowest INTID.
    #[inline]
    fn highest(&self, among: Bits) -> Option<u8> {
        if among.is_empty() {
            return None; // The usual answer to the second question of each entry.
        }
        among.iter().min_by_key(|&intid| self.setup.priority[usize::from(intid)])
    }

    /// SPIs whose state is here, for a register dump.
    pub const fn held(&self) -> Bits {
        self.held
    }
}
