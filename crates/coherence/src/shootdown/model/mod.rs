//! Shootdown under loom, and proof that each of its orderings is needed.
//!
//! [`machine`] is what it runs on: page tables of two levels, CPUs with tagged TLBs and cached
//! upper levels, interrupt lines, a hypervisor. [`scenarios`] are small programs for it, generic
//! over a [`protocol::Protocol`] that [`mutants`] spoil in one place each; [`tables`] and
//! [`direct`] have both for freed page tables and for flushes by a hypervisor, [`slots`] for the
//! words of a request.
//!
//! Memory is made of relaxed atomics, and an interrupt orders nothing: a CPU that takes one learns
//! nothing of what its sender has done, and one that sees that it was taken learns nothing of what
//! its target has done. What is ordered is so by the slots and by the words of the spaces.

mod direct;
mod machine;
mod mutants;
mod protocol;
mod scenarios;
mod slots;
mod tables;
