//! The hypervisors that are compared, and the ways in which their guests flush.

use crate::guest::cache::{self, Versions};
use crate::guest::peer;
use crate::guest::peer::Flushes;
use crate::guest::peer::arm::Kernel;
use crate::machine::bochs::Bochs;
use crate::prelude::*;
use crate::results::Facts;
use crate::text::hex;
use hostlink::config::FlushMode;
use sha2::{Digest, Sha256};

/// A hypervisor, and the way in which its guest flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushWay {
    Quell(FlushMode),
    Kvm(Flushes),
    /// In a domain of Xen.
    Xen(Flushes),
    /// On another platform than QEMU's PC: on Arm guests flush by their own instructions.
    QuellOn(Platform),
    /// No hypervisor: the guest has the machine itself.
    Bare(Platform),
    /// By Hyper-V's hypercalls, on Bochs.
    KvmOn(Bochs),
    /// On Arm, with the hypervisor's kernel.
    KvmOnArm(Kernel),
    /// By Hyper-V's hypercalls, in a guest of KVM that is itself a guest: of Quell, or of KVM.
    Inner(Subject, Clock),
    /// By Hyper-V's hypercalls, in a guest of a bare guest of Quell, which leaves them to Quell.
    Direct,
}

pub(crate) const ON_ARM: ArmCpu = ArmCpu::Max;

pub(crate) const HYPERCALL: FlushWay = FlushWay::Quell(FlushMode::Hypercall);
pub(crate) const IPI: FlushWay = FlushWay::Quell(FlushMode::Ipi);
pub(crate) const BARE: FlushWay = FlushWay::Bare(Platform::X86_64);
pub(crate) const KVM_HYPERV: FlushWay = FlushWay::Kvm(Flushes::HyperV);
pub(crate) const KVM_IPI: FlushWay = FlushWay::Kvm(Flushes::Ipi);
pub(crate) const KVM_PARAVIRTUAL: FlushWay = FlushWay::Kvm(Flushes::Paravirtual);
pub(crate) const XEN_HYPERV: FlushWay = FlushWay::Xen(Flushes::HyperV);
pub(crate) const XEN_IPI: FlushWay = FlushWay::Xen(Flushes::Ipi);
pub(crate) const XEN_PARAVIRTUAL: FlushWay = FlushWay::Xen(Flushes::Paravirtual);
pub(crate) const INNER: FlushWay = FlushWay::Inner(Subject::Quell, Clock::Wall);
pub(crate) const INNER_COUNTED: FlushWay = FlushWay::Inner(Subject::Quell, Clock::Instructions);
pub(crate) const KVM_INNER: FlushWay = FlushWay::Inner(Subject::Kvm, Clock::Wall);
pub(crate) const QUELL_ON_ARM: FlushWay = FlushWay::QuellOn(Platform::Aarch64(ON_ARM));
pub(crate) const KVM_STOCK: FlushWay = FlushWay::KvmOnArm(Kernel::Stock);
pub(crate) const KVM_NEWER: FlushWay = FlushWay::KvmOnArm(Kernel::Newer);

impl FlushWay {
    /// All ways of a Linux guest on AMD64, ordered so that Quell and a peer take turns.
    pub(crate) const ALL: [Self; 7] =
        [HYPERCALL, KVM_HYPERV, XEN_PARAVIRTUAL, IPI, KVM_IPI, XEN_IPI, KVM_PARAVIRTUAL];
    pub(crate) const ALL_ON_ARM: [Self; 3] = [QUELL_ON_ARM, KVM_STOCK, KVM_NEWER];

    pub(crate) const fn platform(self) -> Platform {
        match self {
            Self::Quell(_) | Self::Kvm(_) | Self::Xen(_) | Self::Inner(..) | Self::Direct => Platform::X86_64,
            Self::QuellOn(platform) | Self::Bare(platform) => platform,
            Self::KvmOn(bochs) => Platform::Bochs(bochs),
            Self::KvmOnArm(_) => Platform::Aarch64(ON_ARM),
        }
    }

