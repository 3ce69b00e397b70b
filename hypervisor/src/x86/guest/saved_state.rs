//! What a guest's vCPUs share, as it is saved and moved.

use core::sync::atomic::Ordering;
use migration::{Archive, Described, Flaw};

use super::Shared;
use crate::devices::pc::apic_ids::ApicId;
use crate::vm::Vm;
use crate::x86::cpuid::{self, same};
use crate::x86::processor::X86;

impl<A: X86> Vm<A> {
    /// Describes devices, and registers that all vCPUs share. No vCPU runs.
    ///
    /// # Errors
    ///
    /// See [`Described::describe`].
    pub fn describe_shared(&self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Shared {
            apic_ids,
            cr4_mask: _, // It follows from what CPUID shows, and so do the maps.
            hidden,
            permission_maps: _,
            flush_cost: _, // The machine's.
            partition,
            platform,
            overlays,
            rom,
            owned,
            has_functions: _,
            has_messages: _, // They are functions'.
            turns: _,        // What is recommended matters at the start alone.
            layout: _,       // By the configuration; slots are passed on by themselves.
            used_before,
            nested_root: _,
            vcpus,
            shadow_tables: _, // By the configuration, too.
        } = &self.guest;
        archive.same("the kind of processor", A::ARCHITECTURE as u64)?;
        let may_nest = partition.platform().may_nest;
        archive.same("whether it may have guests", may_nest.into())?;
        { *apic_ids }.describe(archive)?;
        let view = cpuid::View {
            apic_id: ApicId(0),
            vcpus: *vcpus,
            apic: true,
            osxsave: false,
            invariant_tsc: false,
            may_nest,
        };
        same::describe::<A>(view, &mut hidden.lock(), archive)?;
        if !owned.functions.lock().is_empty() {
            return Err(Flaw::Unmovable("it owns PCI functions"));
        }
        partition.describe(archive)?;
        platform.lock().describe(archive)?;
        overlays.lock().describe(archive)?;
        rom.lock().describe(archive)?;
        let now = A::now();
        for (vcpu, before) in self.vcpus.iter().zip(used_before) {
            let mut used = self.ticks_used(vcpu, now);
            used.describe(archive)?;
            let here = self.host.sched.used_by(vcpu.row, now);
            before.store(here.wrapping_sub(used), Ordering::Relaxed);
        }
        Ok(())
    }
}
