//! The inbox of a vCPU's local APIC, to which CPUs post that do not own it.
//!
//! ```text
//!    any CPU: post                         the owner, before an entry: take_vectors, take_signals
//!    A  the word here      (RMW, Release)  C  takes the notify word  (RMW, Acquire)
//!    B  the notify word    (RMW, Release)  D  the words here         (load, then RMW, Acquire)
//! ```
//!
//! A before B, C before D. The notify word is the one by which a vCPU is kicked and made to check
//! again. If C sees B, D sees A: no announced item is missed. If C is before B in that word's
//! order, B finds the vCPU entered (and kicks it) or not entered (and its next entry takes the word
//! again). A vector that D takes before its B costs one check that finds nothing.
//!
//! A processor may take edge-triggered vectors in guest mode, without the owner (Intel's posted
//! interrupts, SDM volume 3, 30.6): from the [`Posted`] part of an inbox, when its notification
//! interrupt arrives there.
//!
//! ```text
//!    any CPU: post_to_processor            the owner, before an entry    the processor, in guest mode
//!    A  a word here        (RMW, Release)  C  as above                   F  takes the interrupt
//!    a  "told" here        (RMW, AcqRel)   c  clears "told" (RMW)        c  clears "told" (RMW)
//!       if it was set: the end             D  as above                   D  the words here (RMW)
//!    B  the notify word    (RMW, Release)
//!    E  the interrupt, if B found guest mode
//! ```
//!
//! A before a before B before E, c before D. If a finds "told" set, c is after a, so D sees A: who
//! has set it goes on to B and E. If E arrives in the stay that B found, F follows. If it comes
//! later, B has made the next entry check: C, c and D. Whoever takes it then as an interrupt of the
//! machine does nothing.
//!
//! The trigger modes (TMR) are the owner's to change. So an edge-triggered vector whose last
//! interrupt was level-triggered is not for the processor: its end would exit to the I/O APIC for
//! ever. The owner takes it from `edge` (A, then the signal `EDGE` as another A, then B). Which
//! classes have such vectors (`levels`) is a hint: whoever reads it before the owner has set it
//! sends an interrupt that may as well have come before the level-triggered one.
//!
//! Level-triggered vectors, which are rare, have a signal of their own as well (`LEVEL`), so that
//! the common check looks at edge-triggered ones and the signals alone.
//!
//! A vector's trigger is the set that it is posted to, so that the two cannot come apart. If one
//! vector is in both sets when `LEVEL` is taken, it is level-triggered: an EOI too many for the I/O
//! APIC is harmless, a missing one blocks a line for good. `post_init` is after the vectors of the
//! same poster, and a CPU that takes INIT discards them.
//!
//! A guest that is a hypervisor may hold INIT. Its vCPU takes INIT all the same, and start-up and
//! NMIs that came after it, and keeps them by itself, while it takes what is posted. When INIT acts
//! everything that was posted before is discarded again: all vectors that came before INIT are
//! here, or in the local APIC, which is reset. Those that came since are lost as well, as on a bus.
//!
//! The models beside this module run all of it under loom.

use coherence::{Notify, Target};
use migration::described;

use super::lapic::{Lapic, VectorSet};
use super::message::{Logical, MessageKind, Trigger};
use crate::sched::notify::Published;
use crate::sync::{AtomicU32, AtomicU64, Ordering, update};

const NMI: u32 = 1 << 0;
const INIT: u32 = 1 << 1;
const STARTUP: u32 = 1 << 2;
const SECOND_NMI: u32 = 1 << 3;
/// There are edge-triggered vectors that the owner alone takes.
const EDGE: u32 = 1 << 16;
/// There are level-triggered ones.
const LEVEL: u32 = 1 << 17;
const PAGE_SHIFT: u32 = 8;