    /// The way on this platform of what is on AMD64 now, without KVM on Arm.
    pub(crate) const fn on(self, platform: Platform) -> Self {
        match (self, platform) {
            (Self::Bare(_), _) => Self::Bare(platform),
            (Self::Kvm(_), Platform::Bochs(bochs)) => Self::KvmOn(bochs),
            (_, Platform::Aarch64(_) | Platform::Bochs(_) | Platform::Kvm(_)) => Self::QuellOn(platform),
            (_, Platform::X86_64) => self,
        }
    }

    pub(crate) const fn subject(self) -> Subject {
        match self {
            Self::Quell(_) | Self::QuellOn(_) | Self::Direct => Subject::Quell,
            Self::Kvm(_) | Self::KvmOn(_) | Self::KvmOnArm(_) => Subject::Kvm,
            Self::Xen(_) => Subject::Xen,
            Self::Bare(_) => Subject::Bare,
            Self::Inner(subject, _) => subject,
        }
    }

    /// Whether it is the one with these names in results.
    pub(crate) fn is(self, subject: Subject, flushes: &str) -> bool {
        self.subject() == subject && self.flushes() == flushes
    }

    pub(crate) const fn is_peer(self) -> bool {
        matches!(self.subject(), Subject::Kvm | Subject::Xen)
    }

    /// How a PC's guest flushes under KVM.
    pub(crate) const fn under_kvm(self) -> Option<Flushes> {
        match self {
            Self::Kvm(flushes) => Some(flushes),
            Self::KvmOn(_) | Self::Inner(..) => Some(Flushes::HyperV),
            Self::Quell(_)
            | Self::Xen(_)
            | Self::QuellOn(_)
            | Self::Bare(_)
            | Self::KvmOnArm(_)
            | Self::Direct => None,
        }
    }

    pub(crate) const fn is_bare(self) -> bool {
        matches!(self, Self::Bare(_))
    }

    /// The name of the guest's way to flush, in results; of the peer on Arm, where there is only
    /// one, that of the hypervisor's kernel.
    pub(crate) const fn flushes(self) -> &'static str {
        match self {
            Self::Quell(FlushMode::Hypercall) | Self::QuellOn(Platform::Bochs(_) | Platform::Kvm(_)) => {
                "hypercall"
            }
            Self::Quell(FlushMode::Ipi) => "ipi",
            Self::Kvm(flushes) | Self::Xen(flushes) => flushes.name(),
            Self::KvmOn(_) => Flushes::HyperV.name(),
            // Then the guest is KVM's.
            Self::Bare(Platform::Kvm(_)) => Flushes::Paravirtual.name(),
            Self::QuellOn(_) | Self::Bare(_) => Flushes::Own.name(),
            Self::KvmOnArm(kernel) => kernel.name(),
            Self::Inner(_, Clock::Wall) => "inner",
            Self::Inner(..) => "inner-counted",
            Self::Direct => "direct",
        }
    }

    /// The kernels around the guest that say when they start theirs.
    pub(crate) const fn starts(self) -> usize {
        match self {
            Self::Inner(Subject::Kvm, _) => 2,
            Self::Inner(..) => 1,
            _ => self.is_peer() as usize,
        }
    }

    pub(crate) fn title(self) -> String {
        format!("{} {}", self.subject().name(), self.flushes())
    }

    /// Whether a Linux guest's log must say that it flushes by Hyper-V's hypercalls, and whether it
    /// must say that it flushes by its hypervisor's own interface.
    pub(crate) const fn logged(self) -> Logged {
        let (hyperv, own) = match self {
            HYPERCALL | KVM_HYPERV | Self::Inner(..) | Self::QuellOn(Platform::Kvm(_)) => (true, false),
            KVM_PARAVIRTUAL | XEN_PARAVIRTUAL | Self::Bare(Platform::Kvm(_)) => (false, true),
            _ => (false, false),
        };
        Logged { hyperv, own }
    }
}

