//! The scheduler and its announcements under loom, and proof that each of their parts is needed.
//!
//! [`board`] has CPUs with the loop of the hypervisor's run loop (`vm/run.rs`), vCPUs and interrupt
//! lines; queues, notify word and announcements are the real ones. [`scenarios`] are small programs
//! for it, generic over [`board::Steps`]: the real ones, or with one spoilt. [`mutants`] spoil
//! them. [`hints`] are about what is read without a queue's lock.
//!
//! Time stands still, and a slice is over as soon as a CPU knows that somebody waits. A CPU that
//! does not know it has no timer: what is announced to nobody is never found, and the model runs
//! into its bound.

mod board;
mod hints;
mod mutants;
mod scenarios;
