//! Address space identifiers of AMD64 SVM: one allocator per physical CPU, one slot per vCPU.
//!
//! A vCPU's translations are tagged with its ASID on the CPU that it runs on. The slot remembers
//! which CPU and which generation of that CPU's allocator its ASID belongs to; if either is not
//! the present one, the vCPU gets an ASID that nobody has used since this CPU last flushed them
//! all. So it never meets entries of its own from an earlier stay (A2), nor those of another vCPU
//! of its VM (A3).
//!
//! Debts are kept until VMRUN has carried them out (A7): the slot owes a flush from
//! [`AsidSlot::owe_flush`], the allocator owes one of all ASIDs from the start of a generation,
//! both until [`AsidAllocator::executed`]. An [`Assignment`] whose VMRUN was not reached is just
//! dropped, and the next one asks for the same again. The caller
//!
//! 1. calls [`AsidSlot::owe_flush`] for each flush that it takes, before it completes it,
//! 2. calls [`AsidAllocator::assign`] for each entry, writes ASID and `TLB_CONTROL` to the VMCB,
//!    and drops the clean bits if [`Assignment::changed`],
//! 3. enters, and calls [`AsidAllocator::executed`] first after a #VMEXIT other than
//!    `VMEXIT_INVALID`; if it does not get as far as VMRUN, it drops the assignment.
//!
//! Source: AMD64 Architecture Programmer's Manual, volume 2, 15.16 (TLB control) and 15.15.3
//! (VMCB clean field).

use core::num::NonZeroU32;

use crate::CpuId;

/// Value of the VMCB's `TLB_CONTROL` (offset 0x5c).
///
/// Exhaustive: a caller that overlooks one flushes too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TlbControl {
    /// Keep everything.
    DoNothing = 0,
    /// Drop the entries of every ASID, the host's too.
    FlushAll = 1,
    /// Drop the entries of this VMCB's ASID. Needs FlushByAsid (A8).
    FlushAsid = 3,
}

/// What the VMCB must say for the next VMRUN.
#[must_use = "write it to the VMCB, and report it with `executed` after VMRUN"]
#[derive(Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Guest ASID, never 0.
    pub asid: u32,
    /// `TLB_CONTROL`; to be written for every entry.
    pub control: TlbControl,
    /// The VMCB's cached state belongs to another ASID or CPU: drop all clean bits (A6).
    pub changed: bool,
    generation: u64,
    debt: u64,
}

/// A vCPU's ASID, and the flush that it owes.
#[derive(Debug)]
pub struct AsidSlot {
    /// Where the ASID is valid.
    home: CpuId,
    /// Which of that CPU's generations it is of; 0, which no CPU has, before the first.
    generation: u64,
    asid: u32,
    /// No VMRUN has used this ASID yet.
    is_new: bool,
    /// Flushes asked for, and how many of these are settled. Counts, lest one that is asked for
    /// between `assign` and `executed` be taken for settled.
    owed: u64,
    settled: u64,
}

impl AsidSlot {
    /// The slot of a vCPU that has never run.
    pub const fn new() -> Self {
        Self { home: CpuId(0), generation: 0, asid: 0, is_new: false, owed: 0, settled: 0 }
    }

    /// The next VMRUN must begin without any translation of this vCPU.
    pub const fn owe_flush(&mut self) {
        self.owed += 1;
    }

    /// Whether the next VMRUN begins without any translation of this vCPU.
    pub const fn owes_flush(&self) -> bool {
        self.owed != self.settled
    }
}

impl Default for AsidSlot {
    fn default() -> Self {
        Self::new()
    }
}

/// The ASIDs of one physical CPU.
#[derive(Debug)]
pub struct AsidAllocator {
    cpu: CpuId,
    asid_max: u32,
    has_flush_by_asid: bool,
    /// Newest ASID of this generation. They are given out from 1: 0 is the host's (A5).
    newest: u32,
    /// From 1; 64 bits do not wrap.
    generation: u64,
    /// Newest generation that began with a flush of all ASIDs.
    flushed: u64,
}

impl AsidAllocator {
    /// ASIDs 1 to `asid_max` of `cpu`: one less than `CPUID Fn8000_000A_EBX`. `has_flush_by_asid`
    /// is `CPUID Fn8000_000A_EDX[6]`.
    ///
    /// The first assignment flushes everything: somebody else may have used the ASIDs before.
    pub const fn new(cpu: CpuId, asid_max: NonZeroU32, has_flush_by_asid: bool) -> Self {
        Self { cpu, asid_max: asid_max.get(), has_flush_by_asid, newest: 0, generation: 1, flushed: 0 }
    }

    /// The ASID and the flush for the next VMRUN of the slot's vCPU on this CPU.
    #[inline]
    pub fn assign(&mut self, slot: &mut AsidSlot) -> Assignment {
        let is_foreign = slot.home != self.cpu || slot.generation != self.generation;
        if is_foreign || (slot.owed != slot.settled && !self.has_flush_by_asid) {
            self.renew(slot);
        }
        let control = if self.flushed != self.generation {
            TlbControl::FlushAll
        } else if slot.owed != slot.settled {
            TlbControl::FlushAsid
        } else {
            TlbControl::DoNothing
        };
        Assignment {
            asid: slot.asid,
            control,
            changed: slot.is_new,
            generation: self.generation,
            debt: slot.owed,
        }
    }

    /// The slot's ASID if this CPU may hold translations under it: the one to invalidate single
    /// pages for. `None` if no VMRUN has used it, or if the next assignment replaces it.
    pub fn resident(&self, slot: &AsidSlot) -> Option<u32> {
        let is_present = slot.home == self.cpu && slot.generation == self.generation && !slot.is_new;
        is_present.then_some(slot.asid)
    }

    /// VMRUN has been executed with `done`, the slot's last assignment.
    #[inline]
    pub fn executed(&mut self, slot: &mut AsidSlot, done: Assignment) {
        if done.control == TlbControl::FlushAll {
            self.flushed = self.flushed.max(done.generation);
        }
        if done.control != TlbControl::DoNothing {
            slot.settled = slot.settled.max(done.debt);
        }
        slot.is_new = false;
    }

    /// Gives the slot an ASID without entries. What it owed is settled by that, unless the entry
    /// has to flush all anyway.
    fn renew(&mut self, slot: &mut AsidSlot) {
        if self.newest == self.asid_max {
            self.generation += 1;
            self.newest = 0;
        }
        self.newest += 1;
        slot.home = self.cpu;
        slot.generation = self.generation;
        slot.asid = self.newest;
        slot.is_new = true;
        slot.settled = slot.owed;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
