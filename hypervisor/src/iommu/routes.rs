//! Where the interrupts of owned functions go.
//!
//! A function's interrupt has a vector of one CPU, by an entry of its interrupt remapping table.
//! That CPU looks the vector up here, and delivers the guest's own message. A function can raise
//! the vectors in its table only, whatever it writes.
//!
//! Each CPU has vectors of its own, and one of them is kept for each function of the machine that
//! has none there. Of the others a guest has no more than are left: so none of them can take all.
//!
//! Each CPU has a lock, which is held while it delivers. So once a guest's routes are silent,
//! nobody uses it because of them. A message for several vCPUs would take long under it: the
//! interrupt is noted here, and one of the guest's vCPUs delivers the message in its turn.
//!
//! ```text
//! CPU that an interrupt comes to             vCPU of the guest, in its turn
//! A  the route: it has arrived (lock)        D  takes its event (sched::notify)
//! B  the guest has messages (Release)        E  the guest has messages: takes that (Acquire)
//! C  tells a vCPU (sched::notify)            F  the route: has it arrived? (lock)
//!
//! A before B, E before F: who finds B in E finds A in F
//! E before B: the vCPU of C comes to D, and finds B then, unless another vCPU has
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;
use core::ops::Range;
use iommu::DeviceId;
use spin::Mutex;

use super::remaps::Forgotten;
use crate::devices::pc::message::Message;
use crate::sched::CpuIndex;
use crate::vm::VpIndex;
use crate::vm::percpu::MAX_CPUS;

/// The vectors for functions that guests own.
pub const FUNCTIONS: Range<u8> = 0x20..pic::VECTORS.start;

/// A guest that messages are delivered to.
pub trait Receiver: Sync {
    /// The APIC id of a CPU, if it runs the guest's vCPUs and interrupts of functions reach it.
    fn destination(&self, cpu: CpuIndex) -> Option<u8>;
    /// The vCPU that a message is for by its form, wherever local APICs are.
    fn single(&self, message: Message) -> Option<VpIndex>;
    /// Delivers a message to one vCPU.
    fn post(&self, vcpu: VpIndex, message: Message);

    /// Has this vCPU, or another one, call [`Functions::spread`](crate::owned::Functions::spread)
    /// in its turn.
    fn tell(&self, vcpu: VpIndex);

    /// Delivers a message to all that it names. Returns the vCPU if it is exactly one.
    fn spread(&self, message: Message) -> Option<VpIndex>;
}

/// In place of a guest that may be gone.
struct Nobody;

impl Receiver for Nobody {
    fn destination(&self, _: CpuIndex) -> Option<u8> {
        None
    }

    fn single(&self, _: Message) -> Option<VpIndex> {
        None
    }

    fn post(&self, _: VpIndex, _: Message) {}

    fn tell(&self, _: VpIndex) {}

    fn spread(&self, _: Message) -> Option<VpIndex> {
        None
    }
}

/// What is done with an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It is noted: the function had sent it before the guest masked it.
    Masked,
    Direct(VpIndex, Message),
    /// It is noted, and the guest is told, this vCPU first.
    InTurn(VpIndex),
}

/// Where the interrupts of one vector go.
struct Route {
    to: &'static dyn Receiver,
    function: DeviceId,
    /// It is the one that is kept for the function here.
    is_kept: bool,
    way: Delivery,
    has_arrived: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuVector {
    cpu: CpuIndex,
    /// The CPU's APIC id.
    pub(crate) destination: u8,
    pub(crate) vector: u8,
}

/// The routes of one CPU, by vector from the first of [`FUNCTIONS`] on.
#[derive(Default)]
struct Table(Vec<Option<Route>>);

/// All routes.
pub struct Routes(Box<[Mutex<Table>]>);

impl Default for Routes {
    fn default() -> Self {
        Self((0..MAX_CPUS).map(|_| Mutex::default()).collect())
    }
}

impl Table {
    fn route(&mut self, vector: u8) -> Option<&mut Route> {
        self.0.get_mut(usize::from(vector.wrapping_sub(FUNCTIONS.start)))?.as_mut()
    }

    fn known(&self) -> impl Iterator<Item = &Route> + Clone {
        self.0.iter().flatten()
    }

    fn left(&self) -> usize {
        FUNCTIONS.len().saturating_sub(self.known().count())
    }

