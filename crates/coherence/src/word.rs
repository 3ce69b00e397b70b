//! Layout of the one word per target that both sides change by read-modify-write.
//!
//! | bits | name | set by | cleared by |
//! |---|---|---|---|
//! | 0 | `IN_GUEST` | owner: entry | owner: exit |
//! | 1 | `HALTED` | owner: halt | owner: takes the event, or enters |
//! | 2 | `TRANSLATING` | owner: section begins | owner: section ends |
//! | 3 | `KICKED` | poster: claims the interrupt | owner: entry |
//! | 4 | `OWNED` | owner: claim | owner: drop |
//! | 5 | `ABSENT` | owner: removal | addition |
//! | 8 | `FLUSH` | initiator: issue; addition; owner: drops a flush that it took | owner: takes the flush |
//! | 9 | `EVENT` | poster | owner: takes the event |
//! | 10 | `ALL` | together with `FLUSH` | owner: takes the flush |
//! | 11 | `NESTED` | together with `ALL` | owner: takes the flush |
//! | 16–31 | section | owner: section begins: counts, and wraps | – |
//! | 32–63 | CPU | owner: entry | – (meaningful while `IN_GUEST`) |

use crate::CpuId;

/// Guest instructions may be executing, with whatever translations the CPU holds.
pub(crate) const IN_GUEST: u64 = 1 << 0;
/// Blocked until an event is posted.
pub(crate) const HALTED: u64 = 1 << 1;
/// Software is using a translation on the guest's behalf.
pub(crate) const TRANSLATING: u64 = 1 << 2;
/// A CPU has claimed, and therefore sends, the interrupt that ends this stay in guest mode.
pub(crate) const KICKED: u64 = 1 << 3;
/// An `Owner` exists.
pub(crate) const OWNED: u64 = 1 << 4;
/// There is no vCPU. `OWNED` stays set, so that only the caller that adds one gets an `Owner`.
pub(crate) const ABSENT: u64 = 1 << 5;
/// The mailbox holds a request that the owner has not taken.
pub(crate) const FLUSH: u64 = 1 << 8;
/// Something else must be looked at before the guest runs.
pub(crate) const EVENT: u64 = 1 << 9;
/// `FLUSH` stands for everything, whatever the mailbox holds.
pub(crate) const ALL: u64 = 1 << 10;
/// `FLUSH` stands for the translations by the nested tables, too.
pub(crate) const NESTED: u64 = 1 << 11;

/// A request for all translations by the guest's tables.
pub(crate) const FLUSH_GUEST: u64 = FLUSH | ALL;
/// A request for all translations, by whichever tables.
pub(crate) const FLUSH_NESTED: u64 = FLUSH_GUEST | NESTED;

/// The requests that keep the target from entering the guest.
pub(crate) const REQUESTS: u64 = FLUSH | EVENT;
/// While any of these is set, an old translation may be in use.
pub(crate) const BUSY: u64 = IN_GUEST | TRANSLATING;

const SECTION_SHIFT: u32 = 16;
const SECTION: u64 = 0xffff << SECTION_SHIFT;
const CPU_SHIFT: u32 = 32;
const CPU: u64 = !0 << CPU_SHIFT;

const _: () = {
    const FLAGS: u64 = REQUESTS | BUSY | HALTED | KICKED | OWNED | ABSENT | FLUSH_NESTED;
    assert!(CPU & FLAGS == 0 && SECTION & FLAGS == 0 && CPU & SECTION == 0);
};

/// The CPU on which the target is in guest mode.
pub(crate) const fn cpu(word: u64) -> CpuId {
    CpuId((word >> CPU_SHIFT) as u32)
}

/// `word` as it is after entering the guest on `cpu`.
pub(crate) const fn entered(word: u64, cpu: CpuId) -> u64 {
    word & !(CPU | HALTED | KICKED) | IN_GUEST | (cpu.0 as u64) << CPU_SHIFT
}

/// `word` as it is after another section has begun.
pub(crate) const fn translating(word: u64) -> u64 {
    let next = word.wrapping_add(1 << SECTION_SHIFT) & SECTION;
    word & !SECTION | next | TRANSLATING
}

/// The number of sections that have begun, modulo 65,536.
pub(crate) const fn section(word: u64) -> u64 {
    (word & SECTION) >> SECTION_SHIFT
}
