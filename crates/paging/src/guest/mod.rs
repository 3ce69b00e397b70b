//! A software walk of page tables that a guest wrote, for an emulator.
//!
//! According to the AMD64 Architecture Programmer's Manual, volume 2 (rev. 3.42): 5.2 "Legacy-Mode
//! Page Translation", 5.3 "Long-Mode Page Translation", 5.6 "Page-Protection Checks", 8.2.15 "#PF".
//! Paging may be off, two-level, PAE, or four-level; CR4.LA57 must not be offered to the guest.
//!
//! The guest controls every value. The walk reads each level's entry once, takes at most four
//! steps, and ends in an address or in the fault that the processor would raise. It does not set
//! accessed and dirty bits: the processor has done so if its own walk led to the emulation;
//! otherwise [`GuestPaging::used_bits`] returns them. It does not check protection keys, nor bit 8
//! of upper entries, which AMD reserves and others ignore.
//!
//! A guest that is a hypervisor has nested tables of the same formats (15.25):
//! [`GuestPaging::nested`].
//!
//! ```
//! use quell_paging::Gpa;
//! use quell_paging::guest::{Access, ControlRegisters, GuestPaging, PageFault, WalkError};
//!
//! let registers = ControlRegisters { cr0: 0x8001_0001, cr3: 0x1000, cr4: 0x20, efer: 0x500, rflags: 2 };
//! let paging = GuestPaging::new(&registers, 48, true);
//! // A PML4 whose first entry points to a PDPT whose first entry is a 1 GiB page at 0x4000_0000.
//! let read = |gpa: Gpa| match gpa.0 {
//!     0x1000 => Ok(0x2003),
//!     0x2000 => Ok(0x4000_0083),
//!     _ => Err("no memory there"),
//! };
//! assert_eq!(paging.translate(0x1234, Access::WRITE, read).unwrap().gpa, Gpa(0x4000_1234));
//! let fault = WalkError::PageFault(PageFault::PRESENT | PageFault::USER);
//! assert_eq!(paging.translate(0x1234, Access::USER, read), Err(fault));
//! ```

mod mode;

use core::fmt;

use self::mode::Mode;
use crate::Gpa;
use crate::format::amd64::bits::{ACCESSED, ADDRESS, DIRTY, NO_EXECUTE, PRESENT, USER, WRITE};

bitflags::bitflags! {
    /// The guest's access.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u8 {
        /// A store.
        const WRITE = 1 << 0;
        /// At privilege level 3. Has no meaning for an implicit access.
        const USER = 1 << 1;
        /// An instruction fetch.
        const FETCH = 1 << 2;
        /// An access that the processor makes itself, to a descriptor table or a task's state: a
        /// supervisor access whatever the privilege level. RFLAGS.AC does not let it past SMAP.
        const IMPLICIT = 1 << 3;
    }
}

bitflags::bitflags! {
    /// Error code of a page fault, APM volume 2, 8.4.2.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PageFault: u32 {
        /// P: the page is present, but refuses the access.
        const PRESENT = 1 << 0;
        /// R/W: by a store.
        const WRITE = 1 << 1;
        /// U/S: at privilege level 3.
        const USER = 1 << 2;
        /// RSV: an entry has a reserved bit set.
        const RESERVED = 1 << 3;
        /// I/D: by an instruction fetch.
        const FETCH = 1 << 4;
    }
}

/// The registers that govern a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlRegisters {
    /// CR0; PG and WP matter.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4; PSE, PAE, SMEP and SMAP matter.
    pub cr4: u64,
    /// EFER; LMA and NXE matter.
    pub efer: u64,
    /// RFLAGS; AC matters.
    pub rflags: u64,
}

impl ControlRegisters {
    const CR0_WP: u64 = 1 << 16;
    const CR0_PG: u64 = 1 << 31;
    const CR4_PSE: u64 = 1 << 4;
    const CR4_PAE: u64 = 1 << 5;
    const CR4_SMEP: u64 = 1 << 20;
    const CR4_SMAP: u64 = 1 << 21;
    const EFER_LMA: u64 = 1 << 10;
    const EFER_NXE: u64 = 1 << 11;
    const RFLAGS_AC: u64 = 1 << 18;
}

/// The target of a linear address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The guest physical address.
    pub gpa: Gpa,
    /// Bytes in the guest's page; 4 KiB if paging is off.
    pub page_size: u64,
    /// The entries of all levels allow stores.
    pub is_writable: bool,
    /// The entries of all levels allow fetches.
    pub is_executable: bool,
    /// The last entry is dirty.
    pub is_dirty: bool,
}

/// The reason why there is no translation.
///
/// Exhaustive: each variant needs its own answer to the guest; no default would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError<E> {
    /// The guest gets #PF with this error code, and the linear address in CR2.
    PageFault(PageFault),
    /// The linear address is not canonical: the guest gets #GP(0), or #SS(0) for the stack.
    NonCanonical,
    /// The entry could not be read.
    Read {
        /// Address of the 8 bytes that contain it.
        gpa: Gpa,
        /// The reader's error.
        error: E,
    },
}

