//! Hypercalls that have been decoded and checked.

use bitfield_struct::bitfield;

use crate::{GvaList, HvResult, Status, VpSet};

/// A hypercall that has been decoded and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// One of the four flushes of virtual addresses.
    Flush(FlushCall<'a>),
    /// HvCallNotifyLongSpinWait: the caller has been waiting for a lock and would rather have its
    /// holder run.
    LongSpinWait {
        /// How many times the caller has tried, as it says; not to be relied on.
        spins: u64,
    },
}

impl Call<'_> {
    /// The result of the call once it has been done completely.
    pub const fn completed(&self) -> HvResult {
        match self {
            Self::Flush(flush) => flush.completed(),
            Self::LongSpinWait { .. } => HvResult::of(Status::SUCCESS, 0),
        }
    }
}

/// A flush of virtual addresses. When it returns to the guest, all effects of the flush must have
/// occurred on every target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushCall<'a> {
    /// Whose TLBs.
    pub targets: Targets<'a>,
    /// All 64 bits of what the guest passed as CR3; means nothing if
    /// [`flags.all_address_spaces`](FlushFlags::all_address_spaces) is set. The low 12 bits may hold a
    /// PCID and bit 63 may be set: mask them before comparing with a table's address.
    pub address_space: u64,
    /// What else the guest said. Honouring any of them is optional; each only narrows the flush.
    pub flags: FlushFlags,
    /// Which addresses.
    pub scope: FlushScope<'a>,
    /// Elements in the whole list, those before the rep start index included; 0 without a list.
    pub rep_count: u16,
}

impl FlushCall<'_> {
    /// The result of the call once every element has been done.
    pub const fn completed(&self) -> HvResult {
        HvResult::of(Status::SUCCESS, self.rep_count)
    }
}

/// Whose TLBs to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets<'a> {
    /// Every virtual processor of the partition, the caller included.
    All,
    /// The members, by VP index; those that the partition does not have are ignored. The caller is
    /// among them only if it is a member.
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

/// Which addresses to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope<'a> {
    /// Everything.
    Everything,
    /// The list's ranges; an address in a large page stands for the whole large page.
    List(GvaList<'a>),
}

/// Flags of a flush call, HV_FLUSH_FLAGS.
///
/// Published are bits 0 to 2, the rest is reserved and must be zero. In use elsewhere are bit 3, with
/// which list elements have the extended format, and the trust levels' bits 4, 8 and 9. The first is
/// announced by CPUID 0x40000003.EDX\[14\], the others come with virtual trust levels; neither is
/// offered, so all of them count as reserved.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct FlushFlags {
    /// Every virtual processor is a target; the mask or set is ignored.
    pub all_processors: bool,
    /// Every address space; the one that was passed is ignored.
    pub all_address_spaces: bool,
    /// Mappings that are global need not be flushed. The TLFS calls it an invalid option for lists, but
    /// Windows sets it there and Hyper-V accepts it.
    pub non_global_only: bool,
    #[bits(61)]
    pub(crate) reserved: u64,
}
