//! Cases that a function of their own measures, and cases that several platforms have.

use super::Runner;
use super::cases::{Case, Comparison, EXIT_MAX, IDLE, Work, case};
use super::record::Number;
use super::way::{FlushWay, HYPERCALL};
use crate::cli::AllArgs;
use crate::machine::bochs::{Bochs, Model};
use crate::prelude::*;

pub(super) type Measure = fn(&Runner<'_>, FlushWay) -> Result<Vec<Number>>;

/// What a function of its own measures.
#[derive(Clone)]
pub(crate) struct Own {
    pub(super) measure: Measure,
    /// How it makes its machines, with the options that it heeds.
    pub(super) machines: fn(&AllArgs) -> String,
    pub(super) is_timed: bool,
}

impl Own {
    /// What is the same each time, so that it runs once.
    pub(crate) const fn counted(measure: Measure, machines: fn(&AllArgs) -> String) -> Self {
        Self { measure, machines, is_timed: false }
    }

    /// What varies with the clock.
    pub(crate) const fn timed(measure: Measure, machines: fn(&AllArgs) -> String) -> Self {
        Self { measure, machines, is_timed: true }
    }
}

/// A case on Quell alone, on AMD64 or where [`on_each`] puts it.
pub(crate) const fn own(name: &'static str, about: &'static str, work: Own) -> Case {
    case(name, about, Work::Own(work), &[HYPERCALL], &[]).only_long()
}

/// All platforms, those of Arm last.
pub(super) const EVERYWHERE: [Platform; 4] = [
    Platform::X86_64,
    Platform::Aarch64(ArmCpu::Max),
    Platform::Aarch64(ArmCpu::NeoverseN1),
    Platform::Aarch64(ArmCpu::CortexA72),
];

/// These cases on each of these platforms.
pub(super) fn on_each(cases: &[Case], platforms: &[Platform]) -> Vec<Case> {
    let on = |(case, platform): (&Case, Platform)| {
        // On the other model KVM gets stuck before its guest says anything.
        let has_peers = matches!(platform, Platform::Bochs(Bochs { model: Model::Skylake, .. }));
        let is_there = |way: &&FlushWay| match way.subject() {
            Subject::Kvm => has_peers,
            subject => subject != Subject::Xen,
        };
        let on = |ways: &[FlushWay]| -> &'static [FlushWay] {
            let mut ways: Vec<_> = ways.iter().filter(is_there).map(|way| way.on(platform)).collect();
            ways.dedup();
            ways.leak()
        };
        let comparison = |of: &Comparison| Comparison {
            target: if of.metric.starts_with(IDLE) { EXIT_MAX } else { of.target },
            quell: of.quell.on(platform),
            peers: on(of.peers),
            ..*of
        };
        let compared = if has_peers { case.comparisons } else { &[] };
        let comparisons = compared.iter().map(comparison).collect::<Vec<_>>().leak();
        let is_usual = matches!(platform, Platform::X86_64 | Platform::Aarch64(ArmCpu::Max));
        let only_long = case.only_long || !is_usual;
        Case {
            name: name_on(platform, case.name).leak(),
            ways: on(case.ways),
            only_long,
            comparisons,
            ..case.clone()
        }
    };
    platforms.iter().flat_map(|platform| cases.iter().map(|case| (case, *platform))).map(on).collect()
}

/// The name of a case on this platform.
pub(crate) fn name_on(platform: Platform, case: &str) -> String {
    match platform {
        Platform::X86_64 => case.to_owned(),
        Platform::Kvm(_) | Platform::Bochs(_) => platform.named(case),
        Platform::Aarch64(ArmCpu::Max) => format!("arm-{case}"),
        Platform::Aarch64(_) => platform.named(&format!("arm-{case}")),
    }
}
