//! The protocol with one operation broken, and the scenario that detects it.
//!
//! Each mutant uses a load and a store where the real operation uses an exchange, or changes the
//! order, or omits the step that its comment names.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use quell_coherence::mutants;

use super::machine::{Memory, Table, Tiny, walk};
use super::scenarios::{
    install_and_collapse, install_and_cut, install_and_detach, install_and_reclaim, install_below_a_cut,
    install_below_a_detached, install_over_mark, store_and_clean, store_and_protect, store_and_split,
    upgrade_and_cut, upgrade_and_protect, zap_and_flush,
};
use super::{LARGE, Protocol, Real, target};
use crate::format::{ABSENT, Entry, FROZEN, piece, repermitted};
use crate::sync::{AtomicU64, overwrite};
use crate::{
    Amd64Nested, Editor, Format, Gather, Installed, Level, MapError, Permissions, PhysAddr, Stamp, Tables,
};

/// A gather for a mutant's change.
fn gather<const N: u32>(editor: &Editor<'_, Tiny<N>, Memory>) -> Gather<Memory> {
    Gather::new(editor.table.memory.clone(), Entry::decode::<Tiny<N>>, editor.table.stamp())
}

/// The real operation that cuts off the root's first table, with the emptying replaced.
fn cut_by<const N: u32>(table: &Table<N>, freeze: impl Fn(&AtomicU64)) -> Gather<Memory> {
    cut_and_tell(table, freeze, |gather| {
        let level = Tiny::<N>::ROOT;
        gather.cut(0, level.size(), level.below().unwrap());
    })
}

/// The same, with the flush ranges replaced.
fn cut_and_tell<const N: u32>(
    table: &Table<N>,
    freeze: impl Fn(&AtomicU64),
    tell: impl FnOnce(&mut Gather<Memory>),
) -> Gather<Memory> {
    let editor = table.edit().unwrap();
    let mut gather = gather(&editor);
    let level = Tiny::<N>::ROOT;
    let cell = table.cell(table.root(), level, 0);
    let Entry::Table(next) = Entry::decode::<Tiny<N>>(cell.load(Acquire), level) else { panic!() };
    cell.store(ABSENT, Release);
    table.entries(next).iter().for_each(freeze);
    gather.hold(next);
    tell(&mut gather);
    gather
}

mutants! {
    /// The entries of a cut table become absent: a fault that is still in it fills one.
    FreezeAbsent fails p1_entries_of_a_cut_table_left_absent: install_and_cut::<FreezeAbsent>, "is filled", {
        fn zap<const N: u32>(table: &Table<N>, _: Tables) -> Gather<Memory> {
            cut_by(table, |entry| overwrite(entry, ABSENT))
        }
    }

    /// Only leaves are frozen, absent entries are skipped.
    FreezeLeaves fails p1_absent_entries_of_a_cut_table_not_frozen:
    install_and_cut::<FreezeLeaves>, "is filled", {
        fn zap<const N: u32>(table: &Table<N>, _: Tables) -> Gather<Memory> {
            cut_by(table, |entry| {
                if Amd64Nested::is_present(entry.load(Acquire)) {
                    overwrite(entry, FROZEN);
                }
            })
        }
    }

    /// The gather names the leaves that were met instead of the whole span of the table.
    GatherMet fails p1_only_leaves_that_were_met_are_flushed: install_and_cut::<GatherMet>, "not flushed", {
        fn zap<const N: u32>(table: &Table<N>, _: Tables) -> Gather<Memory> {
            cut_and_tell(table, |entry| overwrite(entry, FROZEN), |gather| {
                gather.leaves(0, Level::Page4K.size(), Level::Page4K);
            })
        }
    }

    /// Upper-level entries are frozen by a store: a table that a fault has just added is lost.
    FreezeTablesByStore fails p1_upper_entries_frozen_by_store:
    install_below_a_cut::<FreezeTablesByStore>, "a table was lost", {
        fn zap<const N: u32>(table: &Table<N>, _: Tables) -> Gather<Memory> {
            cut_by(table, |entry| {
                let seen = entry.load(Acquire);
                let is_table = Entry::decode::<Tiny<N>>(seen, Level::Page2M);
                assert!(!matches!(is_table, Entry::Table(_)), "not what the mutant is about");
                overwrite(entry, FROZEN);
            })
        }
    }

    /// A mark is cleared by load and store: a leaf that has just overwritten it is removed,
    /// unflushed.
    ClearMarkByStore fails p5_mark_cleared_by_load_and_store:
    install_over_mark::<ClearMarkByStore>, "not flushed", {
        fn zap<const N: u32>(table: &Table<N>, _: Tables) -> Gather<Memory> {
            let editor = table.edit().unwrap();
            let mut gather = gather(&editor);
            let (cell, entry) = walk(table, 0);
            if Amd64Nested::is_present(entry) {
                gather.leaves(0, Level::Page4K.size(), Level::Page4K);
            }
            overwrite(cell, ABSENT);
            gather
        }
    }

    /// A fault fills an entry by load and store: it thaws a frozen entry.
    InstallByStore fails p1_install_by_load_and_store: install_and_cut::<InstallByStore>, "is filled", {
        fn install<const N: u32>(table: &Table<N>, address: u64, permissions: Permissions)
            -> Result<Installed, MapError>
        {
            let (cell, entry) = walk(table, address);
            if Entry::decode::<Tiny<N>>(entry, Level::Page4K) == Entry::Absent {
                overwrite(cell, Amd64Nested::leaf(target(address), Level::Page4K, permissions));
            }
            Ok(Installed::New(Level::Page4K))
        }
    }
}

