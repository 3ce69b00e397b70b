//! Running many programs, and reporting the failing one.

use core::fmt;
use std::time::{Duration, Instant};

use crate::bug::Bug;
pub use crate::generate::Topic;
use crate::hw::format::Arch;
use crate::program::Program;
use crate::rng::Rng;
use crate::run::run;
use crate::shrink::shrink;

/// Lengths of programs. Short ones fail in a way that is easier to understand, long ones reach
/// states that take many steps.
const LENGTHS: [usize; 4] = [60, 200, 200, 600];

/// How much to run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Operations, of guests and hosts together.
    pub operations: u64,
    /// No program is begun after this.
    pub time: Duration,
    /// Programs are numbered from here.
    pub first_seed: u64,
    /// Their topic; `None` for a mixture.
    pub topic: Option<Topic>,
}

impl Effort {
    /// `operations`, without a time limit.
    pub const fn operations(operations: u64) -> Self {
        Self { operations, time: Duration::MAX, first_seed: 0, topic: None }
    }

    /// The same, with programs about one topic.
    #[must_use]
    pub const fn about(self, topic: Topic) -> Self {
        Self { topic: Some(topic), ..self }
    }

    /// The effort that the environment requests: `QUELL_MACHINE_OPERATIONS`, by default
    /// `operations`; `QUELL_MACHINE_SECONDS`; and `QUELL_MACHINE_SEED`, the first program's number.
    pub fn from_environment(operations: u64) -> Self {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        Self {
            operations: number("QUELL_MACHINE_OPERATIONS").unwrap_or(operations),
            time: number("QUELL_MACHINE_SECONDS").map_or(Duration::MAX, Duration::from_secs),
            first_seed: number("QUELL_MACHINE_SEED").unwrap_or(0),
            topic: None,
        }
    }
}

/// The programs that ran without a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Programs.
    pub programs: u64,
    /// Operations.
    pub operations: u64,
}

/// A program that fails.
#[derive(Clone, Debug)]
pub struct Report {
    /// Number of the random program.
    pub seed: u64,
    /// The programs that ran before.
    pub before: Summary,
    /// The shortened program.
    pub program: Program,
    /// Its failure.
    pub failure: String,
    /// Its last events.
    pub trace: Vec<String>,
}

/// The random program with this number, about one topic or any.
pub fn program(arch: Arch, seed: u64, topic: Option<Topic>) -> Program {
    let length = Rng::new(!seed).pick(&LENGTHS);
    Program::random(arch, seed, length, topic)
}

/// Runs random programs on machines of `arch`, until one fails or enough have run. The failing one
/// is shortened.
///
/// # Errors
///
/// The program that failed.
pub fn explore(arch: Arch, bug: Option<Bug>, effort: Effort) -> Result<Summary, Box<Report>> {
    search(arch, bug, effort).map_err(|found| {
        let program = shrink(program(arch, found.seed, effort.topic), bug);
        Box::new(Report::new(&found, program, bug))
    })
}

/// A random program that fails.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its number.
    pub seed: u64,
    /// Its failure.
    pub failure: String,
    /// The programs that ran before.
    pub before: Summary,
}

/// Like [`explore`], without shortening the program.
///
/// # Errors
///
/// The program that failed.
pub fn search(arch: Arch, bug: Option<Bug>, effort: Effort) -> Result<Summary, Found> {
    let (begin, mut summary) = (Instant::now(), Summary::default());
    while summary.operations < effort.operations && begin.elapsed() < effort.time {
        let seed = effort.first_seed + summary.programs;
        let result = run(&program(arch, seed, effort.topic), bug, false);
        if let Some(failure) = result.failure {
            return Err(Found { seed, failure, before: summary });
        }
        summary.programs += 1;
        summary.operations += result.done;
    }
    Ok(summary)
}

impl Report {
    fn new(found: &Found, program: Program, bug: Option<Bug>) -> Self {
        let result = run(&program, bug, true);
        let failure = result.failure.unwrap_or_else(|| format!("it does not fail again: {}", found.failure));
        Self { seed: found.seed, before: found.before, program, failure, trace: result.trace }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, before, program, failure, trace } = self;
        writeln!(f, "{failure}")?;
        writeln!(f, "program {seed}, after {} operations; made short:", before.operations)?;
        writeln!(f, "{:?}, seed {:#x}", program.config, program.seed)?;
        for (index, ops) in program.guests.iter().enumerate().filter(|(_, ops)| !ops.is_empty()) {
            let count = program.config.vcpus;
            writeln!(f, "  vCPU {}.{}: {ops:?}", index / count, index % count)?;
        }
        for (index, ops) in program.hosts.iter().enumerate().filter(|(_, ops)| !ops.is_empty()) {
            writeln!(f, "  host {index}: {ops:?}")?;
        }
        writeln!(f, "what happened last:")?;
        trace.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
