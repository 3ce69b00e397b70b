//! The distributor: SPIs, which all vCPUs share.
//!
//! The state of an SPI that a vCPU holds is in that vCPU. Line changes, edges and writes that
//! affect the SPI are noted here, and the holder is posted. At its next check the holder returns
//! the SPI, and the notes are applied. Until then the pending and active bits read as they were at
//! the holder's last check. Reading them posts the holder too, so that software that polls for the
//! end of an interrupt sees it.

mod own_registers;

use migration::{Archive, Described, Flaw, described, fields};

use super::registers::Setup;
use super::{Affinity, Bits, Groups, INTIDS_MAX, PRIVATE_COUNT};

/// GICD_IROUTER.Interrupt_Routing_Mode: any one vCPU.
const ANY_VCPU: u64 = 1 << 31;
/// The fields of GICD_IROUTER: Aff3, the mode, Aff2 to Aff0.
const ROUTER_MASK: u64 = 0xff_80ff_ffff;

/// The actions required outside the distributor after an access; none if it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Effect {
    posts: Bits,
    /// SPIs of the [forwarded](Distributor::forward) ones that have ended here, whose line is low
    /// now: the real line may interrupt again.
    pub ended: Bits,
    /// Post these to the inbox of every vCPU and notify it, while the lock is still held.
    pub groups: Option<Groups>,
}

/// An SPI that a vCPU has to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// The vCPU whose inbox it goes to; then that vCPU is notified, even if it made the access
    /// itself.
    pub vcpu: u8,
    /// The SPI.
    pub intid: u8,
}

impl Effect {
    /// Whether there is nothing to do.
    pub const fn is_empty(&self) -> bool {
        self.posts.is_empty() && self.groups.is_none() && self.ended.is_empty()
    }

    /// The posts, with their vCPUs. To be called under the lock, before the state changes.
    pub fn posts(self, distributor: &Distributor) -> impl Iterator<Item = Post> + '_ {
        self.posts.iter().filter_map(|intid| Some(Post { vcpu: distributor.addressee(intid)?, intid }))
    }
}

/// An SPI's state as passed to its new holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) latch: bool,
    pub(super) line: bool,
    pub(super) active: bool,
    /// It is now routed to another vCPU: if it becomes pending again, that vCPU gets it after it
    /// ends here.
    pub(super) is_elsewhere: bool,
    pub(super) enabled: bool,
    pub(super) group1: bool,
    pub(super) edge: bool,
    pub(super) priority: u8,
}

/// A write to one bit of an SPI that a vCPU holds, to be applied when the SPI is returned: the last
/// write wins.
#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    set: Bits,
    clear: Bits,
}

impl Noted {
    fn note(&mut self, named: Bits, value: bool) {
        let (to, from) =
            if value { (&mut self.set, &mut self.clear) } else { (&mut self.clear, &mut self.set) };
        *to = to.or(named);
        *from = from.without(named);
    }

    /// Returns the bit with the note applied, and clears the note.
    fn apply(&mut self, intid: u8, value: bool) -> bool {
        let value = value && !self.clear.has(intid) || self.set.has(intid);
        self.set.remove(intid);
        self.clear.remove(intid);
        value
    }

    const fn read(&self, value: Bits) -> Bits {
        value.without(self.clear).or(self.set)
    }
}

described!(Noted: set, clear);

/// The distributor of a VM.
#[derive(Clone, Debug)]
pub struct Distributor {
    vcpu_count: u8,
    intid_count: u16,
    /// INTIDs that exist and are not private.
    spis: Bits,
    groups: Groups,
    setup: Setup,
    line: Bits,
    /// SPIs that real lines raise, which are masked meanwhile.
    forwarded: Bits,
    /// Those of them that have ended since the last effect.
    ended: Bits,
    /// Pending by an edge or a write. For a held SPI: as of the holder's last check.
    latch: Bits,
    /// Likewise for active.
    active: Bits,
    latch_noted: Noted,
    active_noted: Noted,
    router: [u64; 256],
    held: Bits,
    /// The vCPU that holds it, or held it last.
    holder: [u8; 256],
    /// SPIs that were returned while active.
    in_service: Bits,
    /// The vCPU that an SPI for any vCPU was last offered to.
    chosen: [u8; 256],
    next_choice: u8,
    awake: [u64; 4],
}

