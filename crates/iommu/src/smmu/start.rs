//! Bringing an SMMU up: which registers are written, in which order, and what is waited for (IHI
//! 0070, 3.11 "Reset, Enable and initialization", and the registers' own rules in 6.3).
//!
//! ```text
//! GBPA := abort               no access passes while the SMMU is off, also if firmware let it
//! CR0 := 0                    off, queues too; from here on its registers may be written
//! IRQ_CTRL := 0
//! CR1, CR2, stream table, queues
//! GERRORN := GERROR           an error of before would keep the command queue from going on
//! CR0 := commands             the ring is in use
//!   forget                    what it keeps since its reset is unknown (`forget_all`)
//! CR0 := commands, events
//! CR0 := commands, events, SMMU
//! ```
//!
//! Each change of GBPA, CR0 and IRQ_CTRL is acknowledged before the next step. From GBPA on no
//! access reaches memory but by the stream table.

use super::command::{cfgi_all, tlbi_el2_all, tlbi_nsnh_all};
use super::features::Features;
use super::registers::{
    ATSCHK, CMDQ_BASE, CMDQ_CONS, CMDQ_PROD, CMDQEN, CR0, CR0ACK, CR1, CR2, EVENTQ_BASE, EVENTQ_CONS,
    EVENTQ_IRQEN, EVENTQ_PROD, EVENTQEN, GBPA, GBPA_ABORT, GBPA_UPDATE, GERROR_IRQEN, IRQ_CTRL, IRQ_CTRL_ACK,
    PRIQ_IRQEN, PRIQEN, PTM, RECINVSID, Register, SMMUEN, STRTAB_BASE, STRTAB_BASE_CFG,
};
use super::stream::{Reads, Split};
use crate::Command;

/// A queue: its place in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Physical address, a multiple of the queue's size, and of 32.
    pub address: u64,
    /// Binary logarithm of the number of entries.
    pub order: u32,
}

/// The stream table: its place in memory, and its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTable {
    /// Physical address, a multiple of the (first) table's size, and of 64.
    pub address: u64,
    /// Binary logarithm of the number of streams.
    pub order: u32,
    /// How many of a StreamID's low bits the second level has; `None` if there is one level.
    pub split: Option<Split>,
}

/// What the SMMU reads and writes. It is there, and the stream table is filled, before the first
/// step: a fresh table, of zeros, aborts everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The stream table.
    pub streams: StreamTable,
    /// The command queue, of which the [`Queue`](crate::Queue) has the entries.
    pub commands: Ring,
    /// The event queue.
    pub events: Ring,
}

/// Why an SMMU is not brought up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It has no tables of the 64-bit format, or a size of addresses that is not known.
    Tables,
    /// Its tables or queues have fixed places.
    Preset,
    /// The stream table has too many streams, or two levels that the SMMU does not have.
    Streams,
    /// A queue is longer than the SMMU can.
    Length,
    /// An address is not aligned, or beyond what the SMMU can reach.
    Address,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The value is written; all earlier writes, of memory too, come before.
    Write(Register, u64),
    /// The register of 32 bits is read until the bits in `mask` have this value. A bound is the
    /// caller's; if it is exceeded, the SMMU is not there or broken.
    Await {
        /// The register.
        register: Register,
        /// Which bits.
        mask: u32,
        /// Their value.
        value: u32,
    },
    /// GERROR is read, and written to GERRORN.
    AcknowledgeErrors,
    /// [`forget_all`] is put into the queue, and waited for.
    Forget,
}

/// The commands after a reset: all configuration and all translations are forgotten.
pub fn forget_all(features: &Features) -> impl Iterator<Item = Command> + use<> {
    let el2 = features.has_el2.then_some(tlbi_el2_all());
    [Some(cfgi_all()), el2, Some(tlbi_nsnh_all())].into_iter().flatten()
}

