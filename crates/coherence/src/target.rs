//! A virtual CPU as seen by others: a target to be flushed, kicked or woken.

use crate::mailbox::{Generation, Mailbox, Posted, Scope, Widened};
use crate::owner::Owner;
use crate::sync::{AtomicU64, Ordering, const_fn, update};
use crate::{CpuId, word};

/// One virtual CPU's side of the protocol. Shared by reference, for as long as it may be named. The
/// vCPU itself may be [removed](Owner::remove) and [added](Target::add) meanwhile.
///
/// # Ordering
///
/// ```text
/// initiator                                  target's CPU
/// A  change the page tables                  K  leave guest mode: clear IN_GUEST
/// B  mailbox: add request, generation g      L  clear FLUSH
/// C  word: set FLUSH, learn IN_GUEST         M  mailbox: sample generation, take the work
/// D  if in guest mode: claim KICKED, kick    N  record the work in the vCPU
/// E  wait: not in guest mode, or             O  completed = sampled generation
///          completed >= g                    P  enter: IN_GUEST set if no request is
/// F  free unmapped memory                    Q  VMRUN flushes what was recorded, guest runs
///
/// C before P   P finds FLUSH and fails: the target flushes on its own (L–Q), F needs no wait
/// P before C   C finds IN_GUEST: E waits for K or O
/// A before C, L before M   a target that took FLUSH walks the changed tables
/// K before E   the guest's accesses through old translations are visible at F (G2)
/// O before P   a target found in guest mode again has completed >= g: no initiator waits twice
/// M before O   only the sampled generation is published (O8)
/// ```
/// A request for everything to a target that is out of guest mode is C alone, with ALL beside
/// FLUSH: the initiator need not wait, so the request needs no generation, and L takes ALL along
/// with FLUSH.
///
/// NESTED beside ALL says that nested tables were changed, so that what a processor keeps of them
/// alone has to go as well. It is in this word only, set in the first step even where B and C
/// follow, and L takes it along with FLUSH. So it needs no place in the mailbox: whatever takes the
/// generation of B comes after the first step, and has taken NESTED then or before.
///
/// C and P change the same word by read-modify-write, so one of them happens first and the other
/// sees it: there is no store-then-load on either side and no fence to forget (O3, O5). The last
/// step is outside the language: Q is one VMRUN instruction, which applies `TLB_CONTROL` before the
/// first guest access (with VMX, INVVPID and INVEPT do that between N and P); the locked
/// instruction of K drains the store buffer.
///
/// Interrupts must be held off (by GIF, with VMX by IF) from before P to the entry. A kick that
/// arrives in between stays pending and ends guest mode at once; taken earlier, it would be lost.
#[repr(align(64))]
pub struct Target {
    /// See [`word`]. `AcqRel` on every change: each pairs with every other.
    pub(crate) word: AtomicU64,
    /// The pending requests.
    pub(crate) mailbox: Mailbox,
    /// Newest generation whose work has been recorded. Written by the owner (O, `Release`), read
    /// by waiting initiators (E, `Acquire`).
    pub(crate) completed: AtomicU64,
    /// A [`Space`]; valid only while the word has HALTED. The owner writes it before setting HALTED
    /// (`Release`); initiators read it after they have seen HALTED (`Acquire`).
    pub(crate) space: AtomicU64,
}

/// The address space of a vCPU that halts, in the numbering that initiators use
/// ([`issue_in_space`](crate::issue_in_space)).
///
/// [`Space::only`] is a promise: except for global ones, no translation of another address space is
/// cached for the vCPU, and none will be used before the guest has switched address spaces, which
/// drops those of the old one. On AMD64 this holds without PCIDs, with CR3 as the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space(pub(crate) u64);

impl Space {
    /// Translations of any address space may be cached.
    pub const UNKNOWN: Self = Self(u64::MAX);

    /// Only translations of this address space are cached. `u64::MAX` is the same as
    /// [`Space::UNKNOWN`].
    pub const fn only(space: u64) -> Self {
        Self(space)
    }
}

