//! Small programs of two or three threads, and what must be true at their end.

use loom::sync::Arc;
use loom::thread;

use super::machine::{
    IssuedAt, Memory, Table, cached, check_cached, check_frozen, check_tables, last, store,
};
use super::{LARGE, PAGE, Protocol, Real, target};
use crate::format::Entry;
use crate::{Amd64Nested, Format, Level, MapError, PageTable, Permissions, PhysAddr, Tables};

const RWX: Permissions = Permissions::RWX;
const TRACKED: Permissions = RWX.union(Permissions::TRACKED);

/// Explores all interleavings with up to three preemptions, which finds every known mutant.
pub(super) fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn table<const N: u32>() -> (Arc<Table<N>>, Memory) {
    let memory = Memory::new();
    (Arc::new(PageTable::new(memory.clone()).unwrap()), memory)
}

fn unshared<T>(shared: Arc<T>) -> T {
    Arc::try_unwrap(shared).ok().expect("the threads have ended")
}

/// Runs `act` on another thread, beside the caller.
pub(super) fn on_a_thread<S, R>(
    shared: &Arc<S>,
    act: impl FnOnce(&S) -> R + Send + 'static,
) -> thread::JoinHandle<R>
where
    S: Send + Sync + 'static,
    R: Send + 'static,
{
    let shared = shared.clone();
    thread::spawn(move || act(&shared))
}

/// The table below the first entry of a table.
fn first_table<const N: u32>(table: &Table<N>, at: PhysAddr, level: Level) -> PhysAddr {
    let entry = table.cell(at, level, 0).load(core::sync::atomic::Ordering::Acquire);
    match Entry::decode::<Amd64Nested>(entry, level) {
        Entry::Table(next) => next,
        other => panic!("{other:?}"),
    }
}

/// A fault beside a page, in a table that is being cut off.
pub(super) fn install_and_cut<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page4K, RWX).unwrap();
    let cut = first_table(&shared, shared.root(), Level::Page2M);
    let faulter = on_a_thread(&shared, move |shared| {
        let result = P::install(shared, PAGE, RWX);
        assert!(matches!(result, Ok(_) | Err(MapError::Raced)), "{result:?}");
        cached(shared, PAGE)
    });
    let gather = P::zap(&shared, Tables::Free);
    let held = faulter.join().unwrap();
    check_cached(&shared, &gather, PAGE, held);
    check_frozen(&shared, cut);
    check_tables(unshared(shared), &memory, gather);
}

/// A fault that adds a table to one that is being cut off.
pub(super) fn install_below_a_cut<P: Protocol>() {
    let (shared, memory) = table::<3>();
    shared.install(0, target(0), Level::Page2M, RWX).unwrap();
    let cut = first_table(&shared, shared.root(), Level::Page1G);
    let faulter = on_a_thread(&shared, move |shared| {
        let _ = P::install(shared, LARGE, RWX);
        cached(shared, LARGE)
    });
    let gather = P::zap(&shared, Tables::Free);
    let held = faulter.join().unwrap();
    check_cached(&shared, &gather, LARGE, held);
    check_frozen(&shared, cut);
    check_tables(unshared(shared), &memory, gather);
}

/// A fault in a table that is detached, which may fill it until the flush; its entries are removed
/// with the table.
pub(super) fn install_and_detach<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page4K, RWX).unwrap();
    let faulter = on_a_thread(&shared, move |shared| {
        let result = P::install(shared, PAGE, RWX);
        assert!(matches!(result, Ok(_) | Err(MapError::Raced)), "{result:?}");
        cached(shared, PAGE)
    });
    let gather = P::detach(&shared);
    let held = faulter.join().unwrap();
    check_cached(&shared, &gather, PAGE, held);
    check_tables(unshared(shared), &memory, gather);
}

