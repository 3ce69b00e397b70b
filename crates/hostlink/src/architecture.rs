//! The architectures of hypervisors.

use core::fmt;

/// An architecture of hypervisors: an instruction set, and what virtualizes its processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// x86-64 with SVM.
    Amd64,
    /// x86-64 with VMX.
    Intel64,
    /// Arm64 at EL2.
    Arm64,
}

/// The architectures on which something has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architectures {
    name: &'static str,
    members: &'static [Architecture],
}

impl Architectures {
    /// Every one.
    pub const ALL: Self = Self {
        name: "every architecture",
        members: &[Architecture::Amd64, Architecture::Intel64, Architecture::Arm64],
    };
    /// Those of the instruction set x86-64.
    pub const X86: Self = Self { name: "x86_64", members: &[Architecture::Amd64, Architecture::Intel64] };
    /// x86-64 with SVM.
    pub const SVM: Self = Self { name: "x86_64 with SVM", members: &[Architecture::Amd64] };
    /// x86-64 with VMX.
    pub const VMX: Self = Self { name: "x86_64 with VMX", members: &[Architecture::Intel64] };
    /// Those where Quell drives an IOMMU.
    pub const DMA: Self =
        Self { name: "x86_64 with SVM, or aarch64", members: &[Architecture::Amd64, Architecture::Arm64] };
    /// Arm64.
    pub const ARM: Self = Self { name: "aarch64", members: &[Architecture::Arm64] };

    /// Whether this is one of them.
    #[must_use]
    pub fn include(&self, architecture: Architecture) -> bool {
        self.members.contains(&architecture)
    }
}

impl fmt::Display for Architectures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
