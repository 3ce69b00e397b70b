//! Linux' bzImage: its setup header, which the host tool writes and checks, and what a loader makes
//! of it: the hypervisor's, and the one that starts a disk's kernel in its guest.
//!
//! Sources: the kernel's Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header";
//! zero-page.rst for the parameters.

use core::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Start of the header: in the file, and in `boot_params`.
pub const START: usize = 0x1f1;
/// The header ends at this offset plus the second part of the jump's operand.
const JUMP_FROM: usize = 0x202;
/// Unit of the boundary between setup and kernel.
pub const SECTOR_SIZE: usize = 512;
/// Unit of [`syssize`](SetupHeader::syssize); the file may end within the last one.
pub const PARAGRAPH: usize = 16;

/// The header of protocol version 2.12, except for the last field, which is not read here. All
/// numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetupHeader {
    /// Sectors of the setup after the first one; 0 stands for 4.
    pub setup_sects: u8,
    root_flags: U16,
    /// Size of the part after the setup, in [paragraphs](PARAGRAPH).
    pub syssize: U32,
    ram_size: U16,
    vid_mode: U16,
    root_dev: U16,
    /// [`BOOT_FLAG`](Self::BOOT_FLAG).
    pub boot_flag: U16,
    jump: u8,
    /// Bytes from the end of the jump to the end of the header.
    pub jump_offset: u8,
    /// [`MAGIC`](Self::MAGIC).
    pub magic: [u8; 4],
    /// Version of the protocol: major and minor byte.
    pub version: U16,
    realmode_swtch: U32,
    start_sys_seg: U16,
    kernel_version: U16,
    /// The loader of the kernel.
    pub type_of_loader: u8,
    /// [`LOADED_HIGH`](Self::LOADED_HIGH) and others.
    pub loadflags: u8,
    setup_move_size: U16,
    /// The kernel's entry point in protected mode.
    pub code32_start: U32,
    /// Address of the initial RAM disk.
    pub ramdisk_image: U32,
    /// Its length.
    pub ramdisk_size: U32,
    bootsect_kludge: U32,
    heap_end_ptr: U16,
    ext_loader_ver: u8,
    ext_loader_type: u8,
    /// Address of the command line.
    pub cmd_line_ptr: U32,
    /// Highest address that the initial RAM disk may take.
    pub initrd_addr_max: U32,
    /// A relocatable kernel starts at a multiple of this.
    pub kernel_alignment: U32,
    /// Not 0 if it may be elsewhere than it prefers.
    pub relocatable_kernel: u8,
    min_alignment: u8,
    /// [`XLF_KERNEL_64`](Self::XLF_KERNEL_64) and others.
    pub xloadflags: U16,
    /// Longest command line, without the NUL at its end.
    pub cmdline_size: U32,
    hardware_subarch: U32,
    hardware_subarch_data: U64,
    payload_offset: U32,
    payload_length: U32,
    setup_data: U64,
    /// The kernel's preferred address.
    pub pref_address: U64,
    /// Bytes from there on that the kernel needs until it reads the memory map.
    pub init_size: U32,
}

/// The manual's offset of the last field.
const _: () = assert!(START + size_of::<SetupHeader>() == 0x264);

impl SetupHeader {
    /// Value of [`boot_flag`](Self::boot_flag).
    pub const BOOT_FLAG: u16 = 0xaa55;
    /// Value of [`magic`](Self::magic).
    pub const MAGIC: [u8; 4] = *b"HdrS";
    /// The kernel is above 1 MiB.
    pub const LOADED_HIGH: u8 = 1 << 0;
    /// The kernel has 64 bits.
    pub const XLF_KERNEL_64: u16 = 1 << 0;
    /// The first version with `xloadflags`, Linux 3.8. All other fields are older.
    const VERSION_MIN: u16 = 0x020c;

    /// The header of a file; `None` if the file ends within it.
    #[must_use]
    pub fn of(file: &[u8]) -> Option<&Self> {
        Some(Self::ref_from_prefix(file.get(START..)?).ok()?.0)
    }

