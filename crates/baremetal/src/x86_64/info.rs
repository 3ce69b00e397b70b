//! The loader's information: command line, ACPI, memory, the first module.

use arrayvec::{ArrayString, ArrayVec};
use multiboot2::{BootInformation, BootInformationHeader, FramebufferField, FramebufferTag, FramebufferType};
use multiboot2::{MemoryAreaType, RsdpV1Tag, RsdpV2Tag};
use pvh::start_info::MemmapType;
use pvh::start_info::reader::StartInfoReader;

pub use crate::pages::Ram;

use super::efi;
use super::linux::{COMMAND_LINE, E820_COUNT, E820_ENTRY, E820_MAX, E820_TABLE};
use crate::screen::Frame;

/// The protocol that an entry reports.
pub const PROTOCOL_PVH: u32 = 1;
/// As above.
pub const PROTOCOL_MULTIBOOT2: u32 = 2;
/// As above.
pub const PROTOCOL_LINUX: u32 = 3;

/// The most ranges of memory that are kept.
pub const RANGES: usize = 64;

/// The protocol by which the image was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Xen's direct boot.
    Pvh,
    /// Multiboot 2.
    Multiboot2,
    /// Linux's own.
    Linux,
}

impl Protocol {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pvh => "pvh",
            Self::Multiboot2 => "multiboot2",
            Self::Linux => "linux",
        }
    }
}

/// A copy of the loader's information: nothing refers to the loader's own memory.
#[derive(Debug)]
pub struct BootInfo {
    /// The boot protocol.
    pub protocol: Protocol,
    /// The command line; an overlong end is dropped.
    pub command_line: ArrayString<COMMAND_LINE>,
    /// Address of ACPI's root pointer; 0 if it has to be searched for.
    pub rsdp: u64,
    /// RAM, in the loader's order.
    pub ram: ArrayVec<Ram, RANGES>,
    /// The rest of the memory map with its types, where the protocol has them as e820 does: PVH.
    pub reserved: ArrayVec<(Ram, u32), RANGES>,
    /// Whether there is more RAM, in ranges for which there was no room.
    pub has_more_ram: bool,
    /// The first module, if the protocol has modules and the loader passed one.
    pub module: Option<Ram>,
    /// The screen, if the loader has left one.
    pub(super) frame: Option<Frame>,
}

impl BootInfo {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            command_line: ArrayString::new(),
            rsdp: 0,
            ram: ArrayVec::new(),
            reserved: ArrayVec::new(),
            has_more_ram: false,
            module: None,
            frame: None,
        }
    }

    fn set_command_line(&mut self, line: &str) {
        line.chars().take_while(|char| self.command_line.try_push(*char).is_ok()).for_each(drop);
    }

    /// Adds RAM. Excess ranges are dropped.
    fn add_ram(&mut self, start: u64, length: u64) {
        let range = Ram { start, end: start.saturating_add(length) };
        self.has_more_ram |= self.ram.try_push(range).is_err();
    }
}

/// Reads the loader's information.
///
/// # Errors
///
/// The information is not what the protocol requires.
///
/// # Safety
///
/// `address` is the value from a loader of protocol `protocol`, and everything that it refers to is
/// mapped one to one.
pub unsafe fn read(protocol: u32, address: u32) -> Result<BootInfo, &'static str> {
    match protocol {
        // SAFETY: the caller's promise.
        PROTOCOL_PVH => unsafe { read_pvh(address) },
        // SAFETY: the caller's promise.
        PROTOCOL_MULTIBOOT2 => unsafe { read_multiboot2(address) },
        // SAFETY: the caller's promise.
        PROTOCOL_LINUX => Ok(unsafe { read_linux(address) }),
        _ => Err("not started by a protocol that is known"),
    }
}

/// # Safety
///
/// As [`read`].
unsafe fn read_pvh(address: u32) -> Result<BootInfo, &'static str> {
    let mut info = BootInfo::new(Protocol::Pvh);
    // SAFETY: the caller's promise.
    let start = unsafe { StartInfoReader::from_paddr_identity(address) };
    let start = start.ok_or("not started by the PVH protocol")?;
    info.set_command_line(start.cmdline().and_then(|line| line.to_str().ok()).unwrap_or(""));
    info.rsdp = start.raw().rsdp_paddr;
    for entry in start.memmap() {
        if MemmapType::from(entry.ty) == MemmapType::Ram {
            info.add_ram(entry.addr, entry.size);
        } else {
            let range = Ram { start: entry.addr, end: entry.addr.saturating_add(entry.size) };
            // What there is no room for cannot be RAM for others either.
            let _ = info.reserved.try_push((range, entry.ty));
        }
    }
    info.module = start.modlist().next().map(|module| {
        let (start, size) = (module.raw().paddr, module.raw().size);
        Ram { start, end: start.saturating_add(size) }
    });
    Ok(info)
}

