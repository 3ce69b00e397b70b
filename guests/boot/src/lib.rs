//! Finds the kernel on a disk: what is the same on every machine, and runs in tests.
//!
//! | module | contents |
//! |---|---|
//! | [`disk`] | a disk, and a part of one |
//! | [`table`] | its partitions: GPT, MBR, or none |
//! | [`volume`] | the filesystems on them: ext4 |
//! | [`version`] | the order of kernels' versions |
//! | [`entries`] | Boot Loader Specification entries |
//! | [`grub`] | GRUB's configuration |
//! | `condition`, `words` | its conditions, and its words |
//! | [`find`] | which kernel is started, or what was looked for |
//! | [`place`] | where it goes in memory |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod condition;
pub mod disk;
pub mod entries;
pub mod find;
pub mod grub;
pub mod place;
pub mod table;
#[cfg(test)]
mod tests;
pub mod version;
pub mod volume;
mod words;
