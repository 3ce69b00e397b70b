//! Small programs of two or three threads, and what must be true at their end.

use loom::sync::Arc;
use quell_coherence::explored;
use quell_coherence::interleave::on_a_thread;

use super::machine::{
    IssuedAt, Memory, Table, Tiny, cached, check_cached, check_frozen, check_tables, last, store,
};
use super::{LARGE, PAGE, Protocol, Real, target};
use crate::format::Entry;
use crate::{Amd64Nested, Format, Gather, Level, MapError, PageTable, Permissions, PhysAddr, Tables};

const RWX: Permissions = Permissions::RWX;
const TRACKED: Permissions = RWX.union(Permissions::TRACKED);

fn table<const N: u32>() -> (Arc<Table<N>>, Memory) {
    let memory = Memory::new();
    (Arc::new(PageTable::new(memory.clone()).unwrap()), memory)
}

fn unshared<T>(shared: Arc<T>) -> T {
    Arc::try_unwrap(shared).ok().expect("the threads have ended")
}

/// A table that maps the page at `address` by a leaf of this level.
fn mapped<const N: u32>(address: u64, level: Level, permissions: Permissions) -> (Arc<Table<N>>, Memory) {
    let (shared, memory) = table::<N>();
    shared.install(address, target(address), level, permissions).unwrap();
    (shared, memory)
}

/// The table below the root's first entry.
fn first_table<const N: u32>(table: &Table<N>) -> PhysAddr {
    let level = Tiny::<N>::ROOT;
    let entry = table.cell(table.root(), level, 0).load(core::sync::atomic::Ordering::Acquire);
    match Entry::decode::<Amd64Nested>(entry, level) {
        Entry::Table(next) => next,
        other => panic!("{other:?}"),
    }
}

/// Another thread does `act` while the tables are changed by `change`. Then `check` holds,
/// what it has cached of `address` is right or flushed, and no table is lost.
fn raced<const N: u32, R: Send + 'static>(
    (shared, memory): (Arc<Table<N>>, Memory),
    address: u64,
    act: impl FnOnce(&Table<N>) -> R + Send + 'static,
    change: impl FnOnce(&Table<N>) -> Gather<Memory>,
    check: impl FnOnce(&Table<N>, R),
) {
    let other = on_a_thread(&shared, move |shared| (act(shared), cached(shared, address)));
    let gather = change(&shared);
    let (result, held) = other.join().unwrap();
    check(&shared, result);
    check_cached(&shared, &gather, address, held);
    check_tables(unshared(shared), &memory, gather);
}

/// The same while the root's first table is cut off.
fn raced_with_cut<P: Protocol, const N: u32, R: Send + 'static>(
    table: (Arc<Table<N>>, Memory),
    address: u64,
    act: impl FnOnce(&Table<N>) -> R + Send + 'static,
) {
    let cut = first_table(&table.0);
    let zap = |table: &Table<N>| P::zap(table, Tables::Free);
    raced(table, address, act, zap, |table, _| check_frozen(table, cut));
}

/// A fault beside a page, which is too late or not.
fn install_beside<P: Protocol>(table: &Table<2>) {
    let result = P::install(table, PAGE, RWX);
    assert!(matches!(result, Ok(_) | Err(MapError::Raced)), "{result:?}");
}

/// A fault beside a page, in a table that is being cut off.
pub(super) fn install_and_cut<P: Protocol>() {
    raced_with_cut::<P, 2, _>(mapped(0, Level::Page4K, RWX), PAGE, install_beside::<P>);
}

/// A fault that adds a table to one that is being cut off.
pub(super) fn install_below_a_cut<P: Protocol>() {
    let fault = |table: &Table<3>| P::install(table, LARGE, RWX);
    raced_with_cut::<P, 3, _>(mapped(0, Level::Page2M, RWX), LARGE, fault);
}

/// A fault in a table that is detached, which may fill it until the flush; its entries are removed
/// with the table.
pub(super) fn install_and_detach<P: Protocol>() {
    raced(mapped(0, Level::Page4K, RWX), PAGE, install_beside::<P>, P::detach, |_, ()| ());
}

/// A fault that adds a table below one that is detached: in its first entry, or in another.
pub(super) fn install_below_a_detached<P: Protocol, const FIRST: bool>() {
    let (there, faulted) = if FIRST { (LARGE, 0) } else { (0, LARGE) };
    let fault = move |table: &Table<3>| P::install(table, faulted, RWX);
    raced(mapped(there, Level::Page2M, RWX), faulted, fault, P::detach, |_, _| ());
}

/// A detached table is freed while a fault may still walk through it: not before its section has
/// ended.
pub(super) fn install_and_reclaim<P: Protocol>() {
    let (shared, memory) = mapped::<2>(0, Level::Page4K, RWX);
    let faulter = on_a_thread(&shared, move |shared| P::install(shared, PAGE, RWX).is_ok());
    let gather = P::detach(&shared);
    let receipt = IssuedAt(shared.stamp());
    if P::WAITS {
        faulter.join().unwrap();
        gather.release(&receipt).expect("flushed").table_count
    } else {
        let count = gather.release(&receipt).expect("flushed").table_count;
        faulter.join().unwrap();
        count
    };
    check_rest(shared, &memory);
}

/// A fault where there is a mark, in a table whose entries are being zapped.
pub(super) fn install_over_mark<P: Protocol>() {
    let marked = table::<2>();
    marked.0.mark(0, 7).unwrap();
    let fault = |table: &Table<2>| P::install(table, 0, RWX);
    raced(marked, 0, fault, |table| P::zap(table, Tables::Keep), |_, _| ());
}