impl<E: fmt::Display> fmt::Display for WalkError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PageFault(code) => write!(f, "page fault with error code {:#x}", code.bits()),
            Self::NonCanonical => f.write_str("not a canonical address"),
            Self::Read { gpa, error } => write!(f, "page table entry at {gpa}: {error}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for WalkError<E> {}

/// The current translation of a guest's linear addresses.
#[derive(Clone, Copy, Debug)]
pub struct GuestPaging {
    mode: Mode,
    root: u64,
    physical_mask: u64,
    gigabyte_pages: bool,
    page_size_extension: bool,
    write_protect: bool,
    no_execute: bool,
    smep: bool,
    smap: bool,
    alignment_check: bool,
    is_nested: bool,
}

/// The permissions of the entries so far.
#[derive(Clone, Copy)]
struct Allowed {
    write: bool,
    user: bool,
    execute: bool,
}

impl GuestPaging {
    const LONG_INPUT_BITS: u32 = 48;

    /// Copies a vCPU's registers. `physical_bits` and `gigabyte_pages` are the values in the
    /// guest's CPUID: the width of guest physical addresses, 32 to 52, and Page1GB.
    pub fn new(registers: &ControlRegisters, physical_bits: u32, gigabyte_pages: bool) -> Self {
        let ControlRegisters { cr0, cr3, cr4, efer, rflags } = *registers;
        let mode = if cr0 & ControlRegisters::CR0_PG == 0 {
            Mode::Off
        } else if efer & ControlRegisters::EFER_LMA != 0 {
            Mode::Long
        } else if cr4 & ControlRegisters::CR4_PAE != 0 {
            Mode::Pae
        } else {
            Mode::Legacy
        };
        let physical_mask = (1 << physical_bits.clamp(32, 52)) - 1;
        Self {
            mode,
            root: cr3 & mode.root_mask() & physical_mask,
            physical_mask,
            gigabyte_pages,
            page_size_extension: cr4 & ControlRegisters::CR4_PSE != 0,
            write_protect: cr0 & ControlRegisters::CR0_WP != 0,
            no_execute: efer & ControlRegisters::EFER_NXE != 0 && matches!(mode, Mode::Pae | Mode::Long),
            smep: cr4 & ControlRegisters::CR4_SMEP != 0 && mode != Mode::Off,
            smap: cr4 & ControlRegisters::CR4_SMAP != 0 && mode != Mode::Off,
            alignment_check: rflags & ControlRegisters::RFLAGS_AC != 0,
            is_nested: false,
        }
    }

    /// Nested tables of a guest that is a hypervisor, whose registers these are, but CR3 is the
    /// root of the nested tables: addresses are physical ones of the guest's guest. Each access is
    /// a [user's](Access::USER) (15.25.7), so CR0.WP, SMEP and SMAP mean nothing.
    pub fn nested(registers: &ControlRegisters, physical_bits: u32, gigabyte_pages: bool) -> Self {
        let smep_smap = ControlRegisters::CR4_SMEP | ControlRegisters::CR4_SMAP;
        let registers = ControlRegisters { cr4: registers.cr4 & !smep_smap, ..*registers };
        Self { is_nested: true, ..Self::new(&registers, physical_bits, gigabyte_pages) }
    }

    /// Translates a linear address. Outside long mode its upper 32 bits are ignored.
    ///
    /// `read` receives 8-byte aligned guest addresses, at most four of them, each once, and returns
    /// the 8 bytes there as a little-endian number.
    ///
    /// # Errors
    ///
    /// See [`WalkError`].
    pub fn translate<E>(
        &self,
        linear: u64,
        access: Access,
        mut read: impl FnMut(Gpa) -> Result<u64, E>,
    ) -> Result<Translation, WalkError<E>> {
        let linear = match self.checked(linear) {
            Some(linear) => linear,
            // No entry is for it.
            None if self.is_nested => return Err(self.fault(access, PageFault::empty())),
            None => return Err(WalkError::NonCanonical),
        };
        let mut table = self.root;
        let mut allowed = Allowed { write: true, user: true, execute: true };
        for level in (0..self.mode.level_count()).rev() {
            let shift = 12 + level * self.mode.index_bits();
            let index = linear >> shift & ((1 << self.mode.index_bits()) - 1);
            let entry = self.read_entry(table + index * self.mode.entry_size(), &mut read)?;
            if entry & PRESENT == 0 {
                return Err(self.fault(access, PageFault::empty()));
            }
            let is_leaf = self.is_leaf(entry, level);
            if entry & self.reserved(level, is_leaf) != 0 {
                return Err(self.fault(access, PageFault::PRESENT | PageFault::RESERVED));
            }
            // A PDPTE of PAE paging does not take part: the bits are reserved there.
            if !(self.mode == Mode::Pae && level == 2) {
                allowed.write &= entry & WRITE != 0;
                allowed.user &= entry & USER != 0;
                allowed.execute &= entry & NO_EXECUTE == 0;
            }
            if is_leaf {
                if !self.permits(allowed, access) {
                    return Err(self.fault(access, PageFault::PRESENT));
                }
                let page_size = 1 << shift;
                let page = self.leaf_address(entry, level) & !(page_size - 1);
                return Ok(Translation {
                    gpa: Gpa(page | linear & (page_size - 1)),
                    page_size,
                    is_writable: allowed.write,
                    is_executable: allowed.execute,
                    is_dirty: entry & DIRTY != 0,
                });
            }
            table = entry & ADDRESS;
        }
        // Every entry of the last level is a leaf, so only a walk without levels reaches this.
        let [is_writable, is_executable, is_dirty] = [true; 3];
        Ok(Translation { gpa: Gpa(linear), page_size: 4096, is_writable, is_executable, is_dirty })
    }

    /// The accessed and dirty bits that the processor sets on a walk that ends in a translation,
    /// for the 8 bytes that the walk to `linear` has read as number `index`, counted from 0, of
    /// `count`. They must be set atomically, and only if the bytes have not changed (APM volume 2,
    /// 5.4.2).
    pub fn used_bits(&self, linear: u64, access: Access, index: u32, count: u32) -> u64 {
        let level = self.mode.level_count().saturating_sub(index + 1);
        if self.mode == Mode::Pae && level == 2 {
            // Its four entries have no such bits.
            return 0;
        }
        let is_dirty = index + 1 == count && access.contains(Access::WRITE);
        let bits = if is_dirty { ACCESSED | DIRTY } else { ACCESSED };
        // Of two entries of 4 bytes the odd one is in the upper half.
        let is_upper = self.mode == Mode::Legacy && linear >> (12 + level * self.mode.index_bits()) & 1 != 0;
        if is_upper { bits << 32 } else { bits }
    }

    /// The address as the walk uses it, if it is canonical, or within what nested tables translate.
    fn checked(&self, linear: u64) -> Option<u64> {
        if self.is_nested {
            let bits = if self.mode == Mode::Long { Self::LONG_INPUT_BITS } else { 32 };
            return (linear >> bits == 0).then_some(linear);
        }
        if self.mode != Mode::Long {
            return Some(linear & 0xffff_ffff);
        }
        let unused = 64 - Self::LONG_INPUT_BITS;
        let extended = ((linear << unused) as i64 >> unused) as u64;
        (extended == linear).then_some(linear)
    }

    fn read_entry<E>(
        &self,
        address: u64,
        read: &mut impl FnMut(Gpa) -> Result<u64, E>,
    ) -> Result<u64, WalkError<E>> {
        let gpa = Gpa(address & !7);
        let word = read(gpa).map_err(|error| WalkError::Read { gpa, error })?;
        if self.mode.entry_size() == 8 {
            return Ok(word);
        }
        Ok(if address & 4 == 0 { word & 0xffff_ffff } else { word >> 32 })
    }

    fn permits(&self, allowed: Allowed, access: Access) -> bool {
        let is_user = is_user(access);
        let is_implicit = access.contains(Access::IMPLICIT);
        // APM volume 2, section 5.6.6 "Supervisor Mode Access Prevention".
        let is_prevented = self.smap && !is_user && allowed.user && (is_implicit || !self.alignment_check);
        let refused = is_user && !allowed.user
            || access.contains(Access::WRITE) && !allowed.write && (is_user || self.write_protect)
            || access.contains(Access::FETCH) && !allowed.execute
            || access.contains(Access::FETCH) && !is_user && allowed.user && self.smep
            || !access.contains(Access::FETCH) && is_prevented;
        !refused
    }

    /// The error code of an access whose entry is at an address without memory: there it reads as
    /// ones, of which some are reserved.
    pub fn unreadable(&self, access: Access) -> PageFault {
        self.code(access, PageFault::PRESENT | PageFault::RESERVED)
    }

    fn fault<E>(&self, access: Access, why: PageFault) -> WalkError<E> {
        WalkError::PageFault(self.code(access, why))
    }

    fn code(&self, access: Access, why: PageFault) -> PageFault {
        let mut code = why;
        code.set(PageFault::WRITE, access.contains(Access::WRITE));
        code.set(PageFault::USER, is_user(access));
        // I/D is only reported where fetches can be refused.
        code.set(PageFault::FETCH, access.contains(Access::FETCH) && (self.no_execute || self.smep));
        code
    }
}

/// Whether the rights of privilege level 3 apply.
const fn is_user(access: Access) -> bool {
    access.contains(Access::USER) && !access.contains(Access::IMPLICIT)
}
