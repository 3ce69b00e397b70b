//! The instructions that invalidate.
//!
//! AMD64 Architecture Programmer's Manual, volume 2, 15.16 "TLB Control", and volume 3, INVLPGA.
//! Intel's SDM, volume 3, "Invalidating cached translation information", INVVPID and INVEPT.
//! Arm Architecture Reference Manual, C5.5 "A64 System instructions for TLB maintenance": an
//! instruction takes effect only when a DSB by the same processor has completed it; if its TTL
//! field names a level other than the leaf's, it need not remove anything.

use coherence::asid::TlbControl;
use paging::Level;
use stay::tagged::two_flushes::{Invept, Invvpid};

use super::cache::Invalidation;
use super::cpu::{Hw, Key, Tag};
use super::format::Arch;

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
            TlbControl::FlushAsid => self.invalidate(cpu, asid, Invalidation::All),
            TlbControl::FlushAll => self.invalidate_all(cpu),
        }
    }

    /// Removes the entries under any tag on `cpu`.
    fn invalidate_all(&mut self, cpu: usize) {
        self.invalidate_of(cpu, |_| true, Invalidation::All, None);
    }

    /// INVVPID: entries that depend on the guest's tables, whatever the nested ones and the PCID.
    /// Of a page in pieces, one.
    pub(crate) fn invvpid(&mut self, cpu: usize, named: Invvpid) {
        let (vpid, what) = match named {
            Invvpid::All => return self.invalidate_of(cpu, |key| key.tag.is_some(), Invalidation::All, None),
            Invvpid::Vpid(vpid) => (vpid, Invalidation::All),
            Invvpid::ButGlobals(vpid) => (vpid, Invalidation::GuestButGlobals),
            Invvpid::Address { vpid, address: va } => {
                (vpid, Invalidation::GuestPage { va, level: None, pieces: false, walk: true })
            }
        };
        self.invalidate(cpu, vpid.into(), what);
    }

    /// INVEPT: entries that depend on nested tables, combined ones of any tag included.
    pub(crate) fn invept(&mut self, cpu: usize, named: Invept) {
        let is_named = |key: Key| match named {
            Invept::All => true,
            Invept::Root(root) => key.root == Some(root),
        };
        self.invalidate_of(cpu, is_named, Invalidation::All, None);
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

    /// Removes the entries under `tag` on `cpu`.
    pub(super) fn invalidate(&mut self, cpu: usize, tag: Tag, what: Invalidation) {
        self.invalidate_of(cpu, |key| key.tag == Some(tag), what, None);
    }

    /// Removes the entries on `cpu` whose keys are named; those that were loaded under one of the
    /// guest's roots, if that is named.
    fn invalidate_of(
        &mut self,
        cpu: usize,
        is_named: impl Fn(Key) -> bool,
        what: Invalidation,
        guest_root: Option<u64>,
    ) {
        let time = self.memory.tick();
        self.contexts_of(cpu, is_named).for_each(|context| context.invalidate_of(time, what, guest_root));
    }

    /// Removes the entries under `tag` on `cpu` that were loaded under one of the guest's roots,
    /// without knowing which one: so it is not known which entries are removed.
    fn invalidate_any_root(&mut self, cpu: usize, tag: Tag, what: Invalidation) {
        let key = Key { tag: Some(tag), root: None };
        let roots = self.context_mut(cpu, key).roots();
        let root = roots.get(self.rng.below(roots.len().max(1))).copied();
        self.invalidate_of(cpu, |other| other == key, what, root);
    }

    /// The guest on `cpu` loads a root. On AMD64, without PCIDs, that drops the entries of its
    /// tables; on Arm64, and with PCIDs, the root has its own address space identifier.
    pub(crate) fn load_guest_root(&mut self, cpu: usize, root: u64) {
        if self.arch().is_x86() && !self.pcid {
            self.invalidate_current(cpu, Invalidation::Guest, None);
        }
        let time = self.memory.tick();
        if let Some(context) = self.guest_context(cpu) {
            context.set_root(time, root);
        }
    }

    /// Removes entries of the guest on `cpu`, by an instruction of its own.
    fn invalidate_current(&mut self, cpu: usize, what: Invalidation, guest_root: Option<u64>) {
        if let Some([Key { tag, .. }, _]) = self.in_use(cpu) {
            self.invalidate_of(cpu, |key| key.tag == tag, what, guest_root);
        }
    }

    /// The guest on `cpu` reloads its root, which drops the entries of these tables: MOV to CR3
    /// without bit 63.
    pub(crate) fn reload_guest_root(&mut self, cpu: usize, root: u64) {
        let what = if self.globals { Invalidation::GuestButGlobals } else { Invalidation::Guest };
        self.invalidate_current(cpu, what, self.pcid.then_some(root));
    }

    /// The guest on `cpu` drops its own translations of an address: INVLPG, or TLBI VAE1 on one
    /// CPU. The processor knows that it may hold a page of the guest in pieces.
    pub(crate) fn invalidate_own(&mut self, cpu: usize, va: u64) {
        let what = Invalidation::GuestPage { va, level: None, pieces: true, walk: true };
        let time = self.memory.tick();
        let of = self.guest_context(cpu).and_then(|context| context.roots_at(time)).map(|(_, root)| root);
        let of = if self.pcid { of } else { None };
        self.invalidate_current(cpu, what, of);
    }

    /// What an EPT violation at `gpa` drops: what the access would use of nested tables alone, and
    /// its combined translations.
    pub(crate) fn violate(&mut self, cpu: usize, va: Option<u64>, gpa: u64) {
        let (Arch::Intel64, Some([combined, nested])) = (self.arch(), self.in_use(cpu)) else { return };
        let what = Invalidation::Nested { start: gpa & !0xfff, len: 0x1000, level: None, walk: true };
        self.invalidate_of(cpu, |key| key == nested, what, None);
        if let Some(va) = va {
            let what = Invalidation::GuestPage { va, level: None, pieces: false, walk: true };
            self.invalidate_of(cpu, |key| key == combined, what, None);
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