/// A fault that adds rights to a leaf, in a table that is being cut off.
pub(super) fn upgrade_and_cut<P: Protocol>() {
    let fault = |table: &Table<2>| P::install(table, 0, RWX);
    raced_with_cut::<P, 2, _>(mapped(0, Level::Page4K, Permissions::RX), 0, fault);
}

/// Whether nobody may store by the first page's leaf.
fn check_protected(table: &Table<2>) {
    let permissions = Amd64Nested::permissions(last(table, 0));
    assert!(!permissions.contains(Permissions::WRITE), "nobody has asked for W since");
}

/// Whether a store to `address`, if there was one, is known by its leaf or was `told`.
fn check_known(table: &Table<2>, address: u64, has_stored: bool, told: bool) {
    let is_known = told || Amd64Nested::is_dirty(last(table, address));
    assert!(!has_stored || is_known, "a store is not known any more");
}

/// A fault that adds the right to execute to a leaf while it loses the right to store.
pub(super) fn upgrade_and_protect<P: Protocol>() {
    let fault = |table: &Table<2>| P::install(table, 0, Permissions::RX);
    let page = mapped(0, Level::Page4K, Permissions::RW);
    raced(page, 0, fault, P::write_protect, |table, _| check_protected(table));
}

/// A store while the leaf loses the right to store.
pub(super) fn store_and_protect<P: Protocol>() {
    let page = mapped(0, Level::Page4K, TRACKED);
    raced(
        page,
        0,
        |table| store(table, 0),
        P::write_protect,
        |table, has_stored| {
            check_protected(table);
            check_known(table, 0, has_stored, false);
        },
    );
}

/// A store, and another through the processor's cached leaf, while the leaf is made clean.
pub(super) fn store_and_clean<P: Protocol>() {
    let told = core::cell::Cell::new(0);
    let clean = |table: &Table<2>| {
        let (gather, count) = P::clean(table);
        told.set(count);
        gather
    };
    raced(
        mapped(0, Level::Page4K, TRACKED),
        0,
        |table| store(table, 0),
        clean,
        |table, has_stored| {
            check_known(table, 0, has_stored, told.get() == 1);
        },
    );
}

/// A store to a large page while that is split.
pub(super) fn store_and_split<P: Protocol>() {
    let page = mapped(0, Level::Page2M, TRACKED);
    raced(
        page,
        PAGE,
        |table| store(table, PAGE),
        P::split,
        |table, has_stored| {
            assert_eq!(Amd64Nested::address(last(table, PAGE), Level::Page4K), target(PAGE));
            check_known(table, PAGE, has_stored, false);
        },
    );
}

/// A fault beside a page, and a store to the page, while their table is replaced by a large page.
pub(super) fn install_and_collapse<P: Protocol>() {
    let store_and_fault = |table: &Table<2>| {
        let has_stored = store(table, 0);
        let _ = P::install(table, PAGE, RWX);
        has_stored
    };
    let page = mapped(0, Level::Page4K, TRACKED);
    raced(page, PAGE, store_and_fault, P::collapse, |table, has_stored| {
        assert_eq!(Amd64Nested::address(last(table, 0), Level::Page2M), target(0));
        check_known(table, 0, has_stored, false);
    });
}

/// Whether the tables that are left are all that are used.
fn check_rest(shared: Arc<Table<2>>, memory: &Memory) {
    let used_count = memory.used_count();
    let receipt = IssuedAt(crate::Stamp { root: shared.root(), sequence: u64::MAX });
    let rest = unshared(shared).dismantle().release(&receipt).expect("nobody walks");
    assert_eq!(rest.table_count, used_count, "a table was lost");
}

/// A flush that is issued while a page is zapped: if its receipt is accepted, no walk after the
/// flush finds the page.
pub(super) fn zap_and_flush<P: Protocol>() {
    let (shared, memory) = mapped::<2>(0, Level::Page4K, RWX);
    let flusher = on_a_thread(&shared, move |shared| {
        let receipt = IssuedAt(P::stamp(shared));
        (receipt, cached(shared, 0))
    });
    let gather = P::zap(&shared, Tables::Keep);
    let (receipt, held) = flusher.join().unwrap();
    let is_taken = gather.release(&receipt).is_ok();
    assert!(!is_taken || held.is_none(), "a receipt of a flush before the change is taken");
    check_rest(shared, &memory);
}

explored! {
    p1_install_in_a_table_that_is_cut_off: Some(3) => install_and_cut::<Real>;
    p1_install_of_a_table_in_one_that_is_cut_off: Some(3) => install_below_a_cut::<Real>;
    p1_upgrade_in_a_table_that_is_cut_off: Some(3) => upgrade_and_cut::<Real>;
    p1_install_in_a_table_that_is_detached: Some(3) => install_and_detach::<Real>;
    p1_install_of_a_table_below_one_that_is_detached: Some(3) => install_below_a_detached::<Real, false>;
    p1_install_of_a_table_at_the_link_of_one_that_is_detached: Some(3) => install_below_a_detached::<Real, true>;
    p1_reclaiming_after_sections_have_ended: Some(3) => install_and_reclaim::<Real>;
    p5_install_over_a_mark_that_is_zapped: Some(3) => install_over_mark::<Real>;
    p14_upgrade_against_write_protection: Some(3) => upgrade_and_protect::<Real>;
    p14_store_against_write_protection: Some(3) => store_and_protect::<Real>;
    p14_store_against_clean: Some(3) => store_and_clean::<Real>;
    p14_store_against_split: Some(3) => store_and_split::<Real>;
    p14_install_and_store_against_collapse: Some(3) => install_and_collapse::<Real>;
    o8_flush_that_is_issued_during_a_zap: Some(3) => zap_and_flush::<Real>;
}
