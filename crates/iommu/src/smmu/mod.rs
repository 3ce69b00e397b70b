//! SMMUv3: commands, the choice of invalidations, stream table entries and events.
//!
//! ```text
//! Features::read(..)                              once per SMMU
//!   start::steps(&features, &places)              the registers by which it begins
//! Setup::new(&features, granule, commands_max)    once per SMMU, for its tables
//!   plan(&setup, scope, ranges)                   TLBI commands for what a change left stale
//!   Queue::issue(commands)                        with one CMD_SYNC behind them
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`registers`] | offsets and bits of registers |
//! | [`features`] | what an SMMU has |
//! | [`start`] | the sequence of registers by which one is brought up |
//! | [`command`] | encodings of commands |
//! | [`range`](mod@range) | the commands for ranges of addresses |
//! | [`stream`] | stream table entries and context descriptors |
//! | [`change`] | how one that is in use is changed |
//! | [`event`] | event records |
//! | [`event_queue`] | the reader's end of their queue |
//!
//! A stream has one stage of translation, which is the hypervisor's own: stage 1 by a context
//! descriptor with an ASID. Stage 2, substreams, ATS, the Secure state and Realms are not used.
//!
//! Everything here assumes IDR5.DS = 0 in the tables: addresses of 48 bits with granules of 4 and
//! 16 KiB, of 52 bits with 64 KiB.
//!
//! Sources: Arm System Memory Management Unit Architecture Specification, version 3 (IHI 0070): 3.5
//! "Command and Event queues", 3.11 "Reset, Enable and initialization",
//! 3.21.3 "Configuration structures and configuration invalidation completion", chapter 4
//! "Commands", 5.1 "Level 1 Stream Table Descriptor", 5.2 "Stream Table Entry", 5.4 "Context
//! Descriptor", 6.3 "Register formats", 7.3 "Event records". Positions of fields were compared with
//! Linux (`arm-smmu-v3.h`) and QEMU (`smmuv3-internal.h`).

pub mod change;
pub mod command;
pub mod event;
pub mod event_queue;
pub mod features;
pub mod range;
pub mod registers;
pub mod start;
pub mod stream;

#[cfg(all(test, not(loom)))]
mod tests;

pub use change::Step;
pub use coherence::tlbi::{Granule, LeafLevel, Stale};
pub use command::{Asid, StreamId};
pub use event::Event;
pub use features::Features;
pub use range::{Setup, plan};
pub use stream::{ContextDescriptor, StreamEntry};