/// The action that the poster of an event must take now.
///
/// Exhaustive: a caller that overlooks one lets a target sleep through its event.
#[must_use = "the target may sleep through the event"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Nothing: the target looks at its events before it next enters, or was already notified.
    None,
    /// Interrupt this physical CPU: the target is in guest mode there.
    Kick(CpuId),
    /// Put the vCPU on a run queue: it was halted, and this caller is the only one to wake it.
    Wake,
}

/// The result of a request to one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requested {
    /// The target is done once it has completed this.
    pub(crate) generation: Generation,
    /// An old translation may be in use: the initiator has to wait.
    pub(crate) busy: bool,
    /// The vCPU is absent: one that is added flushes before it runs.
    pub(crate) absent: bool,
    /// An earlier request has not been taken yet: one flush will serve both.
    pub(crate) joined: bool,
    /// More will be flushed than the initiator requested.
    pub(crate) widened: Option<Widened>,
}

/// The party that interrupts a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The caller, at once.
    Kick(CpuId),
    /// An initiator that claimed it earlier; its kick serves this request too.
    InFlight,
    /// None: the target has left guest mode, or was never in it.
    Unneeded,
}

impl Target {
    const_fn! {
        /// A target that is out of guest mode, with nothing pending and no owner.
        pub fn new() -> Self {
            Self::with_word(0)
        }
    }

    const_fn! {
        pub(crate) fn with_word(word: u64) -> Self {
            Self {
                word: AtomicU64::new(word),
                mailbox: Mailbox::new(),
                completed: AtomicU64::new(0),
                space: AtomicU64::new(Space::UNKNOWN.0),
            }
        }
    }

