//! `quell demo`: the same guest and workload, flushing once by IPI and once by hypercall; on Arm a
//! different comparison.

mod measure;
mod table;
mod unmap;

use crate::arch::{Arch, Platform};
use crate::cli::DemoArgs;
use crate::machine::process::{End, Machine};
use crate::machine::signals::Signals;
use crate::machine::spec::Clock;
use crate::results::{self, Samples, Subject};
use crate::run::{conclude, reporting_console};
use crate::vm::{Guest, Hypervisor, StockGuest};
use anyhow::Result;
use hostlink::config::FlushMode;
use hostlink::exit::ExitCode;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Observer, ThrashRun};
use std::io::{self, IsTerminal};
use std::time::Duration;

/// The two sides, in the order of the table's columns.
const MODES: [FlushMode; 2] = [FlushMode::Ipi, FlushMode::Hypercall];

/// Default rounds of each of thrash's threads.
const ROUNDS: u32 = 150;

pub(crate) fn demo(args: &DemoArgs, signals: &Signals) -> Result<u8> {
    match args.platform.platform()? {
        Platform::X86_64 => flushes(args, signals),
        platform @ Platform::Aarch64(_) => unmap::demo(args, platform, signals),
    }
}

fn flushes(args: &DemoArgs, signals: &Signals) -> Result<u8> {
    let stock = StockGuest::prepare(Arch::X86_64)?;
    let hypervisor = Hypervisor::build(Arch::X86_64)?;
    let mut samples = Samples::default();
    println!(
        "thrash: {} threads, {} rounds each of mmap, read, munmap of 16384 pages; \
         {} vCPUs on {} CPUs; {} runs a side",
        args.size.vcpus,
        args.rounds.unwrap_or(ROUNDS),
        args.size.vcpus,
        args.size.cpus,
        args.runs
    );
    println!("guest: {}\n", stock.versions().kernel);
    for run in 0..args.runs {
        // Interleaved, with alternating order, so that a change in the host's load affects both
        // sides equally.
        let order = if run.is_multiple_of(2) { MODES } else { [MODES[1], MODES[0]] };
        for mode in order {
            let title = format!("{:<9} {}/{}", name(mode), run + 1, args.runs);
            match one_run(args, mode, &title, &stock, &hypervisor, signals)? {
                Ok(thrash) => thrash.add_to(&mut samples, &case(args, mode)),
                Err(status) => return Ok(status),
            }
        }
    }
    let [ipi, hypercall] = MODES.map(|mode| case(args, mode));
    add_ratio(&mut samples, &ipi, &hypercall);
    let columns = [(name(MODES[0]), ipi.as_str()), (name(MODES[1]), hypercall.as_str())];
    println!("\n{}\n", table::table(&samples, columns, [table::HEAD, table::TAIL]));
    println!("{}", table::sentence(&samples, &ipi, &hypercall, args));
    if let Some(path) = &args.output.json {
        results::write(path, "demo", Some(stock.versions()), &samples)?;
    }
    Ok(0)
}

/// Boots the guest and runs thrash in it. The inner error is the exit status, after the reason has
/// been printed.
fn one_run(
    args: &DemoArgs,
    mode: FlushMode,
    title: &str,
    stock: &StockGuest,
    hypervisor: &Hypervisor,
    signals: &Signals,
) -> Result<Result<ThrashRun, u8>> {
    let command = format!(
        "thrash --threads {} --rounds {} --settle {} --report /dev/report",
        args.size.vcpus,
        args.rounds.unwrap_or(ROUNDS),
        measure::SETTLE_MS
    );
    let cmdline = format!("{} quiet panic=-1", reporting_console(Arch::X86_64));
    let initrd = stock.initrd(Some(&command));
    let guest = Guest {
        vcpus: args.size.vcpus,
        memory: args.size.memory,
        flush: mode,
        ..Guest::new(Platform::X86_64, stock.kernel(), Some(initrd), cmdline)
    };
    guest.check()?;
    let directory = tempfile::Builder::new().prefix("quell-demo-").tempdir()?;
    let mut spec = guest.on_quell(hypervisor, args.size.cpus, Clock::Wall, directory.path())?;
    spec.timeout = Some(args.output.timeout());

    let bar = bar(title);
    let mut observer = Observer::new(&bar);
    let outcome = Machine::start(&spec, signals)?.run(|report, machine| observer.observe(report, machine))?;
    let measured = observer.result();
    bar.finish_and_clear();
    match measured {
        Some(thrash) if outcome.end == End::Hypervisor(ExitCode::GuestPowerOff) => {
            println!("{title}  {:6.2} s", thrash.real);
            Ok(Ok(thrash))
        }
        _ => {
            eprintln!("quell: {title} failed; the guest's console ends with:");
            eprintln!("{}", crate::run::tail(&outcome.console));
            let status = conclude(&outcome, false);
            Ok(Err(if status == 0 { 1 } else { status }))
        }
    }
}

/// The ratio of hypercalls to IPIs as a row of its own.
fn add_ratio(samples: &mut Samples, ipi: &str, hypercall: &str) {
    let median = |case| samples.row(case, Subject::Quell, "real").map(|row| row.median);
    if let (Some(ipi), Some(by_hypercall)) = (median(ipi), median(hypercall)) {
        samples.add(hypercall, Subject::Quell, "real relative to ipi", "ratio", by_hypercall / ipi);
    }
}

fn name(mode: FlushMode) -> &'static str {
    match mode {
        FlushMode::Ipi => "ipi",
        FlushMode::Hypercall => "hypercall",
    }
}

fn case(args: &DemoArgs, mode: FlushMode) -> String {
    format!("thrash-{}:{}-{}", args.size.vcpus, args.size.cpus, name(mode))
}

/// A bar on a terminal, nothing elsewhere.
fn bar(title: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix}  {bar:40} {percent:>3}%  {msg}");
    let bar = ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(title.to_owned());
    bar.set_message("booting");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
