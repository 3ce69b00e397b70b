//! Proofs that nobody reaches a guest any more: without them it is not freed.

use super::arch::Arch;
use super::machine::Vm;
use super::space::Flushed;
use super::{host, percpu};

/// A guest whose vCPUs have all stopped, and of which nothing is cached since the flush of tables
/// without entries. The flag says whether idle CPUs have been told to leave its address space.
pub(super) struct Leaving<A: Arch>(&'static Vm<A>, bool);

impl<A: Arch> Leaving<A> {
    pub(super) fn new(vm: &'static Vm<A>, _: Flushed) -> Self {
        Self(vm, false)
    }

    /// Has the CPUs that idle leave the guest's address space. `None` until none of them has it
    /// loaded: call it again then.
    pub(super) fn gone(&mut self) -> Option<Gone<A>> {
        let vm = self.0;
        if !core::mem::replace(&mut self.1, true) {
            vm.host.let_leave();
        }
        let mut holders = percpu::online::<A>().filter(|cpu| A::holds_space(vm, cpu)).peekable();
        if holders.peek().is_some() {
            holders.for_each(|cpu| host::kick::<A>(cpu.index));
            return None;
        }
        self.1 = false;
        vm.host.have_left();
        Some(Gone(vm))
    }
}

/// A guest that has been left by all CPUs.
pub(super) struct Gone<A: Arch>(&'static Vm<A>);

impl<A: Arch> Gone<A> {
    pub(super) const fn vm(&self) -> &'static Vm<A> {
        self.0
    }
}
