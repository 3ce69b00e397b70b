//! Hypercalls that have been decoded and checked.

use bitfield_struct::bitfield;

use crate::{GvaList, HvResult, Status, VpSet};

/// HV_GENERIC_SET_FORMAT: the members are listed in banks.
pub(crate) const SET_SPARSE: u64 = 0;
/// HV_GENERIC_SET_FORMAT: every virtual processor.
pub(crate) const SET_ALL: u64 = 1;

/// A hypercall that has been decoded and checked.
///
/// Exhaustive: a hypervisor that overlooks a call leaves a guest without its flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// One of the four flushes of virtual addresses.
    Flush(FlushCall<'a>),
    /// One of the two calls that send an interrupt.
    ClusterIpi(ClusterIpi<'a>),
    /// HvCallNotifyLongSpinWait: the caller has been waiting for a lock for a long time and yields
    /// so that the lock's holder can run.
    LongSpinWait {
        /// How many times the caller says it has tried; not to be relied on.
        spins: u64,
    },
    /// One of the two flushes of nested tables: every translation that comes from those with this
    /// root is gone from all processors of the partition when it returns. A list's ranges are not
    /// looked at: flushing more is allowed.
    GuestPhysical {
        /// The root of the nested tables.
        address_space: u64,
        /// Elements of the list; 0 without one.
        rep_count: u16,
    },
}

impl Call<'_> {
    /// The result of the call once all of it has been done.
    pub const fn completed(&self) -> HvResult {
        match self {
            Self::Flush(flush) => flush.completed(),
            Self::ClusterIpi(_) | Self::LongSpinWait { .. } => HvResult::of(Status::SUCCESS, 0),
            Self::GuestPhysical { rep_count, .. } => HvResult::of(Status::SUCCESS, *rep_count),
        }
    }
}

/// A flush of virtual addresses. When it returns to the guest, all effects of the flush must have
/// occurred on every target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushCall<'a> {
    /// The virtual processors whose TLBs to flush.
    pub targets: Targets<'a>,
    /// All 64 bits of what the guest passed as CR3; meaningless if
    /// [`flags.all_address_spaces`](FlushFlags::all_address_spaces) is set. The low 12 bits may
    /// hold a PCID and bit 63 may be set: mask them before comparing with a table's address.
    pub address_space: u64,
    /// The other flags of the call. Honouring any of them is optional; each only narrows the flush.
    pub flags: FlushFlags,
    /// The addresses to flush.
    pub scope: FlushScope<'a>,
    /// Elements in the whole list, including those before the rep start index; 0 without a list.
    pub rep_count: u16,
}

impl FlushCall<'_> {
    /// The result of the call once every element has been done.
    pub const fn completed(&self) -> HvResult {
        self.completed_to(self.rep_count)
    }

    /// The result of a call that returns to the guest after `done` elements, counted from element 0
    /// and so including those that earlier invocations did. The guest then continues with the rest.
    /// A hypervisor that continues by itself leaves the result alone and advances the rep start
    /// index instead ([`CallRegisters::resumed_at`](crate::CallRegisters::resumed_at)). This
    /// invocation must have done at least one element. TLFS, "Hypercall Continuation".
    pub const fn completed_to(&self, done: u16) -> HvResult {
        HvResult::of(Status::SUCCESS, if done < self.rep_count { done } else { self.rep_count })
    }
}

/// An interrupt for several virtual processors. TLFS, "HvCallSendSyntheticClusterIpi".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterIpi<'a> {
    /// Vector of the fixed, edge-triggered interrupt; at least [`ClusterIpi::VECTOR_MIN`].
    pub vector: u8,
    /// The virtual processors to interrupt.
    pub targets: Targets<'a>,
}

impl ClusterIpi<'_> {
    /// The lowest vector that can be sent; those below are reserved for the processor.
    pub const VECTOR_MIN: u8 = 0x10;
}

/// The virtual processors that a call is about.
///
/// Exhaustive: a caller that overlooks one flushes too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets<'a> {
    /// Every virtual processor of the partition, including the caller.
    All,
    /// The members, by VP index. Indices that the partition does not have are ignored. The caller
    /// is a target only if it is a member.
    Set(VpSet<'a>),
}

impl Targets<'_> {
    /// Whether the virtual processor with index `vp` is a target.
    pub fn contains(&self, vp: u32) -> bool {
        match self {
            Self::All => true,
            Self::Set(set) => set.contains(vp),
        }
    }
}

/// The addresses to flush.
///
/// Exhaustive: a caller that overlooks one flushes too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope<'a> {
    /// Everything.
    Everything,
    /// The list's ranges; an address in a large page stands for the whole large page.
    List(GvaList<'a>),
}

/// Flags of a flush call, HV_FLUSH_FLAGS.
///
/// Bits 0 to 2 are published; the rest are reserved and must be zero. Bits 3, 4, 8 and 9 are in use
/// elsewhere: bit 3 for extended ranges, the others for virtual trust levels. The latter are not
/// offered here and count as reserved.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct FlushFlags {
    /// Every virtual processor is a target; the mask or set is ignored.
    pub all_processors: bool,
    /// Every address space; the one passed is ignored.
    pub all_address_spaces: bool,
    /// Global mappings need not be flushed. The TLFS calls this an invalid option for lists, but
    /// Windows sets it there and Hyper-V accepts it.
    pub non_global_only: bool,
    /// List elements are [`ExtendedGvaEntry`](crate::ExtendedGvaEntry); ignored without a list.
    /// Reserved unless the [profile](crate::Profile::extended_ranges) offers it.
    pub extended_ranges: bool,
    #[bits(60)]
    reserved: u64,
}

impl FlushFlags {
    /// The flags that the TLFS defines.
    pub const PUBLISHED: Self =
        Self::new().with_all_processors(true).with_all_address_spaces(true).with_non_global_only(true);

    /// Whether every flag is one of `allowed`.
    #[inline]
    pub(crate) const fn is_within(self, allowed: Self) -> bool {
        self.into_bits() & !allowed.into_bits() == 0
    }
}