/// Posted items other than vectors, in the order in which they apply: INIT, start-up, NMI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Signals {
    /// Reset the vCPU to its state after INIT; its local APIC is in that state already, unless INIT
    /// is held.
    pub init: bool,
    /// If the vCPU waits for start-up: begin at `page << 12`. Otherwise ignored.
    pub startup: Option<u8>,
    /// Number of non-maskable interrupts that have arrived: 0, 1 or 2, the maximum that a processor
    /// holds.
    pub nmis: u8,
}

described!(Signals: init, startup, nmis [|nmis| nmis.min(2)]);

/// One vCPU's inbox. Posting never blocks; an item that is posted twice before it is taken counts
/// once, as in IRR, except for NMIs.
#[derive(Debug, Default)]
pub struct Inbox {
    posted: Posted,
    /// Level-triggered vectors.
    level: [AtomicU64; 4],
    /// Edge-triggered ones that the owner alone takes.
    edge: [AtomicU64; 4],
}

/// What a processor may take by itself: a posted-interrupt descriptor.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Posted {
    edge: [AtomicU64; 4],
    /// [`TOLD`].
    told: AtomicU64,
    // What follows is not the processor's: that leaves it as it is.
    signals: AtomicU32,
    /// How its local APIC interprets logical destinations, as set by the owner. Orders nothing:
    /// while it changes, a sender may see either value, as on a bus.
    logical: AtomicU32,
    /// The classes with vectors whose last interrupt was level-triggered, a bit each, by the owner.
    /// Orders nothing.
    levels: AtomicU32,
}

#[cfg(test)]
impl Posted {
    pub(crate) fn has(&self, vector: u8) -> bool {
        self.edge[usize::from(vector >> 6)].load(Ordering::Relaxed) >> (vector & 63) & 1 != 0
    }

    /// c by the processor. Pairs with `post_to_processor`.
    pub(crate) fn clear_told(&self) {
        self.told.fetch_and(!TOLD, Ordering::AcqRel);
    }
}

/// The owner or its processor has been told, or is about to be, since the vectors were taken.
const TOLD: u64 = 1 << 0;

/// The proof that vectors were taken, before which no signals are: a vector that is in both sets
/// becomes level-triggered.
#[derive(Debug)]
#[must_use = "there are signals"]
pub struct Drained(());

impl Inbox {
    /// The part that a processor may take by itself.
    pub const fn posted(&self) -> &Posted {
        &self.posted
    }

    /// A, a and B: posts an edge-triggered vector that a processor may take by itself, and tells
    /// it: [`Notify::Kick`] is for the interrupt E. `None` if another poster tells it.
    pub fn post_to_processor(&self, vector: u8, target: &Target) -> Option<Notify> {
        let _told_by_a = self.post_fixed(vector, Trigger::Edge);
        // Pairs with `expect_telling`, and with what the processor does.
        let is_told = self.posted.told.fetch_or(TOLD, Ordering::AcqRel) & TOLD != 0;
        (!is_told).then(|| target.post_to_processor())
    }

    /// Whether a processor may take an edge-triggered interrupt by this vector: not an illegal one,
    /// which is for the model, and none that changes the vector's trigger mode.
    pub fn is_for_processor(&self, vector: u8) -> bool {
        // No order: see the field.
        let levels = self.posted.levels.load(Ordering::Relaxed);
        vector >= 16 && levels >> (vector >> 4) & 1 == 0
    }

    /// Posts an edge-triggered vector that the owner alone takes.
    pub fn post_to_owner(&self, vector: u8) -> Published {
        // Both pair with `take_signals`: whoever finds the signal finds the vector.
        self.edge[usize::from(vector >> 6)].fetch_or(1 << (vector & 63), Ordering::Release);
        self.posted.signals.fetch_or(EDGE, Ordering::Release);
        Published::here()
    }

