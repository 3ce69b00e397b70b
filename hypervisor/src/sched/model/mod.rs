//! The scheduler and its notifications under loom, and proof that each of their parts is needed.
//!
//! [`board`] has CPUs with the loop of the hypervisor's run loop (`vm/run.rs`), vCPUs and interrupt
//! lines; queues, notify word and notifications are the real ones. [`scenarios`] are small programs
//! for it, generic over [`board::Steps`]: the real ones, or with one of them broken. [`mutants`]
//! break them. [`hints`] tests the values that are read without a queue's lock, [`accounts`] those
//! of the guests' accounts.
//!
//! Time does not advance, and a slice is over as soon as a CPU knows that another vCPU waits. A CPU
//! that does not know it has no timer: a missed notification is never found, and the model exceeds
//! its bound.

mod accounts;
mod board;
mod hints;
mod mutants;
mod scenarios;