/// Adds rights by load and store.
fn upgrade_by_store<const N: u32>(table: &Table<N>, address: u64, added: Permissions) {
    let (cell, leaf) = walk(table, address);
    if Amd64Nested::is_present(leaf) {
        let wanted = Amd64Nested::permissions(leaf) | added;
        overwrite(cell, repermitted::<Tiny<N>>(leaf, Level::Page4K, wanted | Permissions::TRACKED));
    }
}

mutants! {
    /// Rights are added to a leaf by load and store, after it has been frozen.
    UpgradeByStore fails p1_upgrade_by_load_and_store: upgrade_and_cut::<UpgradeByStore>, "is filled", {
        fn install<const N: u32>(table: &Table<N>, address: u64, permissions: Permissions)
            -> Result<Installed, MapError>
        {
            upgrade_by_store(table, address, permissions);
            Ok(Installed::Upgraded(Level::Page4K))
        }
    }

    /// The same, and it restores the right to store.
    UpgradeUnprotects fails p14_upgrade_gives_back_what_protection_took:
    upgrade_and_protect::<UpgradeUnprotects>, "nobody has asked", {
        fn install<const N: u32>(table: &Table<N>, address: u64, permissions: Permissions)
            -> Result<Installed, MapError>
        {
            upgrade_by_store(table, address, permissions);
            Ok(Installed::Upgraded(Level::Page4K))
        }
    }

    /// Write protection by load and store: a dirty bit that was set in between is lost.
    ProtectByStore fails p14_write_protection_by_load_and_store:
    store_and_protect::<ProtectByStore>, "a store is not known", {
        fn write_protect(table: &Table<2>) -> Gather<Memory> {
            let editor = table.edit().unwrap();
            let mut gather = gather(&editor);
            let (cell, leaf) = walk(table, 0);
            let kept = Amd64Nested::permissions(leaf) - Permissions::WRITE;
            overwrite(cell, repermitted::<Tiny<2>>(leaf, Level::Page4K, kept));
            gather.leaves(0, LARGE, Level::Page4K);
            gather
        }
    }

    /// The dirty bit is read, and then cleared: a store in between goes unnoticed.
    CleanByStore fails p14_clean_by_load_and_store: store_and_clean::<CleanByStore>, "a store is not known", {
        fn clean(table: &Table<2>) -> (Gather<Memory>, usize) {
            let editor = table.edit().unwrap();
            let mut gather = gather(&editor);
            let (cell, leaf) = walk(table, 0);
            overwrite(cell, Amd64Nested::cleaned(leaf));
            gather.leaves(0, LARGE, Level::Page4K);
            (gather, usize::from(Amd64Nested::is_dirty(leaf)))
        }
    }

    /// A leaf that was made clean is not flushed: a processor that holds it as dirty stores without
    /// a trace.
    CleanUnflushed fails p15_clean_without_a_flush: store_and_clean::<CleanUnflushed>, "not flushed", {
        fn clean(table: &Table<2>) -> (Gather<Memory>, usize) {
            let editor = table.edit().unwrap();
            let gather = gather(&editor);
            let (cell, _) = walk(table, 0);
            let old = cell.fetch_and(Amd64Nested::cleaned(!0), Relaxed);
            (gather, usize::from(Amd64Nested::is_dirty(old)))
        }
    }

    /// The large leaf is replaced by a store: a dirty bit that was set in between is lost.
    SplitByStore fails p14_split_by_store: store_and_split::<SplitByStore>, "a store is not known", {
        fn split(table: &Table<2>) -> Gather<Memory> {
            let editor = table.edit().unwrap();
            let (cell, leaf) = walk(table, 0);
            let next = crate::TableMemory::allocate(&table.memory).unwrap();
            for (index, entry) in table.entries(next).iter().enumerate() {
                let pa = crate::PhysAddr(target(0).0 + index as u64 * Level::Page4K.size());
                entry.store(piece::<Tiny<2>>(leaf, pa, Level::Page4K), Relaxed);
            }
            overwrite(cell, Amd64Nested::table(next, Level::Page2M));
            gather(&editor)
        }
    }

    /// The leaf that replaces a table is clean: the dirty state of the pieces is lost.
    CollapseClean fails p14_collapse_to_a_clean_leaf:
    install_and_collapse::<CollapseClean>, "a store is not known", {
        fn collapse(table: &Table<2>) -> Gather<Memory> {
            let gather = Real::collapse(table);
            let cell = table.cell(table.root(), Level::Page2M, 0);
            cell.fetch_and(Amd64Nested::cleaned(!0), Relaxed);
            gather
        }
    }
}

