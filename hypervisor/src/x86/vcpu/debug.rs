//! The guest's breakpoint addresses, DR0 to DR3. DR6 and DR7 are in the control block.
//!
//! Hardly any vCPU uses them, and switching them is slow. So a vCPU arrives on a CPU without them.
//! Its first access to one of them, or to DR7 under either of its names, which might enable them,
//! causes an exit that loads them, and the instruction is executed again. A vCPU whose breakpoints
//! are enabled has them loaded on arrival. APM volume 2, sections 13.1.1 and 15.8.1.

use migration::{Archive, Described, Flaw, fields};

use super::block::ControlBlock;
use super::block::Field::Dr7;
use crate::x86::processor::X86;

/// DR7: the enable bits of all four breakpoints.
const DR7_ENABLED: u64 = 0xff;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DebugRegisters {
    values: [u64; 4],
    /// The values are in the processor, not here.
    are_loaded: bool,
    /// They were, on some CPU: before that none is enabled.
    are_used: bool,
}

/// Of a vCPU that is on no CPU. What is read may be in use.
impl Described for DebugRegisters {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        fields!(self, archive: values; stays are_loaded, are_used)?;
        self.are_used |= archive.is_reading();
        Ok(())
    }
}

impl DebugRegisters {
    #[inline]
    pub(crate) fn arrive<A: X86>(&mut self, block: &mut A::Block) {
        block.intercept_debug(true);
        if self.are_used && block.read(Dr7) & DR7_ENABLED != 0 {
            self.load::<A>(block);
        }
    }

    /// Whether the values are in the processor.
    pub(crate) const fn are_loaded(&self) -> bool {
        self.are_loaded
    }

    /// The vCPU uses them.
    #[cold]
    pub(crate) fn load<A: X86>(&mut self, block: &mut A::Block) {
        A::write_breakpoints(self.values);
        (self.are_loaded, self.are_used) = (true, true);
        block.intercept_debug(false);
    }

    /// The vCPU leaves this CPU.
    #[inline]
    pub(crate) fn leave<A: X86>(&mut self) {
        if self.are_loaded {
            self.save::<A>();
        }
    }

    #[cold]
    fn save<A: X86>(&mut self) {
        self.values = A::read_breakpoints();
        self.are_loaded = false;
    }
}
