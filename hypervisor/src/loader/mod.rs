//! Loading a guest's kernel: the placement of its bytes, and the initial state of its first vCPU.
//!
//! [`plan`] only reads the files and decides; it writes nothing. The caller copies the
//! [`LoadPlan::placements`] into guest memory and puts the boot processor into the state
//! [`LoadPlan::entry`]. A plan is valid for every start of the guest: on a reboot clear the memory
//! and apply it again.

mod error;
pub mod pc;
pub mod virt;

/// For tests of later stages: a kernel of one page at 2 MiB.
#[cfg(test)]
pub(crate) use pc::elf_pvh::tests::kernel as test_kernel;

pub use error::LoadError;
pub use pc::layout::MemoryLayout;
use pc::{bzimage, elf_pvh, layout};

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::ops::Range;

/// Bytes for guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement<'a> {
    /// The guest physical address of the first byte.
    pub gpa: u64,
    /// The bytes: a part of a file, or generated.
    pub bytes: Cow<'a, [u8]>,
}

/// The protocol by which the kernel is entered. It only tells which register holds which value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Linux' 32-bit boot protocol: RSI points to `boot_params`.
    Linux32,
    /// Xen's PVH: RBX points to `hvm_start_info`.
    Pvh,
}

/// A segment at entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The selector, in the table at [`layout::GDT`].
    pub selector: u16,
    /// The descriptor there.
    pub descriptor: u64,
}

/// CS at entry: 32-bit code, all 4 GiB.
pub const CODE: Segment = Segment { selector: 0x10, descriptor: 0x00cf_9b00_0000_ffff };
/// DS, ES, SS, FS and GS at entry: data, all 4 GiB.
pub const DATA: Segment = Segment { selector: 0x18, descriptor: 0x00cf_9300_0000_ffff };
/// TR at entry: a busy 32-bit TSS that is never used.
pub const TASK: Segment = Segment { selector: 0x20, descriptor: 0x0000_8b00_0000_0067 };
/// Limit of the table at [`layout::GDT`].
pub const GDT_LIMIT: u16 = 5 * 8 - 1;

/// The boot processor at entry: 32-bit protected mode with paging off (CR0 = PE and ET, CR4 = 0,
/// EFER = 0 as the guest sees it), RFLAGS = 2, segments [`CODE`], [`DATA`], [`TASK`], GDTR =
/// [`layout::GDT`] with [`GDT_LIMIT`], every register that is not listed here 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryState {
    /// The protocol.
    pub kind: EntryKind,
    /// First instruction.
    pub rip: u64,
    /// `boot_params` for Linux, otherwise 0.
    pub rsi: u64,
    /// `hvm_start_info` for PVH, otherwise 0.
    pub rbx: u64,
}

/// Everything needed to start a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPlan<'a> {
    /// Copies into guest memory, which contains zeros elsewhere. They do not overlap and are in
    /// RAM.
    pub placements: Vec<Placement<'a>>,
    /// The boot processor's state.
    pub entry: EntryState,
}

/// Plans the start of `kernel`: a Linux bzImage or an ELF with a PVH note.
///
/// `rsdp` is the guest physical address of the ACPI root pointer. The tables themselves are not
/// part of the plan.
///
/// # Errors
/// If the guest cannot be loaded, for the reason in [`LoadError`].
pub fn plan<'a>(
    kernel: &'a [u8],
    initrd: Option<&'a [u8]>,
    command_line: &'a str,
    memory: &MemoryLayout,
    rsdp: u64,
) -> Result<LoadPlan<'a>, LoadError> {
    let boot = Boot { initrd: initrd.filter(|bytes| !bytes.is_empty()), command_line, memory, rsdp };
    let mut plan = if kernel.starts_with(b"\x7fELF") {
        elf_pvh::plan(kernel, &boot)?
    } else {
        bzimage::plan(kernel, &boot)?
    };
    plan.placements.push(Placement { gpa: layout::GDT, bytes: Cow::Owned(gdt()) });
    // The zero at its end is there already.
    let bytes = Cow::Borrowed(command_line.as_bytes());
    plan.placements.push(Placement { gpa: layout::COMMAND_LINE.start, bytes });
    Ok(plan)
}

/// The boot parameters, in both protocols.
struct Boot<'a, 'b> {
    initrd: Option<&'a [u8]>,
    command_line: &'b str,
    memory: &'b MemoryLayout,
    rsdp: u64,
}

impl<'a> Boot<'a, '_> {
    /// Checks the command line against the maximum length that the kernel accepts, without the
    /// terminator.
    fn check_command_line(&self, kernel_most: usize) -> Result<(), LoadError> {
        let area = (layout::COMMAND_LINE.end - layout::COMMAND_LINE.start) as usize - 1;
        let (length, most) = (self.command_line.len(), kernel_most.min(area));
        if length > most {
            return Err(LoadError::CommandLineTooLong { length, most });
        }
        match self.command_line.bytes().position(|byte| byte == 0) {
            Some(offset) => Err(LoadError::CommandLineHasNul { offset }),
            None => Ok(()),
        }
    }

    /// Places the initial RAM disk as high as possible between the kernel's end and `limit`, in low
    /// RAM.
    fn place_initrd(&self, kernel_end: u64, limit: u64) -> Result<Option<Placement<'a>>, LoadError> {
        let Some(bytes) = self.initrd else { return Ok(None) };
        let size = bytes.len() as u64;
        let first = kernel_end.next_multiple_of(layout::PAGE_SIZE);
        let end = self.memory.low_end().min(limit);
        let error = LoadError::InitrdTooLarge { size, available: end.saturating_sub(first) };
        let gpa = end.checked_sub(size).ok_or(error)? & !(layout::PAGE_SIZE - 1);
        if gpa < first {
            return Err(error);
        }
        Ok(Some(Placement { gpa, bytes: Cow::Borrowed(bytes) }))
    }
}

impl Placement<'_> {
    /// The guest physical addresses that it covers.
    pub fn range(&self) -> Range<u64> {
        self.gpa..self.gpa + self.bytes.len() as u64
    }
}

/// The segment descriptors for the selectors at entry.
fn gdt() -> Vec<u8> {
    let table = [0, 0, CODE.descriptor, DATA.descriptor, TASK.descriptor];
    table.into_iter().flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_descriptor_is_where_its_selector_says() {
        let gdt = gdt();
        assert_eq!(gdt.len(), usize::from(GDT_LIMIT) + 1);
        for segment in [CODE, DATA, TASK] {
            let entry = gdt[usize::from(segment.selector)..].first_chunk().unwrap();
            assert_eq!(u64::from_le_bytes(*entry), segment.descriptor);
        }
    }

    #[test]
    fn what_is_not_a_kernel_is_said_to_be_none() {
        let memory = MemoryLayout::new(64 << 20).unwrap();
        let text = [b'x'; 4096];
        for kernel in [&[][..], b"MZ", b"#!/bin/sh\n", &[0; 0x400], &text] {
            assert_eq!(
                plan(kernel, None, "", &memory, 0),
                Err(hostlink::bzimage::Unusable::NotAKernel.into())
            );
        }
    }
}
