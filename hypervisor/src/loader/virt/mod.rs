//! Linux' arm64 Image (Documentation/arch/arm64/booting.rst).
//!
//! | address | contents |
//! |---|---|
//! | start of RAM, plus `text_offset` | the kernel, followed by the memory that it needs |
//! | the next 2 MiB boundary | the device tree |
//! | the next 2 MiB boundary | the initial RAM disk |
//!
//! U-Boot, as firmware, is at the first of these boundaries, and the device tree before it.
//!
//! RAM starts at a multiple of 1 GiB, and the RAM disk ends within 32 GiB of that, as required.

#[cfg(test)]
mod tests;

use super::{LoadError, Placement};
use crate::devices::virt::fdt;
use crate::devices::virt::map::RAM;
use alloc::borrow::Cow;
use alloc::vec::Vec;
use baremetal::pages::PAGE as PAGE_SIZE;
use core::ops::Range;

/// Offsets in the header, little-endian.
mod header {
    pub(super) const TEXT_OFFSET: usize = 8;
    pub(super) const IMAGE_SIZE: usize = 16;
    pub(super) const FLAGS: usize = 24;
    pub(super) const MAGIC: usize = 56;
    pub(super) const SIZE: usize = 64;
}

const MAGIC: &[u8] = b"ARM\x64";
const FLAG_BIG_ENDIAN: u64 = 1 << 0;
/// `text_offset` of kernels before 3.17, whose header has no valid value (`image_size` is 0 then).
const TEXT_OFFSET_OLD: u64 = 0x8_0000;

/// The first bytes of an EFI application, and the bytes at offset 4 of one with a compressed
/// kernel.
const EFI: &[u8] = b"MZ";
const ZBOOT: &[u8] = b"zimg";
const ZBOOT_OFFSET: usize = 4;

/// First bytes of the formats in which kernels are compressed, and the programs that unpack them.
const COMPRESSED: [(&[u8], &str); 8] = [
    (b"\x1f\x8b", "gunzip"),
    (b"\x28\xb5\x2f\xfd", "zstd -d"),
    (b"\xfd7zXZ\0", "xz -d"),
    (b"\x5d\0\0", "xz -d --format=lzma"),
    (b"\x02\x21\x4c\x18", "lz4 -d"),
    (b"\x04\x22\x4d\x18", "lz4 -d"),
    (b"BZh", "bzip2 -d"),
    (b"\x89LZO", "lzop -d"),
];

const MIB: u64 = 1 << 20;
/// Alignment of base addresses, and more than the maximum length of a device tree.
const BLOCK_SIZE: u64 = 2 * MIB;
/// Size of the window that must contain kernel and RAM disk.
const WINDOW_SIZE: u64 = 32 << 30;
/// Linux' COMMAND_LINE_SIZE for arm64, terminator included.
const COMMAND_LINE_SIZE: usize = 2048;

/// Minimum memory of a guest in bytes.
pub const MEMORY_MIN: u64 = 2 * BLOCK_SIZE;
/// Maximum memory of a guest in bytes: the capacity of 40 bits of intermediate physical address,
/// which every CPU has.
pub const MEMORY_MAX: u64 = (1 << 40) - RAM;

/// The first vCPU at entry: EL1h, MMU and caches off, D, A, I and F masked, every register that is
/// not listed here 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First instruction.
    pub pc: u64,
    /// The device tree. X1 to X3 are 0.
    pub x0: u64,
}

/// Everything needed to start a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<'a> {
    /// Copies into guest memory, which contains zeros elsewhere. They do not overlap and are in
    /// RAM.
    pub placements: Vec<Placement<'a>>,
    /// The first vCPU's state.
    pub entry: Entry,
}

/// The guest's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestConfig<'a> {
    /// Bytes of memory; a partial last page is not used.
    pub memory_size: u64,
    /// Number of vCPUs.
    pub vcpu_count: u8,
    /// The kernel's command line.
    pub command_line: &'a str,
    /// PCI functions that it owns.
    pub functions: &'a [fdt::Wire],
    /// Whether its kernel is firmware.
    pub is_firmware: bool,
}

/// The RAM of a guest with so much memory.
///
/// # Errors
/// Less than [`MEMORY_MIN`] or more than [`MEMORY_MAX`].
pub const fn ram(memory: u64) -> Result<Range<u64>, LoadError> {
    if memory < MEMORY_MIN {
        return Err(LoadError::MemoryTooSmall { needed: MEMORY_MIN, memory });
    }
    if memory > MEMORY_MAX {
        return Err(LoadError::MemoryTooLarge { memory });
    }
    Ok(RAM..RAM + memory / PAGE_SIZE * PAGE_SIZE)
}

