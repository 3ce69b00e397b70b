//! What a partition is offered.

use crate::{CallCode, CallShape, FlushFlags, VaWidth};

/// What a partition is offered of the specification, and what the specification leaves to the
/// implementation or others do differently. Each offer must agree with what CPUID announces.
///
/// The default offers the four flushes and the long spin wait by memory and by two registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What a call without any target does.
    pub empty_targets: EmptyTargets,
    /// Width of the guest's virtual addresses.
    pub va_width: VaWidth,
    /// Input in XMM registers; announced by [`feature::XMM_INPUT`](crate::cpuid::feature::XMM_INPUT).
    pub xmm_input: bool,
    /// The two calls that send interrupts; announced by
    /// [`hint::CLUSTER_IPI`](crate::cpuid::hint::CLUSTER_IPI).
    pub cluster_ipi: bool,
    /// List elements that name large pages; announced by
    /// [`feature::EXTENDED_GVA_RANGES`](crate::cpuid::feature::EXTENDED_GVA_RANGES).
    pub extended_ranges: bool,
}

impl Profile {
    /// What the input of `code` looks like; `None` if the call is not offered.
    #[inline]
    pub const fn shape(&self, code: CallCode) -> Option<CallShape> {
        match code {
            CallCode::SEND_SYNTHETIC_CLUSTER_IPI | CallCode::SEND_SYNTHETIC_CLUSTER_IPI_EX
                if !self.cluster_ipi =>
            {
                None
            }
            _ => code.shape(),
        }
    }

    /// The flags that a flush may have.
    #[inline]
    pub(crate) const fn flush_flags(&self) -> FlushFlags {
        FlushFlags::PUBLISHED.with_extended_ranges(self.extended_ranges)
    }
}

/// What a call does that names no target and does not ask for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmptyTargets {
    /// An empty 64-bit mask means every processor: Windows Server 2012 passes it and expects that, and
    /// flushing too much is never wrong. An empty VP set means no processor: no guest is known to mean
    /// anything else by it, and it must not grow. Linux KVM does the same. An interrupt to an empty mask
    /// or set goes to nobody: one too many would be wrong.
    #[default]
    Lenient,
    /// Either is an invalid parameter, as it is on Hyper-V.
    Strict,
}
