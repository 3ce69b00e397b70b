//! The platform that the image runs on, from CPUID.

use core::fmt;

use tlfs::cpuid::{
    INTERFACE, LEAF_FEATURES, LEAF_HINTS, LEAF_INTERFACE, LEAF_VENDOR, feature, hint, privilege,
};
use tlfs::encode::Interface;

/// EAX, EBX, ECX, EDX.
pub type Leaf = [u32; 4];

/// CPUID 1, ECX: a hypervisor is present.
const HYPERVISOR_PRESENT: u32 = 1 << 31;
/// First leaf of hypervisors' identification: sets of leaves begin at multiples of 256. Hypervisors
/// with several interfaces use consecutive sets.
const FIRST_LEAF: u32 = 0x4000_0000;
const LAST_LEAF: u32 = 0x4001_0000;
/// Distance between sets of leaves.
const NEXT: u32 = 0x100;

/// Hyper-V's first version was 6.0, that of the system it came with; Quell's are lower.
const HYPERV_FIRST_VERSION: u16 = 6;

/// The vendor's name in EBX, ECX and EDX of the first leaf.
type Vendor = [u8; 12];

/// The platform below the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Platform {
    /// CPUID says that a hypervisor is present.
    pub is_virtual: bool,
    /// The name in the first set of leaves; zeros without a hypervisor.
    pub vendor: Vendor,
    /// A set of leaves is KVM's.
    pub kvm: bool,
    /// A set of leaves is Xen's.
    pub xen: bool,
    /// EAX and EDX of the features' leaf, EAX of the hints', if the interface exists.
    pub hyperv: Option<HyperV>,
}

/// The offers of the Hyper-V interface. TLFS, "Feature and Interface Discovery".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HyperV {
    /// EAX of [`LEAF_FEATURES`].
    pub privileges: u32,
    /// EDX of [`LEAF_FEATURES`].
    pub features: u32,
    /// EAX of [`LEAF_HINTS`].
    pub hints: u32,
    /// Major and minor version.
    pub version: (u16, u16),
}

impl HyperV {
    /// The part of the interface that flushes can use.
    pub const fn interface(&self) -> Interface {
        Interface::from_cpuid(self.features, self.hints)
    }

    /// Flushes by hypercall are recommended.
    pub const fn flushes(&self) -> bool {
        self.hints & hint::REMOTE_FLUSH != 0 && self.privileges & privilege::HYPERCALL != 0
    }

    /// Whether registers give the frequencies.
    pub const fn tells_frequencies(&self) -> bool {
        self.privileges & privilege::FREQUENCIES != 0 && self.features & feature::FREQUENCIES != 0
    }
}

impl Platform {
    /// Detects the platform through `cpuid`, which is called with a leaf.
    pub fn find(cpuid: impl Fn(u32) -> Leaf) -> Self {
        if cpuid(1)[2] & HYPERVISOR_PRESENT == 0 {
            return Self::default();
        }
        let mut platform = Self { is_virtual: true, vendor: vendor(cpuid(FIRST_LEAF)), ..Self::default() };
        for first in (FIRST_LEAF..LAST_LEAF).step_by(NEXT as usize) {
            let leaf = cpuid(first);
            match &vendor(leaf) {
                b"KVMKVMKVM\0\0\0" => platform.kvm = true,
                b"XenVMMXenVMM" => platform.xen = true,
                _ => {}
            }
        }
        if Self::has_hyperv(&cpuid) {
            let (features, version) = (cpuid(LEAF_FEATURES), cpuid(tlfs::cpuid::LEAF_VERSION)[1]);
            platform.hyperv = Some(HyperV {
                privileges: features[0],
                features: features[3],
                hints: cpuid(LEAF_HINTS)[0],
                version: ((version >> 16) as u16, version as u16),
            });
        }
        platform
    }

    /// Whether there is the Hyper-V interface. Some hypervisors have no hints for a guest until it
    /// has written its identity, so that comes before the rest is read.
    pub fn has_hyperv(cpuid: impl Fn(u32) -> Leaf) -> bool {
        cpuid(1)[2] & HYPERVISOR_PRESENT != 0
            && cpuid(LEAF_VENDOR)[0] >= LEAF_HINTS
            && cpuid(LEAF_INTERFACE)[0] == INTERFACE
    }