    /// The same, mutable.
    pub fn of_mut(file: &mut [u8]) -> Option<&mut Self> {
        Some(Self::mut_from_prefix(file.get_mut(START..)?).ok()?.0)
    }

    /// Whether the file is a bzImage at all.
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        self.boot_flag.get() == Self::BOOT_FLAG && self.magic == Self::MAGIC
    }

    /// The header's end in the file. It may be longer than the part defined here.
    #[must_use]
    pub fn end(&self) -> usize {
        JUMP_FROM + usize::from(self.jump_offset)
    }

    /// Bytes of the setup, including the first sector.
    #[must_use]
    pub fn setup_len(&self) -> usize {
        let sectors = if self.setup_sects == 0 { 4 } else { usize::from(self.setup_sects) };
        (sectors + 1) * SECTOR_SIZE
    }
}

/// Why a file is not a kernel that a loader here can start. The text says how to mend that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Neither a Linux bzImage nor an ELF.
    #[error(
        "kernel: neither a Linux bzImage ('HdrS' at offset 0x202) nor an ELF; \
         give a kernel such as /boot/vmlinuz-*, or an ELF with a PVH note"
    )]
    NotAKernel,
    /// A Linux kernel without the required header fields.
    #[error(
        "kernel: boot protocol {}.{:02}, but at least 2.12 is needed; give Linux 3.8 or newer",
        .version >> 8,
        .version & 0xff
    )]
    TooOld {
        /// Its boot protocol version, major in the high byte.
        version: u16,
    },
    /// A Linux kernel that loads below 1 MiB (zImage).
    #[error("kernel: a zImage, which loads below 1 MiB; build it as bzImage")]
    NotLoadedHigh,
    /// The file ends before the kernel does.
    #[error("kernel: the file has {found} bytes of {expected}; it is cut off, fetch or build it again")]
    Truncated {
        /// The size in its header, in bytes.
        expected: u64,
        /// The actual size in bytes.
        found: u64,
    },
}

/// Bytes of `boot_params`, a page.
pub const PARAMS: usize = 4096;
/// Offsets in `boot_params` outside the header.
const ACPI_RSDP_ADDR: usize = 0x070;
const E820_ENTRIES: usize = 0x1e8;
const E820_TABLE: usize = 0x2d0;
const E820_ENTRY: usize = 20;
const E820_MAX: usize = 128;
/// The bounds of the header's end: everything that is read is below it, and the map is above.
const END_MIN: usize = START + size_of::<SetupHeader>();
const END_MAX: usize = 0x290;
const LOADER_UNDEFINED: u8 = 0xff;

/// A checked setup header and the kernel that follows it.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// The header.
    pub header: &'a SetupHeader,
    /// The whole header, for `boot_params`: a kernel may have fields that are not known here.
    whole: &'a [u8],
    /// The part that runs in protected mode.
    pub kernel: &'a [u8],
}

/// What a kernel is told besides its own header. All addresses are below 4 GiB.
#[derive(Clone, Debug)]
pub struct Told<M> {
    /// Where the kernel is.
    pub start: u32,
    /// The address of the command line, which ends with a zero.
    pub command_line: u32,
    /// The initial RAM disk.
    pub initrd: Option<Range<u32>>,
    /// ACPI's root pointer.
    pub rsdp: u64,
    /// The memory map, with types as e820 has them.
    pub map: M,
}

impl<'a> Image<'a> {
    /// The kernel in a file.
    ///
    /// # Errors
    ///
    /// It is none, or none that is supported.
    pub fn parse(file: &'a [u8]) -> Result<Self, Unusable> {
        let header = SetupHeader::of(file).filter(|header| header.is_kernel()).ok_or(Unusable::NotAKernel)?;
        let version = header.version.get();
        if version < SetupHeader::VERSION_MIN {
            return Err(Unusable::TooOld { version });
        }
        if header.loadflags & SetupHeader::LOADED_HIGH == 0 {
            return Err(Unusable::NotLoadedHigh);
        }
        if !(END_MIN..=END_MAX).contains(&header.end()) {
            return Err(Unusable::NotAKernel);
        }
        let start = header.setup_len();
        let len = header.syssize.get() as usize * PARAGRAPH;
        let missing = (start + len).saturating_sub(file.len());
        let in_file = if missing < PARAGRAPH { len.saturating_sub(missing) } else { len };
        Ok(Self {
            header,
            whole: bytes_at(file, START, header.end() - START)?,
            kernel: bytes_at(file, start, in_file)?,
        })
    }

