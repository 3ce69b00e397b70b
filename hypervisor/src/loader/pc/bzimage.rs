//! Linux' bzImage by the 32-bit boot protocol (Documentation/arch/x86/boot.rst).

use super::layout::{BOOT_INFO, COMMAND_LINE, KERNEL_MIN, PAGE_SIZE};
use crate::loader::{Boot, EntryKind, EntryState, LoadError, LoadPlan, Placement};
use alloc::borrow::Cow;
use alloc::vec;
use alloc::vec::Vec;

/// Offsets in the setup header, which are the same in the file and in `boot_params`.
mod header {
    pub(super) const START: usize = 0x1f1;
    pub(super) const SETUP_SECTS: usize = 0x1f1;
    pub(super) const SYSSIZE: usize = 0x1f4;
    pub(super) const BOOT_FLAG: usize = 0x1fe;
    /// Its value, added to 0x202, is the header's end.
    pub(super) const JUMP_OFFSET: usize = 0x201;
    pub(super) const MAGIC: usize = 0x202;
    pub(super) const VERSION: usize = 0x206;
    pub(super) const TYPE_OF_LOADER: usize = 0x210;
    pub(super) const LOADFLAGS: usize = 0x211;
    pub(super) const CODE32_START: usize = 0x214;
    pub(super) const RAMDISK_IMAGE: usize = 0x218;
    pub(super) const RAMDISK_SIZE: usize = 0x21c;
    pub(super) const CMD_LINE_PTR: usize = 0x228;
    pub(super) const INITRD_ADDR_MAX: usize = 0x22c;
    pub(super) const CMDLINE_SIZE: usize = 0x238;
    pub(super) const PREF_ADDRESS: usize = 0x258;
    pub(super) const INIT_SIZE: usize = 0x260;
    /// Everything that is read here lies below.
    pub(super) const END_MIN: usize = 0x264;
}

/// Offsets in `boot_params` outside the header.
mod params {
    pub(super) const ACPI_RSDP_ADDR: usize = 0x070;
    pub(super) const E820_ENTRIES: usize = 0x1e8;
    pub(super) const E820_TABLE: usize = 0x2d0;
    /// Where the setup header has to end at the latest.
    pub(super) const HEADER_END_MAX: usize = 0x290;
}

const MAGIC: &[u8] = b"HdrS";
const BOOT_FLAG: u16 = 0xaa55;
/// The first version with `xloadflags`, Linux 3.8. All of `init_size` and `pref_address` came before.
const VERSION_MIN: u16 = 0x020c;
const LOADED_HIGH: u8 = 1 << 0;
const LOADER_UNDEFINED: u8 = 0xff;
const SECTOR_SIZE: usize = 512;
/// What the header counts the kernel in, its size rounded up: the file may end within the last one.
const PARAGRAPH: usize = 16;

/// A checked setup header and the kernel that follows it.
struct Image<'a> {
    /// From [`header::START`] on, for `boot_params`.
    header: &'a [u8],
    /// What runs in protected mode.
    kernel: &'a [u8],
    initrd_addr_max: u64,
    cmdline_size: usize,
    pref_address: u64,
    /// Bytes from `pref_address` on that the kernel needs until it reads the memory map.
    init_size: u64,
}

