//! What differs between architectures.

use core::fmt;
use iommu::{DeviceId, DomainId, Stuck};
use paging::{Invalidation, Progress};
use pci::{Function, Physical};
use spin::Mutex;
use stay::iommu::{Begun, Device, Domain};

use super::domains::Domains;
use super::functions::Functions;
use super::machine::{Given, MachineDevices};
use crate::vm::Vm;
use crate::vm::arch::Arch;
use crate::vm::dma::{Devices, Tickets};
use crate::vm::refused::Refused;

/// Kinds of IOMMU and of interrupts.
pub trait Platform: Sized + 'static {
    /// An IOMMU in operation, behind which all functions are blocked that no guest owns.
    type Iommu: Iommu<Self::Interrupts>;
    /// The interrupts of one function.
    type Interrupts: Interrupts<Self>;
    /// Where the interrupts of all functions go.
    type Routes: Send + Sync;
    /// A guest that interrupts are delivered to.
    type Receiver: ?Sized + Sync + 'static;
    /// Whether guests see MSI and MSI-X.
    const SHOWS_MESSAGES: bool;

    /// Checks whether a function, which is free, can interrupt a guest.
    ///
    /// # Errors
    ///
    /// Why a guest does not get it. `neighbours` are the functions that other guests own.
    fn check(
        machine: &MachineDevices<Self>,
        physical: &Physical,
        neighbours: &mut dyn Iterator<Item = pci::Address>,
    ) -> Result<(), Refused>;
}

/// The translations of a guest's devices.
#[derive(Clone, Copy, Debug)]
pub struct Translations {
    /// Root of the tables that they translate by.
    pub root: u64,
    /// The guest's domain.
    pub domain: DomainId,
}

/// Why a device does not translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAttached {
    /// The IOMMU does not go on: the device may still be blocked, or not.
    Stuck(Stuck),
    /// The IOMMU's tables have no place for the device or its domain, or no such root. Nothing was
    /// changed: the device is blocked.
    NoPlace,
}

impl From<Stuck> for NotAttached {
    fn from(stuck: Stuck) -> Self {
        Self::Stuck(stuck)
    }
}

impl fmt::Display for NotAttached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stuck(stuck) => stuck.fmt(f),
            Self::NoPlace => f.write_str("the IOMMU's tables have no place for it"),
        }
    }
}

/// An IOMMU, for devices with interrupts of this kind. Numbers of devices are their requester ids.
pub trait Iommu<I>: Send + Sync {
    /// The id with which requests of a device reach this IOMMU; `None` if it is not behind it.
    fn requester(&self, device: DeviceId) -> Option<DeviceId>;

    /// Whether interrupts of the machine itself, which the hypervisor uses, arrive with this id. No
    /// function with it may be attached.
    fn is_machines_own(&self, id: DeviceId) -> bool;

    /// Lets a device, which is blocked, translate by a guest's tables, and interrupt.
    ///
    /// # Errors
    ///
    /// [`NotAttached`].
    fn attach(&self, device: Device, translations: Translations, interrupts: &I) -> Result<(), NotAttached>;

    /// Blocks devices, and drops all that is kept of their translations. Afterwards nothing of the
    /// guest's tables or memory is used by them.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if the IOMMU does not go on. Nothing may be freed then.
    fn detach(&self, domain: &Domain<'_>) -> Result<(), Stuck>;

    /// Has the IOMMU drop what `invalidation` names, without a wait.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if it takes no more commands.
    fn begin(&self, domain: &Domain<'_>, invalidation: Invalidation<'_>) -> Result<Begun, Stuck>;

    /// Waits until it has.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if it does not go on. Nothing may be freed then.
    fn finish(&self, begun: Begun) -> Result<(), Stuck>;

    /// Calls `report` with the events that were logged since the last call, and the device of each.
    /// Returns whether further events were lost.
    fn take_events(&self, report: &mut dyn FnMut(Option<DeviceId>, &dyn fmt::Display)) -> bool;
}

/// The interrupts of a function: they follow what the guest wants.
pub trait Interrupts<P: Platform>: Send + Sync {
    /// Of a function that is reset. It is behind an IOMMU, by this id.
    fn new(behind: Option<(&P::Iommu, DeviceId)>, physical: &Physical, shown: &Function) -> Self;

