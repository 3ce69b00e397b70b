//! How a function is reset, before a guest gets it and after.
//!
//! A [`Reset`] is stepped by the caller, with the time. It never waits itself: it says before which
//! time there is nothing to do. Its steps are:
//!
//! 1. Decoding, DMA and INTx are switched off, and pending transactions are waited for (PCIe,
//!    6.6.2: an answer to a request from before the reset could be taken for that to a later one).
//! 2. The reset itself, and 100 ms after it (PCIe, 6.6.1 and 6.6.2).
//! 3. The function answers again, within a second.
//! 4. The header, and the control of PCI Express, are as before, but without DMA.
//!
//! The caller keeps the function's translations in the IOMMU blocked for the whole time, and
//! invalidates what a function with ATS kept.

#[cfg(test)]
mod tests;

use crate::config::{Address, BAR_COUNT, ConfigSpace, register};
use crate::physical::{Header, Node, Physical};
use pci_types::CommandRegister;

/// Time between two looks at a function, in microseconds.
const POLL_US: u64 = 10_000;
/// Looks at pending transactions, for 1 s in all. Completion timeouts are 50 ms at most unless
/// software chose otherwise (PCIe, 2.8).
const PENDING_POLLS_MAX: u32 = 100;
/// Looks at a function that must answer after its reset, for 1 s in all (PCIe, 6.6.1).
const READY_POLLS_MAX: u32 = 100;
/// Time from a reset to the first access (PCIe, 6.6.2).
const SETTLE_US: u64 = 100_000;
/// Time from D0 to D3hot, and back (PM, 5.6.1).
const POWER_US: u64 = 10_000;
/// Length of a bus's reset: 1 ms at least (PCIe, 6.6.1).
const BUS_US: u64 = 2_000;

/// Device control (PCIe, 7.5.3.4): start a reset.
const START_FLR: u32 = 1 << 15;
/// Device status, in the upper half of the same double word: transactions are pending.
const PENDING: u32 = 1 << 21;
/// Bridge control, in the upper half of the double word with the interrupt line.
const BUS_RESET: u32 = 1 << 22;

/// The way by which a function is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Function level reset (PCIe, 6.6.2), by the capability at this offset.
    Flr(u8),
    /// The same of conventional PCI, by advanced features at this offset.
    AdvancedFlr(u8),
    /// From D3hot to D0 (PM, 5.4.1), by the capability at this offset.
    Power(u8),
    /// Reset of the bus behind this bridge, on which the function is alone.
    Bus(Address),
    /// Status 0 of a virtio device (virtio, 2.4): it stops all its queues. Configuration space is
    /// as before, and so are the entries of MSI-X.
    Virtio(Window),
}

/// How the status of a virtio device is reached through configuration space (virtio, 4.1.4.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Offset of the capability.
    pub offset: u8,
    /// The BAR with the status.
    pub bar: u8,
    /// Offset of the status in it.
    pub status: u32,
}

impl Window {
    /// The types of capabilities: the common configuration, and the window.
    const COMMON: u8 = 1;
    const WINDOW: u8 = 5;
    /// Offset of the status in the common configuration (virtio, 4.1.4.3).
    const STATUS: u32 = 0x14;

    /// That of a virtio device of version 1.
    fn of(physical: &Physical) -> Option<Self> {
        const VENDOR: u16 = 0x1af4;
        if physical.identity.vendor != VENDOR {
            return None;
        }
        let find = |wanted: u8| {
            let vendors = physical.capabilities.vendor.iter();
            vendors
                .into_iter()
                .find(|vendor| vendor.words.first().is_some_and(|word| word.to_le_bytes()[3] == wanted))
        };
        let (common, window) = (find(Self::COMMON)?, find(Self::WINDOW)?);
        let (&bar, &start) = (common.words.get(1)?, common.words.get(2)?);
        let status = start.checked_add(Self::STATUS)?;
        Some(Self { offset: window.offset, bar: bar as u8, status })
    }

    /// Points the window at the status.
    fn select(self, space: &impl ConfigSpace, address: Address) {
        let at = u16::from(self.offset);
        let others = space.read(address, at + 4) & !0xff;
        space.write(address, at + 4, others | u32::from(self.bar));
        space.write(address, at + 8, self.status);
        // Bytes of an access.
        space.write(address, at + 12, 1);
    }

    fn read(self, space: &impl ConfigSpace, address: Address) -> u8 {
        self.select(space, address);
        space.read(address, u16::from(self.offset) + 16) as u8
    }

