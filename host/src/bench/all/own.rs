//! Cases that a function of their own measures, and cases that several platforms have.

use super::Runner;
use super::cases::{Case, Comparison, EXIT_MAX, IDLE, Linux, Work, case};
use super::record::Number;
use super::way::{FlushWay, HYPERCALL};
use crate::cli::AllArgs;
use crate::machine::bochs::{Bochs, Model};
use crate::machine::kvm::Vendor;
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

impl Case {
    /// Whose processor it is measured on, if that is this computer's own.
    pub(crate) const fn by_kvm(&self) -> Option<Vendor> {
        if let Platform::Kvm(vendor) = self.ways[0].platform() { Some(vendor) } else { None }
    }

    /// Why it is not compared with `peer`, if it is with another.
    pub(super) fn lacks(&self, peer: Subject) -> Option<&'static str> {
        let is_there = self.comparisons.is_empty() || self.ways.iter().any(|way| way.subject() == peer);
        let why = match &self.work {
            _ if matches!(self.ways[0], FlushWay::Inner(..)) => "its domains have no guests here",
            Work::Linux(Linux { has_rom: true, .. }) => "a PVH or PV domain has no such device",
            Work::Probe { vcpus: 129.., .. } => "a PVH domain has at most 128 vCPUs",
            Work::Slots(_) => "no monitor of ours makes its calls",
            _ => "its machine is QEMU's PC",
        };
        (!is_there).then_some(why)
    }
}

/// The seconds that a run takes on two otherwise idle cores.
pub(super) fn usual(work: &Work, way: FlushWay) -> f64 {
    let (quell, kvm) = match work {
        _ if matches!(way, FlushWay::Inner(..)) => (25.0, 30.0),
        Work::Linux(linux) if linux.vcpus > 16 => (20.0, 200.0),
        Work::Linux(linux) => (3.0 + 0.1 * f64::from(linux.vcpus), 10.0 + f64::from(linux.vcpus)),
        Work::Probe { vcpus, .. } => (2.0, 10.0 + 2.0 * f64::from(*vcpus)),
        Work::Slots(slots) => {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let gib = slots.monitor_memory() as f64 / GIB as f64;
            (2.0 + 7.0 * gib, 8.0 + 25.0 * gib)
        }
        Work::Tlbcheck(_) => (4.0, 27.0),
        Work::Own(_) => (20.0, 60.0),
    };
    if way.is_peer() { kvm } else { quell }
}