impl Described for Distributor {
    /// What is at odds with the vCPUs' part loses the guest an interrupt, and harms nobody else.
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let (spis, vcpus) = (self.spis, self.vcpu_count);
        let exist = |set: Bits| set.and(spis);
        let are_vcpus = |each: [u8; 256]| each.map(|vcpu| if vcpu < vcpus { vcpu } else { 0 });
        // The SPIs follow from their number. A guest with real lines is not described, so none is
        // forwarded, and none of them ends.
        fields!(self, archive: groups, setup, line [exist], latch [exist], active [exist], latch_noted,
            active_noted, router [|each| each.map(|one| one & ROUTER_MASK)], held [exist],
            holder [are_vcpus], in_service [exist], chosen [are_vcpus], next_choice, awake;
            same vcpu_count, intid_count; stays spis, forwarded, ended)
    }
}

impl Distributor {
    /// For `vcpu_count` vCPUs, 1 to 255, with INTIDs up to `intid_count`, which is rounded up to a
    /// multiple of 32 from 64 to 256.
    pub fn new(vcpu_count: u8, intid_count: u16) -> Self {
        let intid_count = intid_count.clamp(64, INTIDS_MAX).next_multiple_of(32);
        let spis = (PRIVATE_COUNT / 32..(intid_count / 32) as u8)
            .fold(Bits::EMPTY, |spis, word| spis.or(Bits::from_word(word, u32::MAX)));
        Self {
            vcpu_count,
            intid_count,
            spis,
            groups: Groups::NONE,
            setup: Setup::new(),
            line: Bits::EMPTY,
            forwarded: Bits::EMPTY,
            ended: Bits::EMPTY,
            latch: Bits::EMPTY,
            active: Bits::EMPTY,
            latch_noted: Noted::default(),
            active_noted: Noted::default(),
            router: [0; 256],
            held: Bits::EMPTY,
            holder: [0; 256],
            in_service: Bits::EMPTY,
            chosen: [0; 256],
            next_choice: 0,
            awake: [0; 4],
        }
    }

    /// The number of INTIDs.
    pub const fn intid_count(&self) -> u16 {
        self.intid_count
    }

    /// Lets real lines raise these SPIs by [`set_line`](Self::set_line). Each is low again, and
    /// [ended](Effect::ended), when a vCPU returns it inactive: the real line is looked at again.
    pub fn forward(&mut self, spis: impl IntoIterator<Item = u8>) {
        spis.into_iter().for_each(|spi| self.forwarded.insert(spi));
    }

    /// Sets the level of a device's line. A no-op if it is unchanged, or if there is no such SPI.
    pub fn set_line(&mut self, spi: u8, level: bool) -> Effect {
        if !self.spis.has(spi) || self.line.has(spi) == level {
            return Effect::default();
        }
        self.line.set(spi, level);
        if self.setup.edge.has(spi) {
            if !level {
                return Effect::default();
            }
            self.set_pending(Bits::one(spi));
        }
        self.offer(Bits::one(spi))
    }

    /// Makes an SPI pending once, whatever its line says, as a write to GICD_ISPENDR does.
    pub fn pend(&mut self, spi: u8) -> Effect {
        let named = Bits::one(spi).and(self.spis);
        self.set_pending(named);
        self.offer(named)
    }

    /// Sets whether a vCPU participates in interrupts for any vCPU: by GICR_WAKER, or because it
    /// was turned off.
    pub fn set_awake(&mut self, vcpu: u8, is_awake: bool) -> Effect {
        let bit = 1 << (vcpu % 64);
        let word = &mut self.awake[usize::from(vcpu / 64)];
        *word = if is_awake { *word | bit } else { *word & !bit };
        let mut orphans = Bits::EMPTY;
        if !is_awake {
            let any = self.offerable().iter().filter(|&spi| self.is_for_any(spi));
            any.for_each(|spi| orphans.insert(spi));
        }
        self.offer(orphans)
    }

    /// Whether the vCPU participates.
    pub const fn is_awake(&self, vcpu: u8) -> bool {
        self.awake[vcpu as usize / 64] >> (vcpu % 64) & 1 != 0
    }

