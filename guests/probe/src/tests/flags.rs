//! The pages, global or not, that a flush's flags and space exclude, and those that they must not.
//!
//! TLFS, "HvCallFlushVirtualAddressSpace": without HV_FLUSH_NON_GLOBAL_MAPPINGS_ONLY global pages
//! are flushed too, and without HV_FLUSH_ALL_VIRTUAL_ADDRESS_SPACES only the named address space.
//! Flushing more is allowed.

use super::own;
use super::prelude::*;
use super::watch::{self, Watch, What};

const ALL_SPACES: u64 = 1 << 1;
const NON_GLOBAL: u64 = 1 << 2;

const ROUNDS: u32 = 2;

/// A call, and whether it must flush the page in question.
#[derive(Clone, Copy, Debug)]
struct Cell {
    form: Form,
    flags: u64,
    space: u64,
    is_due: bool,
}

/// All calls, for a page that is global or not and has been used in the address space `used_in`.
fn cells(is_global: bool, used_in: u64) -> impl Iterator<Item = Cell> {
    let flags = [0, ALL_SPACES, NON_GLOBAL, ALL_SPACES | NON_GLOBAL];
    let flags = flags
        .into_iter()
        .flat_map(|flags| [paging::space(), paging::other_space()].map(|space| (flags, space)));
    flags.flat_map(move |(flags, space)| {
        Form::usual().map(move |form| {
            let is_due = match is_global {
                // It belongs to every address space.
                true => flags & NON_GLOBAL == 0,
                false => flags & ALL_SPACES != 0 || space == used_in,
            };
            Cell { form, flags, space, is_due }
        })
    })
}

impl Cell {
    fn call(&self, mask: u64) -> Verdict {
        let result = self.form.flush_with(mask, [WINDOW, self.space, self.flags]);
        ensure!(result == Ok(self.form.success()), "{self:x?}: {result:?}");
        Ok(())
    }
}

/// The matrix of pages, flags and spaces; the target is the caller, then the second processor.
pub(super) fn flush_flags() -> Verdict {
    enable()?;
    let other = 1 << second_vp()?;
    let own = rdmsr(msr::VP_INDEX).map(|index| 1 << index).unwrap_or(0);
    ensure!(own != 0 && own != other, "both processors have VP index mask {own:#x}");
    for is_global in [false, true] {
        for space in [paging::space(), paging::other_space()] {
            let what = What { space, global: is_global, ..What::page() };
            let map = |round| replace(round, is_global);
            watch::during(what, map, |watch| of_the_other(watch, other, is_global, space))?;
        }
        for mask in [own, own | other] {
            paging::set_global_pages(is_global);
            let result = of_itself(mask, is_global);
            paging::set_global_pages(false);
            result?;
        }
    }
    Ok(())
}

fn of_the_other(watch: &mut Watch<'_>, mask: u64, is_global: bool, space: u64) -> Verdict {
    let replace = |round| replace(round, is_global);
    let everything = cells(is_global, space).find(|cell| cell.is_due);
    watch.notices(replace, || everything.map_or(Ok(()), |cell| cell.call(mask)))?;
    for cell in cells(is_global, space) {
        for _ in 0..ROUNDS {
            if cell.is_due {
                let stale = watch.round(replace, || cell.call(mask))?;
                ensure!(stale == 0, "{stale} stale reads, global: {is_global}, {cell:x?}");
            } else {
                cell.call(mask)?;
            }
        }
    }
    Ok(())
}

/// The caller is a target (H27).
fn of_itself(mask: u64, is_global: bool) -> Verdict {
    own::notices(is_global)?;
    for cell in cells(is_global, paging::space()) {
        for _ in 0..ROUNDS {
            let sees_new = own::sees_new_after(is_global, || cell.call(mask))?;
            ensure!(sees_new || !cell.is_due, "the caller's, global: {is_global}, {cell:x?}");
        }
    }
    Ok(())
}
