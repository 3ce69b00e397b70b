//! The walker under loom, and proof that each of its exchanges is needed.
//!
//! [`machine`] has tables of two entries and processors that walk them. [`scenarios`] are small
//! programs, generic over a [`Protocol`]: the real operations, or operations with one broken.
//! [`mutants`] break them, one by one. Run with `RUSTFLAGS="--cfg loom" cargo test -p quell-paging
//! --release --lib`.

mod machine;
mod mutants;
mod scenarios;

use machine::{Memory, Table, Tiny};

use crate::{Gather, Installed, Level, MapError, PageTable, Permissions, PhysAddr, Progress, Tables};

/// Pages of the smallest size; two make one of the next level, which is the whole span of a root
/// entry in two levels.
const PAGE: u64 = 4096;
const LARGE: u64 = 2 * PAGE;

/// The physical target of an input address.
fn target(address: u64) -> PhysAddr {
    PhysAddr((1 << 20) + address)
}

/// The operations that a mutant can replace. Changes apply to the whole span of the root's first
/// entry.
trait Protocol: 'static {
    fn install<const N: u32>(
        table: &Table<N>,
        address: u64,
        permissions: Permissions,
    ) -> Result<Installed, MapError> {
        table.install(address, target(address), Level::Page4K, permissions)
    }

    /// The frames' owner needs to know them before the flush: the tables are walked and frozen.
    fn zap<const N: u32>(table: &Table<N>, tables: Tables) -> Gather<Memory> {
        let len = Tiny::<N>::entry_len();
        let mut change = table.edit().unwrap().zap(0..len, tables).with_frames();
        assert_eq!(change.step(u32::MAX), Progress::Done);
        change.take_gather().framed()
    }

    /// The tables are walked after the flush.
    fn detach<const N: u32>(table: &Table<N>) -> Gather<Memory> {
        let len = Tiny::<N>::entry_len();
        table.edit().unwrap().zap(0..len, Tables::Free).finish()
    }

    /// Whether a receipt waits for the sections that began before.
    const WAITS: bool = true;

    fn write_protect(table: &Table<2>) -> Gather<Memory> {
        table.edit().unwrap().write_protect(0..LARGE).finish()
    }

    /// Also returns how many leaves were dirty.
    fn clean(table: &Table<2>) -> (Gather<Memory>, usize) {
        let mut count = 0;
        let gather = table.edit().unwrap().clean(0..LARGE, |_| count += 1).finish();
        (gather, count)
    }

    fn split(table: &Table<2>) -> Gather<Memory> {
        table.edit().unwrap().split(0..LARGE, Level::Page4K).finish()
    }

    fn collapse(table: &Table<2>) -> Gather<Memory> {
        let editor = table.edit().unwrap();
        editor.collapse(0..LARGE, Level::Page2M, target(0), Permissions::RWX).unwrap().finish()
    }

    fn stamp<const N: u32>(table: &PageTable<Tiny<N>, Memory>) -> crate::Stamp {
        table.stamp()
    }
}

/// The operations as they are.
struct Real;

impl Protocol for Real {}
