//! Virtual machine identifiers of Arm64: one allocator for all physical CPUs, one slot per virtual
//! machine.
//!
//! A VMID tags the translations of one virtual machine on every CPU, so that invalidations can be
//! broadcast. There are 255 or 65,535 of them, and over time there are more machines than that.
//! When they run out, a new *generation* begins: machines that run at that moment keep their VMIDs,
//! all others are assigned anew, and each CPU drops all entries before it first enters a guest of
//! the new generation.
//!
//! # Ordering
//!
//! The word of a CPU records what it runs: VMID and generation, REVOKED, OWES. Both sides change it
//! by read-modify-write.
//!
//! ```text
//! CPU that enters a guest                        CPU that finds no VMID left (in the lock)
//! A  read the machine's word                     R  generation += 1
//! B  own word = that, learn the former one       S  each other CPU's word: set REVOKED, learn what it runs;
//! C  former one of the same generation, not         if of the generation that ends, that VMID is reserved
//!    revoked: enter                              T  hand out VMIDs, skipping reserved ones
//! D  else, in the lock: machine's word of this   U  machine's word = new one
//!    generation (S, T, U), own word = that, OWES
//! E  VTTBR_EL2, then drop everything; clear OWES; enter
//!
//! B before S   S finds what B has stored, and reserves it: no running VMID is stolen (A4)
//! S before B   B finds REVOKED, thus D: a new VMID, or the reserved one under the new generation
//! S before T   nothing is handed out before the VMIDs of all CPUs are known
//! S before U   a word that A reads before U is refused by C, or was stored before S
//! D before E   a CPU that has not dropped its entries finds OWES the next time
//! ```
//!
//! A CPU that invalidates for a machine uses the VMID in the machine's word, which another CPU may
//! be changing:
//!
//! ```text
//! CPU that has changed the tables                CPU that enters the machine's guest
//! V  change the tables                           U  machine's word = new one (read-modify-write)
//! W  VmidSlot::current (read-modify-write)       X  guest walks
//! Y  TLBI for the VMID found by W
//!
//! W before U   X finds the changed tables
//! U before W   Y uses the new VMID
//! ```
//!
//! With a plain load in W, store V and load W could pass each other, as U and X could: then X finds
//! the old tables and Y misses the new VMID. Entries under a former VMID are never used: its next
//! owner starts after E.
//!
//! REVOKED stays until its CPU next enters. Meanwhile further generations may begin; the CPU's
//! reserved VMID stays reserved, under whatever generation its machine has been renewed to
//! elsewhere. So a machine has one VMID on all CPUs at any time.

mod resident;

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

pub use resident::{Arrival, Home, LocalMaintenance, Residents};

use crate::CpuId;
use crate::sync::{AtomicU64, Ordering, const_fn, spin_loop};

/// In a CPU's word: another CPU has begun a generation since this CPU last entered.
const REVOKED: u64 = 1 << 16;
/// In a CPU's word: the CPU has yet to drop its entries.
const OWES: u64 = 1 << 17;
const FLAGS: u64 = REVOKED | OWES;
/// 46 bits of generation: at one every 20 µs they take 44 years to wrap.
const GENERATION_SHIFT: u32 = 18;

const fn generation(word: u64) -> u64 {
    word >> GENERATION_SHIFT
}

const fn vmid(word: u64) -> u16 {
    word as u16
}

const fn word(generation: u64, vmid: u16) -> u64 {
    generation << GENERATION_SHIFT | vmid as u64
}

/// A virtual machine's VMID.
#[derive(Debug)]
pub struct VmidSlot {
    /// Generation and VMID, 0 before the first. Changed under the allocator's lock (U), read by
    /// a CPU that enters (A, `Acquire`) and by [`current`](Self::current) (W).
    word: AtomicU64,
}

impl VmidSlot {
    const_fn! {
        /// The slot of a machine that has never run.
        pub fn new() -> Self {
            Self { word: AtomicU64::new(0) }
        }
    }

    /// W: the VMID under which CPUs hold this machine's translations; `None` if it has never run,
    /// so that none holds any.
    ///
    /// Call it **after** the tables were changed, and pass its result to the TLBI. A
    /// read-modify-write: otherwise a CPU that gets a new VMID at the same moment could walk the
    /// old tables.
    pub fn current(&self) -> Option<u16> {
        // Pairs with U, in `present`.
        match vmid(self.word.fetch_or(0, Ordering::AcqRel)) {
            0 => None,
            vmid => Some(vmid),
        }
    }
}

impl Default for VmidSlot {
    fn default() -> Self {
        Self::new()
    }
}