    /// The right to run the vCPU; `None` while another CPU has it.
    ///
    /// Kept for the vCPU's life in whatever object moves from CPU to CPU with it, or claimed for
    /// each time slice. Pairs with the drop of the previous owner. An [absent](Self::is_absent)
    /// vCPU has none.
    ///
    /// # Panics
    /// If the previous owner left it in guest mode or in a section.
    pub fn owner(&self) -> Option<Owner<'_>> {
        let old = self.word.fetch_or(word::OWNED, Ordering::AcqRel);
        (old & word::OWNED == 0).then(|| {
            // Only the owner sets it, so any load after the claim will do.
            let is_busy = self.word.load(Ordering::Relaxed) & word::BUSY != 0;
            assert!(!is_busy, "a vCPU is handed over that has not left the guest");
            Owner { target: self }
        })
    }

    /// Notifies the target that it must look at something before it next runs guest code: a posted
    /// interrupt, or the end of its time slice. Publish that first.
    ///
    /// KICKED is set along with EVENT even out of guest mode, where it has no meaning: entry clears
    /// it. Pairs with [`Owner::take_events`], [`Owner::try_enter`] and [`Owner::try_halt`].
    pub fn post_event(&self) -> Notify {
        self.post(word::EVENT | word::KICKED)
    }

    /// The same for what a processor takes in guest mode by itself, when an interrupt tells it to:
    /// [`Notify::Kick`] demands that interrupt. Where it comes too late the target checks before it
    /// next runs guest code, as after every event. A later event that needs an exit still kicks.
    /// Pairs as [`post_event`](Self::post_event).
    pub fn post_to_processor(&self) -> Notify {
        self.post(word::EVENT)
    }

    #[inline]
    fn post(&self, bits: u64) -> Notify {
        // Pairs with what the callers' docs name.
        let old = self.word.fetch_or(bits, Ordering::AcqRel);
        if old & (word::IN_GUEST | word::KICKED) == word::IN_GUEST {
            Notify::Kick(word::cpu(old))
        } else if old & (word::HALTED | word::EVENT | word::ABSENT) == word::HALTED {
            Notify::Wake
        } else {
            Notify::None
        }
    }

    /// Whether guest code may be running at this moment. For statistics and scheduling hints.
    pub fn is_in_guest(&self) -> bool {
        self.word.load(Ordering::Relaxed) & word::IN_GUEST != 0
    }

    /// Whether an event is pending. A hint for a caller that chooses the next target to run: it
    /// implies nothing about data published along with the event.
    #[must_use]
    pub fn has_event(&self) -> bool {
        self.word.load(Ordering::Relaxed) & word::EVENT != 0
    }

    /// B and C. A halted target is not woken: it flushes when it next enters. An absent target is
    /// treated like any other, see [`presence`](crate::presence).
    pub(crate) fn request(&self, scope: Scope<'_>) -> Requested {
        let Posted { generation, widened } = self.mailbox.post(scope);
        // Pairs with `Owner::take_flush`, `Owner::try_enter`, and the drop of `InGuest`.
        let old = self.word.fetch_or(word::FLUSH, Ordering::AcqRel);
        Requested {
            generation,
            busy: old & word::BUSY != 0,
            absent: old & word::ABSENT != 0,
            joined: old & word::FLUSH != 0,
            widened,
        }
    }

    /// B and C in one step, for a request for everything ([`word::FLUSH_GUEST`] or
    /// [`word::FLUSH_NESTED`]): true if the vCPU is present and out of guest mode, so that no
    /// initiator has to wait for it and the request needs no generation. If false, call
    /// [`request`](Self::request) as well.
    ///
    /// The load of BUSY comes after the request on the same word. If it shows a target that is not
    /// busy, then the guest's earlier accesses are visible, and its next stay begins with the
    /// flush.
    #[inline(always)] // With a constant.
    pub(crate) fn request_all_if_idle(&self, flush: u64) -> bool {
        // Pairs with `Owner::take_flush` and `Owner::try_enter`.
        self.word.fetch_or(flush, Ordering::AcqRel);
        // Pairs with the drops of `InGuest` and `Translation`.
        self.word.load(Ordering::Acquire) & (word::BUSY | word::ABSENT) == 0
    }

    /// Whether the vCPU has halted in another address space, so that a change of this one's tables
    /// affects none of its translations except global ones.
    ///
    /// The word is read by a read-modify-write, in the place of C: a vCPU that enters later walks
    /// the changed tables. `space` may belong to a later halt than the one seen here; then the
    /// guest has run in between, and has left this address space again.
    pub(crate) fn has_halted_elsewhere(&self, space: u64) -> bool {
        // Pairs with `Owner::try_halt` and `Owner::try_enter`.
        let old = self.word.fetch_or(0, Ordering::AcqRel);
        if old & (word::HALTED | word::BUSY | word::ABSENT) != word::HALTED {
            return false;
        }
        // Pairs with `Owner::try_halt`.
        let halted_in = Space(self.space.load(Ordering::Acquire));
        halted_in != Space::UNKNOWN && halted_in != Space(space)
    }

    /// D. The caller that gets [`Claim::Kick`] must kick: others rely on it from now on.
    ///
    /// If FLUSH is clear, the request has been taken since, so the target has left guest mode.
    pub(crate) fn claim_kick(&self) -> Claim {
        let due = word::IN_GUEST | word::FLUSH;
        let claim = |word: u64| (word & (due | word::KICKED) == due).then_some(word | word::KICKED);
        match update(&self.word, claim) {
            Ok(old) => Claim::Kick(word::cpu(old)),
            Err(word) if word & due == due => Claim::InFlight,
            Err(_) => Claim::Unneeded,
        }
    }

    /// E. The word is read first: if it shows a later stay in guest mode, `completed` covers the
    /// work that was recorded before that stay (O before P).
    pub(crate) fn is_quiet(&self, generation: Generation) -> bool {
        // The word pairs with the drops of `InGuest` and `Translation`, `completed` pairs with
        // `FlushWork::complete`.
        self.word.load(Ordering::Acquire) & word::BUSY == 0
            || self.completed.load(Ordering::Acquire) >= generation.0
    }

    /// The CPU that the target entered last.
    pub(crate) fn cpu(&self) -> CpuId {
        word::cpu(self.word.load(Ordering::Relaxed))
    }
}

impl Default for Target {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Target {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (word, completed) = (self.word.load(Ordering::Relaxed), self.completed.load(Ordering::Relaxed));
        write!(f, "Target {{ word: {word:#x}, completed: {completed} }}")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{CpuId, GvaRange, Scope, Space, Target, word};

