//! A bare guest that keeps writing to memory that was added to it, and reports how long it was
//! stopped.

use crate::arch::{Arch, Platform};
use crate::ctl::fields::Fields;
use crate::ctl::migrate::Migrated;
use crate::machine::control::Control;
use crate::machine::process::{Flow, Machine};
use crate::machine::signals::Signals;
use crate::machine::spec::Clock;
use crate::run::tail;
use crate::size::MIB;
use crate::vm::{Guest, Hypervisor};
use anyhow::{Context, Result, ensure};
use baremetal::pages::PAGE;
use hostlink::config::Switches;
use hostlink::ctl::record::Slot;
use hostlink::ctl::{LogWay, Request};
use std::time::Duration;
use tempfile::TempDir;

/// Memory of the guest itself.
const MEMORY: u64 = 64 * MIB;
/// The guest's messages when it accepts commands, when it has finished one, and while it writes.
const READY: &str = "load: ready";
const DONE: &str = "load: done: ";
const DIRTY: &str = "load: dirty: ";
/// It reports its longest stop each second, and at each typed byte: a line at least this many
/// milliseconds after the previous one is a periodic report.
const SECOND_MS: u64 = 990;

/// The machine to start.
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

/// The guest at work. Everything in it fails after the setup's timeout.
pub(crate) struct Writer {
    machine: Machine,
    timeout: Duration,
    at: u64,
    size: u64,
    slot: u16,
    /// Physical address of the added memory.
    host: u64,
    /// Bytes of the console that have been read.
    read: usize,
    /// When the guest last reported its longest stop.
    told_ms: u64,
    _directory: TempDir,
}

/// The guest's longest stops in nanoseconds, and the hypervisor's report.
#[derive(Clone, Debug)]
pub(crate) struct Stops {
    pub(crate) copied: u64,
    pub(crate) undone: u64,
    pub(crate) migrated: Migrated,
}

impl Writer {
    /// Starts the guest on a machine of one CPU, adds the memory, and makes the guest write one
    /// word of each page.
    pub(crate) fn start(setup: &Setup<'_>, signals: &Signals) -> Result<Self> {
        let arch = setup.platform.arch();
        let guest = Guest::load(setup.platform, 1, MEMORY, setup.switches)?;
        let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
        let mut spec = guest.on_quell(setup.hypervisor, 1, setup.clock, directory.path())?;
        spec.memory += setup.spare;
        spec.timeout = Some(setup.timeout);
        // The guest's own tables map it, and it is after the guest's memory.
        let at = match arch {
            Arch::X86_64 => 1 << 30,
            Arch::Aarch64 => 4 << 30,
        };
        let mut writer = Self {
            machine: Machine::start(&spec, signals)?,
            timeout: setup.timeout,
            at,
            size: setup.size,
            slot: 0,
            host: 0,
            read: 0,
            told_ms: 0,
            _directory: directory,
        };
        writer.prepare().with_context(|| writer.console())?;
        Ok(writer)
    }

    fn prepare(&mut self) -> Result<()> {
        self.line(READY)?;
        self.slot = self.control()?.add(self.at, self.size)?;
        let ours = self.slots()?.into_iter().find(|slot| slot.slot == self.slot);
        self.host = ours.context("the slot is not listed")?.host;
        self.machine.type_text(&format!("touch={:#x},{:#x},{PAGE:#x}\n", self.at, self.size))?;
        self.line(DONE).map(drop)
    }

    /// A control conversation with the hypervisor.
    pub(crate) fn control(&self) -> Result<Control> {
        Ok(self.machine.control()?.with_patience(self.timeout))
    }

    /// The memory slots.
    pub(crate) fn slots(&self) -> Result<Vec<Slot>> {
        self.control()?.ask_for(&Request::Slots)
    }

    /// Makes the guest start writing, `rate` in 10^6 bytes per second; 0 is as fast as possible.
    pub(crate) fn begin(&mut self, rate: u32) -> Result<()> {
        self.machine.type_text(&format!("dirty={:#x},{:#x},{rate}\n", self.at, self.size))?;
        self.told_ms = 0;
        // A stop before it started writing does not count.
        self.stop().map(drop)
    }

    /// The guest's longest stop in nanoseconds since the last query.
    pub(crate) fn stop(&mut self) -> Result<u64> {
        let mut longest = 0;
        for line in self.machine.lines(DIRTY, self.read)? {
            longest = self.take(line)?.0.max(longest);
        }
        self.machine.type_text(" ")?;
        for _ in 0..2 {
            let line = self.line(DIRTY)?;
            let (stop, after_ms) = self.take((line, self.read))?;
            longest = longest.max(stop);
            // If this was a periodic report, the one for the byte follows, and stops while it is
            // printed are lost.
            if after_ms < SECOND_MS {
                break;
            }
        }
        Ok(longest)
    }

