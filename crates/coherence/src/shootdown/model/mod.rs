//! Shootdown under loom, and proof that each of its orderings is needed.
//!
//! [`machine`] is the environment: page tables of two levels, CPUs with tagged TLBs and cached
//! upper levels, interrupt lines, a hypervisor. [`scenarios`] are small programs for it, generic
//! over a [`protocol::Protocol`] that each of the [`mutants`] breaks in one place; [`tables`] and
//! [`direct`] have both for freed page tables and for flushes by a hypervisor, [`slots`] for the
//! words of a request.
//!
//! Memory is made of relaxed atomics, and an interrupt orders nothing: a CPU that takes one does
//! not see its sender's earlier writes by that, and a CPU that sees that it was taken does not see
//! the target's. Only the slots and the words of the spaces order anything.

mod direct;
mod machine;
mod mutants;
mod protocol;
mod scenarios;
mod slots;
mod tables;