    /// A name for reports. Additional leaves tell apart who has only the Hyper-V interface.
    pub const fn name(&self) -> &'static str {
        match self {
            Self { is_virtual: false, .. } => "bare",
            Self { vendor, hyperv: None, .. } if is_emulator(vendor) => "bare, in QEMU's emulation",
            Self { xen: true, .. } => "xen",
            Self { kvm: true, hyperv: Some(_), .. } => "kvm with the Hyper-V interface",
            Self { kvm: true, .. } => "kvm",
            Self { hyperv: Some(HyperV { version: (0..HYPERV_FIRST_VERSION, _), .. }), .. } => "quell",
            Self { hyperv: Some(_), .. } => "the Hyper-V interface",
            _ => "another hypervisor",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Some(hyperv) = &self.hyperv {
            let HyperV { privileges, features, hints, version: (major, minor), .. } = hyperv;
            write!(f, ", privileges {privileges:#x}, features {features:#x}, hints {hints:#x}")?;
            write!(f, ", version {major}.{minor}")?;
        }
        Ok(())
    }
}

/// QEMU's emulation is a machine, not a hypervisor, but identifies itself as one.
const fn is_emulator(vendor: &Vendor) -> bool {
    matches!(vendor, b"TCGTCGTCGTCG")
}

fn vendor([_, ebx, ecx, edx]: Leaf) -> Vendor {
    let mut name = [0; 12];
    let bytes = [ebx, ecx, edx].into_iter().flat_map(u32::to_le_bytes);
    name.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlfs::cpuid::VENDOR;

    fn named(name: &[u8; 12], highest: u32) -> Leaf {
        let word = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
        [highest, word(0), word(4), word(8)]
    }

    fn hyperv(leaf: u32, version: u32) -> Leaf {
        let [ebx, ecx, edx] = VENDOR;
        match leaf {
            LEAF_VENDOR => [LEAF_HINTS + 2, ebx, ecx, edx],
            LEAF_INTERFACE => [INTERFACE, 0, 0, 0],
            tlfs::cpuid::LEAF_VERSION => [0, version, 0, 0],
            LEAF_FEATURES => [privilege::HYPERCALL, 0, 0, feature::XMM_INPUT],
            LEAF_HINTS => [hint::REMOTE_FLUSH, 0, 0, 0],
            _ => [0; 4],
        }
    }

    #[test]
    fn a_machine_without_the_hypervisor_bit_is_bare_whatever_its_leaves_say() {
        let platform = Platform::find(|leaf| if leaf == 1 { [0; 4] } else { hyperv(leaf, 0) });
        assert_eq!((platform.name(), platform.hyperv), ("bare", None));
        assert!(!Platform::has_hyperv(|leaf| if leaf == 1 { [0; 4] } else { hyperv(leaf, 0) }));
    }

    #[test]
    fn hypervisors_are_told_apart() {
        let here = |leaf| if leaf == 1 { [0, 0, HYPERVISOR_PRESENT, 0] } else { [0; 4] };
        let kvm = |leaf| if leaf == FIRST_LEAF { named(b"KVMKVMKVM\0\0\0", leaf + 1) } else { here(leaf) };
        assert_eq!(Platform::find(kvm).name(), "kvm");
        let both = |leaf| match leaf {
            0x4000_0100 => named(b"KVMKVMKVM\0\0\0", leaf + 1),
            1 => here(1),
            _ => hyperv(leaf, 10 << 16),
        };
        assert_eq!(Platform::find(both).name(), "kvm with the Hyper-V interface");
        let plain = |version| move |leaf| if leaf == 1 { here(1) } else { hyperv(leaf, version) };
        assert_eq!(Platform::find(plain(10 << 16)).name(), "the Hyper-V interface");
        assert_eq!(Platform::find(plain(1)).name(), "quell");
        let xen = |leaf| if leaf == FIRST_LEAF { named(b"XenVMMXenVMM", leaf + 5) } else { here(leaf) };
        assert_eq!(Platform::find(xen).name(), "xen");
        assert_eq!(Platform::find(here).name(), "another hypervisor");
        let tcg = |leaf| if leaf == FIRST_LEAF { named(b"TCGTCGTCGTCG", leaf + 1) } else { here(leaf) };
        assert_eq!(Platform::find(tcg).name(), "bare, in QEMU's emulation");
    }

    #[test]
    fn what_is_offered_is_read() {
        let platform =
            Platform::find(|leaf| if leaf == 1 { [0, 0, HYPERVISOR_PRESENT, 0] } else { hyperv(leaf, 0) });
        let hyperv = platform.hyperv.expect("the interface is there");
        assert!(hyperv.flushes() && !hyperv.tells_frequencies());
        assert!(hyperv.interface().xmm_input && !hyperv.interface().vp_sets);
    }
}
