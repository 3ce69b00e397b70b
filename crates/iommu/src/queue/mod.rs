//! The ring of commands between CPUs and one IOMMU.
//!
//! # Ordering
//!
//! ```text
//! CPU                                          IOMMU
//! A  change the table (unmap)                  P  walk the table, keep what was found
//! B  lock; write commands, and a sync          Q  read the tail, then the entries before it
//! C  tail := behind them; unlock               R  drop what an invalidation names; accesses that
//! D  wait until the sync has reported             use it complete
//! E  reuse the memory                          S  the sync: all commands before it are complete
//!                                              T  report the sync's position
//!
//! A before B, C before Q   the port orders all earlier writes before the tail: a walk after R
//!                          finds the change, and Q finds whole commands
//! Q before R before S      by the IOMMU: commands begin in order, a sync waits for all before it
//! T before D               D acquires what T has released: accesses through the former translation
//!                          are visible at E
//! B against B              the lock: one CPU at a time writes entries and the tail
//! ```
//!
//! A *position* is the number of commands that were put in until then, since the beginning; the
//! index of an entry is the position modulo the length. A sync reports the position behind itself,
//! so one sync answers for everything in front of it, whoever put it in. Positions have 64 bits and
//! do not wrap.
//!
//! At most one entry less than there are is in use, so that a full ring differs from an empty one
//! also where the device's registers have no bit for it (AMD-Vi).

use core::fmt;
use core::ops::ControlFlow;

use crate::sync::{AtomicU64, Ordering, spin_loop};

/// A command: two double words, as both AMD-Vi and SMMUv3 have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub [u64; 2]);

/// An entry of the ring, in memory that the device reads.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Entry([AtomicU64; 2]);

impl Entry {
    /// The command that is in it.
    pub fn load(&self) -> Command {
        // Relaxed: whoever reads entries has read the tail before.
        Command([self.0[0].load(Ordering::Relaxed), self.0[1].load(Ordering::Relaxed)])
    }

    fn store(&self, Command([low, high]): Command) {
        // Relaxed: the tail is written later, and orders them for the device. The lock orders them
        // for other CPUs.
        self.0[0].store(low, Ordering::Relaxed);
        self.0[1].store(high, Ordering::Relaxed);
    }
}

/// The device's side of a ring.
///
/// [`set_tail`](Self::set_tail) and [`sync`](Self::sync) are called by one CPU at a time, with the
/// ring's lock held, as [`relax`](Self::relax) may be.
pub trait Port {
    /// Tells the device that it may read the entries before `position`. The index of the entry
    /// there is the position modulo the length; where the register has a bit for odd rounds
    /// (SMMUv3), that is the position's next bit.
    ///
    /// The device, and its walks of tables, must find everything that this CPU has written before:
    /// a barrier for writes to memory that the device reads comes first (DSB ST on Arm; on AMD64 a
    /// write to an uncached register is enough).
    fn set_tail(&self, position: u64);

    /// Index of the entry that the device reads next; bits above it are ignored. Read with
    /// `Acquire`: on Arm, a load barrier comes after the register.
    fn head(&self) -> u32;

    /// A command that is complete when all commands before it are, and reports `position` then.
    fn sync(&self, position: u64) -> Command;

    /// The position that was reported last, read with `Acquire`. `None` for a device that reports
    /// by its head alone: it has passed a sync only when that is complete (SMMUv3 without MSIs).
    fn reported(&self) -> Option<u64>;

    /// One turn of waiting for the device; `turns` have been spent so far.
    ///
    /// `Break` gives up: choose a bound that a working device never reaches. Other CPUs may wait
    /// for the same device one after the other, each as long.
    fn relax(&self, turns: u64) -> ControlFlow<()>;

    /// One turn of waiting for another CPU that puts commands in.
    #[inline(always)]
    fn spin(&self) {
        spin_loop();
    }
}

/// Commands that were put in: they are [waited for](Queue::wait) by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing may be freed before it was waited for"]
pub struct Ticket {
    position: u64,
    /// A sync ends at the position.
    is_synced: bool,
}

/// The device did not go on, and [`Port::relax`] gave up. What it has forgotten is unknown: nothing
/// may be freed. It does not go on by itself after an invalid command: it has to be set up again,
/// with a new ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The index of the entry at which it stands.
    pub head: u32,
    /// How many commands had been put in.
    pub queued: u64,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the IOMMU stands at entry {} of its queue, after {} commands", self.head, self.queued)
    }
}

