//! Guest physical memory: slots, generations, copies.
#![no_std]
