//! Tags of translations (SVM's ASIDs, VMX's VPIDs): one allocator per CPU, one slot per vCPU.
//!
//! A vCPU's translations are tagged with its ASID on the CPU that it runs on. The slot remembers
//! the CPU and the generation of that CPU's allocator that its ASID belongs to. If either is no
//! longer current, the vCPU gets an ASID that has not been used since this CPU last flushed all of
//! them. So it never hits its own entries from an earlier stay (A2), nor those of another vCPU of
//! its VM (A3).
//!
//! A flush stays pending until VMRUN has carried it out (A7): the slot's from
//! [`AsidSlot::owe_flush`], the allocator's flush of all ASIDs from the start of a generation, both
//! until [`AsidAllocator::executed`]. An [`Assignment`] whose VMRUN was not reached is simply
//! dropped, and the next one requests the same again. The caller
//!
//! 1. calls [`AsidSlot::owe_flush`] for each flush that it takes, before it completes it,
//! 2. calls [`AsidAllocator::assign`] for each entry, writes ASID and `TLB_CONTROL` to the VMCB,
//!    and clears the clean bits if [`Assignment::changed`],
//! 3. enters, and calls [`AsidAllocator::executed`] first thing after a #VMEXIT other than
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
    /// Drop the entries of every ASID, including the host's.
    FlushAll = 1,
    /// Drop the entries of this VMCB's ASID. Needs FlushByAsid (A8).
    FlushAsid = 3,
}

/// The VMCB fields for the next VMRUN.
#[must_use = "write it to the VMCB, and report it with `executed` after VMRUN"]
#[derive(Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Guest ASID, never 0.
    pub asid: u32,
    /// `TLB_CONTROL`; to be written for every entry.
    pub control: TlbControl,
    /// The VMCB's cached state belongs to another ASID or CPU: clear all clean bits (A6).
    pub changed: bool,
    generation: u64,
    debt: u64,
}

/// A vCPU's ASID and pending flush.
#[derive(Debug)]
pub struct AsidSlot {
    /// The CPU on which the ASID is valid.
    home: CpuId,
    /// The generation of that CPU's allocator that the ASID is from; 0, which no CPU has, before
    /// the first.
    generation: u64,
    asid: u32,
    /// No VMRUN has used this ASID yet.
    is_new: bool,
    /// Flushes requested, and how many of these are settled. Counters rather than a flag, so that a
    /// flush requested between `assign` and `executed` is not taken for settled.
    owed: u64,
    settled: u64,
}

impl AsidSlot {
    /// The slot of a vCPU that has never run.
    pub const fn new() -> Self {
        Self { home: CpuId(0), generation: 0, asid: 0, is_new: false, owed: 0, settled: 0 }
    }

    /// Makes the next VMRUN begin without any translation of this vCPU.
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
    /// Newest ASID of this generation. They are assigned starting at 1: 0 is the host's (A5).
    newest: u32,
    /// Starts at 1; 64 bits do not wrap.
    generation: u64,
    /// Newest generation whose initial flush of all ASIDs has been done.
    flushed: u64,
}

impl AsidAllocator {
    /// ASIDs 1 to `asid_max` of `cpu`: one less than `CPUID Fn8000_000A_EBX`. `has_flush_by_asid`
    /// is `CPUID Fn8000_000A_EDX[6]`.
    ///
    /// The first assignment flushes everything: earlier software may have used the ASIDs.
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

    /// The slot's ASID if this CPU may hold translations under it: the ASID to use for invalidating
    /// single pages. `None` if no VMRUN has used it, or if the next assignment replaces it: that is
    /// no reason to owe nothing, as the vCPU may leave before it, and go back to its former CPU.
    pub fn resident(&self, slot: &AsidSlot) -> Option<u32> {
        let is_present = slot.home == self.cpu && slot.generation == self.generation && !slot.is_new;
        is_present.then_some(slot.asid)
    }

    /// Records that VMRUN has been executed with `done`, the slot's last assignment.
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

    /// Gives the slot an ASID without entries. That settles its pending flushes, unless the entry
    /// has to flush all ASIDs anyway.
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