/// The real operation that cuts off the root's first table, with the linking and the flush ranges
/// replaced.
fn detach_by<const N: u32>(
    table: &Table<N>,
    hold: impl FnOnce(&mut Gather<Memory>, PhysAddr, Level),
    tell: impl FnOnce(&mut Gather<Memory>),
) -> Gather<Memory> {
    let editor = table.edit().unwrap();
    let mut gather = gather(&editor);
    let level = Tiny::<N>::ROOT;
    let cell = table.cell(table.root(), level, 0);
    let Entry::Table(next) = Entry::decode::<Tiny<N>>(cell.load(Acquire), level) else { panic!() };
    cell.store(ABSENT, Release);
    hold(&mut gather, next, level.below().unwrap());
    tell(&mut gather);
    gather.set_stamp(crate::change::stamp(&editor));
    gather
}

fn tell_all(gather: &mut Gather<Memory>) {
    gather.cut(0, Level::Page1G.size(), Level::Page4K);
}

mutants! {
    /// The first entry of a detached table is linked by load and store: a table that a fault has
    /// just added is lost.
    LinkByStore fails p1_link_by_load_and_store:
    install_below_a_detached::<LinkByStore, true>, "a table was lost", {
        fn detach<const N: u32>(table: &Table<N>) -> Gather<Memory> {
            detach_by(table, |gather, next, level| {
                let first = &table.entries(next)[0];
                let seen = first.load(Acquire);
                assert!(!Amd64Nested::is_present(seen), "not what the mutant is about");
                overwrite(first, ABSENT);
                gather.detach(next, level);
            }, tell_all)
        }
    }

    /// Tables below are searched for when the tree is detached, and not again: one that a fault
    /// adds is lost.
    ReclaimEarly fails p1_tables_below_counted_before_the_flush:
    install_below_a_detached::<ReclaimEarly, false>, "a table was lost", {
        fn detach<const N: u32>(table: &Table<N>) -> Gather<Memory> {
            detach_by(table, |gather, next, level| {
                for entry in table.entries(next) {
                    if let Entry::Table(below) = Entry::decode::<Tiny<N>>(entry.load(Acquire), level) {
                        gather.hold(below);
                    }
                }
                gather.hold(next);
            }, tell_all)
        }
    }

    /// The flush does not cover the entries that faults add to a detached table before it.
    DetachTellsLeaves fails p1_only_leaves_of_a_detached_table_are_flushed:
    install_and_detach::<DetachTellsLeaves>, "not flushed", {
        fn detach<const N: u32>(table: &Table<N>) -> Gather<Memory> {
            detach_by(table, |gather, next, level| gather.detach(next, level), |gather| {
                gather.leaves(0, Level::Page4K.size(), Level::Page4K);
            })
        }
    }

    /// A receipt covers processors, but not faults in progress.
    ReceiptForProcessors fails p1_reclaiming_under_a_fault:
    install_and_reclaim::<ReceiptForProcessors>, "a table that is free", {
        const WAITS: bool = false;
    }

    /// A settled leaf that was write-protected is not flushed, because it was not exchanged.
    ProtectUnflushed fails p14_protection_of_a_settled_leaf_without_a_flush:
    upgrade_and_protect::<ProtectUnflushed>, "not flushed", {
        fn write_protect(table: &Table<2>) -> Gather<Memory> {
            let gather = { let editor = table.edit().unwrap(); gather(&editor) };
            let _ = Real::write_protect(table);
            gather
        }
    }
}

mutants! {
    /// The stamp is taken before the change: a flush during the change passes for one after it.
    StampEarly fails o8_stamp_before_the_change: zap_and_flush::<StampEarly>, "is taken", {
        fn zap<const N: u32>(table: &Table<N>, tables: Tables) -> Gather<Memory> {
            let stamp = {
                let editor = table.edit().unwrap();
                crate::change::stamp(&editor)
            };
            let mut gather = table.edit().unwrap().zap(0..Tiny::<N>::entry_len(), tables).finish();
            gather.set_stamp(stamp);
            gather
        }
    }

    /// The stamp does not acquire the change.
    StampRelaxed fails o8_stamp_without_acquire: zap_and_flush::<StampRelaxed>, "is taken", {
        fn stamp<const N: u32>(table: &Table<N>) -> Stamp {
            Stamp { root: table.root(), sequence: table.sequence.load(Relaxed) }
        }
    }
}
