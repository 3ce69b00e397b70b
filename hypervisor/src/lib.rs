//! Quell, a small type-1 hypervisor built around TLB coherence.
#![no_std]
