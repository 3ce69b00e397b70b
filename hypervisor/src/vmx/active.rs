//! Where a VMCS is active: on one CPU at most, from the vCPU's arrival there until it leaves.
//!
//! A processor keeps what it likes of an active VMCS, and writes it back at VMCLEAR. Two processors
//! that keep parts of one corrupt it without a word (25.11.1). So a vCPU's VMCS is cleared when the
//! vCPU leaves its CPU, before the scheduler can give it to another: whoever has the vCPU's state
//! also knows where its VMCS is active, and nobody else asks for VMCLEAR.

use coherence::CpuId;

/// Where a VMCS is active, and whether VMLAUNCH or VMRESUME enters by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Active {
    on: Option<CpuId>,
    is_launched: bool,
    /// The CPU whose own state it has, for exits.
    returns_to: Option<CpuId>,
}

impl Active {
    /// An entry follows on this CPU.
    ///
    /// # Panics
    ///
    /// If it is not active here.
    #[inline(always)]
    pub fn check(&self, cpu: CpuId) {
        assert!(self.on == Some(cpu), "the VMCS is active on {:?}, and not on CPU {}", self.on, cpu.0);
    }

    /// VMPTRLD on this CPU, after VMCLEAR. Returns whether it lacks this CPU's own state.
    ///
    /// # Panics
    ///
    /// If it is active already.
    #[inline(always)]
    pub fn activate(&mut self, cpu: CpuId) -> bool {
        assert!(self.on.is_none(), "the VMCS is active already, on {:?}", self.on);
        let here = Some(cpu);
        let returned_to = self.returns_to;
        *self = Self { on: here, is_launched: false, returns_to: here };
        returned_to != here
    }

    /// An entry has succeeded: the next is VMRESUME.
    #[inline(always)]
    pub const fn launch(&mut self) {
        self.is_launched = true;
    }

    /// Whether VMRESUME enters by it, and not VMLAUNCH.
    #[inline(always)]
    pub const fn is_launched(&self) -> bool {
        self.is_launched
    }

    /// Whether it is active on some CPU.
    #[inline(always)]
    pub const fn is_anywhere(&self) -> bool {
        self.on.is_some()
    }

    /// VMCLEAR.
    #[inline(always)]
    pub const fn clear(&mut self) {
        self.on = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i6_launched_once_where_it_is_active() {
        let mut active = Active::default();
        for (cpu, lacks_state) in [(0, true), (1, true), (1, false), (0, true)] {
            assert!(!active.is_anywhere());
            assert_eq!(active.activate(CpuId(cpu)), lacks_state);
            active.check(CpuId(cpu));
            assert!(!active.is_launched());
            active.launch();
            assert!(active.is_launched());
            active.clear();
        }
    }

    #[test]
    #[should_panic(expected = "active on Some(CpuId(0)), and not on CPU 1")]
    fn i6_not_used_on_another_cpu() {
        let mut active = Active::default();
        active.activate(CpuId(0));
        active.check(CpuId(1));
    }

    #[test]
    #[should_panic(expected = "active already")]
    fn i6_not_active_twice() {
        let mut active = Active::default();
        active.activate(CpuId(0));
        active.activate(CpuId(1));
    }
}
