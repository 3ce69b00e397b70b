//! Pages that the hypervisor puts into the guest's address space: hypercall page and reference TSC
//! page.
//!
//! The TLFS lays them over the guest's memory. Here they are written into the guest's own page,
//! whose former contents are restored when the overlay is removed: the guest provides a page that
//! it uses for nothing else, and no nested mapping has to change. The difference is visible only to
//! a guest that writes to the page, and harms only that guest.

use alloc::vec;
use alloc::vec::Vec;
use memslots::{Gpa, GuestMemory};
use migration::{Archive, Described, Flaw, described};
use tlfs::msr;
use zerocopy::IntoBytes;

use crate::x86::hyperv::PageMove;
use crate::x86::hyperv::time::ReferenceClock;

const PAGE: usize = 4096;

/// The guest's own contents of an overlaid page.
#[derive(Debug, Default)]
struct Saved(Option<Vec<u8>>);

/// Both pages of the one partition.
#[derive(Debug, Default)]
pub struct Overlays {
    hypercall: Saved,
    tsc: Saved,
}

impl Described for Saved {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let mut is_some = self.0.is_some();
        is_some.describe(archive)?;
        let page = self.0.take().filter(|_| is_some);
        self.0 = is_some.then(|| page.unwrap_or_else(|| vec![0; PAGE]));
        self.0.as_mut().map_or(Ok(()), |page| archive.bytes(page))
    }
}

// What is in the guest's pages is memory, and comes with it.
described!(Overlays: hypercall, tsc);

impl Overlays {
    /// Whether writes to this register may move a page.
    pub fn is_moved_by(number: u32) -> bool {
        matches!(number, msr::GUEST_OS_ID | msr::HYPERCALL | msr::REFERENCE_TSC)
    }

    /// Moves the hypercall page: the `call`, and RET. The rest of the page does not matter.
    pub fn move_hypercall_page(&mut self, memory: &GuestMemory<'_>, page: PageMove, call: [u8; 3]) {
        let [a, b, c] = call;
        self.hypercall.relocate(memory, page, &[a, b, c, 0xc3]);
    }

    /// Moves the reference TSC page.
    pub fn move_tsc_page(&mut self, memory: &GuestMemory<'_>, page: PageMove, clock: &ReferenceClock) {
        self.tsc.relocate(memory, page, clock.page().as_bytes());
    }
}

impl Saved {
    fn relocate(&mut self, memory: &GuestMemory<'_>, page: PageMove, contents: &[u8]) {
        if let (Some(from), Some(old)) = (page.from, self.0.take()) {
            // If the memory has been removed there is nothing to restore.
            let _ = memory.write(Gpa(from), &old);
        }
        let Some(to) = page.to.map(Gpa) else { return };
        let mut old = vec![0; PAGE];
        // A page without memory behind it is legal: it is simply not visible.
        if memory.read(to, &mut old).is_ok() {
            let mut new = vec![0; PAGE];
            new[..contents.len()].copy_from_slice(contents);
            if memory.write(to, &new).is_ok() {
                self.0 = Some(old);
            }
        }
    }
}
