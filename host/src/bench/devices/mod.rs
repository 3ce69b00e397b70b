//! `quell bench devices`: what disks and networks cost a guest that owns them, beside the bare
//! machine and KVM with vfio.
//!
//! Each machine has one CPU, whose instructions QEMU's plugin counts by phase; waits count nothing.
//! The guest is the same: the stock kernel, whose initial RAM disk starts fio from a disk with
//! Debian (`cases`).

mod cases;
mod run;
mod show;

use crate::arch::{Arch, Platform};
use crate::cli::DevicesArgs;
use crate::debian;
use crate::guest::cache::{self, OwningKernel};
use crate::machine::devices::{Devices, Network};
use crate::machine::signals::Signals;
use crate::machine::spec::{Clock, Spec};
use crate::results::{self, Samples, Subject};
use crate::run::reporting_console;
use crate::size::MIB;
use crate::vm::{Guest, Hypervisor, StockGuest};
use anyhow::{Context, Result};
use hostlink::config::{FlushMode, ResetPolicy, Switches};
use std::fs::File;
use std::path::{Path, PathBuf};

/// All sides, in the order in which they take turns.
const SUBJECTS: [Subject; 3] = [Subject::Bare, Subject::Quell, Subject::Kvm];
const CLOCK: Clock = Clock::InstructionsAndWaits;
const MEMORY: u64 = 512 * MIB;
/// The most machines of the bare side or of KVM's for one round.
const TRIES: u32 = 4;

/// Measures, prints, and evaluates; the status is 1 if a target is missed.
pub(crate) fn devices(args: &DevicesArgs, signals: &Signals) -> Result<u8> {
    let bench = Bench::prepare(args)?;
    let mut samples = Samples::default();
    'rounds: for round in 1..=args.runs {
        for subject in SUBJECTS.into_iter().filter(|subject| is_meant(args, *subject)) {
            eprintln!("{}, {round} of {} …", subject.name(), args.runs);
            match bench.measure(subject, signals) {
                Ok(Some(counted)) => show::add(&mut samples, subject, &counted),
                // What there is by then is shown.
                Ok(None) => break 'rounds,
                // It is missing in the table, and misses its targets.
                Err(error) => eprintln!("quell: on {}: {error:#}", subject.name()),
            }
        }
    }
    let good = show::print(&mut samples);
    if let Some(path) = &args.output.json {
        results::write(path, "devices", Some(bench.stock.versions()), &samples)?;
    }
    Ok(u8::from(!good))
}

fn is_meant(args: &DevicesArgs, subject: Subject) -> bool {
    args.on.is_empty() || args.on.iter().any(|on| on.subject() == subject)
}

/// What all machines are made of.
struct Bench<'a> {
    args: &'a DevicesArgs,
    stock: StockGuest,
    hypervisor: Hypervisor,
    /// The kernel around KVM's guest.
    kernel: OwningKernel,
    /// The disk with fio.
    programs: PathBuf,
}

impl<'a> Bench<'a> {
    fn prepare(args: &'a DevicesArgs) -> Result<Self> {
        let arch = Arch::X86_64;
        let programs = match &args.disk {
            Some(disk) => disk.clone(),
            None => debian::usual_disk(arch)?,
        };
        Ok(Self {
            args,
            stock: StockGuest::prepare(arch)?,
            hypervisor: Hypervisor::build(arch)?,
            kernel: cache::owning_kernel()?,
            programs,
        })
    }

    /// Runs all cases on one side. If a machine of KVM's dies or hangs, or the bare one does,
    /// another one is tried: under emulation they do now and then (`docs/qemu.md`). Quell's are not
    /// to.
    fn measure(&self, subject: Subject, signals: &Signals) -> Result<Option<Vec<run::Counted>>> {
        let tries = if subject == Subject::Quell { 1 } else { TRIES };
        for number in 1..tries {
            match self.run(subject, signals) {
                Err(error) => {
                    eprintln!("quell: {}: machine {number} of at most {tries}: {error:#}", subject.name());
                }
                result => return result,
            }
        }
        self.run(subject, signals)
    }

    fn run(&self, subject: Subject, signals: &Signals) -> Result<Option<Vec<run::Counted>>> {
        let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
        let mut spec = self.spec(subject, directory.path())?;
        spec.timeout = Some(self.args.output.timeout());
        run::run(&mut spec, directory.path(), signals)
    }

    fn spec(&self, subject: Subject, directory: &Path) -> Result<Spec> {
        let data = directory.join("data.img");
        let made = File::create(&data).and_then(|file| file.set_len(cases::DATA_BYTES));
        made.with_context(|| format!("cannot make {}", data.display()))?;
        let platform = Platform::X86_64;
        let guest = Guest {
            platform,
            kernel: self.stock.kernel(),
            initrd: Some(self.stock.counting_initrd(&cases::command())?),
            cmdline: format!("{} quiet panic=-1", reporting_console(platform.arch())),
            vcpus: 1,
            memory: MEMORY,
            flush: FlushMode::Hypercall,
            reset: ResetPolicy::Exit,
            switches: Switches::default(),
            devices: Devices {
                disks: vec![self.programs.clone(), data],
                network: Some(Network::Sink),
                ..Devices::default()
            },
        };
        guest.check()?;
        match subject {
            Subject::Bare => Ok(Spec { clock: CLOCK, ..guest.on_bare_machine(1, directory)? }),
            Subject::Quell => guest.on_quell(&self.hypervisor, 1, CLOCK, directory),
            Subject::Kvm => {
                self.stock.with_kvm_and_devices(&self.kernel, &guest, self.args.kvm_polls, CLOCK, directory)
            }
        }
    }
}
