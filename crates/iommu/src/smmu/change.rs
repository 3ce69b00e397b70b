//! Changing an entry that the SMMU may be reading (IHI 0070, 3.21.3).
//!
//! The SMMU reads an entry word by word, in any order, at any time, and keeps what it has read. A
//! word of 64 bits is read whole. A sync ends the reads that began before the CFGI. So a mixture of
//! words from before and after a step must be invalid:
//!
//! ```text
//! make invalid   word 0 := 0           CFGI, SYNC: nobody who read the old word 0 reads on
//! fill           words 1 to 7 := new   CFGI, SYNC: nobody who read an old word reads on
//! make valid     word 0 := new         CFGI, SYNC: the new entry is in use
//! ```
//!
//! While the entry is invalid, accesses of the device are aborted, with an event C_BAD_STE or
//! C_BAD_CD. If only one word differs, it is replaced in one step, and no access is aborted.
//!
//! What the SMMU keeps of *translations* is another matter. If the ASID stays while the tables
//! change, invalidate all of it ([`tlbi_nh_asid`](super::command::tlbi_nh_asid)) while the entry is
//! invalid, so that former and new translations do not overlap; after the step if there is only
//! one.

/// The words of an entry.
pub type Words = [u64; 8];

/// One step of a change: write the words, then put in CFGI_STE or CFGI_CD with a sync, and wait,
/// before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "without its steps an entry stays as it is"]
pub struct Step {
    entry: Words,
    first: usize,
    count: usize,
}

impl Step {
    /// The indexes and values to write, each with one access of 64 bits, little-endian. Order does
    /// not matter. A barrier for writes to memory that the SMMU reads comes before the commands
    /// (see [`Port::set_tail`](crate::Port::set_tail)).
    pub fn writes(&self) -> impl Iterator<Item = (usize, u64)> {
        self.entry.into_iter().enumerate().skip(self.first).take(self.count)
    }
}

/// The steps from `old` to `new`, where `valid` is the bit of word 0 that makes an entry valid.
/// Nothing if they are the same.
pub(super) fn steps(old: Words, new: Words, valid: u64) -> impl Iterator<Item = Step> + Clone {
    let [old_head, old_rest @ ..] = old;
    let [new_head, new_rest @ ..] = new;
    let step = |first, count| Step { entry: new, first, count };
    let mut differing = (0..old.len()).filter(|&index| old.get(index) != new.get(index));
    let steps = match (differing.next(), differing.next()) {
        (None, _) => [None; 3],
        (Some(only), None) => [Some(step(only, 1)), None, None],
        _ => {
            let is_valid = old_head & valid != 0;
            let invalid = Step { entry: [0; 8], first: 0, count: 1 };
            let head = if is_valid { 0 } else { old_head };
            [
                is_valid.then_some(invalid),
                (old_rest != new_rest).then(|| step(1, new_rest.len())),
                (head != new_head).then(|| step(0, 1)),
            ]
        }
    };
    steps.into_iter().flatten()
}
