//! The ring under loom, with a device that translates and keeps what it has found, and proof that
//! each part of the protocol is needed.
//!
//! Pages are removed from the table while the device uses them. The device is a thread: it does
//! DMA by translations that it keeps until an invalidation, and reads the ring. A page that is
//! used by the device and reused by a CPU at the same time is a race that loom finds.

mod both;
mod device;
mod mutants;
mod scenarios;