/// A fault that adds a table below one that is detached: in its first entry, or in another.
pub(super) fn install_below_a_detached<P: Protocol, const FIRST: bool>() {
    let (shared, memory) = table::<3>();
    let (there, faulted) = if FIRST { (LARGE, 0) } else { (0, LARGE) };
    shared.install(there, target(there), Level::Page2M, RWX).unwrap();
    let faulter = on_a_thread(&shared, move |shared| {
        let _ = P::install(shared, faulted, RWX);
        cached(shared, faulted)
    });
    let gather = P::detach(&shared);
    let held = faulter.join().unwrap();
    check_cached(&shared, &gather, faulted, held);
    check_tables(unshared(shared), &memory, gather);
}

/// A detached table is freed while a fault may still walk through it: not before its section has
/// ended.
pub(super) fn install_and_reclaim<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page4K, RWX).unwrap();
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
    let used_count = memory.used_count();
    let receipt = IssuedAt(crate::Stamp { root: shared.root(), sequence: u64::MAX });
    let rest = unshared(shared).dismantle().release(&receipt).expect("nobody walks");
    assert_eq!(rest.table_count, used_count, "a table was lost");
}

/// A fault where there is a mark, in a table whose entries are being zapped.
pub(super) fn install_over_mark<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.mark(0, 7).unwrap();
    let faulter = on_a_thread(&shared, move |shared| {
        let _ = P::install(shared, 0, RWX);
        cached(shared, 0)
    });
    let gather = P::zap(&shared, Tables::Keep);
    let held = faulter.join().unwrap();
    check_cached(&shared, &gather, 0, held);
    check_tables(unshared(shared), &memory, gather);
}

/// A fault that adds rights to a leaf, in a table that is being cut off.
pub(super) fn upgrade_and_cut<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page4K, Permissions::RX).unwrap();
    let cut = first_table(&shared, shared.root(), Level::Page2M);
    let faulter = on_a_thread(&shared, move |shared| {
        let _ = P::install(shared, 0, RWX);
        cached(shared, 0)
    });
    let gather = P::zap(&shared, Tables::Free);
    let held = faulter.join().unwrap();
    check_cached(&shared, &gather, 0, held);
    check_frozen(&shared, cut);
    check_tables(unshared(shared), &memory, gather);
}

/// A fault that adds the right to execute to a leaf while it loses the right to store.
pub(super) fn upgrade_and_protect<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page4K, Permissions::RW).unwrap();
    let faulter = on_a_thread(&shared, move |shared| {
        let _ = P::install(shared, 0, Permissions::RX);
        cached(shared, 0)
    });
    let gather = P::write_protect(&shared);
    check_cached(&shared, &gather, 0, faulter.join().unwrap());
    let leaf = last(&shared, 0);
    assert!(!Amd64Nested::permissions(leaf).contains(Permissions::WRITE), "nobody has asked for W since");
    check_tables(unshared(shared), &memory, gather);
}

/// A store while the leaf loses the right to store.
pub(super) fn store_and_protect<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page4K, TRACKED).unwrap();
    let processor = on_a_thread(&shared, move |shared| (store(shared, 0), cached(shared, 0)));
    let gather = P::write_protect(&shared);
    let (has_stored, held) = processor.join().unwrap();
    check_cached(&shared, &gather, 0, held);
    let leaf = last(&shared, 0);
    assert!(!Amd64Nested::permissions(leaf).contains(Permissions::WRITE), "nobody has asked for W since");
    assert!(!has_stored || Amd64Nested::is_dirty(leaf), "a store is not known any more");
    check_tables(unshared(shared), &memory, gather);
}

/// A store, and another through the processor's cached leaf, while the leaf is made clean.
pub(super) fn store_and_clean<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page4K, TRACKED).unwrap();
    let processor = on_a_thread(&shared, move |shared| (store(shared, 0), cached(shared, 0)));
    let (gather, told) = P::clean(&shared);
    let (has_stored, held) = processor.join().unwrap();
    check_cached(&shared, &gather, 0, held);
    let leaf = last(&shared, 0);
    assert!(!has_stored || told == 1 || Amd64Nested::is_dirty(leaf), "a store is not known any more");
    check_tables(unshared(shared), &memory, gather);
}

