//! An NVMe controller, as far as programs need it that have it do DMA.
//!
//! Source: NVM Express Base Specification 1.4, sections 3.1 (registers), 4.2 and 4.6 (entries of
//! queues), 5 (admin commands), 6 (I/O commands), 7.6.1 (initialisation).

use core::sync::atomic::{AtomicU64, Ordering};

use crate::pages::{PAGE, Page};

/// Class code of NVMe controllers.
pub const CLASS: u32 = 0x01_0802;
/// The register with the version, which is not 0.
pub const VERSION: u64 = 0x08;
/// Registers with the sizes and addresses of the admin queues.
pub const QUEUE_SIZES: u64 = 0x24;
/// The address of the admin queue for submissions, of 64 bits.
pub const SUBMISSIONS: u64 = 0x28;
/// The same for completions.
pub const COMPLETIONS: u64 = 0x30;
const CONFIGURATION: u64 = 0x14;
const STATUS: u64 = 0x1c;
/// The first doorbell. They are side by side, as all known controllers have them.
const BELLS: u64 = 0x1000;
/// Configuration: enabled, entries of 64 and of 16 bytes.
const ENABLED: u32 = 1 | 6 << 16 | 4 << 20;
const READY: u32 = 1;

/// Words of an entry for a command, and for its completion.
const COMMAND_WORDS: usize = 8;
const COMPLETION_WORDS: usize = 2;
/// The most entries of a queue: a page of commands.
pub const ENTRIES_MAX: u32 = 64;
/// Bits of the second word of a completion: its round, and the status behind it.
const PHASE: u64 = 1 << 48;
const STATUS_SHIFT: u32 = 49;
/// A command.
pub type Command = [u64; COMMAND_WORDS];

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The controller does not answer.
    Silent,
    /// It reports this status.
    Status(u32),
}

/// Has the controller write its description, 4096 bytes, to an address.
pub const fn identify(address: u64) -> Command {
    [0x06, 0, 0, address, 0, 1, 0, 0]
}

/// The same with that of its first namespace, the disk.
pub const fn identify_disk(address: u64) -> Command {
    [0x06 | 1 << 32, 0, 0, address, 0, 0, 0, 0]
}

/// Has it read `count` blocks from block `first` of the disk on to an address, a multiple of a
/// page. `next` is the next page, or the address of a list with the addresses of all further pages.
pub const fn read(first: u64, count: u16, address: u64, next: u64) -> Command {
    // The count is one less than there are.
    [0x02 | 1 << 32, 0, 0, address, next, first, count.saturating_sub(1) as u64, 0]
}

/// Has it read two pages from the beginning of the disk to an address, a multiple of a page.
pub const fn read_two_pages(address: u64) -> Command {
    // Blocks of 512 bytes.
    read(0, 16, address, address + PAGE)
}

/// How registers are accessed.
pub trait Registers {
    /// Reads a register.
    fn read(&self, register: u64) -> u32;
    /// Writes a register.
    fn write(&self, register: u64, value: u32);
    /// Waits until something is so, for a limited time. Returns whether it is.
    fn wait_until(&self, is_so: impl FnMut() -> bool) -> bool;
}

/// Registers that are mapped one to one, from this address on.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_os = "none"), expect(dead_code, reason = "only images access them"))]
pub struct Mapped(u64);

#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Registers for Mapped {
    fn read(&self, register: u64) -> u32 {
        // SAFETY: the registers are there, as `Controller::new` requires.
        unsafe { ((self.0 + register) as *const u32).read_volatile() }
    }

    fn write(&self, register: u64, value: u32) {
        // SAFETY: as above, and the program can cope with what follows.
        unsafe { ((self.0 + register) as *mut u32).write_volatile(value) };
    }

    fn wait_until(&self, is_so: impl FnMut() -> bool) -> bool {
        const PATIENCE_MS: u64 = 10_000;
        crate::arch::clock::wait_until(PATIENCE_MS, is_so)
    }
}

/// A controller with these registers.
#[derive(Clone, Copy, Debug)]
pub struct Controller<R = Mapped>(R);

impl Controller {
    /// The controller whose registers are at an address.
    ///
    /// # Safety
    ///
    /// They are there, and stay there. The program can cope with what the controller writes to
    /// memory: its queues, and what commands say.
    pub const unsafe fn new(base: u64) -> Self {
        Self(Mapped(base))
    }
}

impl<R: Registers> Controller<R> {
    /// Reads a register.
    pub fn read(&self, register: u64) -> u32 {
        self.0.read(register)
    }

    /// Writes a register.
    pub fn write(&self, register: u64, value: u32) {
        self.0.write(register, value);
    }

    /// Waits until something is so.
    fn wait(&self, is_so: impl FnMut() -> bool) -> Result<(), Refused> {
        if self.0.wait_until(is_so) { Ok(()) } else { Err(Refused::Silent) }
    }

    fn write_address(&self, register: u64, address: u64) {
        self.write(register, address as u32);
        self.write(register + 4, (address >> 32) as u32);
    }

