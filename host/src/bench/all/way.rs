//! The hypervisors that are compared, and the ways in which their guests flush.

use crate::guest::peer::Flushes;
use crate::results::Subject;
use hostlink::config::FlushMode;

/// A hypervisor, and the way in which its guest flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Quell(FlushMode),
    Kvm(Flushes),
}

pub(crate) const HYPERCALL: Way = Way::Quell(FlushMode::Hypercall);
pub(crate) const IPI: Way = Way::Quell(FlushMode::Ipi);
pub(crate) const KVM_HYPERV: Way = Way::Kvm(Flushes::HyperV);
pub(crate) const KVM_IPI: Way = Way::Kvm(Flushes::Ipi);
pub(crate) const KVM_PARAVIRTUAL: Way = Way::Kvm(Flushes::Paravirtual);

impl Way {
    /// All ways, ordered so that Quell and its peer take turns.
    pub(crate) const ALL: [Self; 5] = [HYPERCALL, KVM_HYPERV, IPI, KVM_IPI, KVM_PARAVIRTUAL];

    /// The hypervisor.
    pub(crate) const fn subject(self) -> Subject {
        match self {
            Self::Quell(_) => Subject::Quell,
            Self::Kvm(_) => Subject::Kvm,
        }
    }

    /// Whether the hypervisor is the peer.
    pub(crate) const fn is_peer(self) -> bool {
        matches!(self, Self::Kvm(_))
    }

    /// The name of the guest's way to flush, in results.
    pub(crate) const fn flushes(self) -> &'static str {
        match self {
            Self::Quell(FlushMode::Hypercall) => "hypercall",
            Self::Quell(FlushMode::Ipi) => "ipi",
            Self::Kvm(flushes) => flushes.name(),
        }
    }

    /// The name of both, for people.
    pub(crate) fn title(self) -> String {
        format!("{} {}", self.subject().name(), self.flushes())
    }

    /// Whether a Linux guest's log must say that it flushes by Hyper-V's hypercalls, and whether it
    /// must say that it flushes by KVM's interface.
    pub(crate) const fn logged(self) -> Logged {
        match self {
            Self::Quell(FlushMode::Hypercall) | Self::Kvm(Flushes::HyperV) => {
                Logged { hyperv: true, kvm: false }
            }
            Self::Quell(FlushMode::Ipi) | Self::Kvm(Flushes::Ipi) => Logged { hyperv: false, kvm: false },
            Self::Kvm(Flushes::Paravirtual) => Logged { hyperv: false, kvm: true },
        }
    }
}

/// The messages in a Linux guest's log about its flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) hyperv: bool,
    pub(crate) kvm: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quell_and_its_peer_take_turns() {
        for pair in Way::ALL[..4].windows(2) {
            assert_ne!(pair[0].is_peer(), pair[1].is_peer(), "{pair:?}");
        }
        let titles = Way::ALL.map(Way::title);
        assert!(
            titles.iter().enumerate().all(|(index, title)| !titles[..index].contains(title)),
            "{titles:?}"
        );
    }
}
