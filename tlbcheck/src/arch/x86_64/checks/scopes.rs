//! The pages, global or not, and spaces other than the target's, that the flags and the address
//! space of a flush exclude, and those that they must not exclude.
//!
//! TLFS, "HvCallFlushVirtualAddressSpace": without HV_FLUSH_NON_GLOBAL_MAPPINGS_ONLY global pages
//! are flushed too, and without HV_FLUSH_ALL_VIRTUAL_ADDRESS_SPACES only the named address space.
//! Flushing more is allowed.

use super::prelude::*;

const ROUNDS: u32 = 5;

/// A call's flags and the space that it names.
type Cell = (FlushFlags, u64);

const NO_FLAGS: FlushFlags = FlushFlags::new();
const ALL_SPACES: FlushFlags = FlushFlags::new().with_all_address_spaces(true);
const NON_GLOBAL: FlushFlags = FlushFlags::new().with_non_global_only(true);

/// Each call with each of the cells must drop the page on a processor in space `used_in`.
fn all_take(is_global: bool, used_in: u64, cells: &[Cell]) -> Verdict {
    machine::flushes()?;
    let processor = machine::second()?;
    let vp = machine::vp(processor);
    let (set, elements) = (sparse_of(vp), [Element::Plain.word(WINDOW, 0)]);
    let make = |kind: Kind, (flags, space): Cell| {
        hypercall::flush(&Flush { space, flags, ..plain(kind, only(kind, vp, &set), &elements) })
    };
    let what = What { space: used_in, global: is_global, ..What::page(processor, WINDOW) };
    watch::during(what, |watch| {
        watch.notices(|| make(Kind::Space, (ALL_SPACES, 0)))?;
        for kind in kinds() {
            for (flags, space) in cells {
                for _ in rounds(ROUNDS) {
                    let stale = watch.round(|| make(kind, (*flags, *space)))?;
                    ensure!(stale == 0, "{kind:?} of space {space:#x} with flags {:#x}", flags.into_bits());
                }
            }
        }
        Ok(())
    })
}

/// A global page belongs to every space: each flush drops it that is not of non-global pages (A18).
pub(super) fn global() -> Verdict {
    for used_in in [window::space(), window::other_space()] {
        let (space, other) = (window::space(), window::other_space());
        let cells = [(NO_FLAGS, space), (NO_FLAGS, other), (ALL_SPACES, 0), (ALL_SPACES, space)];
        all_take(true, used_in, &cells)?;
    }
    Ok(())
}

/// A page of the named space, or of any with that flag, is dropped from any initiator's (A22).
pub(super) fn other_space() -> Verdict {
    let other = window::other_space();
    let both = NON_GLOBAL.with_all_address_spaces(true);
    let cells = [(NO_FLAGS, other), (NON_GLOBAL, other), (ALL_SPACES, 0), (both, window::space())];
    all_take(false, other, &cells)
}

/// A space is identified by its table's address, regardless of PCID and bit 63 of CR3 (A11).
pub(super) fn space_with_pcid_bits() -> Verdict {
    let space = window::space();
    let names = [space, space | 5, space | 0xfff, space | 1 << 63, space | 1 << 63 | 7];
    all_take(false, space, &names.map(|name| (NO_FLAGS, name)))
}
