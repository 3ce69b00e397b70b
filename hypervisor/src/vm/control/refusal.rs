//! Refusals of requests.

use core::fmt;
use hostlink::guests::GuestState;
use hostlink::name::Name;
use memslots::{Slot, SlotError};
use migration::Flaw;
use migration::channel::Broken;

use crate::vm::arch::Arch;
use crate::vm::dma::Devices;
use crate::vm::{CreateError, Vm};

/// Why a request was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// An error from the slots.
    Slot(SlotError),
    /// It overlaps the slot of this number.
    Overlap { slot: u16, gpa: u64, size: u64 },
    /// A device occupies the range.
    Device { name: &'static str, start: u64, end: u64 },
    /// No single piece of free memory is this large; the largest is given.
    NoMemory { size: u64, largest: u64 },
    /// There is no memory for the tables that map it.
    NoTables,
    /// No slot has this number.
    NoSlot(u16),
    /// The slot was not added by a request.
    NotAdded(u16),
    /// The guest owns devices, whose stores would be missing in a log.
    OwnsDevices,
    /// The guest cannot store to it.
    ReadOnly(u16),
    /// The bundle describes no such guest.
    NoGuest(Name),
    /// The guest exists already, or does not exist.
    State { guest: Name, state: GuestState, wanted: &'static str },
    /// The guest cannot be created.
    Create(CreateError),
    /// There is no such serial port.
    NoPort(u16),
    /// It is about no guest's memory.
    OfNoMemory,
    /// There is no guest of this name, or none at all.
    NoneSuch,
    /// It cannot be sent, or what comes is no guest.
    Moves(Flaw),
    /// The host tool's end of the channel makes no sense.
    Channel,
    /// It has ended.
    HasEnded,
    /// It was given away in this session, and it is not known what came of it.
    Given(u64),
    /// The connection ended before all of it was there, or before it was to run.
    Dropped,
    /// Too many requests wait that are about the same guest, or about none.
    TooMany,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(SlotError::Empty) => f.write_str("the size is 0"),
            Self::Slot(SlotError::Unaligned) => f.write_str("address and size must be multiples of 4096"),
            Self::Slot(SlotError::TooHigh) => {
                f.write_str("it ends beyond the guest's physical address width")
            }
            Self::Slot(SlotError::NoLog) => f.write_str("stores to the slot are not logged"),
            Self::Slot(error) => write!(f, "{error}"),
            Self::Overlap { slot, gpa, size } => {
                write!(f, "it overlaps slot {slot}, which is at {gpa:#x} and has {} KiB", size >> 10)
            }
            Self::Device { name, start, end } => {
                write!(f, "it overlaps {name}, {start:#x} to {end:#x}")
            }
            Self::NoMemory { size, largest } => {
                write!(
                    f,
                    "there are no {} KiB of free memory in one piece; the largest has {} KiB",
                    size >> 10,
                    largest >> 10
                )
            }
            Self::NoTables => f.write_str("there is no free memory for the tables that would map it"),
            Self::NoSlot(slot) => write!(f, "there is no slot {slot}"),
            Self::NotAdded(slot) => {
                write!(
                    f,
                    "slot {slot} was not added by a request: it is the guest's own memory, or a device's"
                )
            }
            Self::NoGuest(name) => write!(f, "the machine's file describes no guest '{name}'"),
            Self::State { guest, state, wanted } => {
                write!(f, "guest '{guest}' is {state}: this is for a guest that is {wanted}")
            }
            Self::OfNoMemory => f.write_str("the request is about no guest's memory"),
            Self::NoneSuch => f.write_str("there is no such guest"),
            Self::Moves(flaw) => write!(f, "{flaw}"),
            Self::Channel => f.write_str("the channel's counts make no sense"),
            Self::HasEnded => f.write_str("the guest has ended"),
            Self::Given(session) => {
                write!(
                    f,
                    "the guest was given away in session {session:#x}: ask the other side what came of it"
                )
            }
            Self::Dropped => f.write_str("the guest was not to run here in the end"),
            Self::TooMany => f.write_str("too many requests about the same guest wait for their turn"),
            Self::Create(why) => write!(f, "{why}"),
            Self::NoPort(port) => write!(f, "the guest has no serial port {port}"),
            Self::OwnsDevices => {
                f.write_str("the guest owns devices: what they store would be missing in a log")
            }
            Self::ReadOnly(slot) => write!(f, "the guest cannot store to slot {slot}"),
        }
    }
}

impl From<Flaw> for Refusal {
    fn from(flaw: Flaw) -> Self {
        Self::Moves(flaw)
    }
}

impl From<Broken> for Refusal {
    fn from(Broken: Broken) -> Self {
        Self::Channel
    }
}

/// Refuses a log where stores would be missing.
pub(super) fn check_log<A: Arch>(vm: &Vm<A>) -> Result<(), Refusal> {
    if A::Devices::are_owned(vm) {
        return Err(Refusal::OwnsDevices);
    }
    Ok(())
}

pub(super) fn refusal(slot: u16, error: SlotError) -> Refusal {
    match error {
        SlotError::UnknownId => Refusal::NoSlot(slot),
        error => Refusal::Slot(error),
    }
}

/// Adds to an overlap where the other slot is.
pub(super) fn named<A: Arch>(vm: &Vm<A>, error: SlotError) -> Refusal {
    match error {
        SlotError::Overlap(id) => match vm.space.slots().memory().get(id) {
            Some(Slot { gpa, size, .. }) => Refusal::Overlap { slot: id.0, gpa: gpa.0, size },
            None => Refusal::Slot(error),
        },
        error => Refusal::Slot(error),
    }
}
