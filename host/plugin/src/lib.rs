//! A QEMU plugin that counts the instructions of a machine by phase, which instructions without
//! effect in the program select ([`hostlink::phase`]): all of them and, on Arm64 machines,
//! separately TLB and cache maintenance, barriers and exception returns. On AMD64 machines it
//! counts INVLPGA separately.
//!
//! `-plugin file=libquell_plugin.so,out=FILE`: when QEMU ends by itself, FILE holds one JSON
//! object, which [`count::Counts::json`] describes. Every CPU counts for the same phase. With
//! version 1 of the interface counts are exact only where QEMU executes all CPUs in one thread, as
//! it does with `-icount`; with several threads the bounds of phases are approximate.
//!
//! It implements version 1 of QEMU's plugin interface, for QEMU 6.0 to 8.2; built with the feature
//! `interface-3` it implements version 3, which QEMU 9.1 and later support. Other versions refuse
//! to load it, with a message.

pub mod count;
pub mod kind;
// A test program is not a plugin: nothing defines those functions there.
#[cfg(not(test))]
mod qemu;
