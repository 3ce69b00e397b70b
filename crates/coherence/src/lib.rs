//! A TLB flush engine for hypervisors: issue, dispatch, wait.
#![no_std]