    /// Has senders know which vectors of `lapic` are level-triggered. The owner calls it when there
    /// may be more, and when there are less it may.
    #[cold]
    pub fn set_levels(&self, lapic: &Lapic) {
        let levels = lapic.levels().iter().fold(0, |classes, vector| classes | 1 << (vector >> 4));
        // No order: see the field.
        self.posted.levels.store(levels, Ordering::Relaxed);
    }

    /// c: what is posted from here on is told anew. The owner takes the vectors after this.
    fn expect_telling(&self) {
        // The load avoids the locked instruction. The swap pairs with `post_to_processor`.
        if self.posted.told.load(Ordering::Relaxed) != 0 {
            self.posted.told.swap(0, Ordering::AcqRel);
        }
    }

    /// How its local APIC interprets logical destinations.
    pub fn logical(&self) -> Logical {
        // No order: see the field.
        Logical::from_bits(self.posted.logical.load(Ordering::Relaxed))
    }

    /// Makes messages find `lapic` here. The owner calls it whenever the address may have changed.
    /// Returns whether it has.
    pub fn set_address(&self, lapic: &Lapic) -> bool {
        let address = lapic.address().logical.to_bits();
        // No order: see the field. The owner alone writes it.
        let before = self.posted.logical.load(Ordering::Relaxed);
        self.posted.logical.store(address, Ordering::Relaxed);
        before != address
    }

    /// Posts a message.
    pub fn post(&self, kind: MessageKind, trigger: Trigger) -> Published {
        match kind {
            MessageKind::Fixed(vector) | MessageKind::Lowest(vector) => self.post_fixed(vector, trigger),
            MessageKind::Nmi => self.post_nmi(),
            MessageKind::Init => self.post_init(),
            MessageKind::Startup(page) => self.post_startup(page),
        }
    }

    /// Posts a vector.
    pub fn post_fixed(&self, vector: u8, trigger: Trigger) -> Published {
        let (word, bit) = (usize::from(vector >> 6), 1 << (vector & 63));
        match trigger {
            // Pairs with `take_word`.
            Trigger::Edge => _ = self.posted.edge[word].fetch_or(bit, Ordering::Release),
            Trigger::Level => {
                // Both pair with `take_signals`: whoever finds the signal finds the vector.
                self.level[word].fetch_or(bit, Ordering::Release);
                self.posted.signals.fetch_or(LEVEL, Ordering::Release);
            }
        }
        Published::here()
    }

    /// Posts an NMI.
    pub fn post_nmi(&self) -> Published {
        // Pairs with `take_signals`, as does the next one.
        if self.posted.signals.fetch_or(NMI, Ordering::Release) & NMI != 0 {
            // If the first has been taken meanwhile, this one stands alone.
            self.posted.signals.fetch_or(SECOND_NMI, Ordering::Release);
        }
        Published::here()
    }

    /// Posts INIT. It cancels an NMI and a start-up that were posted before.
    pub fn post_init(&self) -> Published {
        // Pairs with `take_signals`, which discards the vectors that were posted before this.
        self.posted.signals.swap(INIT, Ordering::Release);
        Published::here()
    }

    /// Posts start-up at `page << 12`. The first of several counts.
    pub fn post_startup(&self, page: u8) -> Published {
        let startup = STARTUP | u32::from(page) << PAGE_SHIFT;
        // Fails if there is one already. Bounded: it retries only when another poster succeeded.
        _ = update(&self.posted.signals, |signals| (signals & STARTUP == 0).then_some(signals | startup));
        Published::here()
    }

    /// Whether there is anything for [`take_signals`](Self::take_signals). Because the notify word
    /// was taken before, the load sees everything that was announced; the same holds for the
    /// vectors.
    #[inline]
    fn has_signals(&self) -> bool {
        // Relaxed: the notify word orders it, `Owner::take_events` before this.
        self.posted.signals.load(Ordering::Relaxed) != 0
    }

