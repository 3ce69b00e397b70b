//! Processors that drop a guest's translations and those by nested tables with two instructions,
//! under two tags: VMX, with VPIDs and with roots of nested tables (EP4TA, an address).
//!
//! | owed | when | done by |
//! |---|---|---|
//! | guest's, of a list | the request is taken | INVVPID by address, or a debt of the tag |
//! | guest's, of the tag | the next entry | INVVPID of the VPID |
//! | guest's, by a vCPU that arrives | the next entry | another VPID |
//! | all VPIDs' | VPIDs begin again | INVVPID of all |
//! | nested | the next entry, wherever | INVEPT of the root, unless [`Roots`] knows better |
//! | nested, by a vCPU that arrives | the next entry | the same |
//! | nested, of a guest that is gone | before its root is freed | [`Roots::let_go`] |
//!
//! INVVPID leaves what is kept of nested tables alone, under whatever VPID; INVEPT drops combined
//! translations of all VPIDs, too. Both act on the own CPU, and at once: an entry that is called
//! off has them done. Entry and exit drop nothing by nested tables alone. So a vCPU finds, under
//! its guest's root, what others of its guest have left on a CPU; and a new guest what a former one
//! has, if it gets its root.
//!
//! Source: Intel's SDM, volume 3, "Caching translation information" in the chapter on address
//! translation for VMX.

use core::cell::Cell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use coherence::asid::TlbControl;
use paging::Stamp;

use crate::{Mistake, Mistakes};

/// What INVVPID names: combined translations, by guests' and nested tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invvpid {
    /// One VPID's of an address: type 0.
    Address {
        /// The VPID, not 0.
        vpid: u16,
        /// Linear, and canonical.
        address: u64,
    },
    /// One VPID's, not 0: type 1.
    Vpid(u16),
    /// All VPIDs': type 2.
    All,
    /// One VPID's, without global ones: type 3. For mistakes alone.
    ButGlobals(u16),
}

/// What INVEPT names: what is kept of nested tables alone, and combined translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invept {
    /// Those by the tables with this root: type 1.
    Root(u64),
    /// All: type 2.
    All,
}

/// Operations of a CPU with two flushes, for the vCPU whose turn it is. An instruction may drop
/// more than is named, where the CPU has no narrower one.
pub trait TwoFlushes: Mistakes {
    /// Whether guests have VPIDs. If not, each entry and exit drops what INVVPID would.
    fn has_vpids(&self) -> bool;
    /// INVVPID.
    fn invvpid(&self, named: Invvpid);
    /// INVEPT.
    fn invept(&self, named: Invept);
    /// Whether the vCPU has taken a nested flush that no entry has carried out. It is the vCPU's,
    /// and goes with it from CPU to CPU: false for a new one.
    fn nested_debt(&self) -> &Cell<bool>;
    /// This CPU's roots. When they were new, it held nothing by any root.
    fn roots(&self) -> &Roots;
    /// The current state of the nested tables of the vCPU's guest ([`paging::PageTable::stamp`]).
    fn stamp(&self) -> Stamp;
}

/// Drops what the entry owes, for [`Processor::set_tag`](super::Processor::set_tag). Returns the
/// VPID.
#[inline(always)] // On the way of each entry.
pub fn begin_entry(cpu: &impl TwoFlushes, asid: u32, control: TlbControl, changed: bool) -> u16 {
    let vpid = match cpu.has_vpids() {
        true if !cpu.makes(Mistake::VpidZero) => asid as u16,
        _ => 0,
    };
    if control != TlbControl::DoNothing && cpu.has_vpids() {
        drop_guests(cpu, vpid, control);
    }
    // The vCPU may have arrived; or another guest had the CPU, or nobody.
    let is_another = cpu.stamp().root().0 != cpu.roots().newest();
    let has_arrived = changed && !cpu.makes(Mistake::ArrivalWithoutInvept);
    if is_another || has_arrived || cpu.nested_debt().get() {
        drop_nested(cpu);
        cpu.nested_debt().set(false);
    }
    vpid
}

#[cold]
fn drop_guests(cpu: &impl TwoFlushes, vpid: u16, control: TlbControl) {
    match control {
        _ if cpu.makes(Mistake::GuestsTakenAsNested) => drop_nested(cpu),
        TlbControl::DoNothing => {}
        TlbControl::FlushAsid if cpu.makes(Mistake::InvvpidSparesGlobals) => {
            cpu.invvpid(Invvpid::ButGlobals(vpid));
        }
        TlbControl::FlushAsid => cpu.invvpid(Invvpid::Vpid(vpid)),
        TlbControl::FlushAll => cpu.invvpid(Invvpid::All),
    }
}

