//! Programs: the operations of guests and the host, in their order.

use crate::hw::format::Arch;

/// A page of guest physical memory that programs touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpaPage {
    pub area: usize,
    /// Index into [`PAGES`](crate::layout::PAGES).
    pub page: usize,
}

/// A flush by hypercall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushOp {
    /// VP indices; `None` for all processors.
    pub targets: Option<u64>,
    /// Also name a nonexistent processor, so that the set needs a second bank.
    pub sparse: bool,
    /// `None` for all address spaces.
    pub space: Option<usize>,
    /// Global mappings can stay; there are none.
    pub non_global_only: bool,
    /// Bits for [`VA_PAGES`](crate::layout::VA_PAGES); `None` for everything.
    pub pages: Option<u16>,
    /// Name large pages as such.
    pub large: bool,
    /// Pass the input in registers if it fits.
    pub xmm: bool,
    /// Put so many other ranges first that the list is done in parts.
    pub long: bool,
}

/// An operation of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestOp {
    /// Loads from a virtual page.
    Load(usize),
    /// Stores to a virtual page.
    Store(usize),
    /// Loads from or stores to a physical page, by the direct map.
    Direct(GpaPage, bool),
    /// Maps a virtual page, in the table that is in use there; if `used`, with the accessed bit
    /// already set.
    Map { space: usize, page: usize, to: GpaPage, write: bool, used: bool },
    /// Maps a window by a large page.
    MapLarge { space: usize, window: usize, area: usize, write: bool },
    /// Removes a virtual page's mapping.
    Unmap { space: usize, page: usize },
    /// Puts a table of the last level into a window.
    Link { space: usize, window: usize, table: usize },
    /// Goes over to the other table of the level above.
    LinkMiddle { space: usize, number: usize },
    /// Drops its own translations of a page: INVLPG.
    FlushOwn(usize),
    /// Drops all of its own: loads the root again.
    Reload,
    /// Goes over to an address space.
    Switch(usize),
    /// Flushes by hypercall. On Arm64, which has no use for that, by TLBI of its own.
    Flush(FlushOp),
    /// Halts until it is woken.
    Halt,
    /// Gives the CPU up.
    Yield,
    /// Stays where it is for some instructions.
    Spin(u16),
    /// Ends the time slice: another CPU may take the vCPU.
    Preempt,
    /// Starts over, as after INIT: in the first address space, with nothing translated. On Arm64 it
    /// does nothing.
    StartOver,
    /// The vCPU is removed, and another one is added in its place, which continues here.
    Replace,
}

/// The backing of an added slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A whole area, which one large page can map.
    Large,
    /// A whole area, whose memory is aligned so that only small pages can map it.
    Shifted,
    /// Four pages.
    Small,
}

/// How dirty pages of a slot are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// By the dirty bits of nested leaves.
    DirtyBits,
    /// By the processors' lists of pages whose dirty bits they have set: on Intel64.
    Lists,
    /// By removing write access.
    WriteProtection,
}

/// An operation of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOp {
    /// Adds a slot.
    Add { slot: u16, area: usize, backing: Backing, read_only: bool },
    /// Deletes a slot.
    Remove(u16),
    /// Moves a slot.
    Move(u16, usize),
    /// Makes a slot read-only, or writable again.
    SetReadOnly(u16, bool),
    /// Deletes a slot and adds another in its place, in one update.
    Replace(u16, Backing),
    /// Begins to log dirty pages.
    StartLog(u16),
    /// Fetches the log.
    Fetch(u16),
    /// Stops logging.
    StopLog(u16),
    /// Splits the large pages of a slot.
    Split(u16),
    /// Makes the small pages of a slot large ones.
    Collapse(u16),
    /// Zaps an area without a reason: faults restore it.
    Zap(usize),
    /// Stores to guest memory, as a device would.
    Write(GpaPage),
    /// Adds and deletes a small slot this many times.
    Toggle(u16, u8),
    /// Posts an event to a vCPU.
    Wake(usize),
    /// Destroys the guest, and creates another one in its place.
    Recreate,
    /// Sends the guest's memory in a first round, in so many further ones while it runs, and in a
    /// last one. Then it goes on from what was sent, in another guest; or, if this is cut after so
    /// many steps, or at the end if there are fewer, where it is.
    Migrate { rounds: u8, cut: Option<u8> },
}

/// The machine that a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub arch: Arch,
    /// Physical CPUs.
    pub cpus: usize,
    /// Virtual machines.
    pub vms: usize,
    /// vCPUs of each.
    pub vcpus: usize,
    /// Largest tag.
    pub tags: u32,
    /// TLB_CONTROL can flush one tag.
    pub flush_by_asid: bool,
    pub track: Track,
    /// Entries that a change visits before it yields.
    pub step: u32,
    pub large_only: bool,
    /// VP index of the first vCPU: those before it never run.
    pub first_vp: usize,
    /// Pages of a list up to which they are flushed one by one.
    pub page_limit: u64,
    pub pcid: bool,
    /// All pages of guests are global, and each guest has one address space.
    pub globals: bool,
    /// On Intel64: there are VPIDs, and how many roots a CPU remembers.
    pub vpids: bool,
    pub roots: usize,
    /// Memory that was freed last is used first, so a new guest gets that of the former one.
    pub reuses_at_once: bool,
    /// The targets of flushes are those of the place: a new guest's vCPUs take over the words of
    /// the former one's, as they were left. Otherwise these are removed, and there are new ones.
    pub reuses_targets: bool,
    /// Additional properties of an Arm64 machine.
    pub arm: Arm,
    pub dma: Dma,
}

/// Devices with DMA, behind one IOMMU. A virtual machine with devices has no dirty logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dma {
    /// The number of each virtual machine's devices: 2 at most.
    pub devices: [usize; VMS_MAX],
    /// A bit for each place of a device: it has a TLB of its own (ATS).
    pub ats: u8,
    /// Entries of the command ring.
    pub ring: usize,
    /// Where most accesses go to.
    pub at: GpaPage,
}

/// The most virtual machines.
pub(crate) const VMS_MAX: usize = 3;

impl Dma {
    pub const NONE: Self = Self { devices: [0; VMS_MAX], ats: 0, ring: 4, at: GpaPage { area: 0, page: 0 } };

    /// The places of a virtual machine's devices.
    pub fn of(&self, vm: usize) -> core::ops::Range<usize> {
        let first = self.devices[..vm].iter().sum();
        first..first + self.devices[vm]
    }

    pub fn has_devices(&self) -> bool {
        self.devices != [0; VMS_MAX]
    }
}

/// Processors and settings of Arm64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// FEAT_TLBIRANGE.
    pub range: bool,
    /// FEAT_TTL.
    pub ttl: bool,
    /// HCR_EL2.FB: a guest's local invalidations are broadcast to all.
    pub forces_broadcast: bool,
    /// Pages up to which they are invalidated one by one.
    pub pages_max: u32,
    /// The most range instructions that are used.
    pub ranges_max: u32,
    /// Once in this many stays another virtual machine arrives, takes a VMID, and leaves.
    pub visitor_one_in: usize,
}

/// The operations of a run. Each list is done in order; the seed determines how the lists
/// interleave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub config: Config,
    /// Determines everything else.
    pub seed: u64,
    /// Of all vCPUs, those of the first machine first.
    pub guests: Vec<Vec<GuestOp>>,
    /// Of the host, one list for each machine.
    pub hosts: Vec<Vec<HostOp>>,
}

impl Program {
    pub fn len(&self) -> usize {
        self.guests.iter().map(Vec::len).sum::<usize>() + self.hosts.iter().map(Vec::len).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