/// A store to a large page while that is split.
pub(super) fn store_and_split<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page2M, TRACKED).unwrap();
    let processor = on_a_thread(&shared, move |shared| (store(shared, PAGE), cached(shared, PAGE)));
    let gather = P::split(&shared);
    let (has_stored, held) = processor.join().unwrap();
    let leaf = last(&shared, PAGE);
    assert_eq!(Amd64Nested::address(leaf, Level::Page4K), target(PAGE));
    assert!(!has_stored || Amd64Nested::is_dirty(leaf), "a store is not known any more");
    check_cached(&shared, &gather, PAGE, held);
    check_tables(unshared(shared), &memory, gather);
}

/// A fault beside a page, and a store to the page, while their table is replaced by a large page.
pub(super) fn install_and_collapse<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page4K, TRACKED).unwrap();
    let faulter = on_a_thread(&shared, move |shared| {
        let has_stored = store(shared, 0);
        let _ = P::install(shared, PAGE, RWX);
        (has_stored, cached(shared, PAGE))
    });
    let gather = P::collapse(&shared);
    let (has_stored, held) = faulter.join().unwrap();
    check_cached(&shared, &gather, PAGE, held);
    let leaf = last(&shared, 0);
    assert_eq!(Amd64Nested::address(leaf, Level::Page2M), target(0));
    assert!(!has_stored || Amd64Nested::is_dirty(leaf), "a store is not known any more");
    check_tables(unshared(shared), &memory, gather);
}

/// A flush that is issued while a page is zapped: if its receipt is accepted, no walk after the
/// flush finds the page.
pub(super) fn zap_and_flush<P: Protocol>() {
    let (shared, memory) = table::<2>();
    shared.install(0, target(0), Level::Page4K, RWX).unwrap();
    let flusher = on_a_thread(&shared, move |shared| {
        let receipt = IssuedAt(P::stamp(shared));
        (receipt, cached(shared, 0))
    });
    let gather = P::zap(&shared, Tables::Keep);
    let (receipt, held) = flusher.join().unwrap();
    let is_taken = gather.release(&receipt).is_ok();
    assert!(!is_taken || held.is_none(), "a receipt of a flush before the change is taken");
    let used_count = memory.used_count();
    let receipt = IssuedAt(crate::Stamp { root: shared.root(), sequence: u64::MAX });
    let rest = unshared(shared).dismantle().release(&receipt).expect("nobody walks");
    assert_eq!(rest.table_count, used_count, "a table was lost");
}

#[test]
fn p1_install_in_a_table_that_is_cut_off() {
    check(install_and_cut::<Real>);
}

#[test]
fn p1_install_of_a_table_in_one_that_is_cut_off() {
    check(install_below_a_cut::<Real>);
}

#[test]
fn p1_upgrade_in_a_table_that_is_cut_off() {
    check(upgrade_and_cut::<Real>);
}

#[test]
fn p1_install_in_a_table_that_is_detached() {
    check(install_and_detach::<Real>);
}

#[test]
fn p1_install_of_a_table_below_one_that_is_detached() {
    check(install_below_a_detached::<Real, false>);
}

#[test]
fn p1_install_of_a_table_at_the_link_of_one_that_is_detached() {
    check(install_below_a_detached::<Real, true>);
}

#[test]
fn p1_reclaiming_after_sections_have_ended() {
    check(install_and_reclaim::<Real>);
}

#[test]
fn p5_install_over_a_mark_that_is_zapped() {
    check(install_over_mark::<Real>);
}

#[test]
fn p14_upgrade_against_write_protection() {
    check(upgrade_and_protect::<Real>);
}

#[test]
fn p14_store_against_write_protection() {
    check(store_and_protect::<Real>);
}

#[test]
fn p14_store_against_clean() {
    check(store_and_clean::<Real>);
}

#[test]
fn p14_store_against_split() {
    check(store_and_split::<Real>);
}

#[test]
fn p14_install_and_store_against_collapse() {
    check(install_and_collapse::<Real>);
}

#[test]
fn o8_flush_that_is_issued_during_a_zap() {
    check(zap_and_flush::<Real>);
}