    fn write(self, space: &impl ConfigSpace, address: Address, status: u8) {
        self.select(space, address);
        space.write(address, u16::from(self.offset) + 16, status.into());
    }
}

/// The way by which a function is reset; `None` if there is none, so that no guest may have it.
///
/// `nodes` are those of a whole [`walk`](crate::physical::walk()). The methods are tried in the
/// order in which they are declared.
pub fn method(physical: &Physical, nodes: &[Node]) -> Option<Method> {
    let capabilities = &physical.capabilities;
    if let Some(express) = capabilities.express.filter(|express| express.has_flr) {
        return Some(Method::Flr(express.offset));
    }
    if let Some(advanced) = capabilities.advanced.filter(|advanced| advanced.has_flr) {
        return Some(Method::AdvancedFlr(advanced.offset));
    }
    if let Some(power) = capabilities.power.filter(|power| !power.keeps_state) {
        return Some(Method::Power(power.offset));
    }
    by_bus(physical, nodes).or_else(|| Window::of(physical).map(Method::Virtio))
}

/// Reset of the function's bus, if it is alone there.
fn by_bus(physical: &Physical, nodes: &[Node]) -> Option<Method> {
    let bridge = crate::group::find(nodes, physical.address)?.above?;
    let is_alone = nodes.iter().filter(|node| node.above == Some(bridge)).count() == 1;
    let is_bridge = crate::group::find(nodes, bridge)?.identity.header == Header::Bridge;
    (is_alone && is_bridge).then_some(Method::Bus(bridge))
}

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Step again, not before this time in microseconds.
    NotBefore(u64),
    /// The function is reset.
    Done {
        /// Whether transactions were still pending when it was. A function that is in order has
        /// none.
        was_pending: bool,
    },
    /// The function did not answer after its reset. It stays switched off.
    Lost,
}

/// What remains to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Quiesce,
    Pending(u32),
    Release,
    Settle,
    Ready(u32),
    Over(Step),
}

/// A reset in progress. One that is dropped leaves the function switched off, and maybe in D3hot,
/// or its bus in reset.
#[derive(Clone, Debug)]
pub struct Reset {
    address: Address,
    method: Method,
    state: State,
    not_before: u64,
    was_pending: bool,
    saved: Saved,
}

impl Reset {
    /// A reset of a function by a [`method`] for it. Reads what the function forgets, so it must
    /// answer, and writes nothing before the first step.
    pub fn new(space: &impl ConfigSpace, physical: &Physical, method: Method) -> Self {
        Self {
            address: physical.address,
            method,
            state: State::Quiesce,
            not_before: 0,
            was_pending: false,
            saved: Saved::new(space, physical),
        }
    }

    /// Makes the next step at `now`, a time in microseconds that does not go backwards.
    ///
    /// A step before the time that the last one named does nothing. Otherwise there are at most 205
    /// of them, and each one makes a few accesses.
    pub fn step(&mut self, space: &impl ConfigSpace, now: u64) -> Step {
        if now < self.not_before {
            return Step::NotBefore(self.not_before);
        }
        let (state, wait_us) = match self.state {
            State::Quiesce => {
                let off = CommandRegister::INTERRUPT_DISABLE.bits().into();
                space.write(self.address, register::COMMAND, off);
                (State::Pending(0), 0)
            }
            State::Pending(polls) => {
                self.was_pending = self.is_pending(space);
                if self.was_pending && polls < PENDING_POLLS_MAX {
                    (State::Pending(polls + 1), POLL_US)
                } else {
                    self.start(space)
                }
            }
            State::Release => {
                self.release(space);
                (State::Settle, SETTLE_US)
            }
            State::Settle => (State::Ready(0), 0),
            State::Ready(polls) => {
                if self.answers(space) {
                    self.saved.restore(space, self.address);
                    (State::Over(Step::Done { was_pending: self.was_pending }), 0)
                } else if polls < READY_POLLS_MAX {
                    (State::Ready(polls + 1), POLL_US)
                } else {
                    (State::Over(Step::Lost), 0)
                }
            }
            State::Over(step) => return step,
        };
        self.state = state;
        self.not_before = now.saturating_add(wait_us);
        match state {
            State::Over(step) => step,
            _ => Step::NotBefore(self.not_before),
        }
    }

    /// Whether the function is there again, and its reset is complete.
    fn answers(&self, space: &impl ConfigSpace) -> bool {
        space.read(self.address, register::ID) == self.saved.id
            && match self.method {
                // The device reports that it has stopped (virtio, 4.1.4.3.1).
                Method::Virtio(window) => window.read(space, self.address) == 0,
                _ => true,
            }
    }

