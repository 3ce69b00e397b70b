//! A QEMU plugin that counts the instructions of Arm64 machines: all of them, and apart those that
//! maintain TLBs and caches, barriers and exception returns; by phase, as hint instructions in the
//! program say ([`hostlink::phase`]). Of AMD64 machines it counts INVLPGA apart.
//!
//! `-plugin file=libquell_plugin.so,out=FILE`: when QEMU ends by itself, FILE holds one JSON
//! object, which [`count::Counts::json`] describes. Every CPU counts for the same phase, and the
//! counters are not atomic: the counts are exact where QEMU executes all CPUs in one thread, as it
//! does with `-icount`.
//!
//! It speaks version 1 of QEMU's plugin interface, that of QEMU 6.0 to 8.2; built with the feature
//! `interface-3` it speaks version 3, which QEMU 9.1 and later understand. Others refuse to load
//! it, and say why.

pub mod count;
pub mod kind;
// A test program is no plugin, and has nobody to find those functions in.
#[cfg(not(test))]
mod qemu;