    fn set_pending(&mut self, named: Bits) {
        self.latch = self.latch.or(named.without(self.held));
        self.latch_noted.note(named.and(self.held), true);
    }

    fn clear_pending(&mut self, named: Bits) {
        self.latch = self.latch.without(named.without(self.held));
        self.latch_noted.note(named.and(self.held), false);
    }

    fn set_active(&mut self, named: Bits, value: bool) {
        let own = named.without(self.held);
        self.active = if value { self.active.or(own) } else { self.active.without(own) };
        self.active_noted.note(named.and(self.held), value);
    }

    const fn pending(&self) -> Bits {
        self.latch_noted.read(self.latch).or(self.line.without(self.setup.edge))
    }

    /// The SPIs that no vCPU holds, and one should.
    const fn offerable(&self) -> Bits {
        let forwarded = self.setup.enabled.and(self.groups.members(self.setup.group1));
        self.pending().and(forwarded).or(self.active).and(self.spis).without(self.held)
    }

    const fn is_for_any(&self, spi: u8) -> bool {
        self.router[spi as usize] & ANY_VCPU != 0
    }

    /// The effect of a change of these SPIs: holders check theirs; the others are offered to the
    /// vCPUs that they are routed to.
    pub(super) fn offer(&mut self, changed: Bits) -> Effect {
        let offered = self.offerable().and(changed);
        for intid in offered.iter() {
            if self.is_for_any(intid) {
                self.chosen[usize::from(intid)] = self.choose();
            }
        }
        let ended = core::mem::take(&mut self.ended);
        Effect { posts: offered.or(changed.and(self.held)), groups: None, ended }
    }

    /// The next awake vCPU, round-robin; if none is awake, the first.
    fn choose(&mut self) -> u8 {
        let count = self.vcpu_count.max(1);
        for step in 0..count {
            let vcpu = (u16::from(self.next_choice) + u16::from(step)) % u16::from(count);
            if self.is_awake(vcpu as u8) {
                self.next_choice = (vcpu as u8).wrapping_add(1);
                return vcpu as u8;
            }
        }
        0
    }

    /// The vCPU that has to check an SPI. `None` if it is routed to an affinity that no vCPU has.
    fn addressee(&self, spi: u8) -> Option<u8> {
        if self.held.has(spi) || self.must_return(spi) {
            return Some(self.holder[usize::from(spi)]);
        }
        self.route(spi)
    }

    fn route(&self, spi: u8) -> Option<u8> {
        let index = usize::from(spi);
        if self.is_for_any(spi) {
            return Some(self.chosen[index]);
        }
        Affinity::from_mpidr(self.router[index]).vcpu(self.vcpu_count)
    }

    /// Whether it is active in the vCPU that returned it last: the guest will deactivate it there,
    /// regardless of its present routing.
    const fn must_return(&self, spi: u8) -> bool {
        self.in_service.has(spi) && self.active.has(spi)
    }

    /// `vcpu` claims the SPI, if it may and the SPI is due. An SPI for any vCPU goes to the first
    /// claimant.
    pub(super) fn claim(&mut self, spi: u8, vcpu: u8) -> Option<Claimed> {
        let may = self.is_for_any(spi) && !self.must_return(spi) || self.addressee(spi) == Some(vcpu);
        if !may || !self.offerable().has(spi) {
            return None;
        }
        self.held.insert(spi);
        self.holder[usize::from(spi)] = vcpu;
        Some(Claimed {
            latch: self.latch.has(spi),
            line: self.line.has(spi),
            active: self.active.has(spi),
            is_elsewhere: !self.is_for_any(spi) && self.route(spi) != Some(vcpu),
            enabled: self.setup.enabled.has(spi),
            group1: self.setup.group1.has(spi),
            edge: self.setup.edge.has(spi),
            priority: self.setup.priority[usize::from(spi)],
        })
    }

    pub(super) fn give_back(&mut self, spi: u8, latch: bool, active: bool) {
        self.held.remove(spi);
        let latch = self.latch_noted.apply(spi, latch);
        let active = self.active_noted.apply(spi, active);
        self.latch.set(spi, latch);
        self.active.set(spi, active);
        self.in_service.set(spi, active);
        if !active && self.forwarded.has(spi) && self.line.has(spi) {
            self.line.remove(spi);
            self.ended.insert(spi);
        }
    }
}