    /// Whether the function waits for answers. A function without such a register says no.
    fn is_pending(&self, space: &impl ConfigSpace) -> bool {
        let bit = |register, bit| {
            let word = space.read(self.address, register);
            word != u32::MAX && word & bit != 0
        };
        let by_express = self.saved.control.is_some_and(|(register, _)| bit(register, PENDING));
        let by_advanced = self.saved.advanced.is_some_and(|offset| bit(offset + 4, 1 << 8));
        by_express || by_advanced
    }

    /// Starts the reset.
    fn start(&self, space: &impl ConfigSpace) -> (State, u64) {
        match self.method {
            Method::Flr(offset) => {
                let register = u16::from(offset) + 8;
                // The status is cleared by ones.
                let control = space.read(self.address, register) & 0xffff;
                space.write(self.address, register, control | START_FLR);
                (State::Settle, SETTLE_US)
            }
            Method::AdvancedFlr(offset) => {
                space.write(self.address, u16::from(offset) + 4, 1);
                (State::Settle, SETTLE_US)
            }
            Method::Power(offset) => {
                set_power(space, self.address, offset, 3);
                (State::Release, POWER_US)
            }
            Method::Bus(bridge) => {
                set_bus_reset(space, bridge, true);
                (State::Release, BUS_US)
            }
            Method::Virtio(window) => {
                window.write(space, self.address, 0);
                (State::Settle, 0)
            }
        }
    }

    /// Ends a reset that lasts until it is ended.
    fn release(&self, space: &impl ConfigSpace) {
        match self.method {
            Method::Power(offset) => set_power(space, self.address, offset, 0),
            Method::Bus(bridge) => set_bus_reset(space, bridge, false),
            Method::Flr(_) | Method::AdvancedFlr(_) | Method::Virtio(_) => {}
        }
    }
}

/// Sets the power state in the control of power management. Its status bit, cleared by a one,
/// stays.
fn set_power(space: &impl ConfigSpace, address: Address, offset: u8, state: u32) {
    let register = u16::from(offset) + 4;
    let control = space.read(address, register) & !(0xffff_8003);
    space.write(address, register, control | state);
}

fn set_bus_reset(space: &impl ConfigSpace, bridge: Address, is_reset: bool) {
    let control = space.read(bridge, register::INTERRUPT) & !BUS_RESET;
    space.write(bridge, register::INTERRUPT, if is_reset { control | BUS_RESET } else { control });
}

/// What a function forgets by its reset.
#[derive(Clone, Debug)]
struct Saved {
    id: u32,
    command: u32,
    header: u32,
    bars: [u32; BAR_COUNT],
    rom: u32,
    interrupt: u32,
    /// Register and value of the control of PCI Express.
    control: Option<(u16, u32)>,
    /// Offset of the advanced features, if they tell about pending transactions.
    advanced: Option<u16>,
}

impl Saved {
    fn new(space: &impl ConfigSpace, physical: &Physical) -> Self {
        let read = |register| space.read(physical.address, register);
        let control = physical.capabilities.express.map(|express| {
            let register = u16::from(express.offset) + 8;
            (register, read(register) & 0xffff & !START_FLR)
        });
        let advanced = physical.capabilities.advanced.filter(|advanced| advanced.has_pending);
        Self {
            id: physical.identity.id(),
            command: read(register::COMMAND) & 0xffff,
            header: read(register::HEADER) & 0xffff,
            bars: core::array::from_fn(|number| read(register::BAR + 4 * number as u16)),
            rom: read(register::ROM),
            interrupt: read(register::INTERRUPT) & 0xff,
            control,
            advanced: advanced.map(|advanced| advanced.offset.into()),
        }
    }

    /// Writes everything back; the command last, without DMA.
    fn restore(&self, space: &impl ConfigSpace, address: Address) {
        if let Some((register, value)) = self.control {
            space.write(address, register, value);
        }
        space.write(address, register::HEADER, self.header);
        for (number, &value) in self.bars.iter().enumerate() {
            space.write(address, register::BAR + 4 * number as u16, value);
        }
        space.write(address, register::ROM, self.rom);
        space.write(address, register::INTERRUPT, self.interrupt);
        let master = u32::from(CommandRegister::BUS_MASTER_ENABLE.bits());
        space.write(address, register::COMMAND, self.command & !master);
    }
}
