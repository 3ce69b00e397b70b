//! Puts a guest's files into its memory, in steps.

use core::mem;
use hostlink::defect::Defect;
use memslots::{Gpa, Sweep};
use paging::Progress;

use super::arch::Arch;
use super::defects::makes;
use super::dma::MapAhead;
use super::machine::Vm;
use super::slot_memory::CLEAR_BYTES;
use crate::loader::{LoadError, Placement};
use crate::vm::dma::Devices;

/// What is put into a guest's memory, which is zero elsewhere, and where its boot vCPU begins.
pub struct Plan<E> {
    /// The bytes and their places.
    pub placements: alloc::vec::Vec<Placement<'static>>,
    /// The beginning.
    pub entry: E,
}

/// A guest's memory is being filled. No vCPU of it runs.
pub struct Load<A: Arch> {
    stage: Stage,
    plan: Plan<A::Entry>,
}

enum Stage {
    /// Devices that the guest owns are switched off and reset: they do not write to its memory any
    /// more.
    Devices,
    /// All memory becomes zero.
    Zero(Sweep),
    /// A placement is copied, from this byte on.
    Place(usize, usize),
    /// All memory is cleaned out of the caches, for a guest that starts without them.
    Clean(Sweep),
    /// All memory is mapped, for the devices that the guest owns.
    Map(MapAhead),
    Ready,
}

impl<A: Arch> Load<A> {
    /// Begins to load a guest.
    ///
    /// # Errors
    ///
    /// If its files are malformed, or do not fit.
    pub fn new(vm: &Vm<A>) -> Result<Self, LoadError> {
        let plan = A::plan(&vm.guest, &vm.files, vm.vcpu_count())?;
        Ok(Self { stage: Stage::Devices, plan })
    }

    /// Makes a short step; `Done` when memory is ready.
    pub fn step(&mut self, vm: &Vm<A>) -> Progress {
        let memory = vm.space.slots().memory();
        self.stage = match mem::replace(&mut self.stage, Stage::Ready) {
            Stage::Devices => match A::Devices::step_reset(vm) {
                Progress::Done => Stage::Zero(Sweep::new(CLEAR_BYTES)),
                _ => Stage::Devices,
            },
            Stage::Zero(mut sweep) => match sweep.next(&memory) {
                Some(piece) => {
                    if !piece.slot.is_read_only() && !makes(Defect::MemoryHandedOn) {
                        // SAFETY: the memory is the guest's alone; no vCPU or device of it runs.
                        unsafe { A::zero(piece.host.start, piece.host.end - piece.host.start) };
                        // This bypasses `memory`, so mark the log explicitly.
                        memory.mark_dirty(piece.gpas);
                    }
                    Stage::Zero(sweep)
                }
                None => Stage::Place(0, 0),
            },
            Stage::Place(index, from) => match self.plan.placements.get(index) {
                Some(place) => {
                    let bytes = &place.bytes[from..];
                    let bytes = &bytes[..bytes.len().min(CLEAR_BYTES as usize)];
                    memory.write(Gpa(place.gpa + from as u64), bytes).expect("the plan stays within memory");
                    match from + bytes.len() {
                        to if to == place.bytes.len() => Stage::Place(index + 1, 0),
                        to => Stage::Place(index, to),
                    }
                }
                None if A::must_clean() => Stage::Clean(Sweep::new(CLEAR_BYTES)),
                None => Self::filled(vm),
            },
            Stage::Clean(mut sweep) => match sweep.next(&memory) {
                Some(piece) => {
                    A::clean(piece.host);
                    Stage::Clean(sweep)
                }
                None => Self::filled(vm),
            },
            Stage::Map(mut ahead) => match ahead.step(vm) {
                Progress::Done => {
                    A::Devices::attach(vm);
                    Stage::Ready
                }
                Progress::OutOfTables => {
                    // They stay blocked: the guest finds dead devices.
                    log::error!("the guest has too few tables for devices");
                    Stage::Ready
                }
                _ => Stage::Map(ahead),
            },
            Stage::Ready => return Progress::Done,
        };
        Progress::More
    }

    fn filled(vm: &Vm<A>) -> Stage {
        if A::Devices::are_owned(vm) { Stage::Map(MapAhead::default()) } else { Stage::Ready }
    }

    /// Lets the boot vCPU, whose private state this is, begin at the kernel's entry.
    pub fn finish(self, vm: &Vm<A>, boot: &mut A::State) {
        A::show_generation(vm, false);
        A::begin(&vm.guest, self.plan.entry, (&vm.vcpus[0].inbox, boot));
    }
}