impl<'a> Image<'a> {
    fn parse(file: &'a [u8]) -> Result<Self, LoadError> {
        let is_kernel = file.get(header::MAGIC..).is_some_and(|at| at.starts_with(MAGIC));
        if !is_kernel || u16_at(file, header::BOOT_FLAG)? != BOOT_FLAG {
            return Err(LoadError::NotAKernel);
        }
        let version = u16_at(file, header::VERSION)?;
        if version < VERSION_MIN {
            return Err(LoadError::KernelTooOld { version });
        }
        if u8_at(file, header::LOADFLAGS)? & LOADED_HIGH == 0 {
            return Err(LoadError::NotLoadedHigh);
        }
        let header_end = header::MAGIC + usize::from(u8_at(file, header::JUMP_OFFSET)?);
        if !(header::END_MIN..=params::HEADER_END_MAX).contains(&header_end) {
            return Err(LoadError::NotAKernel);
        }
        let setup_sects = match u8_at(file, header::SETUP_SECTS)? {
            0 => 4,
            sectors => usize::from(sectors),
        };
        let start = (setup_sects + 1) * SECTOR_SIZE;
        let len = u32_at(file, header::SYSSIZE)? as usize * PARAGRAPH;
        let missing = (start + len).saturating_sub(file.len());
        let in_file = if missing < PARAGRAPH { len.saturating_sub(missing) } else { len };
        Ok(Self {
            header: bytes_at(file, header::START, header_end - header::START)?,
            kernel: bytes_at(file, start, in_file)?,
            initrd_addr_max: u64::from(u32_at(file, header::INITRD_ADDR_MAX)?),
            cmdline_size: u32_at(file, header::CMDLINE_SIZE)? as usize,
            pref_address: u64_at(file, header::PREF_ADDRESS)?,
            init_size: u64::from(u32_at(file, header::INIT_SIZE)?).max(len as u64),
        })
    }
}

/// Plans the start of a bzImage.
pub(in crate::loader) fn plan<'a>(file: &'a [u8], boot: &Boot<'a, '_>) -> Result<LoadPlan<'a>, LoadError> {
    let image = Image::parse(file)?;
    boot.check_command_line(image.cmdline_size)?;

    // A relocatable kernel may be put elsewhere, but moves itself to this address if it was put lower.
    let start = image.pref_address;
    let end = start.checked_add(image.init_size).and_then(|end| end.checked_next_multiple_of(PAGE_SIZE));
    let outside = LoadError::SegmentOutsideRam { start, end: start.saturating_add(image.init_size) };
    let end = end.filter(|_| start >= KERNEL_MIN).ok_or(outside)?;
    if end > boot.memory.low_end() {
        return Err(LoadError::MemoryTooSmall { needed: end, memory: boot.memory.size() });
    }
    let initrd = boot.place_initrd(end, image.initrd_addr_max + 1)?;

    let params = boot_params(&image, initrd.as_ref(), boot);
    let mut placements = vec![
        Placement { gpa: start, bytes: Cow::Borrowed(image.kernel) },
        Placement { gpa: BOOT_INFO, bytes: Cow::Owned(params) },
    ];
    placements.extend(initrd);
    let entry = EntryState { kind: EntryKind::Linux32, rip: start, rsi: BOOT_INFO, rbx: 0 };
    Ok(LoadPlan { placements, entry })
}

/// The page that tells the kernel what it was loaded with. All addresses in it are below 4 GiB.
fn boot_params(image: &Image<'_>, initrd: Option<&Placement<'_>>, boot: &Boot<'_, '_>) -> Vec<u8> {
    let mut params = vec![0; PAGE_SIZE as usize];
    let mut put = |offset: usize, bytes: &[u8]| params[offset..offset + bytes.len()].copy_from_slice(bytes);

    put(header::START, image.header);
    put(header::TYPE_OF_LOADER, &[LOADER_UNDEFINED]);
    put(header::CODE32_START, &(image.pref_address as u32).to_le_bytes());
    put(header::CMD_LINE_PTR, &(COMMAND_LINE.start as u32).to_le_bytes());
    if let Some(initrd) = initrd {
        put(header::RAMDISK_IMAGE, &(initrd.gpa as u32).to_le_bytes());
        put(header::RAMDISK_SIZE, &(initrd.bytes.len() as u32).to_le_bytes());
    }
    put(params::ACPI_RSDP_ADDR, &boot.rsdp.to_le_bytes());

    let map = boot.memory.map();
    put(params::E820_ENTRIES, &[map.len() as u8]);
    for (index, entry) in map.iter().enumerate() {
        let offset = params::E820_TABLE + index * 20;
        put(offset, &entry.range.start.to_le_bytes());
        put(offset + 8, &(entry.range.end - entry.range.start).to_le_bytes());
        put(offset + 16, &(entry.kind as u32).to_le_bytes());
    }
    params
}