/// Plans the start of `kernel`, an arm64 Image or firmware.
///
/// # Errors
/// If the guest cannot be loaded, for the reason in [`LoadError`].
pub fn plan<'a>(
    kernel: &'a [u8],
    initrd: Option<&'a [u8]>,
    machine: &GuestConfig<'_>,
) -> Result<Plan<'a>, LoadError> {
    let ram = ram(machine.memory_size)?;
    let image = if machine.is_firmware { Image::firmware(kernel) } else { Image::parse(kernel)? };
    check_command_line(machine.command_line)?;
    let kernel_range = image.place(&ram)?;
    let kernel_end = kernel_range.end.next_multiple_of(BLOCK_SIZE);
    // Firmware looks for the tree at the start of RAM.
    let tree_start = if machine.is_firmware { ram.start } else { kernel_end };
    let initrd_start = kernel_end + BLOCK_SIZE;
    if initrd_start > ram.end {
        return Err(LoadError::MemoryTooSmall { needed: initrd_start - RAM, memory: machine.memory_size });
    }
    let initrd = match initrd.filter(|bytes| !bytes.is_empty()) {
        Some(bytes) => Some(place_initrd(bytes, initrd_start, &ram)?),
        None => None,
    };
    let tree = fdt::build(&fdt::Guest {
        ram,
        vcpu_count: machine.vcpu_count,
        command_line: machine.command_line,
        initrd: initrd.as_ref().map(Placement::range),
        functions: machine.functions,
    });
    let entry = Entry { pc: kernel_range.start, x0: tree_start };
    let mut placements = Vec::from([
        Placement { gpa: kernel_range.start, bytes: Cow::Borrowed(kernel) },
        Placement { gpa: tree_start, bytes: Cow::Owned(tree) },
    ]);
    placements.extend(initrd);
    Ok(Plan { placements, entry })
}

struct Image {
    text_offset: u64,
    /// Bytes that the kernel needs from its start on: those of the file and those after it.
    size: u64,
}

impl Image {
    /// Firmware runs at any page. Its first stack is below [`BLOCK_SIZE`], as on QEMU's board.
    const fn firmware(file: &[u8]) -> Self {
        Self { text_offset: BLOCK_SIZE, size: file.len() as u64 }
    }

    fn parse(file: &[u8]) -> Result<Self, LoadError> {
        if let Some(&(_, tool)) = COMPRESSED.iter().find(|(magic, _)| file.starts_with(magic)) {
            return Err(LoadError::CompressedKernel { tool });
        }
        if file.starts_with(EFI) && file.get(ZBOOT_OFFSET..).is_some_and(|rest| rest.starts_with(ZBOOT)) {
            return Err(LoadError::EfiZboot);
        }
        let Some(fields) = file.first_chunk::<{ header::SIZE }>() else {
            return Err(LoadError::NotAnArm64Image);
        };
        if !fields[header::MAGIC..].starts_with(MAGIC) {
            return Err(LoadError::NotAnArm64Image);
        }
        let field =
            |offset: usize| fields[offset..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if field(header::FLAGS) & FLAG_BIG_ENDIAN != 0 {
            return Err(LoadError::BigEndian);
        }
        let length = file.len() as u64;
        Ok(match field(header::IMAGE_SIZE) {
            0 => Self { text_offset: TEXT_OFFSET_OLD, size: length },
            size => Self { text_offset: field(header::TEXT_OFFSET), size: size.max(length) },
        })
    }

    /// Where to place it: as low as possible, which is valid regardless of its placement flag.
    fn place(&self, ram: &Range<u64>) -> Result<Range<u64>, LoadError> {
        let memory = ram.end - ram.start;
        let needed = self.text_offset.saturating_add(self.size);
        if needed > memory {
            return Err(LoadError::MemoryTooSmall { needed, memory });
        }
        Ok(ram.start + self.text_offset..ram.start + needed)
    }
}

fn check_command_line(text: &str) -> Result<(), LoadError> {
    let (length, most) = (text.len(), COMMAND_LINE_SIZE - 1);
    if length > most {
        return Err(LoadError::CommandLineTooLong { length, most });
    }
    match text.bytes().position(|byte| byte == 0) {
        Some(offset) => Err(LoadError::CommandLineHasNul { offset }),
        None => Ok(()),
    }
}

fn place_initrd<'a>(bytes: &'a [u8], start: u64, ram: &Range<u64>) -> Result<Placement<'a>, LoadError> {
    let size = bytes.len() as u64;
    let available = ram.end.min(RAM + WINDOW_SIZE).saturating_sub(start);
    if size > available {
        return Err(LoadError::InitrdTooLarge { size, available });
    }
    Ok(Placement { gpa: start, bytes: Cow::Borrowed(bytes) })
}