    /// The guest gets exactly what it wants now. Returns whether the function may raise its pin.
    fn follow(
        &mut self,
        machine: &MachineDevices<P>,
        given: &Given,
        to: &'static P::Receiver,
        wanted: &Function,
    ) -> bool;

    /// After a reset nothing is enabled. Not every way of reset reaches the interrupts, so they are
    /// switched off here.
    fn forget(&mut self, machine: &MachineDevices<P>, given: &Given);
}

/// What a guest owns of the machine.
pub struct Holding<P: Platform> {
    /// Functions of its PCI.
    pub functions: Mutex<Functions<P>>,
    /// The IOMMUs that translate for them; `None` if there are none.
    pub domains: Option<Domains<P>>,
}

/// An architecture whose guests own functions.
pub trait DeviceOwner: Arch {
    /// Its IOMMUs and interrupts.
    type Platform: Platform;
    /// What a guest owns.
    fn owned(vm: &Vm<Self>) -> &Holding<Self::Platform>;
    /// Root of the tables that its functions translate by; `None` if there are none.
    fn root(vm: &Vm<Self>) -> Option<u64>;

    /// Has the IOMMUs drop what `invalidation` names of the nested tables, without a wait.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if one takes no more commands.
    #[inline(always)]
    fn begin_flush(
        _: &Vm<Self>,
        domains: &Domains<Self::Platform>,
        invalidation: Invalidation<'_>,
    ) -> Result<Tickets, Stuck> {
        domains.begin(invalidation)
    }

    /// Makes a step of mapping all memory for functions that have tables of their own.
    fn map(_: &Vm<Self>) -> Progress {
        Progress::Done
    }

    /// Reads or changes what the guest sees of its functions.
    fn with_shown<R>(vm: &Vm<Self>, act: impl FnOnce(&mut [Function]) -> R) -> R;
    /// The guest, for interrupts.
    fn receiver(vm: &'static Vm<Self>) -> &'static <Self::Platform as Platform>::Receiver;
}

/// The functions that guests own, for the core.
pub struct OwnedFunctions;

// SAFETY: functions translate only while they are attached, by tables whose changes
// `DeviceOwner::begin_flush` passes on to all IOMMUs that the guest's functions are behind.
unsafe impl<A: DeviceOwner> Devices<A> for OwnedFunctions {
    fn are_owned(vm: &Vm<A>) -> bool {
        A::owned(vm).domains.is_some()
    }

    #[inline(always)]
    fn begin_flush(vm: &Vm<A>, invalidation: Invalidation<'_>) -> Result<Tickets, Stuck> {
        match &A::owned(vm).domains {
            None => Ok(Tickets::new()),
            Some(domains) => A::begin_flush(vm, domains, invalidation),
        }
    }

    fn finish_flush(vm: &Vm<A>, begun: &Tickets) -> Result<(), Stuck> {
        A::owned(vm).domains.as_ref().map_or(Ok(()), |domains| domains.finish(begun))
    }

    fn map(vm: &Vm<A>) -> Progress {
        A::map(vm)
    }

    fn step_reset(vm: &Vm<A>) -> Progress {
        A::owned(vm).functions.lock().reset()
    }

    fn attach(vm: &Vm<A>) {
        if let Some(root) = A::root(vm) {
            A::owned(vm).functions.lock().attach(root);
        }
    }

    fn silence(vm: &Vm<A>) {
        A::owned(vm).functions.lock().silence();
    }

    fn detach(vm: &Vm<A>) -> Result<(), Stuck> {
        A::owned(vm).functions.lock().detach(A::owned(vm).domains.as_ref())
    }

    fn give_back(vm: &Vm<A>) -> Progress {
        A::owned(vm).functions.lock().give_back()
    }
}
