//! The case `devices`: what disks and networks cost a guest that owns them, beside the bare machine
//! and KVM with vfio.
//!
//! Each machine has one CPU, whose instructions QEMU's plugin counts by phase; waits count nothing.
//! The guest is the same: the stock kernel, whose initial RAM disk starts fio from a disk with
//! Debian (`run`).

mod run;

use super::all::Runner;
use super::all::cases;
use super::all::own::{Own, own};
use super::all::record::{Number, named};
use super::all::way::{BARE, FlushWay, HYPERCALL, KVM_PARAVIRTUAL};
use super::counts::Figures;
use super::lab;
use crate::cli::DeviceOptions;
use crate::debian;
use crate::guest::cache;
use crate::machine::devices::{Devices, Network};
use crate::prelude::*;
use run::{CASES, Case, Counted, NOTHING};
use std::fs::File;

const ARCH: Arch = Arch::X86_64;
const CLOCK: Clock = Clock::InstructionsAndWaits;
const MEMORY: u64 = 512 * MIB;

pub(super) const CASE: cases::Case = cases::Case {
    ways: &[HYPERCALL, BARE, KVM_PARAVIRTUAL],
    ..own(
        "devices",
        "instructions per transfer of a guest that owns a disk and a network card",
        Own::timed(measure, |args| {
            let DeviceOptions { disk, kvm_polls, .. } = &args.devices;
            format!("a CPU, counting instructions; its disk is {disk:?}; whether KVM polls: {kvm_polls}")
        }),
    )
};

fn measure(Runner { lab, args }: &Runner<'_>, way: FlushWay) -> Result<Vec<Number>> {
    let counted = run::run(lab, spec(lab, way.subject(), &args.devices)?)?;
    Ok(worked().zip(&counted).flat_map(|(case, counted)| numbers(case, counted)).collect())
}

fn spec(lab: &Lab<'_>, subject: Subject, options: &DeviceOptions) -> Result<Spec> {
    let programs = options.disk.clone().map_or_else(|| debian::usual_disk(ARCH), Ok)?;
    let (stock, directory) = (lab.stock(ARCH)?, lab.directory());
    let data = directory.join("data.img");
    let made = File::create(&data).and_then(|file| file.set_len(run::DATA_BYTES));
    made.with_context(|| format!("cannot make {}", data.display()))?;
    let disks = vec![programs, data];
    let initrd = stock.initrd(Some(&run::command()));
    let guest = Guest {
        memory: MEMORY,
        devices: Devices { disks, network: Some(Network::Sink), ..Devices::default() },
        ..lab::linux(stock, Platform::X86_64, initrd, 1)
    };
    match subject {
        Subject::Bare => lab.on_bare_machine(&guest, 1, CLOCK),
        Subject::Quell => lab.on_quell(&guest, 1, CLOCK),
        Subject::Kvm => {
            let kernel = cache::owning_kernel()?;
            stock.with_kvm_and_devices(&kernel, &guest, options.kvm_polls, CLOCK, directory)
        }
        Subject::Xen => bail!("its domains own no devices here"),
    }
}

const INSTRUCTIONS: &str = "instructions";
const EXITS: &str = "exit.all";

/// The least work per instruction, relative to the bare machine and to KVM.
const BARE_MIN: f64 = 0.9;
const KVM_MIN: f64 = 1.5;
/// The most exits for each transfer.
const EXITS_MAX: f64 = 2.0;

fn worked() -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| case.name != NOTHING)
}

fn numbers(case: &Case, counted: &Counted) -> Vec<Number> {
    let instructions = Number::of(case.name, INSTRUCTIONS, INSTRUCTIONS, counted.instructions_each());
    // Without Quell there are none.
    let exits = (!counted.exits.is_empty()).then(|| (EXITS, counted.exits_each()));
    let by_reason = counted.exits.iter().map(|(name, count)| (*name, count / counted.ios));
    let exits = exits.into_iter().chain(by_reason);
    let exits = exits.map(|(name, each)| Number::of(case.name, name, "per transfer", each));
    [instructions].into_iter().chain(exits).collect()
}

/// Quell's limits, relative to the other systems as far as they have run.
pub(super) fn limits(figures: Figures<'_>) -> Vec<Limit> {
    let of_case = |case: &'static Case| {
        let of = |way, metric| figures(way, &named(case.name, metric));
        let quell = |metric| of(HYPERCALL, metric).unwrap_or(f64::NAN);
        let others = [(BARE, "relative to bare", BARE_MIN), (KVM_PARAVIRTUAL, "relative to kvm", KVM_MIN)];
        let relative = others.into_iter().filter_map(|(way, label, least)| {
            Some(Limit::at_least(label, of(way, INSTRUCTIONS)? / quell(INSTRUCTIONS), least))
        });
        let exits = Limit::at_most("exits for each", quell(EXITS), EXITS_MAX);
        relative.chain([exits]).map(|limit| limit.of(case.name)).collect::<Vec<_>>()
    };
    worked().flat_map(of_case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(each: f64, exits: &[(&'static str, f64)]) -> Counted {
        Counted { ios: 10.0, instructions: 10.0 * each, exits: exits.iter().copied().collect() }
    }

    #[test]
    fn each_target_can_be_missed() {
        let relative = ["relative to bare", "relative to kvm", "exits for each"];
        for (quell, exits, missed) in [
            (110.0, 1.9, &[][..]),
            (112.0, 2.0, &relative[..1]),
            (140.0, 2.1, &relative[..]),
            (90.0, 3.0, &relative[2..]),
        ] {
            let quell = counted(quell, &[("exit.wait", 10.0 * exits)]);
            let of = |way: FlushWay, metric: &str| {
                let [bare, kvm] = [100.0, 200.0].map(|each| counted(each, &[]));
                let counted = match way.subject() {
                    Subject::Quell => &quell,
                    Subject::Bare => &bare,
                    Subject::Kvm | Subject::Xen => &kvm,
                };
                let all: Vec<_> = worked().flat_map(|case| numbers(case, counted)).collect();
                Some(all.iter().find(|number| number.metric == metric)?.value)
            };
            let found = limits(&of).into_iter().filter(|limit| !limit.is_met());
            let found: Vec<_> = found.map(|limit| limit.label).collect();
            let expected = worked().flat_map(|case| missed.iter().map(|metric| named(case.name, metric)));
            assert_eq!(found, expected.collect::<Vec<_>>());
        }
    }
}
