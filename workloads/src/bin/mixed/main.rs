//! Mixed: a build-like run. Processes fork, execute, map and read files, use memory, write small
//! files, and end.
//!
//! The *builder* keeps several tasks in progress until all are done. Each task is a process, the
//! *driver*. The driver forks the *compiler*, which reads the shared header through a mapping and
//! the task's source as a file, and writes an intermediate file. Then the driver forks the
//! *assembler*, which makes the object from that file. The builder compares all objects with the
//! expected ones, which follow from the task's number.
//!
//! It reports JSON lines: `begin`, then `end` with the results, then `damage` if an object was
//! wrong.

mod stage;

use rustix::process::WaitStatus;
use serde_json::json;
use stage::{Header, Stage};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, io, process};
use workloads::options::{Program, Report, cpus};
use workloads::times::{Stopwatch, Times};

const USAGE: &str = "\
usage: mixed [--jobs N] [--tasks N] [--directory D]

  --jobs N       tasks in progress at a time [one per CPU]
  --tasks N      tasks of three processes each [100]
  --directory D  parent of a directory for the files, which is removed afterwards [/tmp]

Like a build: a task forks a compiler, which maps a header, reads a source, uses some memory and
writes a file, and an assembler, which makes an object from that file. All objects are checked at
the end. `end` has nanoseconds of all tasks together (`ns`) and of one (`ns_per_task`: `ns` divided
by the tasks). The status is 1 if an object was wrong, 3 if an operation failed. For example:

  mixed --jobs 4 --tasks 200";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    jobs: u64,
    tasks: u64,
    directory: PathBuf,
    /// The stage, and its task, of a process that this program has forked.
    stage: Option<(Stage, u64)>,
}

impl Options {
    fn program() -> Program<Self> {
        let options = Self { jobs: cpus(), tasks: 100, directory: PathBuf::from("/tmp"), stage: None };
        Program::new("mixed", USAGE, options, |options, given| {
            match given.name {
                "--jobs" => options.jobs = given.number(1, 1024)?,
                "--tasks" => options.tasks = given.number(1, 1 << 24)?,
                "--directory" => options.directory = given.path(),
                name => {
                    let stage = Stage::named(name).ok_or_else(|| given.unknown())?;
                    options.stage = Some((stage, given.number(0, u64::MAX)?));
                }
            }
            Ok(())
        })
    }
}

fn run(options: &Options, report: &mut Report) -> io::Result<bool> {
    let directory = stage::Directory::create(&options.directory, process::id())?;
    let header = Header::create(directory.path())?;
    for task in 0..options.tasks {
        stage::write_source(directory.path(), task)?;
    }
    report.settle(&json!({
        "event": "begin", "workload": "mixed", "jobs": options.jobs, "tasks": options.tasks,
    }))?;

    let watch = Stopwatch::start()?;
    stage::build(directory.path(), options.jobs, options.tasks)?;
    let wrong = stage::wrong_object(directory.path(), &header, options.tasks)?;
    let Times { real, user, sys, faults } = watch.elapsed()?;

    report.settle(&json!({
        "event": "end", "workload": "mixed", "tasks": options.tasks,
        "processes": options.tasks * Stage::ALL.len() as u64,
        "ns": u64::try_from(real.as_nanos()).unwrap_or(u64::MAX),
        "ns_per_task": real.as_nanos() as f64 / options.tasks as f64,
        "user": user.as_secs_f64(), "sys": sys.as_secs_f64(), "faults": faults,
        "damaged": wrong.is_some(),
    }))?;
    if let Some((task, what)) = &wrong {
        eprintln!("mixed: task {task}: {what}");
        report.line(&json!({"event": "damage", "workload": "mixed", "task": task, "what": what}))?;
    }
    Ok(wrong.is_none())
}

fn main() -> ExitCode {
    Options::program().main(|options, report| match options.stage {
        Some((stage, task)) => {
            let done = stage::run(stage, &options.directory, task).map(|()| true);
            done.map_err(|error| format!("{}: {error}", stage.name()))
        }
        None => run(options, report).map_err(|error| error.to_string()),
    })
}

/// Forked, not made by vfork as the library would: memory that is shared with this process must be
/// copied when either writes to it.
fn fork(stage: Stage, directory: &std::path::Path, task: u64) -> io::Result<process::Child> {
    use std::os::unix::process::CommandExt;
    let mut command = process::Command::new(env::current_exe()?);
    command.arg("--directory").arg(directory).arg(stage.name()).arg(task.to_string());
    // SAFETY: nothing is done between fork and exec; because of it the library forks.
    unsafe { command.pre_exec(|| Ok(())) };
    command.spawn()
}

/// An error says how a process has ended that has not succeeded.
fn ended(who: &str, status: WaitStatus) -> io::Result<()> {
    let how = match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => return Ok(()),
        (Some(status), _) => format!("ended with status {status}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "did not end".to_owned(),
    };
    Err(io::Error::other(format!("{who} {how}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_what_to_do() {
        for stage in Stage::ALL {
            let options = Options::program().parse(["--directory", "/d", stage.name(), "7"]).expect("parses");
            assert_eq!((options.stage, options.directory), (Some((stage, 7)), "/d".into()));
        }
        assert_eq!(Options::program().parse(["--tasks", "3"]).expect("parses").stage, None);
    }
}