/// The messages in a Linux guest's log about its flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) hyperv: bool,
    pub(crate) own: bool,
}

const HASH_BYTES: usize = 8;

impl Lab<'_> {
    fn hashes(&self, arch: Arch) -> Result<[(&'static str, String); 2]> {
        let hypervisor = fs::read(self.hypervisor(arch)?.image()).context("cannot read the hypervisor")?;
        let initrd = self.stock(arch)?.initrd(None);
        let digest = |bytes: &[u8]| hex(&Sha256::digest(bytes)[..HASH_BYTES]);
        Ok([("hypervisor_sha256", digest(&hypervisor)), ("initrd_sha256", digest(&initrd))])
    }

    /// The versions of everything that runs in these ways.
    pub(crate) fn versions(&self, ways: &[FlushWay]) -> Result<Facts> {
        let has_amd64 = ways.iter().any(|way| way.platform().arch() == Arch::X86_64);
        let mut versions = if has_amd64 { self.amd64_versions()? } else { results::versions(None) };
        for (name, version) in self.arm_versions(ways)? {
            versions.insert(format!("{name}_aarch64"), version);
        }
        Ok(versions)
    }

    fn amd64_versions(&self) -> Result<Facts> {
        let packages = self.stock(Arch::X86_64)?.versions();
        let mut versions = results::versions(Some(packages));
        let peer = [("peer_kernel", packages.kernel.clone()), ("peer_qemu", peer::qemu_version()?)];
        let all = self.hashes(Arch::X86_64)?.into_iter().chain(peer);
        versions.extend(all.map(|(name, version)| (name.to_owned(), version)));
        Ok(versions)
    }

    fn arm_versions(&self, ways: &[FlushWay]) -> Result<Vec<(&'static str, String)>> {
        if ways.iter().all(|way| way.platform().arch() == Arch::X86_64) {
            return Ok(Vec::new());
        }
        let stock = self.stock(Arch::Aarch64)?;
        let Versions { kernel, busybox, .. } = stock.versions().clone();
        let mut versions = vec![("guest_kernel", kernel), ("guest_busybox", busybox)];
        versions.extend(self.hashes(Arch::Aarch64)?);
        for kernel in
            [Kernel::Stock, Kernel::Newer].into_iter().filter(|k| ways.contains(&FlushWay::KvmOnArm(*k)))
        {
            versions.push((kernel.version_name(), kernel.file(stock)?.1));
            versions.push(("peer_qemu", cache::foreign_qemu()?.version));
        }
        Ok(versions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_architecture_has_its_ways() {
        assert!(FlushWay::ALL.iter().all(|way| way.platform() == Platform::X86_64));
        assert!(FlushWay::ALL_ON_ARM.iter().all(|way| way.platform() == Platform::Aarch64(ON_ARM)));
    }

    #[test]
    fn kvm_has_a_way_on_bochs() {
        let platform = Platform::Bochs(Bochs::SKYLAKE);
        let way = KVM_HYPERV.on(platform);
        assert_eq!((way.platform(), way.under_kvm()), (platform, Some(Flushes::HyperV)));
        assert!(way.is(Subject::Kvm, "hyperv") && way.is_peer());
    }

    #[test]
    fn quell_and_its_peer_take_turns() {
        for other in [Subject::Kvm, Subject::Xen] {
            let ways = FlushWay::ALL.iter().filter(|way| way.subject() != other);
            let turns: Vec<_> = ways.map(|way| way.is_peer()).take(4).collect();
            assert_eq!(turns, [false, true, false, true], "without {other:?}");
        }
        let titles: Vec<_> =
            [&FlushWay::ALL[..], &FlushWay::ALL_ON_ARM].concat().into_iter().map(FlushWay::title).collect();
        assert!(titles.iter().enumerate().all(|(at, title)| !titles[..at].contains(title)), "{titles:?}");
    }
}