/// # Safety
///
/// As [`read`].
unsafe fn read_multiboot2(address: u32) -> Result<BootInfo, &'static str> {
    let mut info = BootInfo::new(Protocol::Multiboot2);
    let header = address as usize as *const BootInformationHeader;
    // SAFETY: the caller's promise.
    let boot = unsafe { BootInformation::load(header) };
    let boot = boot.map_err(|_| "the Multiboot 2 information is not valid")?;
    if let Some(Ok(line)) = boot.command_line_tag().map(|tag| tag.cmdline()) {
        info.set_command_line(line);
    }
    // The tag holds a copy of the root pointer after its own header of 8 bytes.
    let newer = boot.rsdp_v2_tag().map(|tag: &RsdpV2Tag| (&raw const *tag).addr());
    let older = boot.rsdp_v1_tag().map(|tag: &RsdpV1Tag| (&raw const *tag).addr());
    info.rsdp = newer.or(older).map_or(0, |tag| tag as u64 + 8);
    for area in boot.memory_map_tag().map_or(&[][..], |tag| tag.memory_areas()) {
        if area.typ() == MemoryAreaType::Available {
            info.add_ram(area.start_address(), area.size());
        }
    }
    let module = boot.module_tags().next();
    info.module = module.map(|tag| Ram { start: tag.start_address().into(), end: tag.end_address().into() });
    info.frame = boot.framebuffer_tag().and_then(Result::ok).map(frame);
    Ok(info)
}

fn frame(tag: &FramebufferTag) -> Frame {
    let is_byte = |field: FramebufferField| field.size == 8 && field.position.is_multiple_of(8);
    Frame {
        address: tag.address(),
        pitch: tag.pitch(),
        width: tag.width(),
        height: tag.height(),
        bits: tag.bpp(),
        has_byte_colours: match tag.buffer_type() {
            Ok(FramebufferType::RGB { red, green, blue }) => [red, green, blue].into_iter().all(is_byte),
            _ => false,
        },
    }
}

/// Offsets in the parameters of Linux's boot protocol (`struct boot_params`; the kernel's
/// Documentation/arch/x86/zero-page.rst), and the memory map's entry type for RAM.
const LINUX_RSDP: u32 = 0x70;
const LINUX_EFI_SIGNATURE: u32 = 0x1c0;
const LINUX_EFI_SYSTEM_TABLE: u32 = 0x1c4;
const LINUX_EFI_SYSTEM_TABLE_HIGH: u32 = 0x1d8;
const LINUX_COMMAND_LINE: u32 = 0x228;
const E820_RAM: u32 = 1;
/// The signature where the firmware is a 64-bit UEFI.
const EFI_64: u32 = u32::from_le_bytes(*b"EL64");

/// # Safety
///
/// As [`read`].
unsafe fn read_linux(address: u32) -> BootInfo {
    let mut info = BootInfo::new(Protocol::Linux);
    // SAFETY: the caller's promise; fields need not be aligned.
    let word = |offset: u32| unsafe { ((address + offset) as usize as *const u32).read_unaligned() };
    let long = |offset: u32| u64::from(word(offset)) | u64::from(word(offset + 4)) << 32;
    info.rsdp = long(LINUX_RSDP);
    if info.rsdp == 0 && word(LINUX_EFI_SIGNATURE) == EFI_64 {
        let high = u64::from(word(LINUX_EFI_SYSTEM_TABLE_HIGH)) << 32;
        // SAFETY: the loader found the table; memory is mapped as the caller says.
        info.rsdp = unsafe { efi::rsdp(high | u64::from(word(LINUX_EFI_SYSTEM_TABLE))) };
    }
    let line = word(LINUX_COMMAND_LINE) as usize as *const u8;
    if !line.is_null() {
        // SAFETY: the caller's promise: the line ends with a zero, and nothing beyond the kept
        // length is read.
        let bytes = (0..COMMAND_LINE).map(|index| unsafe { line.add(index).read() });
        let bytes: ArrayVec<u8, COMMAND_LINE> = bytes.take_while(|byte| *byte != 0).collect();
        info.set_command_line(bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid()));
    }
    for index in 0..(word(E820_COUNT) & 0xff).min(E820_MAX) {
        let entry = E820_TABLE + index * E820_ENTRY;
        if word(entry + 16) == E820_RAM {
            info.add_ram(long(entry), long(entry + 8));
        }
    }
    info
}
