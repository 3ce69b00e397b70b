//! Running one program.

use paging::{Amd64Nested, Arm64Stage2, Ept};

use crate::bug::Bug;
use crate::driver::{
    Architecture, Behind, Heritage, Ring, Row, check_end, run_cpu, run_device, run_host, run_iommu,
};
use crate::hw::format::Arch;
use crate::machine::AbstractMachine;
use crate::program::Program;
use crate::sched::{Actor, Ended};

/// How a run ended.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub failure: Option<String>,
    /// Operations that were done.
    pub done: u64,
    /// The last events, if they were recorded.
    pub trace: Vec<String>,
}

/// Runs a program, with a driver that makes a mistake or not. The same program always runs in the
/// same way; `traced` records events.
pub(crate) fn run(program: &Program, bug: Option<Bug>, traced: bool) -> Run {
    match program.config.arch {
        Arch::Amd64 => run_with::<Amd64Nested>(program, bug, traced),
        Arch::Intel64 => run_with::<Ept>(program, bug, traced),
        Arch::Arm64 => run_with::<Arm64Stage2<4>>(program, bug, traced),
    }
}

fn run_with<F: Architecture>(program: &Program, bug: Option<Bug>, traced: bool) -> Run {
    let machine = AbstractMachine::new(program.config, program.seed, program.len(), bug, traced);
    let (config, ring) = (&program.config, Ring::new(&machine));
    let rows: Vec<Row<'_, F>> = (0..config.vms)
        .map(|index| Row::new(Behind::new(&machine, &ring, index), index, Heritage::of(program, index)))
        .collect();
    let mut actors: Vec<Actor<'_>> = Vec::new();
    let (machine, rows) = (&machine, &rows);
    for cpu in 0..config.cpus {
        actors.push(Box::new(move || {
            run_cpu(machine, rows, cpu);
            machine.end_actor();
        }));
    }
    for (row, ops) in rows.iter().zip(&program.hosts) {
        actors.push(Box::new(move || {
            run_host(row, ops);
            machine.end_actor();
        }));
    }
    if config.dma.has_devices() {
        actors.push(Box::new(|| run_iommu(&ring)));
    }
    for vm in 0..config.vms {
        for place in config.dma.of(vm) {
            actors.push(Box::new(move || run_device(machine, vm, place)));
        }
    }
    let ended = machine.sched.run(actors);
    let failure = machine.failure.borrow().clone().or(match ended {
        Ok(()) => check_end(machine, rows).err(),
        Err(Ended::Panicked(message)) => Some(format!("panic: {message}")),
        Err(Ended::Endless) => Some("the run does not end".into()),
        Err(Ended::Stopped) => Some("stopped without a reason".into()),
    });
    Run { failure, done: machine.done.get(), trace: machine.trace() }
}