impl core::error::Error for Stuck {}

/// The ring, shared by all CPUs.
///
/// Commands are put in under a lock that spins. So interrupts are off meanwhile, or no handler uses
/// the ring; and the iterators that supply commands must not use it either.
#[derive(Debug)]
pub struct Queue<P, E> {
    port: P,
    entries: E,
    lock: AtomicU64,
    /// Position of the next command. Changed under the lock.
    queued: AtomicU64,
    /// Position behind the last sync. Under the lock.
    synced: AtomicU64,
    /// Up to which position the device is known to have read. Under the lock.
    consumed: AtomicU64,
}

impl<P: Port, E: AsRef<[Entry]>> Queue<P, E> {
    /// The ring of a device that is about to read from index 0, where its tail is, too, and that
    /// has not reported anything.
    ///
    /// # Panics
    ///
    /// If the number of entries is not a power of two, of 4 at least; or if a position was reported
    /// already, which would end waits too early.
    pub fn new(port: P, entries: E) -> Self {
        let len = entries.as_ref().len();
        assert!(
            len.is_power_of_two() && len >= 4,
            "a ring has 2^n entries, and room for a command and its sync"
        );
        assert!(port.reported().is_none_or(|position| position == 0), "a new ring has reported nothing");
        Self {
            port,
            entries,
            lock: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
        }
    }

    /// The device's side.
    pub const fn port(&self) -> &P {
        &self.port
    }

    /// Puts commands in, with one sync behind them. The device begins at once; the caller has time
    /// for other work before it [waits](Self::wait).
    ///
    /// # Errors
    ///
    /// [`Stuck`] if the ring stayed full.
    pub fn issue(&self, commands: impl IntoIterator<Item = Command>) -> Result<Ticket, Stuck> {
        let held = self.lock();
        held.put_all(commands)?;
        let position = held.put_sync()?;
        Ok(Ticket { position, is_synced: true })
    }

    /// Puts commands in for which nobody waits yet. The device begins at once.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if the ring stayed full.
    pub fn queue(&self, commands: impl IntoIterator<Item = Command>) -> Result<Ticket, Stuck> {
        let held = self.lock();
        let position = held.put_all(commands)?;
        held.ring();
        Ok(Ticket { position, is_synced: false })
    }

    /// Waits until the commands of a ticket, and all that were put in before, are complete. A sync
    /// is put in if none is behind them yet: several CPUs that wait share one.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if the device does not go on. Nothing may be freed then.
    pub fn wait(&self, ticket: Ticket) -> Result<(), Stuck> {
        let position = self.sync_of(ticket)?;
        let mut turns = 0u64;
        while !self.has_reported(position) {
            if self.port.relax(turns).is_break() {
                return Err(self.stuck());
            }
            turns = turns.saturating_add(1);
        }
        Ok(())
    }

    /// The position of a sync behind a ticket's commands: the last one that is in, or a new one.
    pub(crate) fn sync_of(&self, Ticket { position, is_synced }: Ticket) -> Result<u64, Stuck> {
        if is_synced {
            return Ok(position);
        }
        let held = self.lock();
        let synced = self.synced.load(Ordering::Relaxed);
        if synced >= position { Ok(synced) } else { held.put_sync() }
    }

    /// Whether the sync that ends at `position` is complete.
    pub(crate) fn has_reported(&self, position: u64) -> bool {
        match self.port.reported() {
            Some(reported) => reported >= position,
            None => self.passed() >= position,
        }
    }

    /// A position that the device has passed: the last one unless commands are being put in.
    pub(crate) fn passed(&self) -> u64 {
        // Acquire: pairs with the release in `Held::put`. Its CPU had seen a head less than a round
        // behind `queued`, and the head that is read next is no older. If it is ahead of `queued`,
        // the result is too small, not too large.
        let queued = self.queued.load(Ordering::Acquire);
        self.position(self.port.head(), queued)
    }

    /// The position of a head, when `queued` commands are in.
    fn position(&self, head: u32, queued: u64) -> u64 {
        queued.wrapping_sub(queued.wrapping_sub(u64::from(head)) & self.mask())
    }

