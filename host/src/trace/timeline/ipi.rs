//! Interrupts that one vCPU sends to another.

use super::{CpuLine, Doing, Why};
use crate::prelude::*;

/// An interrupt that one vCPU sends to another, as guests do that flush by IPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipi {
    /// The CPU of its sender.
    pub(crate) cpu: u32,
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) at: u64,
    /// The vector, or the INTID on Arm.
    pub(crate) vector: u32,
    pub(crate) receiver: Receiver,
    /// The CPU and the time of the receiver's next entry, if that is in the trace.
    pub(crate) entry: Option<(u32, u64)>,
}

/// What the receiver of an interrupt does when it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// It is in guest mode.
    Running,
    Halted,
    /// It is in the hypervisor, or waits for a CPU.
    Waiting,
}

impl Receiver {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Halted => "halted",
            Self::Waiting => "waiting",
        }
    }
}

/// Finds the entries at which receivers get interrupts.
pub(super) fn connect(ipis: &mut [Ipi], cpus: &[CpuLine]) {
    // Of each vCPU: when it is in guest mode, on which CPU, and whether it then halts.
    let mut stays = BTreeMap::<u16, Vec<(u64, u64, u32, bool)>>::new();
    for (cpu, line) in (0..).zip(cpus) {
        let after = line.spans.iter().skip(1).map(|span| span.doing).chain([Doing::Idle]);
        for (span, after) in line.spans.iter().zip(after) {
            let Doing::Guest { vcpu } = span.doing else { continue };
            let halt = Why::Exit(Counter::ExitWait);
            let halts = matches!(after, Doing::Hypervisor { why, .. } if why == halt);
            stays.entry(vcpu).or_default().push((span.start, span.end, cpu, halts));
        }
    }
    stays.values_mut().for_each(|stays| stays.sort_unstable());
    for ipi in ipis {
        let Some(stays) = stays.get(&ipi.to) else { continue };
        let next = stays.partition_point(|&(start, ..)| start <= ipi.at);
        ipi.entry = stays.get(next).map(|&(start, _, cpu, _)| (cpu, start));
        ipi.receiver = match next.checked_sub(1).map(|last| stays[last]) {
            Some((_, end, ..)) if end > ipi.at => Receiver::Running,
            Some((.., true)) => Receiver::Halted,
            _ => Receiver::Waiting,
        };
    }
}