/// The record of what one CPU runs.
#[derive(Debug)]
#[repr(align(64))]
struct CpuRecord {
    /// The word of the machine that the CPU entered last, and flags. `AcqRel` on every change: each
    /// pairs with every other.
    active: AtomicU64,
    /// The machine word that the CPU ran when it was revoked. Accessed only under the lock.
    reserved: AtomicU64,
}

impl CpuRecord {
    const_fn! {
        fn new() -> Self {
            Self { active: AtomicU64::new(0), reserved: AtomicU64::new(0) }
        }
    }
}

/// The VMIDs of a machine with up to `CPUS` physical CPUs.
#[derive(Debug)]
pub struct VmidAllocator<const CPUS: usize> {
    /// Largest VMID. 0 is the hypervisor's own, for stage 2 switched off.
    vmid_max: u16,
    /// CPUs that enter guests, at most `CPUS`: the places of the others are never looked at.
    cpu_count: usize,
    /// 1 while a CPU holds the lock.
    gate: AtomicU64,
    /// Starts at 1. Accessed only under the lock, like the next field.
    generation: AtomicU64,
    /// Newest VMID of this generation that was assigned or skipped.
    newest: AtomicU64,
    places: [CpuRecord; CPUS],
}

/// The VMID for the next stay in a guest.
#[must_use = "write it to VTTBR_EL2, and report it with `executed`"]
#[derive(Debug)]
pub struct Assignment<'a> {
    vmid: u16,
    must_flush: bool,
    place: &'a CpuRecord,
}

impl Assignment<'_> {
    /// The VMID, never 0.
    pub const fn vmid(&self) -> u16 {
        self.vmid
    }

    /// Whether this CPU must drop all translations of all machines, **after** VTTBR_EL2 has the new
    /// VMID and before the guest runs: [`Arrival::all_vms`] for
    /// [`enter_vm`](crate::tlbi::enter_vm).
    pub const fn must_flush(&self) -> bool {
        self.must_flush
    }

    /// Records that the assignment has been carried out. If this is not called, the next assignment
    /// on this CPU requests the same again.
    #[inline]
    pub fn executed(self) {
        if self.must_flush {
            // Pairs with S, in `roll_over`.
            self.place.active.fetch_and(!OWES, Ordering::AcqRel);
        }
    }
}

impl<const CPUS: usize> VmidAllocator<CPUS> {
    const_fn! {
        /// For `cpu_count` CPUs and VMIDs up to `vmid_max`.
        fn with_max(vmid_max: u16, cpu_count: usize) -> Self {
            Self {
                vmid_max,
                cpu_count,
                gate: AtomicU64::new(0),
                generation: AtomicU64::new(1),
                newest: AtomicU64::new(0),
                #[cfg(not(loom))]
                places: [const { CpuRecord::new() }; CPUS],
                #[cfg(loom)]
                places: core::array::from_fn(|_| CpuRecord::new()),
            }
        }
    }

    const_fn! {
        fn with_bits(bits: u32, cpu_count: usize) -> Self {
            Self::with_max(((1u64 << bits) - 1) as u16, cpu_count)
        }
    }

    /// VMIDs of `bits` bits, 8, or 16 with FEAT_VMID16 (ID_AA64MMFR1_EL1.VMIDBits) and VTCR_EL2.VS
    /// set; for the CPUs with numbers below `cpu_count`.
    ///
    /// `None` if the number of bits is not from 1 to 16, if there are more CPUs than VMIDs, since
    /// each CPU may hold on to one, or more than `CPUS`, or none.
    #[cfg(not(loom))]
    pub const fn new(bits: u32, cpu_count: usize) -> Option<Self> {
        if Self::fits(bits, cpu_count) { Some(Self::with_bits(bits, cpu_count)) } else { None }
    }

    /// As without loom.
    #[cfg(loom)]
    pub fn new(bits: u32, cpu_count: usize) -> Option<Self> {
        Self::fits(bits, cpu_count).then(|| Self::with_bits(bits, cpu_count))
    }

    const fn fits(bits: u32, cpu_count: usize) -> bool {
        bits >= 1 && bits <= 16 && cpu_count >= 1 && cpu_count <= CPUS && cpu_count < 1 << bits
    }

    /// The places of the CPUs in use.
    #[inline(always)]
    fn used(&self) -> &[CpuRecord] {
        &self.places[..self.cpu_count]
    }

