//! `quell bench devices`: what disks and networks cost a guest that owns them, beside the bare
//! machine and KVM with vfio.
//!
//! Each machine has one CPU, whose instructions QEMU's plugin counts by phase; waits count nothing.
//! The guest is the same: the stock kernel, whose initial RAM disk starts fio from a disk with
//! Debian (`cases`).

mod cases;
mod run;
mod show;

use super::lab::{self, Lab};
use super::limits::Limit;
use crate::arch::{Arch, Platform};
use crate::cli::DevicesArgs;
use crate::debian;
use crate::guest::cache::{self, OwningKernel};
use crate::machine::devices::{Devices, Network};
use crate::machine::spec::{Clock, Spec};
use crate::results::{Samples, Subject};
use crate::size::MIB;
use crate::vm::Guest;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::PathBuf;

/// All sides, in the order in which they take turns.
const SUBJECTS: [Subject; 3] = [Subject::Bare, Subject::Quell, Subject::Kvm];
const ARCH: Arch = Arch::X86_64;
const CLOCK: Clock = Clock::InstructionsAndWaits;
const MEMORY: u64 = 512 * MIB;
/// The most machines of the bare side or of KVM's for one round.
const TRIES: u32 = 4;

pub(super) fn devices(lab: &Lab<'_>, args: &DevicesArgs, samples: &mut Samples) -> Result<Vec<Limit>> {
    let programs = args.disk.clone().map_or_else(|| debian::usual_disk(ARCH), Ok)?;
    let bench = Bench { lab, polls: args.kvm_polls, kernel: cache::owning_kernel()?, programs };
    let is_meant = |subject| args.on.is_empty() || args.on.iter().any(|on| on.subject() == subject);
    'rounds: for round in 1..=args.runs {
        for subject in SUBJECTS.into_iter().filter(|subject| is_meant(*subject)) {
            eprintln!("{}, {round} of {} …", subject.name(), args.runs);
            match bench.measure(subject) {
                Ok(counted) => show::add(samples, subject, &counted),
                // What there is by then is shown.
                Err(_) if lab.signals.caught().is_some() => break 'rounds,
                // It is missing in the table, and misses its targets.
                Err(error) => eprintln!("quell: on {}: {error:#}", subject.name()),
            }
        }
    }
    show::print(samples);
    Ok(show::limits(samples))
}

struct Bench<'a> {
    lab: &'a Lab<'a>,
    /// Whether KVM polls before it halts.
    polls: bool,
    /// The kernel around KVM's guest.
    kernel: OwningKernel,
    /// The disk with fio.
    programs: PathBuf,
}

impl Bench<'_> {
    /// Runs all cases on one side. If a machine of KVM's dies or hangs, or the bare one does,
    /// another one is tried: under emulation they do now and then (`docs/qemu.md`). Quell's are not
    /// to.
    fn measure(&self, subject: Subject) -> Result<Vec<run::Counted>> {
        let tries = if subject == Subject::Quell { 1 } else { TRIES };
        for number in 1..tries {
            match run::run(self.lab, self.spec(subject)?) {
                Err(error) if self.lab.signals.caught().is_none() => {
                    eprintln!("quell: {}: machine {number} of at most {tries}: {error:#}", subject.name());
                }
                result => return result,
            }
        }
        run::run(self.lab, self.spec(subject)?)
    }

    fn spec(&self, subject: Subject) -> Result<Spec> {
        let (lab, stock) = (self.lab, self.lab.stock(ARCH)?);
        let data = lab.directory().join("data.img");
        let made = File::create(&data).and_then(|file| file.set_len(cases::DATA_BYTES));
        made.with_context(|| format!("cannot make {}", data.display()))?;
        let disks = vec![self.programs.clone(), data];
        let initrd = stock.counting_initrd(&cases::command())?;
        let guest = Guest {
            memory: MEMORY,
            devices: Devices { disks, network: Some(Network::Sink), ..Devices::default() },
            ..lab::linux(stock, Platform::X86_64, initrd, 1)
        };
        match subject {
            Subject::Bare => lab.on_bare_machine(&guest, 1, CLOCK),
            Subject::Quell => lab.on_quell(&guest, 1, CLOCK),
            Subject::Kvm => {
                stock.with_kvm_and_devices(&self.kernel, &guest, self.polls, CLOCK, lab.directory())
            }
        }
    }
}
