//! A made machine with PCI functions and an IOMMU, for tests.

mod bus;
mod function;
mod iommu;
mod ops;
mod vtd;
mod walk;

pub(crate) use bus::{BRIDGED, MadeBus, NVME, SMALL, VIRTIO};
pub(crate) use iommu::{MadeIommu, block};
pub(crate) use ops::{Arrived, device_id};
pub(crate) use vtd::MadeVtd;
pub(crate) use walk::Refusal;

use ::iommu::DeviceId;
use ::iommu::amd::ivrs::units;
use alloc::boxed::Box;
use alloc::vec::Vec;
use pci::Address;
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crate::iommu::amd_vi;
use crate::iommu::messages::MachineDevices;
use crate::iommu::remapping::Iommu;
use crate::iommu::routes::Routes;
use crate::owned::{buses, nodes};

/// What has happened at the machine's borders, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Config(Address, u16, u32),
    /// A write to a function's registers, by their host physical address.
    Store(u64, u64),
    Register(u64, u64),
    Command([u64; 2]),
    Reset(Address),
}

#[derive(Default)]
pub(crate) struct Notes(Mutex<Vec<Note>>);

impl Notes {
    pub(crate) fn add(&self, note: Note) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    }

    /// Those since the last call.
    pub(crate) fn take(&self) -> Vec<Note> {
        core::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The commands since the last call; other notes are lost.
    pub(crate) fn commands(&self) -> Vec<[u64; 2]> {
        let command = |note| if let Note::Command(command) = note { Some(command) } else { None };
        self.take().into_iter().filter_map(command).collect()
    }
}

pub(crate) struct Machine {
    pub(crate) bus: &'static MadeBus,
    pub(crate) iommu: &'static MadeIommu,
    pub(crate) devices: &'static MachineDevices,
    pub(crate) notes: &'static Notes,
}

/// The id of the IOMMU itself.
pub(crate) const OWN: u16 = 1 << 3;

impl Machine {
    /// A machine whose IOMMU is in operation.
    pub(crate) fn new() -> &'static Self {
        let notes: &'static Notes = Box::leak(Box::default());
        let bus: &'static MadeBus = Box::leak(Box::new(MadeBus::new(notes)));
        let iommu: &'static MadeIommu = Box::leak(Box::new(MadeIommu::new(notes)));
        let table = iommu::ivrs();
        let unit = units(&table).next().expect("it is in the table");
        let nodes = nodes(bus);
        let driver = amd_vi::Iommu::start(iommu, &unit, buses(&nodes)).expect("it starts");
        let devices = MachineDevices::new(
            bus,
            nodes,
            alloc::vec![Iommu::AmdVi(driver)],
            alloc::vec![DeviceId(OWN)],
            Routes::default(),
        );
        let devices: &'static MachineDevices = Box::leak(Box::new(devices));
        Box::leak(Box::new(Self { bus, iommu, devices, notes }))
    }
}

thread_local! {
    static HERE: Cell<Option<&'static Machine>> = const { Cell::new(None) };
}

/// The calling thread's boards have this machine's devices from now on.
pub(crate) fn set_machine(machine: Option<&'static Machine>) {
    HERE.set(machine);
}

/// What the mock processor reports.
pub(crate) fn devices() -> Option<&'static MachineDevices> {
    HERE.get().map(|machine| machine.devices)
}