    /// Bytes from its start on that the kernel needs until it reads the memory map.
    #[must_use]
    pub fn init_size(&self) -> u64 {
        let len = u64::from(self.header.syssize.get()) * PARAGRAPH as u64;
        u64::from(self.header.init_size.get()).max(len)
    }

    /// The page that passes the boot parameters to the kernel. What the map has no room for is
    /// dropped.
    pub fn boot_params(&self, told: Told<impl Iterator<Item = (Range<u64>, u32)>>) -> [u8; PARAMS] {
        let mut params = [0; PARAMS];
        let mut put =
            |offset: usize, bytes: &[u8]| params[offset..offset + bytes.len()].copy_from_slice(bytes);
        let mut header = *self.header;
        header.type_of_loader = LOADER_UNDEFINED;
        header.code32_start = told.start.into();
        header.cmd_line_ptr = told.command_line.into();
        if let Some(initrd) = told.initrd {
            header.ramdisk_image = initrd.start.into();
            header.ramdisk_size = (initrd.end - initrd.start).into();
        }
        put(START, self.whole);
        put(START, header.as_bytes());
        put(ACPI_RSDP_ADDR, &told.rsdp.to_le_bytes());
        for (index, (range, kind)) in told.map.take(E820_MAX).enumerate() {
            let offset = E820_TABLE + index * E820_ENTRY;
            put(offset, &range.start.to_le_bytes());
            put(offset + 8, &(range.end - range.start).to_le_bytes());
            put(offset + 16, &kind.to_le_bytes());
            put(E820_ENTRIES, &[index as u8 + 1]);
        }
        params
    }
}

fn bytes_at(file: &[u8], offset: usize, len: usize) -> Result<&[u8], Unusable> {
    let expected = offset as u64 + len as u64;
    let truncated = Unusable::Truncated { expected, found: file.len() as u64 };
    file.get(offset..).and_then(|rest| rest.get(..len)).ok_or(truncated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn fields_are_where_the_manual_has_them() {
        for (offset, expected) in [
            (offset_of!(SetupHeader, syssize), 0x1f4),
            (offset_of!(SetupHeader, boot_flag), 0x1fe),
            (offset_of!(SetupHeader, jump_offset), 0x201),
            (offset_of!(SetupHeader, magic), 0x202),
            (offset_of!(SetupHeader, version), 0x206),
            (offset_of!(SetupHeader, type_of_loader), 0x210),
            (offset_of!(SetupHeader, loadflags), 0x211),
            (offset_of!(SetupHeader, code32_start), 0x214),
            (offset_of!(SetupHeader, ramdisk_image), 0x218),
            (offset_of!(SetupHeader, ramdisk_size), 0x21c),
            (offset_of!(SetupHeader, cmd_line_ptr), 0x228),
            (offset_of!(SetupHeader, initrd_addr_max), 0x22c),
            (offset_of!(SetupHeader, xloadflags), 0x236),
            (offset_of!(SetupHeader, cmdline_size), 0x238),
            (offset_of!(SetupHeader, pref_address), 0x258),
            (offset_of!(SetupHeader, init_size), 0x260),
        ] {
            assert_eq!(START + offset, expected);
        }
    }

    #[test]
    fn a_file_that_ends_within_the_header_has_none() {
        let mut file = std::vec![0; 0x264];
        assert!(SetupHeader::of(&file[..0x263]).is_none());
        let header = SetupHeader::of_mut(&mut file).expect("is whole");
        header.magic = SetupHeader::MAGIC;
        header.boot_flag = SetupHeader::BOOT_FLAG.into();
        assert!(
            SetupHeader::of(&file).is_some_and(|header| header.is_kernel() && header.setup_len() == 2560)
        );
    }
}