    /// Starts it with empty admin queues.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub fn start(&self, admin: &mut Queue) -> Result<(), Refused> {
        self.stop()?;
        admin.clear();
        self.write(QUEUE_SIZES, (admin.entries - 1) << 16 | (admin.entries - 1));
        self.write_address(SUBMISSIONS, admin.pages[0].address());
        self.write_address(COMPLETIONS, admin.pages[1].address());
        self.write(CONFIGURATION, ENABLED);
        self.wait(|| self.read(STATUS) & READY != 0)
    }

    /// Resets it: it forgets its queues, and what it was asked for.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub fn stop(&self) -> Result<(), Refused> {
        self.reset();
        self.wait(|| self.read(STATUS) & READY == 0)
    }

    /// The same without a wait.
    pub fn reset(&self) {
        self.write(CONFIGURATION, 0);
    }

    /// Makes an I/O queue by commands in `admin`. Its completions send message `vector`.
    ///
    /// # Errors
    ///
    /// The controller does not answer, or refuses.
    pub fn add(&self, admin: &mut Queue, queue: &mut Queue, vector: u16) -> Result<(), Refused> {
        queue.clear();
        let size = u64::from(queue.number) | u64::from(queue.entries - 1) << 16;
        // In one piece; with interrupts. Then for submissions, with the completions' number.
        let completions = size | (3 | u64::from(vector) << 16) << 32;
        let submissions = size | (1 | u64::from(queue.number) << 16) << 32;
        let [of_commands, of_completions] = queue.pages.each_ref().map(Page::address);
        admin.execute(self, &[0x05, 0, 0, of_completions, 0, completions, 0, 0])?;
        admin.execute(self, &[0x01, 0, 0, of_commands, 0, submissions, 0, 0])
    }
}

/// A queue for commands and one for their completions.
#[derive(Debug)]
pub struct Queue {
    number: u16,
    entries: u32,
    pages: &'static [Page; 2],
    tail: u32,
    head: u32,
    /// The phase of completions of this round.
    phase: u64,
    /// A command was not done in time. It may be done later: its completion is not the next one's.
    is_stuck: bool,
}

impl Queue {
    /// A queue of at most [`ENTRIES_MAX`] entries; number 0 is for admin commands.
    pub fn new(number: u16, entries: u32, pages: &'static [Page; 2]) -> Self {
        Self {
            number,
            entries: entries.clamp(2, ENTRIES_MAX),
            pages,
            tail: 0,
            head: 0,
            phase: PHASE,
            is_stuck: false,
        }
    }

    fn clear(&mut self) {
        // Relaxed: the doorbell is a device's register, and orders what was stored.
        self.pages.iter().flat_map(Page::words).for_each(|word| word.store(0, Ordering::Relaxed));
        (self.tail, self.head, self.phase, self.is_stuck) = (0, 0, PHASE, false);
    }

    /// Adds a command. There has to be a place: one entry less than the queue has.
    pub fn push(&mut self, command: &Command) {
        self.pages[0].write_at(self.tail as usize * COMMAND_WORDS, command);
        self.tail = (self.tail + 1) % self.entries;
    }

    /// Tells the controller of what was added.
    pub fn ring(&self, controller: &Controller<impl Registers>) {
        controller.write(BELLS + u64::from(self.number) * 8, self.tail);
    }

    fn completion(&self) -> &AtomicU64 {
        &self.pages[1].words()[self.head as usize * COMPLETION_WORDS + 1]
    }

    /// The status of the next command that is done, if there is one: 0 if it succeeded.
    pub fn take(&mut self) -> Option<u32> {
        // Acquire: pairs with the controller's store.
        let completion = self.completion().load(Ordering::Acquire);
        if completion & PHASE != self.phase {
            return None;
        }
        self.head += 1;
        if self.head == self.entries {
            self.head = 0;
            self.phase ^= PHASE;
        }
        Some((completion >> STATUS_SHIFT) as u32)
    }

    /// Tells the controller of what was taken.
    pub fn release(&self, controller: &Controller<impl Registers>) {
        controller.write(BELLS + u64::from(self.number) * 8 + 4, self.head);
    }

    /// Executes one command.
    ///
    /// # Errors
    ///
    /// The controller does not answer, or refuses; or it has not answered since the queue was made.
    pub fn execute(
        &mut self,
        controller: &Controller<impl Registers>,
        command: &Command,
    ) -> Result<(), Refused> {
        if self.is_stuck {
            return Err(Refused::Silent);
        }
        self.push(command);
        self.ring(controller);
        let mut status = None;
        let waited = controller.wait(|| {
            status = self.take();
            status.is_some()
        });
        self.is_stuck = waited.is_err();
        waited?;
        self.release(controller);
        status.filter(|status| *status != 0).map_or(Ok(()), |status| Err(Refused::Status(status)))
    }
}

#[cfg(test)]
mod tests;
