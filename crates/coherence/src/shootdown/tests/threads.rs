//! Real threads, each of which is a CPU.

use super::{Kernel, SmallSpace};
use crate::TargetSet;
use crate::shootdown::*;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, Ordering};
use std::vec::Vec;

const CPUS: usize = 4;
const ROUNDS: usize = 200;

/// A TLB that lets other threads run while it waits. It reports a stall after more turns than a
/// working machine needs.
struct Patient;

impl Tlb for Patient {
    fn load(&mut self, _root: u64, _tag: Tag, _keep: bool) {}
    fn load_none(&mut self) {}
    fn flush_everything(&mut self) {}
    fn flush_range(&mut self, _range: PageRange, _tables: bool) {}
    fn relax(&mut self, turns: u64) -> ControlFlow<()> {
        std::thread::yield_now();
        if turns > 100_000_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Flushes the space in every mode, round after round, and then serves until all have.
fn initiate(kernel: &Kernel, index: usize, done: &AtomicU32) -> u32 {
    let cpus = Cpus::new(&kernel.slots, &kernel.cells);
    let mut cpu: LocalCpu<'_, &SmallSpace, 4, 1> = cpus.claim(index).expect("each once");
    cpu.switch_to(&kernel.spaces[0], &mut Patient);
    // Interrupts would only hasten what each CPU does anyway.
    let remote = &mut ByInterrupt(|_: &TargetSet<4>| ());
    let mut targets = 0;
    for round in 0..ROUNDS {
        let mut room = [PageRange::default(); 2];
        let mut batch = kernel.spaces[0].batch(&mut room, ());
        batch.add(PageRange::small((round as u64) << 12, 1));
        let receipt = match round % 4 {
            0 => cpu.flush(batch, Serial, remote, &mut Patient),
            1 => cpu.flush(batch, Concurrent, remote, &mut Patient),
            2 => cpu.flush(batch, Inline, remote, &mut Patient),
            _ => cpu.flush(batch, super::no_user(), remote, &mut Patient),
        };
        targets += receipt.expect("all serve").receipt.outcome().targets;
    }
    done.fetch_add(1, Ordering::AcqRel);
    while done.load(Ordering::Acquire) < CPUS as u32 {
        cpu.serve(&mut Patient);
        std::thread::yield_now();
    }
    targets
}

#[test]
fn o13_all_to_all_shootdown_of_real_threads() {
    let (kernel, done) = (Kernel::new(CPUS), AtomicU32::new(0));
    let targets: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CPUS)
            .map(|index| {
                scope.spawn({
                    let (kernel, done) = (&kernel, &done);
                    move || initiate(kernel, index, done)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    // The last one to begin has all the others as targets each time.
    assert_eq!(targets.iter().max(), Some(&((ROUNDS * (CPUS - 1)) as u32)));
}