    /// The same for a second without other activity.
    pub(crate) fn second(&mut self) -> Result<u64> {
        let line = self.line(DIRTY)?;
        Ok(self.take((line, self.read))?.0)
    }

    /// Runs a cancelled migration of the memory while the guest writes.
    pub(crate) fn migrate(&mut self, way: LogWay, rounds: u16) -> Result<Stops> {
        let (control, slot) = (self.machine.control()?, self.slot);
        let mut copied = 0;
        let migrated = Migrated::ask(control, slot, way, rounds, |_| {
            copied = self.stop()?.max(copied);
            Ok(())
        })?;
        Ok(Stops { copied, undone: self.stop()?, migrated })
    }

    /// Makes the guest stop writing; returns how many stores it has made.
    pub(crate) fn end(&mut self) -> Result<u64> {
        self.machine.type_text("q")?;
        let line = self.line(DONE)?;
        let done = Fields::parse(line.rsplit_once(DONE).map_or("", |(_, done)| done))?;
        done.number("count").with_context(|| format!("the guest says '{line}'"))
    }

    /// Checks that the last of `stores` stores to each page is in the memory. On AMD64 only for
    /// machines without memory above 4 GiB, which has another offset in the file behind it.
    pub(crate) fn check(&self, stores: u64) -> Result<()> {
        let pages = self.size / PAGE;
        for page in 0..pages {
            let word = self.machine.ram().load(self.host + page * PAGE)?;
            let written = last_store(page, pages, stores);
            ensure!(word == written, "page {page} has {word} of {stores} stores instead of {written}");
        }
        Ok(())
    }

    /// Makes the guest switch the machine off, and checks that this ends the machine.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.machine.type_text("poweroff\n")?;
        self.machine.run(|_, _| Ok(Flow::Continue))?.powered_off().map(drop)
    }

    /// The end of the guest's console, for messages.
    pub(crate) fn console(&self) -> String {
        format!("the guest's console ends with:\n{}", tail(&self.machine.shown()))
    }

    /// Waits for a line with this text.
    fn line(&mut self, text: &str) -> Result<String> {
        let (line, read) = self.machine.await_line(text, self.read, self.timeout)?;
        self.read = read;
        Ok(line)
    }

    /// The stop in a line, and how long after the previous line it was printed, in milliseconds.
    fn take(&mut self, (line, end): (String, usize)) -> Result<(u64, u64)> {
        self.read = end;
        let (ms, stop) = stop_of(&line)?;
        let after_ms = ms.saturating_sub(self.told_ms);
        self.told_ms = ms;
        Ok((stop, after_ms))
    }
}

/// The time of a line in milliseconds, and its stop in nanoseconds.
fn stop_of(line: &str) -> Result<(u64, u64)> {
    let fields = Fields::parse(line.rsplit_once(DIRTY).map_or("", |(_, fields)| fields))?;
    let [ms, stop] = ["ms", "longest_ns"].map(|key| fields.number(key));
    ms.zip(stop).with_context(|| format!("the guest says '{line}'"))
}

/// The contents of a page after `stores` stores to all pages in turn, each of which writes its
/// number. Initially a page has its own number.
const fn last_store(page: u64, pages: u64, stores: u64) -> u64 {
    if stores <= page { page } else { page + (stores - 1 - page) / pages * pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_name_no_stop_are_errors() {
        for line in [
            "",
            "load: dirty: ms=1",
            "load: done: dirty=1,2,3 count=9 ns=1",
            "load: dirty: ms=1 longest_ns=x",
        ] {
            assert!(stop_of(line).is_err(), "{line}");
        }
        let line = "load: load: dirty: ms=2004 stores=7 longest_ns=16000";
        assert_eq!(stop_of(line).expect("names one"), (2004, 16000));
    }

    #[test]
    fn a_page_holds_the_last_of_the_stores_that_were_its() {
        for stores in 0..20 {
            let mut memory = [0, 1, 2, 3, 4];
            (0..stores).for_each(|store| memory[store as usize % 5] = store);
            for (page, word) in (0..).zip(memory) {
                assert_eq!(last_store(page, 5, stores), word, "page {page} after {stores}");
            }
        }
    }
}
