//! Cases that a function of their own measures, and cases that several platforms have.

use super::Runner;
use super::cases::{Case, Work};
use super::record::Number;
use super::way::{FlushWay, HYPERCALL};
use crate::cli::AllArgs;
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
    Case { name, about, work: Work::Own(work), ways: &[HYPERCALL], only_long: true, comparisons: &[] }
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
        let mut ways: Vec<_> =
            case.ways.iter().filter(|way| !way.is_peer()).map(|way| way.on(platform)).collect();
        ways.dedup();
        // KVM runs on QEMU's machines.
        let comparisons = if let Platform::Bochs(_) = platform { &[] } else { case.comparisons };
        let is_usual = matches!(platform, Platform::X86_64 | Platform::Aarch64(ArmCpu::Max));
        let only_long = case.only_long || !is_usual;
        Case {
            name: name_on(platform, case.name).leak(),
            ways: ways.leak(),
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
        Platform::Bochs(_) => platform.named(case),
        Platform::Aarch64(ArmCpu::Max) => format!("arm-{case}"),
        Platform::Aarch64(_) => platform.named(&format!("arm-{case}")),
    }
}
