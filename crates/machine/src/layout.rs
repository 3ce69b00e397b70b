//! The layout of a guest: few locations, so that random programs conflict.

use paging::Level;

/// Areas of 2 MiB of guest physical addresses, each of which a slot may fill.
pub(crate) const AREAS: usize = 6;
/// Address spaces of a guest.
pub(crate) const SPACES: usize = 2;
/// Windows of 2 MiB of guest virtual addresses.
pub(crate) const WINDOWS: usize = 3;
/// The pages of an area or a window that programs touch.
pub(crate) const PAGES: [u64; 4] = [0, 1, 2, 511];
/// Pages of all windows that programs touch.
pub(crate) const VA_PAGES: usize = WINDOWS * PAGES.len();
/// Width of guest physical addresses.
pub(crate) const PHYSICAL_BITS: u32 = 36;
pub(crate) const AREA_SIZE: u64 = Level::Page2M.size();
pub(crate) const PAGE_SIZE: u64 = Level::Page4K.size();
pub(crate) const AREA_PAGES: usize = (AREA_SIZE / PAGE_SIZE) as usize;

/// Frames of a region that may hold a guest's page tables, see [`table`].
pub(crate) const TABLE_FRAMES: core::ops::Range<usize> = 8..24;
/// Last-level tables of a guest, for any of its windows.
pub(crate) const LAST_TABLES: usize = 8;

/// Start of an area. The last two have a nested table of their own for 1 GiB.
pub(crate) const fn area(number: usize) -> u64 {
    let far = if number >= 4 { (1 << 30) - 4 * AREA_SIZE } else { 0 };
    number as u64 * AREA_SIZE + far
}

/// The area and the page in it of a guest physical address.
pub(crate) const fn area_of(gpa: u64) -> Option<(usize, usize)> {
    let mut number = 0;
    while number < AREAS {
        if gpa >= area(number) && gpa < area(number) + AREA_SIZE {
            return Some((number, ((gpa - area(number)) / PAGE_SIZE) as usize));
        }
        number += 1;
    }
    None
}

/// Start of a window.
pub(crate) const fn window(number: usize) -> u64 {
    (1 << 30) + number as u64 * AREA_SIZE
}

/// Guest virtual address of a page that programs touch.
pub(crate) const fn va(page: usize) -> u64 {
    window(page / PAGES.len()) + PAGES[page % PAGES.len()] * PAGE_SIZE
}

/// Guest physical addresses of a guest's page tables.
pub(crate) mod table {
    use super::{LAST_TABLES, PAGE_SIZE, SPACES, TABLE_FRAMES};

    const fn frame(number: usize) -> u64 {
        (TABLE_FRAMES.start + number) as u64 * PAGE_SIZE
    }

    pub(crate) const fn root(space: usize) -> u64 {
        frame(space)
    }

    /// The table below it.
    pub(crate) const fn upper(space: usize) -> u64 {
        frame(SPACES + space)
    }

    /// The tables below that, one of which is in use: their entries are for windows.
    pub(crate) const fn middle(space: usize, number: usize) -> u64 {
        frame(2 * SPACES + 2 * space + number % 2)
    }

    /// Tables of the last level.
    pub(crate) const fn last(number: usize) -> u64 {
        frame(4 * SPACES + number % LAST_TABLES)
    }

    const _: () = assert!(last(LAST_TABLES - 1) < TABLE_FRAMES.end as u64 * PAGE_SIZE);
}

/// Guest physical address of a vCPU's page for the input of hypercalls.
pub(crate) const fn input_page(vcpu: usize) -> u64 {
    (32 + vcpu as u64) * PAGE_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_back() {
        for number in 0..AREAS {
            assert_eq!(area_of(area(number)), Some((number, 0)));
            assert_eq!(area_of(area(number) + AREA_SIZE - 1), Some((number, AREA_PAGES - 1)));
        }
        assert_eq!(area_of(area(3) + AREA_SIZE), None);
        assert_eq!((va(0), va(5)), (1 << 30, window(1) + PAGE_SIZE));
    }
}