    fn mask(&self) -> u64 {
        self.entries.as_ref().len() as u64 - 1
    }

    fn stuck(&self) -> Stuck {
        Stuck { head: self.port.head(), queued: self.queued.load(Ordering::Relaxed) }
    }

    fn lock(&self) -> Held<'_, P, E> {
        // Pairs with the release in the drop of `Held`.
        while self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.port.spin();
        }
        Held(self)
    }
}

/// The right to put commands in.
struct Held<'a, P, E>(&'a Queue<P, E>);

impl<P: Port, E: AsRef<[Entry]>> Held<'_, P, E> {
    /// Returns the position behind the commands.
    fn put_all(&self, commands: impl IntoIterator<Item = Command>) -> Result<u64, Stuck> {
        commands.into_iter().try_for_each(|command| self.put(command))?;
        Ok(self.0.queued.load(Ordering::Relaxed))
    }

    /// Returns the position behind the sync, and tells the device.
    fn put_sync(&self) -> Result<u64, Stuck> {
        let position = self.0.queued.load(Ordering::Relaxed) + 1;
        self.put(self.0.port.sync(position))?;
        self.0.synced.store(position, Ordering::Relaxed);
        self.ring();
        Ok(position)
    }

    fn put(&self, command: Command) -> Result<(), Stuck> {
        let Queue { entries, queued, .. } = self.0;
        let position = queued.load(Ordering::Relaxed);
        self.make_room(position)?;
        if let Some(entry) = entries.as_ref().get((position & self.0.mask()) as usize) {
            entry.store(command);
        }
        // Pairs with `passed`.
        queued.store(position + 1, Ordering::Release);
        Ok(())
    }

    /// Waits until there is room for a command at `position`.
    fn make_room(&self, position: u64) -> Result<(), Stuck> {
        let Queue { port, consumed, .. } = self.0;
        let is_full = || position - consumed.load(Ordering::Relaxed) >= self.0.mask();
        let mut turns = 0u64;
        while is_full() {
            if turns == 0 {
                // The device may not know of the last ones yet.
                self.ring();
            }
            consumed.store(self.0.position(port.head(), position), Ordering::Relaxed);
            if is_full() && port.relax(turns).is_break() {
                return Err(self.0.stuck());
            }
            turns = turns.saturating_add(1);
        }
        Ok(())
    }

    fn ring(&self) {
        self.0.port.set_tail(self.0.queued.load(Ordering::Relaxed));
    }
}

impl<P, E> Drop for Held<'_, P, E> {
    fn drop(&mut self) {
        // Pairs with the exchange in `Queue::lock`.
        self.0.lock.store(0, Ordering::Release);
    }
}

/// What the models break, and what their device reads.
#[cfg(all(test, loom))]
impl<P: Port, E: AsRef<[Entry]>> Queue<P, E> {
    pub(crate) fn entries(&self) -> &[Entry] {
        self.entries.as_ref()
    }

    /// The sync of whoever was first, with one command.
    pub(crate) const fn first_ticket(&self) -> Ticket {
        Ticket { position: 2, is_synced: true }
    }

    /// [`issue`](Self::issue) beside others.
    pub(crate) fn issue_without_lock(&self, command: Command) -> Result<Ticket, Stuck> {
        let held = core::mem::ManuallyDrop::new(Held(self));
        held.put_all([command])?;
        Ok(Ticket { position: held.put_sync()?, is_synced: true })
    }

    /// [`issue`](Self::issue) with the tail first.
    pub(crate) fn issue_behind_the_tail(&self, command: Command) -> Result<Ticket, Stuck> {
        let held = self.lock();
        self.port.set_tail(self.queued.load(Ordering::Relaxed) + 2);
        held.put_all([command])?;
        Ok(Ticket { position: held.put_sync()?, is_synced: true })
    }

    /// [`issue`](Self::issue) without a look at the device's head. A sync is the last command.
    pub(crate) fn issue_over_others(&self, commands: impl IntoIterator<Item = Command>) -> Ticket {
        let held = self.lock();
        for (position, command) in (0..).zip(commands) {
            self.entries()[(position & self.mask()) as usize].store(command);
            // Pairs with `passed`, as in `put`.
            self.queued.store(position + 1, Ordering::Release);
        }
        held.ring();
        Ticket { position: self.queued.load(Ordering::Relaxed), is_synced: true }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
