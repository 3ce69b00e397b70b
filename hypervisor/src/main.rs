//! The bare-metal image: everything is in the library, this file only makes it a program.
#![no_std]
#![no_main]

// The library's entry code is referenced by the ELF header alone, so name the library once.
use hypervisor as _;