fn bytes_at(file: &[u8], offset: usize, len: usize) -> Result<&[u8], LoadError> {
    let expected = offset as u64 + len as u64;
    let truncated = LoadError::KernelTruncated { expected, found: file.len() as u64 };
    file.get(offset..).and_then(|rest| rest.get(..len)).ok_or(truncated)
}

fn array_at<const N: usize>(file: &[u8], offset: usize) -> Result<[u8; N], LoadError> {
    bytes_at(file, offset, N).map(|bytes| core::array::from_fn(|index| bytes[index]))
}

fn u8_at(file: &[u8], offset: usize) -> Result<u8, LoadError> {
    array_at(file, offset).map(u8::from_le_bytes)
}

fn u16_at(file: &[u8], offset: usize) -> Result<u16, LoadError> {
    array_at(file, offset).map(u16::from_le_bytes)
}

fn u32_at(file: &[u8], offset: usize) -> Result<u32, LoadError> {
    array_at(file, offset).map(u32::from_le_bytes)
}

fn u64_at(file: &[u8], offset: usize) -> Result<u64, LoadError> {
    array_at(file, offset).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::pc::layout::{ACPI, GDT};
    use crate::loader::{MemoryLayout, plan};
    use std::ops::Range;

    const MIB: u64 = 1 << 20;
    const SETUP_SECTS: usize = 2;
    const KERNEL_LEN: usize = 64 * 16;

    /// A bzImage of Linux 6.1's kind: boot protocol 2.15, 16 MiB preferred, 32 MiB until it is on its own.
    fn image() -> Vec<u8> {
        let mut file = vec![0; (SETUP_SECTS + 1) * SECTOR_SIZE];
        let mut put = |offset: usize, bytes: &[u8]| file[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(header::SETUP_SECTS, &[SETUP_SECTS as u8]);
        put(header::SYSSIZE, &(KERNEL_LEN as u32 / 16).to_le_bytes());
        put(header::BOOT_FLAG, &BOOT_FLAG.to_le_bytes());
        put(header::JUMP_OFFSET, &[0x6a]);
        put(header::MAGIC, MAGIC);
        put(header::VERSION, &0x020f_u16.to_le_bytes());
        put(header::LOADFLAGS, &[LOADED_HIGH]);
        put(header::INITRD_ADDR_MAX, &0x7fff_ffff_u32.to_le_bytes());
        put(header::CMDLINE_SIZE, &2047_u32.to_le_bytes());
        put(header::PREF_ADDRESS, &(16 * MIB).to_le_bytes());
        put(header::INIT_SIZE, &(32 * MIB as u32).to_le_bytes());
        file.extend((0..KERNEL_LEN).map(|index| index as u8 | 1));
        file
    }

    fn patched(offset: usize, bytes: &[u8]) -> Vec<u8> {
        let mut file = image();
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        file
    }

    fn load(file: &[u8], memory: u64) -> Result<(), LoadError> {
        plan(file, None, "", &MemoryLayout::new(memory).unwrap(), 0).map(|_| ())
    }

    fn bytes_in<'p>(plan: &'p LoadPlan<'_>, gpa: u64) -> &'p [u8] {
        &plan.placements.iter().find(|placement| placement.gpa == gpa).unwrap().bytes
    }

    fn u32_in(params: &[u8], offset: usize) -> u64 {
        u32_at(params, offset).unwrap().into()
    }

    #[test]
    fn files_that_are_no_kernel_or_the_wrong_one() {
        assert_eq!(load(&patched(header::MAGIC, b"HdrT"), 64 * MIB), Err(LoadError::NotAKernel));
        assert_eq!(load(&patched(header::BOOT_FLAG, &[0, 0]), 64 * MIB), Err(LoadError::NotAKernel));
        let old = patched(header::VERSION, &0x020b_u16.to_le_bytes());
        assert_eq!(load(&old, 64 * MIB), Err(LoadError::KernelTooOld { version: 0x020b }));
        assert_eq!(load(&patched(header::LOADFLAGS, &[0]), 64 * MIB), Err(LoadError::NotLoadedHigh));
        assert_eq!(load(&patched(header::JUMP_OFFSET, &[0x10]), 64 * MIB), Err(LoadError::NotAKernel));
        assert_eq!(load(&patched(header::JUMP_OFFSET, &[0xff]), 64 * MIB), Err(LoadError::NotAKernel));
    }

    #[test]
    fn u24_a_size_that_is_no_multiple_of_16_is_rounded_up_in_the_header() {
        let file = image();
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        for missing in 0..=15 {
            let kernel = &file[..file.len() - missing];
            let plan = plan(kernel, None, "", &memory, 0).unwrap();
            assert_eq!(bytes_in(&plan, 16 * MIB), &kernel[(SETUP_SECTS + 1) * SECTOR_SIZE..], "{missing}");
        }
        let cut_off =
            LoadError::KernelTruncated { expected: file.len() as u64, found: file.len() as u64 - 16 };
        assert_eq!(load(&file[..file.len() - 16], 64 * MIB), Err(cut_off));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = image();
        for len in 0..=file.len() - PARAGRAPH {
            let error = load(&file[..len], 64 * MIB).unwrap_err();
            assert!(
                matches!(error, LoadError::NotAKernel | LoadError::KernelTruncated { .. }),
                "{len}: {error}"
            );
        }
        assert_eq!(load(&file, 64 * MIB), Ok(()));
        let more = patched(header::SYSSIZE, &u32::MAX.to_le_bytes());
        assert!(matches!(load(&more, 64 * MIB), Err(LoadError::KernelTruncated { .. })));
    }

    #[test]
    fn memory_must_hold_the_kernel_at_its_address() {
        let too_small = LoadError::MemoryTooSmall { needed: 48 * MIB, memory: 46 * MIB };
        assert_eq!(load(&image(), 46 * MIB), Err(too_small));
        assert_eq!(load(&image(), 48 * MIB), Ok(()));
        for address in [0, 0x9_0000, u64::MAX, u64::MAX - 32 * MIB] {
            let file = patched(header::PREF_ADDRESS, &address.to_le_bytes());
            let error = load(&file, 64 * MIB).unwrap_err();
            assert!(
                matches!(error, LoadError::SegmentOutsideRam { .. } | LoadError::MemoryTooSmall { .. }),
                "{address:#x}: {error}"
            );
        }
    }

    #[test]
    fn initrd_goes_high_but_not_above_the_kernels_limit() {
        let file = image();
        let initrd = vec![0xaa; 5 * MIB as usize + 1];
        let place = |memory: u64, file: &[u8]| {
            let memory = MemoryLayout::new(memory).unwrap();
            let plan = plan(file, Some(&initrd), "", &memory, 0)?;
            let params = bytes_in(&plan, BOOT_INFO);
            let gpa = u32_in(params, header::RAMDISK_IMAGE);
            assert_eq!(u32_in(params, header::RAMDISK_SIZE), initrd.len() as u64);
            assert_eq!(bytes_in(&plan, gpa), initrd);
            Ok(gpa)
        };
        let below = |end: u64| (end - initrd.len() as u64) & !0xfff;
        assert_eq!(place(64 * MIB, &file), Ok(below(64 * MIB)));
        assert_eq!(place(4096 * MIB, &file), Ok(below(2048 * MIB)));
        let limited = patched(header::INITRD_ADDR_MAX, &(60 * MIB as u32 - 1).to_le_bytes());
        assert_eq!(place(64 * MIB, &limited), Ok(below(60 * MIB)));
        let error = LoadError::InitrdTooLarge { size: initrd.len() as u64, available: 4 * MIB };
        assert_eq!(place(52 * MIB, &file), Err(error));
        assert!(place(54 * MIB, &file).is_ok());
        let nowhere = patched(header::INITRD_ADDR_MAX, &0_u32.to_le_bytes());
        let error = LoadError::InitrdTooLarge { size: initrd.len() as u64, available: 0 };
        assert_eq!(place(64 * MIB, &nowhere), Err(error));
    }

    #[test]
    fn command_line_up_to_the_kernels_limit() {
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        let file = image();
        let long = "x".repeat(2048);
        let error = LoadError::CommandLineTooLong { length: 2048, most: 2047 };
        assert_eq!(plan(&file, None, &long, &memory, 0), Err(error));
        let plan_of = |line| plan(&file, None, line, &memory, 0);
        let whole = plan_of(&long[1..]).unwrap();
        assert_eq!(bytes_in(&whole, COMMAND_LINE.start), [&long.as_bytes()[1..], b"\0"].concat());
        let error = LoadError::CommandLineHasNul { offset: 5 };
        assert_eq!(plan_of("quiet\0init=/bin/sh"), Err(error));
        let generous = patched(header::CMDLINE_SIZE, &u32::MAX.to_le_bytes());
        let huge = "x".repeat(0x1_0000);
        let error = LoadError::CommandLineTooLong { length: 0x1_0000, most: 0xffff };
        assert_eq!(plan(&generous, None, &huge, &memory, 0), Err(error));
    }

    #[test]
    fn boot_params_say_where_everything_is() {
        let file = image();
        let memory = MemoryLayout::new(4096 * MIB).unwrap();
        let plan = plan(&file, None, "console=ttyS0", &memory, ACPI.start).unwrap();
        let entry = EntryState { kind: EntryKind::Linux32, rip: 16 * MIB, rsi: BOOT_INFO, rbx: 0 };
        assert_eq!(plan.entry, entry);
        assert_eq!(bytes_in(&plan, 16 * MIB), &file[(SETUP_SECTS + 1) * SECTOR_SIZE..]);

        let params = bytes_in(&plan, BOOT_INFO);
        assert_eq!(params.len() as u64, PAGE_SIZE);
        assert_eq!(params[..0x70], [0; 0x70]);
        assert_eq!(u64_at(params, params::ACPI_RSDP_ADDR), Ok(ACPI.start));
        assert_eq!(params[header::TYPE_OF_LOADER], LOADER_UNDEFINED);
        assert_eq!(u32_in(params, header::CMD_LINE_PTR), COMMAND_LINE.start);
        assert_eq!(u32_in(params, header::CODE32_START), 16 * MIB);
        assert_eq!((u32_in(params, header::RAMDISK_IMAGE), u32_in(params, header::RAMDISK_SIZE)), (0, 0));
        assert_eq!(params[header::MAGIC..][..4], *MAGIC, "the file's header is copied");
        assert_eq!(params[header::MAGIC + 0x6a..params::E820_TABLE], [0; 100][..params::E820_TABLE - 0x26c]);

        let line = |index: usize| {
            let at = params::E820_TABLE + index * 20;
            (u64_at(params, at).unwrap(), u64_at(params, at + 8).unwrap(), u32_in(params, at + 16))
        };
        assert_eq!(params[params::E820_ENTRIES], 6);
        assert_eq!(line(0), (0, 0xa_0000, 1));
        assert_eq!(line(2), (0xe_0000, 0x1_0000, 3));
        assert_eq!(line(4), (0x10_0000, 3071 * MIB, 1));
        assert_eq!(line(5), (4096 * MIB, 1024 * MIB, 1));
    }

    #[test]
    fn placements_neither_overlap_nor_leave_ram() {
        let file = image();
        let initrd = vec![1; 3 * MIB as usize];
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        let plan = plan(&file, Some(&initrd), "quiet", &memory, ACPI.start).unwrap();
        let mut ranges: Vec<Range<u64>> = plan.placements.iter().map(Placement::range).collect();
        assert!(ranges.iter().all(|range| memory.is_ram(range)), "{ranges:x?}");
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:x?}");
        assert_eq!(ranges[0].start, GDT);
        assert_eq!(ranges.len(), 5);
    }

    #[test]
    fn an_empty_initrd_is_none() {
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        let file = image();
        assert_eq!(plan(&file, Some(&[]), "", &memory, 0), plan(&file, None, "", &memory, 0));
    }
}