    /// Whether a route must be the one that is kept for its function; `None` if there is no vector
    /// for it. The machine has so many functions.
    fn room(&self, to: &'static dyn Receiver, function: DeviceId, functions: usize) -> Option<bool> {
        let kept = self.known().filter(|route| route.is_kept);
        if !kept.clone().any(|route| route.function == function) {
            return (self.left() > 0).then_some(true);
        }
        let spare = self.left().saturating_sub(functions.saturating_sub(kept.count()));
        let is_same = |route: &&Route| !route.is_kept && core::ptr::addr_eq(route.to, to);
        (self.known().filter(is_same).count() < spare).then_some(false)
    }

    /// Takes a vector. It is masked.
    fn take(&mut self, to: &'static dyn Receiver, function: DeviceId, functions: usize) -> Option<u8> {
        let is_kept = self.room(to, function, functions)?;
        let index = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if index == self.0.len() {
            self.0.push(None);
        }
        let route = Route { to, function, is_kept, way: Delivery::Masked, has_arrived: false };
        *self.0.get_mut(index)? = Some(route);
        Some(FUNCTIONS.start + index as u8)
    }

    fn deliver(&mut self, vector: u8) -> bool {
        let Some(route) = self.route(vector) else { return false };
        match route.way {
            Delivery::Direct(vcpu, message) => route.to.post(vcpu, message),
            Delivery::Masked => route.has_arrived = true,
            Delivery::InTurn(vcpu) => {
                route.has_arrived = true;
                route.to.tell(vcpu);
            }
        }
        true
    }
}

impl Routes {
    fn at<R>(&self, place: CpuVector, act: impl FnOnce(&mut Route) -> R) -> Option<R> {
        self.0.get(place.cpu.place())?.lock().route(place.vector).map(act)
    }

    /// Takes a vector for a function of a guest, of that one of the guest's CPUs that has most of
    /// them left. `functions` is how many the machine has.
    pub(crate) fn take(
        &self,
        to: &'static dyn Receiver,
        function: DeviceId,
        functions: usize,
    ) -> Option<CpuVector> {
        let room = |(cpu, table): (CpuIndex, &Mutex<Table>)| {
            let destination = to.destination(cpu)?;
            let table = table.lock();
            table.room(to, function, functions)?;
            Some((table.left(), cpu, destination))
        };
        let found = (0..).map(CpuIndex).zip(&self.0).filter_map(room);
        // Of several the first one.
        let (_, cpu, destination) = found.max_by_key(|&(left, cpu, _)| (left, Reverse(cpu)))?;
        let vector = self.0.get(cpu.place())?.lock().take(to, function, functions)?;
        Some(CpuVector { cpu, destination, vector })
    }

    /// Sets what is done with a vector's interrupts. Returns whether one had arrived that the guest
    /// gets now: from its caller, because this is the guest's own turn.
    pub(crate) fn set(&self, place: CpuVector, way: Delivery) -> bool {
        let set = |route: &mut Route| {
            route.way = way;
            way != Delivery::Masked && mem::take(&mut route.has_arrived)
        };
        self.at(place, set).unwrap_or(false)
    }

    /// Whether an interrupt has arrived since the last call.
    pub(crate) fn take_arrived(&self, place: CpuVector) -> bool {
        self.at(place, |route| mem::take(&mut route.has_arrived)).unwrap_or(false)
    }

    /// Nobody gets a vector's interrupts any more. The vector is not free yet.
    pub(crate) fn silence(&self, place: CpuVector) {
        self.at(place, |route| (route.to, route.way) = (&Nobody, Delivery::Masked));
    }

    pub(crate) fn free(&self, place: CpuVector, proof: &Forgotten) {
        let Some(table) = self.0.get(place.cpu.place()) else { return };
        let index = usize::from(place.vector.wrapping_sub(FUNCTIONS.start));
        if let Some(route) = table.lock().0.get_mut(index)
            && route.as_ref().is_some_and(|route| route.function == proof.device())
        {
            *route = None;
        }
    }

    /// An interrupt has arrived on a CPU. Returns false if the vector has no route.
    pub fn deliver(&self, cpu: CpuIndex, vector: u8) -> bool {
        self.0.get(cpu.place()).is_some_and(|table| table.lock().deliver(vector))
    }
}
