//! The instructions by which software invalidates.
//!
//! AMD64 Architecture Programmer's Manual, volume 2, 15.16 "TLB Control", and volume 3, INVLPGA. Arm Architecture
//! Reference Manual, C5.5 "A64 System instructions for TLB maintenance": an instruction is done only when a DSB by the same
//! processor has completed it, and where its TTL field names another level than the leaf's, it need not remove anything.

use coherence::asid::TlbControl;
use paging::Level;

use super::cache::Invalidation;
use super::cpu::{Hw, Tag};

/// A TLBI of EL2, for the VMID that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tlbi {
    /// VMALLS12E1IS: everything.
    VmallS12,
    /// VMALLE1IS: what depends on stage 1.
    Vmall,
    /// VMALLE1: the same on the own CPU alone.
    VmallLocal,
    /// IPAS2E1IS, RIPAS2E1IS: stage 2 alone, of a range.
    Stage2 {
        /// First address.
        ipa: u64,
        /// Bytes.
        len: u64,
        /// TTL.
        level: Option<Level>,
    },
    /// IPAS2LE1IS, RIPAS2LE1IS: leaves of stage 2 alone, of a range.
    Stage2Leaf {
        /// First address.
        ipa: u64,
        /// Bytes.
        len: u64,
        /// TTL.
        level: Option<Level>,
    },
    /// VAE1IS: what depends on stage 1 and translates an address.
    Va {
        /// The address.
        va: u64,
        /// TTL.
        level: Option<Level>,
    },
}

impl Hw {
    /// What VMRUN does about the TLB before the guest runs.
    pub fn tlb_control(&mut self, cpu: usize, asid: Tag, control: TlbControl) {
        match control {
            TlbControl::DoNothing => {}
            TlbControl::FlushAsid => self.invalidate(cpu, asid, Invalidation::All),
            TlbControl::FlushAll => self.invalidate_all(cpu),
        }
    }

    /// INVLPGA. The manual does not promise that more than the one piece of a larger page goes (A17). There is no
    /// instruction that keeps the entries of upper levels: without `walk` it is one that does not do what it should.
    pub fn invlpga(&mut self, cpu: usize, asid: Tag, va: u64, walk: bool) {
        self.invalidate(cpu, asid, Invalidation::GuestPage { va, level: None, pieces: false, walk });
    }

    /// TLBI: asked for, and complete with the next [`dsb`](Self::dsb).
    pub fn tlbi(&mut self, cpu: usize, vmid: Tag, what: Tlbi) {
        let (target, invalidation) = match what {
            Tlbi::VmallS12 => (None, Invalidation::All),
            Tlbi::Vmall => (None, Invalidation::Guest),
            Tlbi::VmallLocal => (Some(cpu), Invalidation::Guest),
            Tlbi::Stage2 { ipa, len, level } => {
                (None, Invalidation::Nested { start: ipa, len, level, walk: true })
            }
            Tlbi::Stage2Leaf { ipa, len, level } => {
                (None, Invalidation::Nested { start: ipa, len, level, walk: false })
            }
            Tlbi::Va { va, level } => (None, Invalidation::GuestPage { va, level, pieces: true, walk: true }),
        };
        self.pending_mut(cpu).push((vmid, target, invalidation));
    }

    /// DSB ISH: the invalidations that this CPU has asked for are done everywhere.
    pub fn dsb(&mut self, cpu: usize) {
        for (vmid, target, invalidation) in core::mem::take(self.pending_mut(cpu)) {
            let cpus = match target {
                Some(cpu) => cpu..cpu + 1,
                None => 0..self.cpu_count(),
            };
            cpus.for_each(|cpu| self.invalidate(cpu, vmid, invalidation));
        }
    }
}
