//! The instructions that invalidate.
//!
//! AMD64 Architecture Programmer's Manual, volume 2, 15.16 "TLB Control", and volume 3, INVLPGA.
//! Arm Architecture Reference Manual, C5.5 "A64 System instructions for TLB maintenance": an
//! instruction takes effect only when a DSB by the same processor has completed it; if its TTL
//! field names a level other than the leaf's, it need not remove anything.

use coherence::asid::TlbControl;
use paging::Level;

use super::cache::Invalidation;
use super::cpu::{Hw, Tag};

/// A TLBI of EL2, for the VMID that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tlbi {
    /// VMALLS12E1IS: everything.
    VmallS12,
    /// VMALLE1IS: entries that depend on stage 1.
    Vmall,
    /// VMALLE1: the same on the own CPU only.
    VmallLocal,
    /// ALLE1: everything of every VMID, on the own CPU only.
    AllLocal,
    /// IPAS2E1IS, RIPAS2E1IS: stage 2 alone, of a range.
    Stage2 { ipa: u64, len: u64, level: Option<Level> },
    /// IPAS2LE1IS, RIPAS2LE1IS: leaves of stage 2 alone, of a range.
    Stage2Leaf { ipa: u64, len: u64, level: Option<Level> },
    /// VAE1IS: entries that depend on stage 1 and translate an address.
    Va { va: u64, level: Option<Level> },
    /// VAE1: the same on the own CPU only.
    VaLocal { va: u64, level: Option<Level> },
}

impl Tlbi {
    /// IPAS2E1IS with this operand, where the granule is 4 KiB; `None` if the architecture reserves
    /// it.
    pub(crate) fn page(operand: u64) -> Option<Self> {
        let level = match (operand >> 46 & 3, operand >> 44 & 3) {
            (0, _) => None,
            (1, level @ 1..) => Some(level_of(level)),
            _ => return None,
        };
        let ipa = (operand & ((1 << 40) - 1)) << Level::Page4K.shift();
        Some(Self::Stage2 { ipa, len: Level::Page4K.size(), level })
    }

    /// RIPAS2E1IS with this operand; `None` if the architecture reserves it, or if it is for a
    /// granule other than 4 KiB.
    pub(crate) fn range(operand: u64) -> Option<Self> {
        let (tg, scale, num) = (operand >> 46 & 3, operand >> 44 & 3, operand >> 39 & 31);
        let level = match operand >> 37 & 3 {
            0 => None,
            level => Some(level_of(level)),
        };
        let ipa = (operand & ((1 << 37) - 1)) << Level::Page4K.shift();
        let len = (num + 1) << (5 * scale + 1) << Level::Page4K.shift();
        (tg == 1).then_some(Self::Stage2 { ipa, len, level })
    }

    /// The same without walk caches: IPAS2LE1IS, RIPAS2LE1IS.
    #[must_use]
    pub(crate) const fn of_leaves(self) -> Self {
        match self {
            Self::Stage2 { ipa, len, level } => Self::Stage2Leaf { ipa, len, level },
            other => other,
        }
    }
}

/// The level with this number on Arm, from 1 on.
const fn level_of(number: u64) -> Level {
    match number {
        1 => Level::Page1G,
        2 => Level::Page2M,
        _ => Level::Page4K,
    }
}

/// A requested invalidation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// Its tag; `None` for all.
    tag: Option<Tag>,
    /// Its CPU; `None` for all.
    cpu: Option<usize>,
    what: Invalidation,
}

impl Hw {
    /// The TLB flush that VMRUN does before the guest runs.
    pub(crate) fn tlb_control(&mut self, cpu: usize, asid: Tag, control: TlbControl) {
        match control {
            TlbControl::DoNothing => {}
            TlbControl::FlushAsid if self.two_flushes => self.invalidate(cpu, asid, Invalidation::Guest),
            TlbControl::FlushAsid => self.invalidate(cpu, asid, Invalidation::All),
            TlbControl::FlushAll => self.invalidate_all(cpu),
        }
    }

    /// INVEPT or HFENCE.GVMA, for one tag: entries that depend on the nested tables, combined ones
    /// included.
    pub(crate) fn flush_nested(&mut self, cpu: usize, tag: Tag) {
        self.invalidate(cpu, tag, Invalidation::All);
    }

    /// INVLPGA. The manual does not guarantee that more than one piece of a larger page is removed
    /// (A17). No instruction keeps the entries of upper levels: without `walk` it is a faulty one.
    ///
    /// Nor does the manual define which PCID's entries are removed.
    pub(crate) fn invlpga(&mut self, cpu: usize, asid: Tag, va: u64, walk: bool) {
        let what = Invalidation::GuestPage { va, level: None, pieces: false, walk };
        if self.pcid {
            self.invalidate_any_root(cpu, asid, what);
        } else {
            self.invalidate(cpu, asid, what);
        }
    }

    /// TLBI: requested, and completed by the next [`dsb`](Self::dsb).
    pub(crate) fn tlbi(&mut self, cpu: usize, vmid: Tag, what: Tlbi) {
        let (own, tag) = (Some(cpu), Some(vmid));
        let page = |va, level| Invalidation::GuestPage { va, level, pieces: true, walk: true };
        let (tag, target, what) = match what {
            Tlbi::VmallS12 => (tag, None, Invalidation::All),
            Tlbi::Vmall => (tag, None, Invalidation::Guest),
            Tlbi::VmallLocal => (tag, own, Invalidation::Guest),
            Tlbi::AllLocal => (None, own, Invalidation::All),
            Tlbi::Stage2 { ipa, len, level } => {
                (tag, None, Invalidation::Nested { start: ipa, len, level, walk: true })
            }
            Tlbi::Stage2Leaf { ipa, len, level } => {
                (tag, None, Invalidation::Nested { start: ipa, len, level, walk: false })
            }
            Tlbi::Va { va, level } => (tag, None, page(va, level)),
            Tlbi::VaLocal { va, level } => (tag, own, page(va, level)),
        };
        self.pending_mut(cpu).push(Pending { tag, cpu: target, what });
    }

    /// DSB ISH: the invalidations that this CPU has requested are done everywhere.
    pub(crate) fn dsb(&mut self, cpu: usize) {
        for pending in core::mem::take(self.pending_mut(cpu)) {
            let cpus = match pending.cpu {
                Some(cpu) => cpu..cpu + 1,
                None => 0..self.cpu_count(),
            };
            cpus.for_each(|cpu| self.carry_out(cpu, pending));
        }
    }

    /// DSB NSH: they are done on this CPU. Those that also apply to others are still in progress.
    pub(crate) fn dsb_local(&mut self, cpu: usize) {
        let asked = core::mem::take(self.pending_mut(cpu));
        asked.iter().for_each(|&pending| self.carry_out(cpu, pending));
        *self.pending_mut(cpu) = asked.into_iter().filter(|pending| pending.cpu.is_none()).collect();
    }

    fn carry_out(&mut self, cpu: usize, pending: Pending) {
        match pending.tag {
            Some(tag) => self.invalidate(cpu, tag, pending.what),
            None => self.invalidate_all(cpu),
        }
    }
}