/// Drops the CPU's translations of a page, for
/// [`Processor::invalidate_page`](super::Processor::invalidate_page). It drops those of all PCIDs:
/// [`Mode::pcid`](super::Mode) is not set.
pub fn invalidate_page(cpu: &impl TwoFlushes, address: u64, asid: u32) {
    if cpu.has_vpids() {
        cpu.invvpid(Invvpid::Address { vpid: asid as u16, address });
    }
}

/// A nested flush has been taken, for
/// [`Processor::owe_nested_flush`](super::Processor::owe_nested_flush). The vCPU may be elsewhere
/// when it is entered next, and its tag still be valid there.
pub fn owe_nested(cpu: &impl TwoFlushes) {
    if cpu.makes(Mistake::NestedSettledEarly) {
        drop_nested(cpu);
    } else {
        cpu.nested_debt().set(true);
    }
}

/// Drops what the CPU keeps of the guest's nested tables, unless it has done so since they last
/// changed.
#[cold]
fn drop_nested(cpu: &impl TwoFlushes) {
    let former = cpu.roots().newest();
    cpu.roots().meet(cpu.stamp(), cpu, |named| match named {
        Invept::All if cpu.makes(Mistake::RootPushedOut) => {}
        _ if !cpu.has_vpids() && cpu.makes(Mistake::EntryTrusted) => {}
        _ if cpu.makes(Mistake::InvvpidForInvept) => cpu.invvpid(Invvpid::All),
        Invept::Root(root) if cpu.makes(Mistake::OtherRootDropped) => cpu.invept(Invept::Root(root ^ 0x1000)),
        Invept::Root(_) if cpu.makes(Mistake::FormerRootDropped) => cpu.invept(Invept::Root(former)),
        named => cpu.invept(named),
    });
}

/// Guests whose roots a CPU remembers. If more take turns on it, all are dropped now and then.
const ROOTS_MAX: usize = 8;

/// The roots by which one CPU may hold translations, each with the state of the tables since which
/// it has dropped what is stale. By no other root does it hold any. Only this CPU changes them.
#[derive(Debug)]
pub struct Roots {
    /// Root and state; root 0 is none.
    known: [[AtomicU64; 2]; ROOTS_MAX],
    /// The root that was met last, if the CPU has not let go since.
    newest: AtomicU64,
    /// How many places are used.
    count: usize,
}

impl Roots {
    /// Those of a CPU that has done an INVEPT of all, and since then entered no guest.
    pub const fn new() -> Self {
        Self::with_room_for(ROOTS_MAX)
    }

    /// The same for `count` guests, if that is fewer than usual. For tests.
    pub const fn with_room_for(count: usize) -> Self {
        let known = [const { [const { AtomicU64::new(0) }; 2] }; ROOTS_MAX];
        Self { known, newest: AtomicU64::new(0), count }
    }

    /// Whether the CPU may hold translations by this root: then it is not to be freed. Any CPU may
    /// ask, when no vCPU of the guest can be entered any more.
    pub fn holds(&self, root: u64) -> bool {
        // Pairs with `forget_all`.
        self.known.iter().any(|[known, _]| known.load(Acquire) == root)
    }

    /// Drops everything, so that [`holds`](Self::holds) is true of no root. For a CPU that is out
    /// of guest mode, when a guest is gone: soon, even if it is busy with another guest, whose root
    /// is met again at its next entry.
    pub fn let_go(&self, mistakes: &impl Mistakes, invept: impl FnOnce(Invept)) {
        if !mistakes.makes(Mistake::RootKept) {
            invept(Invept::All);
        }
        self.newest.store(0, Relaxed);
        self.forget_all();
    }

    fn forget_all(&self) {
        for [known, _] in &self.known {
            known.store(0, Release); // Pairs with `holds`: what was held has been dropped.
        }
    }

    #[inline(always)]
    fn newest(&self) -> u64 {
        self.newest.load(Relaxed)
    }

    /// Drops what is stale by the root of `stamp`, which was read just now.
    ///
    /// Changes up to `stamp` were made before it was read. So what the CPU loads after it has
    /// dropped all is none of theirs; and for each later change there is a request, or an arrival,
    /// with a later stamp.
    fn meet(&self, stamp: Stamp, mistakes: &impl Mistakes, invept: impl FnOnce(Invept)) {
        let (root, sequence) = (stamp.root().0, stamp.sequence());
        let place_of =
            |wanted| self.known.iter().take(self.count).find(|[known, _]| known.load(Relaxed) == wanted);
        let [known, state] = match place_of(root) {
            Some(place @ [_, state]) => {
                let is_current = state.load(Relaxed) == sequence;
                if !is_current && !mistakes.makes(Mistake::StampNotCompared) {
                    invept(Invept::Root(root));
                }
                place
            }
            None => place_of(0).unwrap_or_else(|| {
                invept(Invept::All);
                self.forget_all();
                let [first, ..] = &self.known;
                first
            }),
        };
        self.newest.store(root, Relaxed);
        state.store(sequence, Relaxed);
        known.store(root, Relaxed);
    }
}

impl Default for Roots {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
