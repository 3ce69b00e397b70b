//! What scripts of these rows do.

use super::{AT, LEFT, PATIENCE, WATCHERS, WORD};
use crate::test::prelude::*;
use crate::test::script::Script;

impl Script {
    pub(super) fn add(&self, size: u64) -> Result<u16> {
        self.machine.control()?.add(AT, size)
    }

    pub(super) fn delete(&self, slot: u16) -> Result<()> {
        self.machine.control()?.delete(slot).map(drop)
    }

    /// Waits until every vCPU has reported this about the memory, in any order, within some time.
    pub(super) fn all_say(&mut self, what: &str, patience: Duration) -> Result<()> {
        let mut last = self.read;
        for number in 0..WATCHERS {
            let line = format!("load: watch: processor {number} {what}");
            last = last.max(self.machine.await_console(&line, self.read, patience)?);
        }
        self.read = last;
        Ok(())
    }

    /// Adds memory, removes and adds it again; returns whether all vCPUs have noticed in time.
    pub(super) fn watch(&mut self, noticing: Duration) -> Result<bool> {
        let slot = self.add(16 * PAGE)?;
        self.command(&format!("touch={AT:#x},{:#x},8", 16 * PAGE))?;
        self.machine.type_text(&format!("watch={WORD:#x},60\n"))?;
        self.all_say(&format!("reads {LEFT:#x}"), PATIENCE)?;
        self.delete(slot)?;
        let noticed = self.all_say("faults", noticing).is_ok();
        if noticed {
            self.add(16 * PAGE)?;
            self.all_say("reads 0x0", PATIENCE)?;
        }
        // A missing notice may have several reasons: check that the guest is alive.
        self.machine.type_text("q")?;
        self.await_text(&format!("load: done: watch={WORD:#x},60 count={WATCHERS}"))?;
        Ok(noticed)
    }

    pub(super) fn come_and_go(&mut self, size: u64) -> Result<()> {
        let slot = self.add(size)?;
        self.command(&format!("touch={AT:#x},{size:#x},{PAGE:#x}"))?;
        self.delete(slot)
    }

    /// Keeps both vCPUs awake for some time.
    pub(super) fn take_turns(&mut self) -> Result<()> {
        let slot = self.add(PAGE)?;
        self.command(&format!("watch={AT:#x},1"))?;
        self.delete(slot)
    }
}
