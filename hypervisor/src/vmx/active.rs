//! Where a VMCS is active: on one CPU at most, from the vCPU's first entry there until it leaves.
//!
//! A processor keeps what it likes of an active VMCS, and writes it back at VMCLEAR. Two processors
//! that keep parts of one corrupt it without a word (25.11.1). So a vCPU's VMCS is cleared when the
//! vCPU leaves its CPU, before the scheduler can give it to another: whoever has the vCPU's state
//! also knows where its VMCS is active, and nobody else asks for VMCLEAR.

use coherence::CpuId;

/// Where a VMCS is active, and whether VMLAUNCH or VMRESUME enters by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Active(Option<(CpuId, bool)>);

impl Active {
    /// Whether it is active on this CPU.
    ///
    /// # Panics
    ///
    /// If it is active on another one.
    #[inline(always)]
    pub fn is_on(&self, cpu: CpuId) -> bool {
        let Some((home, _)) = self.0 else { return false };
        assert!(home == cpu, "the VMCS is active on CPU {}, and not on CPU {}", home.0, cpu.0);
        true
    }

    /// VMPTRLD on this CPU, after VMCLEAR.
    ///
    /// # Panics
    ///
    /// If it is active already.
    pub fn activate(&mut self, cpu: CpuId) {
        assert!(self.0.is_none(), "the VMCS is active already");
        self.0 = Some((cpu, false));
    }

    /// An entry has succeeded: the next is VMRESUME.
    #[inline(always)]
    pub const fn launch(&mut self) {
        if let Some((_, launched)) = &mut self.0 {
            *launched = true;
        }
    }

    /// Whether VMRESUME enters by it, and not VMLAUNCH.
    #[inline(always)]
    pub const fn is_launched(&self) -> bool {
        matches!(self.0, Some((_, true)))
    }

    /// Whether it is active on some CPU.
    pub const fn is_anywhere(&self) -> bool {
        self.0.is_some()
    }

    /// VMCLEAR.
    pub const fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i6_launched_once_where_it_is_active() {
        let mut active = Active::default();
        for cpu in [CpuId(0), CpuId(1)] {
            assert!(!active.is_on(cpu) && !active.is_launched());
            active.activate(cpu);
            assert!(active.is_on(cpu) && !active.is_launched());
            active.launch();
            assert!(active.is_on(cpu) && active.is_launched());
            active.clear();
        }
        assert!(!active.is_anywhere());
    }

    #[test]
    #[should_panic(expected = "active on CPU 0, and not on CPU 1")]
    fn i6_not_used_on_another_cpu() {
        let mut active = Active::default();
        active.activate(CpuId(0));
        active.is_on(CpuId(1));
    }

    #[test]
    #[should_panic(expected = "active already")]
    fn i6_not_active_twice() {
        let mut active = Active::default();
        active.activate(CpuId(0));
        active.activate(CpuId(1));
    }
}
