//! A page that a vCPU and a device use, by one table: the receipt covers both.
//!
//! The initiator runs the real [`coherence::flush_space`]. The vCPU and the device share the other
//! thread: the vCPU enters the guest and leaves, the device does its next command. Whoever waits
//! lets the device go on, too.

use core::ops::ControlFlow;

use coherence::interleave::{explore, on_a_thread};
use coherence::{CpuId, DeviceTlbs, Hardware, Ledger, Owner, Target, Targets, Walkers, flush_space};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::device::{Device, World, invalidate};
use crate::{Stuck, Ticket};

/// Times that the vCPU enters the guest.
const STAYS: usize = 3;

/// The machine, with a vCPU.
struct Machine {
    world: World,
    device: Mutex<Device>,
    target: Target,
    /// The page as the vCPU uses it, beside the device.
    page: UnsafeCell<()>,
}

/// What is done for the device, and by the vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushOrder {
    /// The commands after the change, and a wait.
    Right,
    /// The commands, and no wait.
    NotWaited,
    /// The commands before the change.
    BeforeTheUnmap,
    /// Nothing.
    NotBegun,
    /// All of that, and the vCPU takes the request without dropping anything.
    VcpuKeeps,
}

/// The device behind the ring, with what was begun before the change.
struct Behind<'a> {
    machine: &'a Machine,
    way: FlushOrder,
    early: Option<Ticket>,
}

impl Machine {
    /// The device does its next command, if there is one, and uses the page.
    fn step_device(&self) -> bool {
        let mut device = self.device.lock().unwrap();
        let has_done = device.serve(&self.world);
        device.access(&self.world);
        has_done
    }

    fn wait(&self) {
        if !self.step_device() {
            thread::yield_now();
        }
    }

    /// A stay of the vCPU, by a translation that it holds or finds.
    fn enter(&self, owner: &mut Owner<'_>, is_held: &mut bool, way: FlushOrder) {
        let Ok(guest) = owner.try_enter(CpuId(0)) else {
            if let Some(work) = owner.take_flush() {
                *is_held &= way == FlushOrder::VcpuKeeps;
                work.complete();
            }
            return;
        };
        *is_held |= self.world.is_mapped(0);
        if *is_held {
            self.page.with_mut(|_| ());
        }
        guest.leave();
    }

    fn issue(&self) -> Result<Ticket, Stuck> {
        self.world.queue.issue([invalidate(0)])
    }
}

impl Targets for Machine {
    fn target(&self, index: usize) -> Option<&Target> {
        (index == 0).then_some(&self.target)
    }
}

#[expect(unsafe_code, reason = "the model's walkers are these, and loom finds a violation")]
// SAFETY: see above.
unsafe impl Walkers for Machine {
    type Stamp = ();
    type Devices<'a> = Behind<'a>;

    fn stamp(&self) {}

    fn count(&self) -> usize {
        1
    }
}

#[expect(unsafe_code, reason = "mutants break it on purpose, and loom finds that")]
// SAFETY: see above.
unsafe impl DeviceTlbs for Behind<'_> {
    type Begun = Option<Ticket>;
    type Error = Stuck;

    fn begin(&self) -> Result<Option<Ticket>, Stuck> {
        match self.way {
            FlushOrder::Right | FlushOrder::VcpuKeeps | FlushOrder::NotWaited => {
                self.machine.issue().map(Some)
            }
            FlushOrder::BeforeTheUnmap => Ok(self.early),
            FlushOrder::NotBegun => Ok(None),
        }
    }

    fn finish(&self, begun: Option<Ticket>) -> Result<(), Stuck> {
        let Some(ticket) = begun.filter(|_| self.way != FlushOrder::NotWaited) else { return Ok(()) };
        let position = self.machine.world.queue.sync_of(ticket)?;
        while !self.machine.world.queue.has_reported(position) {
            self.machine.wait();
        }
        Ok(())
    }
}

/// Kicks do nothing: the vCPU leaves soon.
impl Hardware for &Machine {
    fn kick(&self, _: CpuId) {}

    fn relax(&self, _: u64) -> ControlFlow<()> {
        self.wait();
        ControlFlow::Continue(())
    }
}

/// Removes the page, and uses it for something else after the receipt.
pub(super) fn remove_from_both(way: FlushOrder) {
    let machine = Arc::new(Machine {
        world: World::new(true),
        device: Mutex::new(Device::new()),
        target: Target::new(),
        page: UnsafeCell::new(()),
    });
    let other = on_a_thread(&machine, move |machine| {
        let mut owner = machine.target.owner().unwrap();
        let mut is_held = true;
        for _ in 0..STAYS {
            machine.enter(&mut owner, &mut is_held, way);
            machine.step_device();
        }
    });
    let early = (way == FlushOrder::BeforeTheUnmap).then(|| machine.issue().unwrap());
    machine.world.unmap(0);
    let behind = Behind { machine: &machine, way, early };
    let receipt = flush_space(&*machine, &behind, &mut Ledger::<1>::new(), &&*machine);
    assert!(receipt.is_ok());
    machine.world.reuse(0);
    machine.page.with_mut(|_| ());
    other.join().unwrap();
}

#[test]
fn p16_one_receipt_covers_the_vcpu_and_the_device() {
    explore(Some(4), || remove_from_both(FlushOrder::Right));
}
