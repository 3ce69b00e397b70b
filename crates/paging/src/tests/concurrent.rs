use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::arena::Arena;
use super::never_walked;
use crate::{Amd64Nested, Installed, Level, PageTable, Permissions, PhysAddr};

const THREADS: usize = 4;

/// Faults on the same addresses from all threads: each page is installed once, every loser sees the
/// winner's leaf, and every table is either in the tree or back in the arena.
fn storm(addresses: &[u64], level: Level) {
    let arena = Arena::new(256);
    let table = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    let barrier = Barrier::new(THREADS);
    let wins: Vec<_> = addresses.iter().map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for (index, &address) in addresses.iter().enumerate() {
                    barrier.wait();
                    match table.install(address, PhysAddr(address), level, Permissions::RWX).unwrap() {
                        Installed::New(_) => drop(wins[index].fetch_add(1, Ordering::Relaxed)),
                        Installed::Present(mapping) => assert_eq!(mapping.pa, PhysAddr(address)),
                        Installed::Upgraded(_) => panic!("nothing is missing"),
                    }
                }
            });
        }
    });
    assert!(wins.iter().all(|wins| wins.load(Ordering::Relaxed) == 1), "one winner each");
    let used_count = arena.used_count();
    let gather = table.dismantle();
    assert_eq!(gather.table_count(), used_count, "a loser's spare table leaked");
    gather.release(&never_walked()).unwrap();
    assert_eq!(arena.used_count(), 0);
}

#[test]
fn p6_parallel_faults_have_one_winner_and_leak_no_table() {
    // Each address needs new tables on every level, so that there is a race on each.
    let addresses: Vec<_> =
        (0..64).map(|index| index << 39 | index << 30 | index << 21 | index << 12).collect();
    storm(&addresses, Level::Page4K);
    storm(&addresses.iter().map(|address| address & !0x1f_ffff).collect::<Vec<_>>(), Level::Page2M);
}