    /// Takes the posted items other than vectors, and vectors that are the owner's. INIT
    /// [resets](Self::init) `lapic`, unless it is held: then the owner does that when it acts.
    pub fn take_signals(&self, lapic: &mut Lapic, _: Drained, holds_init: bool) -> Signals {
        // Pairs with `post_init`, `post_nmi`, `post_startup` and `post_to_owner`.
        let signals = self.posted.signals.swap(0, Ordering::Acquire);
        if signals & (INIT | EDGE | LEVEL) != 0 {
            self.init_or_take_vectors(signals & INIT != 0 && !holds_init, lapic);
        }
        Signals {
            init: signals & INIT != 0,
            startup: (signals & STARTUP != 0).then_some((signals >> PAGE_SHIFT) as u8),
            nmis: u8::from(signals & NMI != 0) + u8::from(signals & SECOND_NMI != 0),
        }
    }

    /// INIT acts: discards the vectors that were posted, and resets `lapic`.
    pub fn init(&self, lapic: &mut Lapic) {
        // INIT leaves the local APIC software-disabled, so it would drop the vectors anyway.
        self.expect_telling();
        let all = self.posted.edge.iter().chain(&self.level).chain(&self.edge);
        all.for_each(|word| _ = take_word(word));
        lapic.init();
        self.set_address(lapic);
        self.set_levels(lapic);
    }

    #[cold]
    fn init_or_take_vectors(&self, is_init: bool, lapic: &mut Lapic) {
        if is_init {
            self.init(lapic);
        }
        for word in 0..4 {
            lapic.accept_word(word, take_word(&self.edge[word]), 0);
            let level = take_word(&self.level[word]);
            if level != 0 {
                let edge = take_word(&self.posted.edge[word]);
                lapic.accept_word(word, edge | level, level);
            }
        }
        self.set_levels(lapic);
    }

    /// c and D: moves the posted vectors into `lapic` that have no signal. The owner calls it after
    /// it has taken the notify word, and says whether a processor may take vectors by itself. If
    /// there are signals they are to be taken next.
    #[inline(always)] // Part of each check; most find one vector, or none.
    pub fn take_vectors(&self, lapic: &mut Lapic, may_be_told: bool) -> Option<Drained> {
        if may_be_told {
            self.expect_telling();
        }
        self.drain_vectors(lapic);
        self.has_signals().then_some(Drained(()))
    }

    /// c and D, and the signals.
    pub fn take(&self, lapic: &mut Lapic) -> Signals {
        let drained = self.take_vectors(lapic, true);
        drained.map(|drained| self.take_signals(lapic, drained, false)).unwrap_or_default()
    }

    #[inline(always)] // As above.
    fn drain_vectors(&self, lapic: &mut Lapic) {
        for word in 0..4 {
            let edge = take_word(&self.posted.edge[word]);
            if edge != 0 {
                lapic.accept_word(word, edge, 0);
            }
        }
    }

    /// The vectors that are waiting here, for a register dump.
    pub fn pending(&self) -> VectorSet {
        VectorSet::from_words(core::array::from_fn(|word| {
            let sets = [&self.posted.edge, &self.level, &self.edge];
            sets.into_iter().fold(0, |all, set| all | set[word].load(Ordering::Relaxed))
        }))
    }
}

#[inline]
fn take_word(word: &AtomicU64) -> u64 {
    // The load avoids the locked instruction; the notify word or the signal orders it. The swap
    // pairs with `post_fixed` and `post_to_owner`.
    if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) }
}

#[cfg(test)]
fn lapic() -> Lapic {
    use crate::devices::pc::lapic::{TimerClock, msr};

    let mut lapic =
        Lapic::new(crate::devices::pc::apic_ids::ApicId(0), true, TimerClock { tsc_hz: 1, apic_hz: 1 });
    let _ = lapic.write_msr(msr::APIC_BASE, 0xfee0_0d00, 0).unwrap();
    let _ = lapic.write_msr(msr::SVR, 0x1ff, 0).unwrap();
    lapic
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests;
