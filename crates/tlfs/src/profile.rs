//! The features that a partition is offered.

use crate::control::CallKind;
use crate::cpuid::{feature, hint};
use crate::{CallCode, CallShape, FlushFlags, VaWidth};

/// The features of the specification that a partition is offered, and the behaviour that the
/// specification leaves open or that implementations differ in. Each offer must agree with what
/// CPUID announces.
///
/// The default offers the four flushes and the long spin wait by memory and by two registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The effect of a call without targets.
    pub empty_targets: EmptyTargets,
    /// Width of the guest's virtual addresses.
    pub va_width: VaWidth,
    /// Input in XMM registers; announced by [`feature::XMM_INPUT`].
    pub xmm_input: bool,
    /// The two calls that send interrupts; announced by
    /// [`hint::CLUSTER_IPI`].
    pub cluster_ipi: bool,
    /// List elements that name large pages; announced by
    /// [`feature::EXTENDED_GVA_RANGES`].
    pub extended_ranges: bool,
    /// The two flushes of nested tables, for a guest that has guests; announced by
    /// [`nested::FLUSH`](crate::cpuid::nested::FLUSH) or
    /// [`nested::ENLIGHTENED_TLB`](crate::cpuid::nested::ENLIGHTENED_TLB).
    pub guest_physical: bool,
}

impl Profile {
    /// Everything that a guest without guests of its own may use.
    pub const FULL: Self = Self {
        empty_targets: EmptyTargets::Lenient,
        va_width: VaWidth::Bits48,
        xmm_input: true,
        cluster_ipi: true,
        extended_ranges: true,
        guest_physical: false,
    };

    /// Everything that this crate knows.
    pub const NESTED: Self = Self { guest_physical: true, ..Self::FULL };

    /// The features that a partition's CPUID announces: EDX of
    /// [`LEAF_FEATURES`](crate::cpuid::LEAF_FEATURES) and EAX of
    /// [`LEAF_HINTS`](crate::cpuid::LEAF_HINTS). Everything else is the default.
    pub fn announced(features: u32, hints: u32) -> Self {
        Self {
            xmm_input: features & feature::XMM_INPUT != 0,
            cluster_ipi: hints & hint::CLUSTER_IPI != 0,
            extended_ranges: features & feature::EXTENDED_GVA_RANGES != 0,
            ..Self::default()
        }
    }

    /// The bits of EDX of [`LEAF_FEATURES`](crate::cpuid::LEAF_FEATURES) that announce the offered
    /// features.
    pub const fn feature_bits(&self) -> u32 {
        (if self.xmm_input { feature::XMM_INPUT } else { 0 })
            | if self.extended_ranges { feature::EXTENDED_GVA_RANGES } else { 0 }
    }

    /// The bits of EAX of [`LEAF_HINTS`](crate::cpuid::LEAF_HINTS) that announce the offered
    /// features.
    pub const fn hint_bits(&self) -> u32 {
        if self.cluster_ipi { hint::CLUSTER_IPI } else { 0 }
    }

    /// The layout of the input of `code`; `None` if the call is not offered.
    #[inline]
    pub const fn shape(&self, code: CallCode) -> Option<&'static CallShape> {
        // Where they are not offered they cost other calls nothing.
        match if self.guest_physical { code.shape() } else { code.usual_shape() } {
            Some(shape) if matches!(shape.kind, CallKind::ClusterIpi) && !self.cluster_ipi => None,
            shape => shape,
        }
    }

    /// The flags that a flush may have.
    #[inline]
    pub(crate) const fn flush_flags(&self) -> FlushFlags {
        FlushFlags::PUBLISHED.with_extended_ranges(self.extended_ranges)
    }
}

/// The effect of a call that names no target and does not request all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmptyTargets {
    /// An empty 64-bit mask means every processor: Windows Server 2012 passes it and expects that,
    /// and flushing too much is never wrong. An empty VP set means no processor: no guest is known
    /// to mean anything else by it, and the set must not grow. Linux KVM does the same. An
    /// interrupt to an empty mask or set is sent to no processor: an extra interrupt would be
    /// wrong.
    #[default]
    Lenient,
    /// Either is an invalid parameter, as it is on Hyper-V.
    Strict,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_is_what_is_offered() {
        for bits in 0..8 {
            let profile = Profile {
                xmm_input: bits & 1 != 0,
                cluster_ipi: bits & 2 != 0,
                extended_ranges: bits & 4 != 0,
                ..Profile::default()
            };
            assert_eq!(Profile::announced(profile.feature_bits(), profile.hint_bits()), profile);
        }
        assert_eq!(Profile::announced(!Profile::FULL.feature_bits(), !hint::CLUSTER_IPI), Profile::default());
        assert_eq!(Profile::announced(!0, !0), Profile::FULL);
        let bits = |profile: Profile| (profile.feature_bits(), profile.hint_bits());
        assert_eq!((bits(Profile::default()), bits(Profile::FULL)), ((0, 0), (1 << 4 | 1 << 14, 1 << 10)));
    }
}
