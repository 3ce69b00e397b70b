//! A bare guest that uses memory which was added to it, on command; and the requests to its
//! hypervisor meanwhile.

use super::lab::{self, BARE_MEMORY};
use super::phases::Phases;
use crate::ctl::dirty_runs;
use crate::machine::control::Control;
use crate::machine::spec::Counting;
use crate::prelude::*;
use baremetal::pages::PAGE;
use hostlink::ctl::Request;
use hostlink::ctl::record::Slot;

/// The guest's messages when it accepts commands, one per line, and when it has finished one.
const READY: &str = "load: ready";
pub(super) const DONE: &str = "load: done: ";

#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) hypervisor: &'a Hypervisor,
    pub(crate) platform: Platform,
    pub(crate) switches: Switches,
    pub(crate) clock: Clock,
    /// Bytes of the added memory.
    pub(crate) size: u64,
    /// Bytes that the machine has beyond the guest's own memory.
    pub(crate) spare: u64,
    pub(crate) timeout: Duration,
}

/// The running guest, which has got the memory. Everything in it fails after the setup's timeout.
pub(crate) struct Load {
    pub(super) machine: Machine,
    counting: Option<Counting>,
    timeout: Duration,
    /// The address and the size of the added memory, and its slot.
    pub(super) at: u64,
    pub(super) size: u64,
    pub(super) slot: u16,
    /// Bytes of the console that have been read.
    pub(super) read: usize,
    _directory: TempDir,
}

impl Load {
    /// Starts the guest and adds the memory. If `is_counted`, QEMU's plugin counts.
    pub(super) fn start(setup: &Setup<'_>, is_counted: bool, signals: &Signals) -> Result<Self> {
        let directory = lab::directory()?;
        let guest = Guest::load(setup.platform, 1, BARE_MEMORY, setup.switches)?;
        let spec = guest.on_quell(setup.hypervisor, 1, setup.clock, directory.path())?;
        let counting = if is_counted { Some(Phases::counting(directory.path())?) } else { None };
        let (memory, timeout) = (spec.memory + setup.spare, Some(setup.timeout));
        let spec = Spec { memory, timeout, counting: counting.clone(), ..spec };
        let mut load = Self {
            machine: Machine::start(&spec, signals)?,
            counting,
            timeout: setup.timeout,
            // The guest's own tables map it, it is after the guest's memory, and on Arm it fills an
            // entry of a table that is not of the last level.
            at: match setup.platform.arch() {
                Arch::X86_64 => 1 << 30,
                Arch::Aarch64 => 4 << 30,
            },
            size: setup.size,
            slot: 0,
            read: 0,
            _directory: directory,
        };
        load.add().with_context(|| load.console())?;
        Ok(load)
    }

    fn add(&mut self) -> Result<()> {
        self.line(READY)?;
        self.slot = self.control()?.add(self.at, self.size)?;
        Ok(())
    }

    /// A control conversation with the hypervisor. Page by page, a deletion takes longer than the
    /// channel's usual patience.
    pub(crate) fn control(&self) -> Result<Control> {
        Ok(self.machine.control()?.with_patience(self.timeout))
    }

    pub(crate) fn slots(&self) -> Result<Vec<Slot>> {
        self.control()?.ask_for(&Request::Slots)
    }

    fn command(&mut self, words: &[String]) -> Result<()> {
        self.machine.type_text(&format!("{}\n", words.join(" ")))?;
        words.iter().try_for_each(|_| self.line(DONE).map(drop))
    }

    pub(super) fn touch(&mut self) -> Result<()> {
        self.command(&[self.touching()])
    }

    fn touching(&self) -> String {
        format!("touch={:#x},{:#x},{PAGE:#x}", self.at, self.size)
    }

    pub(super) fn touch_in_phase(&mut self) -> Result<()> {
        let [begin, end] = [Phase::FaultIn, Phase::None].map(|phase| format!("hint={:#x}", phase.hint()));
        self.command(&[begin, self.touching(), end])
    }

    pub(super) fn line(&mut self, text: &str) -> Result<String> {
        let (line, read) = self.machine.await_line(text, self.read, self.timeout)?;
        self.read = read;
        Ok(line)
    }

    /// Makes the guest switch the machine off, and checks that; returns what was counted.
    pub(crate) fn finish(mut self) -> Result<Option<Phases>> {
        self.machine.type_text("poweroff\n")?;
        self.machine.run(|_, _| Ok(Flow::Continue))?.powered_off()?;
        self.counting.as_ref().map(Phases::read).transpose()
    }

    pub(crate) fn console(&self) -> String {
        format!("the guest's console ends with:\n{}", tail(&self.machine.shown()))
    }
}

/// Fetches the log of a slot of this many bytes, all of which were stored to.
pub(super) fn all_dirty(control: &mut Control, slot: u16, bytes: u64) -> Result<()> {
    let runs = dirty_runs(control, slot)?;
    let (pages, all): (u64, _) = (runs.iter().map(|run| run.end - run.start).sum(), bytes / PAGE);
    ensure!(pages == all, "{pages} pages are in the log, and {all} were stored to");
    Ok(())
}
