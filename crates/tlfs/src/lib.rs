//! The Hyper-V hypercall ABI for TLB flushing, from both ends.
#![no_std]
