//! A walk of the guest's tables that leaves what a processor's walk leaves: accessed and dirty
//! bits.

use arrayvec::ArrayVec;
use paging::Gpa;
use paging::guest::{Access, GuestPaging, PageFault, Translation, WalkError};

use crate::GuestMemory;

/// Most entries that a walk reads.
const ENTRIES_MAX: usize = 4;

/// Why a walk has no result.
///
/// Exhaustive: each variant needs its own answer to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwalked<E> {
    /// The guest gets #PF, or a hypervisor in it a nested page fault, with this error code.
    Fault(PageFault),
    /// The linear address is not canonical.
    NonCanonical,
    /// A table is not in memory, or in memory that the guest may not write.
    NoMemory,
    /// The guest changed its tables meanwhile: it executes the instruction again.
    Raced,
    /// The address of an entry could not be translated.
    Entry(E),
}

impl GuestMemory<'_> {
    /// Translates a linear address for an access by the guest. Accessed and dirty bits are set as
    /// the processor sets them, before this returns: its own walk need not have got that far.
    ///
    /// `locate` translates the address of each entry: to itself, unless the tables are those of a
    /// guest's guest.
    ///
    /// Call it in a section that flushes wait for.
    ///
    /// # Errors
    ///
    /// See [`Unwalked`].
    pub fn walk<E>(
        &self,
        paging: &GuestPaging,
        linear: u64,
        access: Access,
        mut locate: impl FnMut(Gpa) -> Result<Gpa, E>,
    ) -> Result<Translation, Unwalked<E>> {
        let mut entries = ArrayVec::<(Gpa, u64), ENTRIES_MAX>::new();
        let walked = paging.translate(linear, access, |gpa| {
            let gpa = locate(gpa).map_err(Unwalked::Entry)?;
            let entry = self.read_u64(gpa).map_err(|_| Unwalked::NoMemory)?;
            // There are no more levels.
            let _ = entries.try_push((gpa, entry));
            Ok(entry)
        });
        let mut found = walked.map_err(|error| match error {
            WalkError::PageFault(code) => Unwalked::Fault(code),
            WalkError::NonCanonical => Unwalked::NonCanonical,
            WalkError::Read { error, .. } => error,
        })?;
        let count = entries.len() as u32;
        for (&(at, entry), index) in entries.iter().zip(0..) {
            let used = entry | paging.used_bits(linear, access, index, count);
            if used != entry {
                let before = self.compare_exchange(at, entry, used).map_err(|_| Unwalked::NoMemory)?;
                if before != entry {
                    return Err(Unwalked::Raced);
                }
            }
        }
        found.is_dirty |= access.contains(Access::WRITE);
        Ok(found)
    }
}