    /// A, B and C: the VMID for the next stay of the slot's machine on `cpu`, which must be the
    /// caller's own. Call it out of guest mode, with interrupts off.
    ///
    /// One load and one exchange, unless a generation has begun since.
    ///
    /// # Panics
    /// If `cpu` is not below the CPU count.
    #[inline]
    pub fn assign(&self, cpu: CpuId, slot: &VmidSlot) -> Assignment<'_> {
        let place = &self.used()[cpu.0 as usize];
        // A pairs with U, in `present`; B pairs with S, in `roll_over`.
        let wanted = slot.word.load(Ordering::Acquire);
        let former = place.active.swap(wanted, Ordering::AcqRel);
        if former & FLAGS == 0 && generation(former) == generation(wanted) && wanted != 0 {
            return Assignment { vmid: vmid(wanted), must_flush: false, place };
        }
        self.assign_anew(cpu, slot, former)
    }

    /// D. `former` is the CPU's word before B.
    #[cold]
    fn assign_anew(&self, cpu: CpuId, slot: &VmidSlot, former: u64) -> Assignment<'_> {
        self.locked(|| {
            let word = self.present(cpu, slot);
            self.settle(cpu, former, word)
        })
    }

    /// The end of D: stores the CPU's word. The CPU has dropped everything in the generation of its
    /// former word, unless OWES is set there.
    fn settle(&self, cpu: CpuId, former: u64, word: u64) -> Assignment<'_> {
        let place = &self.used()[cpu.0 as usize];
        let must_flush = former & OWES != 0 || generation(former) != generation(word);
        // Pairs with S, in `roll_over`.
        place.active.swap(if must_flush { word | OWES } else { word }, Ordering::AcqRel);
        Assignment { vmid: vmid(word), must_flush, place }
    }

    /// The machine's word in this generation.
    fn present(&self, cpu: CpuId, slot: &VmidSlot) -> u64 {
        // Only the holder of the lock changes it, and this CPU holds it.
        let old = slot.word.load(Ordering::Relaxed);
        if generation(old) == self.generation.load(Ordering::Relaxed) {
            return old;
        }
        let new = match self.keep(old) {
            Some(kept) => kept,
            None => self.take(|| self.roll_over(cpu)),
        };
        // U: pairs with A, in `assign`, and with `VmidSlot::current`.
        slot.word.swap(new, Ordering::AcqRel);
        new
    }

    /// Keeps the VMID of the machine whose word was `old`, if a CPU has run it since before this
    /// generation.
    fn keep(&self, old: u64) -> Option<u64> {
        let kept = word(self.generation.load(Ordering::Relaxed), vmid(old));
        let mut is_reserved = false;
        for place in self.used() {
            if old != 0 && place.reserved.load(Ordering::Relaxed) == old {
                // So that it is found under its current name in the next generation.
                place.reserved.store(kept, Ordering::Relaxed);
                is_reserved = true;
            }
        }
        is_reserved.then_some(kept)
    }

    /// T: a VMID that no machine has in this generation; begins a new generation if necessary. Ends
    /// after one turn: fewer VMIDs are reserved than exist.
    fn take(&self, roll_over: impl Fn()) -> u64 {
        loop {
            let newest = self.newest.load(Ordering::Relaxed);
            for candidate in newest + 1..=u64::from(self.vmid_max) {
                if !self.is_reserved(candidate as u16) {
                    self.newest.store(candidate, Ordering::Relaxed);
                    return word(self.generation.load(Ordering::Relaxed), candidate as u16);
                }
            }
            roll_over();
        }
    }

    fn is_reserved(&self, candidate: u16) -> bool {
        self.used().iter().any(|place| vmid(place.reserved.load(Ordering::Relaxed)) == candidate)
    }

    /// R and S, by `cpu`, which is out of guest mode and about to change its VMID, so it holds on
    /// to none.
    fn roll_over(&self, cpu: CpuId) {
        let ending = self.generation.load(Ordering::Relaxed);
        self.generation.store(ending.wrapping_add(1), Ordering::Relaxed);
        self.newest.store(0, Ordering::Relaxed);
        for (index, place) in self.used().iter().enumerate() {
            if index == cpu.0 as usize {
                place.reserved.store(0, Ordering::Relaxed);
                continue;
            }
            // S: pairs with B, in `assign`.
            let active = place.active.fetch_or(REVOKED, Ordering::AcqRel);
            if active & REVOKED == 0 {
                // A word of an earlier generation: its CPU is between B and D, and does not run.
                let runs = generation(active) == ending;
                let reserved = if runs { active & !FLAGS } else { 0 };
                place.reserved.store(reserved, Ordering::Relaxed);
            }
        }
    }

    /// Other CPUs wait for the duration of one rollover at most.
    fn locked<T>(&self, act: impl FnOnce() -> T) -> T {
        // Pairs with the store below, of the previous holder.
        let enter = || self.gate.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        while enter().is_err() {
            spin_loop();
        }
        let result = act();
        // Pairs with the exchange above, of the next holder.
        self.gate.store(0, Ordering::Release);
        result
    }
}