    #[test]
    fn a_request_for_everything_in_one_step_is_taken_as_everything() {
        let target = Target::new();
        let mut owner = target.owner().expect("free");
        assert!(target.request_all_if_idle(word::FLUSH_GUEST), "nobody is in guest mode");
        let work = owner.take_flush().expect("it pends");
        assert!(matches!(work.scope(), Scope::All));
        work.complete();
        assert!(owner.take_flush().is_none(), "taken with its announcement");
        // The next request is of ranges, and stays one.
        let range = GvaRange { first: 0x1000, pages: 1 };
        assert!(!target.request(Scope::Ranges(&[range])).busy);
        let work = owner.take_flush().expect("it pends");
        assert!(matches!(work.scope(), Scope::Ranges([taken]) if *taken == range));
        work.complete();
        // Both requests together flush everything.
        let _posted = target.request(Scope::Ranges(&[range]));
        assert!(target.request_all_if_idle(word::FLUSH_GUEST));
        let work = owner.take_flush().expect("it pends");
        assert!(matches!(work.scope(), Scope::All) && !work.is_nested());
        work.complete();
    }

    #[test]
    fn nested_translations_are_asked_for_apart_and_taken_once() {
        let target = Target::new();
        let mut owner = target.owner().expect("free");
        for (flushes, is_nested) in [
            (&[word::FLUSH_GUEST][..], false),
            (&[word::FLUSH_NESTED], true),
            (&[word::FLUSH_GUEST, word::FLUSH_NESTED], true),
            (&[word::FLUSH_NESTED, word::FLUSH_GUEST], true),
            (&[word::FLUSH_GUEST], false),
        ] {
            flushes.iter().for_each(|&flush| assert!(target.request_all_if_idle(flush)));
            let work = owner.take_flush().expect("it pends");
            assert!(matches!(work.scope(), Scope::All));
            assert_eq!(work.is_nested(), is_nested, "{flushes:x?}");
            work.complete();
        }
        // Of a range: nothing of nested tables.
        let _posted = target.request(Scope::Ranges(&[GvaRange { first: 0x1000, pages: 1 }]));
        assert!(!owner.take_flush().expect("it pends").is_nested());
        // It was dropped without completion.
        assert!(owner.take_flush().expect("it pends again").is_nested());
    }

    #[test]
    fn a22_only_who_has_halted_in_a_known_other_space_is_spared() {
        let target = Target::new();
        let mut owner = target.owner().expect("free");
        assert!(!target.has_halted_elsewhere(7), "it has not halted");
        assert!(owner.try_halt(Space::UNKNOWN));
        assert!(!target.has_halted_elsewhere(7), "it may be anywhere");
        assert!(owner.try_halt(Space::only(7)));
        assert!(!target.has_halted_elsewhere(7), "here");
        assert!(target.has_halted_elsewhere(8));
        let guest = owner.try_enter(CpuId(0)).expect("nothing pends");
        assert!(!target.has_halted_elsewhere(8), "it runs");
        guest.leave();
        assert!(!target.has_halted_elsewhere(8), "it has run since");
    }

    /// The files that hold the protocol.
    const SOURCES: [(&str, &str); 6] = [
        ("broadcast.rs", include_str!("broadcast/mod.rs")),
        ("flush.rs", include_str!("flush/mod.rs")),
        ("mailbox.rs", include_str!("mailbox.rs")),
        ("owner.rs", include_str!("owner.rs")),
        ("presence.rs", include_str!("presence.rs")),
        ("target.rs", include_str!("target.rs")),
    ];

    #[test]
    fn o5_words_that_both_sides_change_are_never_stored_to() {
        for (name, source) in SOURCES {
            let code = source.split("mod tests").next().unwrap_or(source);
            for (number, line) in code.lines().enumerate() {
                let dense: std::string::String = line.split_whitespace().collect();
                for word in ["word", "header"] {
                    for access in [".store(", ".get_mut(", ".as_ptr("] {
                        let pattern = std::format!("{word}{access}");
                        assert!(!dense.contains(&pattern), "{name}:{}: {line}", number + 1);
                    }
                }
            }
            assert!(name == "flush.rs" || code.contains("fetch_") || code.contains("update("), "{name}");
        }
    }
}