/// The steps, or why there are none. CR2.E2H stays clear.
///
/// # Errors
///
/// [`Refusal`] if the SMMU cannot use these places.
pub fn steps(features: &Features, places: &Places) -> Result<impl Iterator<Item = Step> + use<>, Refusal> {
    check(features, places)?;
    let Places { streams, commands, events } = places;
    // What devices have had translated is checked, too.
    let checks = if features.has_ats { ATSCHK } else { 0 };
    let broadcasts = if features.hears_broadcasts { PTM } else { 0 };
    let narrow = |register, value: u32| Step::Write(register, value.into());
    let awaited = |register, mask, value| Step::Await { register, mask, value };
    let enable =
        |bits: u32| [narrow(CR0, bits | checks), awaited(CR0ACK, SMMUEN | PRIQEN | EVENTQEN | CMDQEN, bits)];
    let gbpa = awaited(GBPA, GBPA_UPDATE, 0);
    let ring = |base, ring: &Ring, ends: [Register; 2]| {
        let address = ring.address | hint(features) | u64::from(ring.order);
        [Step::Write(base, address), narrow(ends[0], 0), narrow(ends[1], 0)]
    };
    let off = [gbpa, narrow(GBPA, GBPA_UPDATE | GBPA_ABORT), gbpa]
        .into_iter()
        .chain(enable(0))
        .chain([narrow(IRQ_CTRL, 0), awaited(IRQ_CTRL_ACK, GERROR_IRQEN | PRIQ_IRQEN | EVENTQ_IRQEN, 0)]);
    let settings = [
        narrow(CR1, attributes(features)),
        narrow(CR2, RECINVSID | broadcasts),
        Step::Write(STRTAB_BASE, streams.address | hint(features)),
        narrow(STRTAB_BASE_CFG, shape(streams)),
    ];
    Ok(off
        .chain(settings)
        .chain(ring(CMDQ_BASE, commands, [CMDQ_PROD, CMDQ_CONS]))
        .chain(ring(EVENTQ_BASE, events, [EVENTQ_PROD, EVENTQ_CONS]))
        .chain([Step::AcknowledgeErrors])
        .chain(enable(CMDQEN))
        .chain([Step::Forget])
        .chain(enable(CMDQEN | EVENTQEN))
        .chain(enable(CMDQEN | EVENTQEN | SMMUEN)))
}

fn check(features: &Features, Places { streams, commands, events }: &Places) -> Result<(), Refusal> {
    let output = features.output.filter(|_| features.has_64_bit_tables).ok_or(Refusal::Tables)?;
    if features.has_preset_places {
        return Err(Refusal::Preset);
    }
    let has_shape = features.has_two_levels || streams.split.is_none();
    if streams.order > features.stream_bits || !has_shape {
        return Err(Refusal::Streams);
    }
    if commands.order > features.command_order_max || events.order > features.event_order_max {
        return Err(Refusal::Length);
    }
    let table_order = match streams.split {
        None => streams.order + ENTRY_SHIFT,
        Some(split) => (streams.order.saturating_sub(split as u32) + DESCRIPTOR_SHIFT).max(6),
    };
    let ring_order = |ring: &Ring, shift: u32| (ring.order + shift).max(5);
    let places = [
        (streams.address, table_order),
        (commands.address, ring_order(commands, COMMAND_SHIFT)),
        (events.address, ring_order(events, RECORD_SHIFT)),
    ];
    let is_good = |(address, order): (u64, u32)| {
        let end = address.checked_add(1 << order);
        address.trailing_zeros() >= order && end.is_some_and(|end| end <= 1 << output.bits())
    };
    if places.into_iter().all(is_good) { Ok(()) } else { Err(Refusal::Address) }
}

/// Binary logarithms of the bytes of entries: of the stream table and its first level, of queues.
const ENTRY_SHIFT: u32 = 6;
const DESCRIPTOR_SHIFT: u32 = 3;
const COMMAND_SHIFT: u32 = 4;
const RECORD_SHIFT: u32 = 5;
const _: () = assert!(super::event_queue::RECORD_BYTES == 1 << RECORD_SHIFT);

/// RA and WA: accesses may allocate in caches.
const fn hint(features: &Features) -> u64 {
    if features.is_coherent { 1 << 62 } else { 0 }
}

const fn attributes(features: &Features) -> u32 {
    let reads = if features.is_coherent { Reads::Coherent } else { Reads::FromMemory };
    let both = reads as u32;
    both << 6 | both
}

fn shape(streams: &StreamTable) -> u32 {
    let two_levels = streams.split.map_or(0, |split| 1 << 16 | (split as u32) << 6);
    two_levels | streams.order
}
