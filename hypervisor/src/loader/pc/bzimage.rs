//! Linux' bzImage by the 32-bit boot protocol (Documentation/arch/x86/boot.rst).

use super::layout::{BOOT_INFO, COMMAND_LINE, KERNEL_MIN, PAGE_SIZE};
use crate::loader::{Boot, EntryKind, EntryState, LoadError, LoadPlan, Placement};
use alloc::borrow::Cow;
use alloc::vec;
use hostlink::bzimage::{Image, Told};

pub(in crate::loader) fn plan<'a>(file: &'a [u8], boot: &Boot<'a, '_>) -> Result<LoadPlan<'a>, LoadError> {
    let image = Image::parse(file)?;
    boot.check_command_line(image.header.cmdline_size.get() as usize)?;

    // A relocatable kernel may be placed elsewhere, but moves itself to this address if it was
    // placed lower.
    let start = image.header.pref_address.get();
    let end = start.checked_add(image.init_size()).and_then(|end| end.checked_next_multiple_of(PAGE_SIZE));
    let outside = LoadError::SegmentOutsideRam { start, end: start.saturating_add(image.init_size()) };
    let end = end.filter(|_| start >= KERNEL_MIN).ok_or(outside)?;
    if end > boot.memory.low_end() {
        return Err(LoadError::MemoryTooSmall { needed: end, memory: boot.memory.size() });
    }
    let initrd = boot.place_initrd(end, u64::from(image.header.initrd_addr_max.get()) + 1)?;

    let params = image.boot_params(Told {
        start: start as u32,
        command_line: COMMAND_LINE.start as u32,
        initrd: initrd.as_ref().map(|initrd| initrd.range()).map(|at| at.start as u32..at.end as u32),
        rsdp: boot.rsdp,
        map: boot.memory.map().into_iter().map(|entry| (entry.range, entry.kind as u32)),
    });
    let mut placements = vec![
        Placement { gpa: start, bytes: Cow::Borrowed(image.kernel) },
        Placement { gpa: BOOT_INFO, bytes: Cow::Owned(params.to_vec()) },
    ];
    placements.extend(initrd);
    let entry = EntryState { kind: EntryKind::Linux32, rip: start, rsi: BOOT_INFO, rbx: 0 };
    Ok(LoadPlan { placements, entry })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::pc::layout::{ACPI, GDT};
    use crate::loader::{MemoryLayout, plan};
    use core::mem::offset_of;
    use hostlink::bzimage::{PARAGRAPH, SECTOR_SIZE, START, SetupHeader, Unusable};
    use std::ops::Range;

    /// Offsets of fields, in the file and in `boot_params`.
    const fn at(offset: usize) -> usize {
        START + offset
    }

    /// Offsets in `boot_params` outside the header.
    mod params {
        pub(super) const ACPI_RSDP_ADDR: usize = 0x070;
        pub(super) const E820_ENTRIES: usize = 0x1e8;
        pub(super) const E820_TABLE: usize = 0x2d0;
    }
    const LOADER_UNDEFINED: u8 = 0xff;

    const MIB: u64 = 1 << 20;
    const SETUP_SECTS: usize = 2;
    const KERNEL_LEN: usize = 64 * 16;

    /// A bzImage like Linux 6.1's: boot protocol 2.15, 16 MiB preferred, 32 MiB needed at first.
    fn image() -> Vec<u8> {
        let mut file = vec![0; (SETUP_SECTS + 1) * SECTOR_SIZE];
        let header = SetupHeader::of_mut(&mut file).unwrap();
        header.setup_sects = SETUP_SECTS as u8;
        header.syssize = (KERNEL_LEN as u32 / 16).into();
        header.boot_flag = SetupHeader::BOOT_FLAG.into();
        header.jump_offset = 0x6a;
        header.magic = SetupHeader::MAGIC;
        header.version = 0x020f.into();
        header.loadflags = SetupHeader::LOADED_HIGH;
        header.initrd_addr_max = 0x7fff_ffff.into();
        header.cmdline_size = 2047.into();
        header.pref_address = (16 * MIB).into();
        header.init_size = (32 * MIB as u32).into();
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

    fn u64_in(params: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(params[offset..offset + 8].try_into().unwrap())
    }

    fn u32_in(params: &[u8], offset: usize) -> u64 {
        u32::from_le_bytes(params[offset..offset + 4].try_into().unwrap()).into()
    }

    #[test]
    fn files_that_are_no_kernel_or_the_wrong_one() {
        assert_eq!(
            load(&patched(at(offset_of!(SetupHeader, magic)), b"HdrT"), 64 * MIB),
            Err(LoadError::Kernel(Unusable::NotAKernel))
        );
        assert_eq!(
            load(&patched(at(offset_of!(SetupHeader, boot_flag)), &[0, 0]), 64 * MIB),
            Err(LoadError::Kernel(Unusable::NotAKernel))
        );
        let old = patched(at(offset_of!(SetupHeader, version)), &0x020b_u16.to_le_bytes());
        assert_eq!(load(&old, 64 * MIB), Err(LoadError::Kernel(Unusable::TooOld { version: 0x020b })));
        assert_eq!(
            load(&patched(at(offset_of!(SetupHeader, loadflags)), &[0]), 64 * MIB),
            Err(LoadError::Kernel(Unusable::NotLoadedHigh))
        );
        assert_eq!(
            load(&patched(at(offset_of!(SetupHeader, jump_offset)), &[0x10]), 64 * MIB),
            Err(LoadError::Kernel(Unusable::NotAKernel))
        );
        assert_eq!(
            load(&patched(at(offset_of!(SetupHeader, jump_offset)), &[0xff]), 64 * MIB),
            Err(LoadError::Kernel(Unusable::NotAKernel))
        );
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
        let cut_off = LoadError::Kernel(Unusable::Truncated {
            expected: file.len() as u64,
            found: file.len() as u64 - 16,
        });
        assert_eq!(load(&file[..file.len() - 16], 64 * MIB), Err(cut_off));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = image();
        for len in 0..=file.len() - PARAGRAPH {
            let error = load(&file[..len], 64 * MIB).unwrap_err();
            assert!(
                matches!(error, LoadError::Kernel(Unusable::NotAKernel | Unusable::Truncated { .. })),
                "{len}: {error}"
            );
        }
        assert_eq!(load(&file, 64 * MIB), Ok(()));
        let more = patched(at(offset_of!(SetupHeader, syssize)), &u32::MAX.to_le_bytes());
        assert!(matches!(load(&more, 64 * MIB), Err(LoadError::Kernel(Unusable::Truncated { .. }))));
    }

    #[test]
    fn memory_must_hold_the_kernel_at_its_address() {
        let too_small = LoadError::MemoryTooSmall { needed: 48 * MIB, memory: 46 * MIB };
        assert_eq!((load(&image(), 46 * MIB), load(&image(), 48 * MIB)), (Err(too_small), Ok(())));
        for address in [0, 0x9_0000, u64::MAX, u64::MAX - 32 * MIB] {
            let file = patched(at(offset_of!(SetupHeader, pref_address)), &address.to_le_bytes());
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
            let gpa = u32_in(params, at(offset_of!(SetupHeader, ramdisk_image)));
            assert_eq!(u32_in(params, at(offset_of!(SetupHeader, ramdisk_size))), initrd.len() as u64);
            assert_eq!(bytes_in(&plan, gpa), initrd);
            Ok(gpa)
        };
        let below = |end: u64| (end - initrd.len() as u64) & !0xfff;
        assert_eq!(place(64 * MIB, &file), Ok(below(64 * MIB)));
        assert_eq!(place(4096 * MIB, &file), Ok(below(2048 * MIB)));
        let limited =
            patched(at(offset_of!(SetupHeader, initrd_addr_max)), &(60 * MIB as u32 - 1).to_le_bytes());
        assert_eq!(place(64 * MIB, &limited), Ok(below(60 * MIB)));
        let error = LoadError::InitrdTooLarge { size: initrd.len() as u64, available: 4 * MIB };
        assert_eq!(place(52 * MIB, &file), Err(error));
        assert!(place(54 * MIB, &file).is_ok());
        let nowhere = patched(at(offset_of!(SetupHeader, initrd_addr_max)), &0_u32.to_le_bytes());
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
        assert!(*bytes_in(&whole, COMMAND_LINE.start) == long.as_bytes()[1..], "memory behind it is zero");
        let error = LoadError::CommandLineHasNul { offset: 5 };
        assert_eq!(plan_of("quiet\0init=/bin/sh"), Err(error));
        let generous = patched(at(offset_of!(SetupHeader, cmdline_size)), &u32::MAX.to_le_bytes());
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
        assert_eq!(u64_in(params, params::ACPI_RSDP_ADDR), ACPI.start);
        assert_eq!(params[at(offset_of!(SetupHeader, type_of_loader))], LOADER_UNDEFINED);
        assert_eq!(u32_in(params, at(offset_of!(SetupHeader, cmd_line_ptr))), COMMAND_LINE.start);
        assert_eq!(u32_in(params, at(offset_of!(SetupHeader, code32_start))), 16 * MIB);
        assert_eq!(
            (
                u32_in(params, at(offset_of!(SetupHeader, ramdisk_image))),
                u32_in(params, at(offset_of!(SetupHeader, ramdisk_size)))
            ),
            (0, 0)
        );
        assert_eq!(
            params[at(offset_of!(SetupHeader, magic))..][..4],
            SetupHeader::MAGIC,
            "the file's header is copied"
        );
        assert_eq!(
            params[at(offset_of!(SetupHeader, magic)) + 0x6a..params::E820_TABLE],
            [0; 100][..params::E820_TABLE - 0x26c]
        );

        let line = |index: usize| {
            let at = params::E820_TABLE + index * 20;
            (u64_in(params, at), u64_in(params, at + 8), u32_in(params, at + 16))
        };
        assert_eq!((params[params::E820_ENTRIES], line(0)), (6, (0, 0xa_0000, 1)));
        assert_eq!((line(2), line(4)), ((0xe_0000, 0x1_0000, 3), (0x10_0000, 3071 * MIB, 1)));
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
        assert_eq!((ranges[0].start, ranges.len()), (GDT, 5));
    }

    #[test]
    fn an_empty_initrd_is_none() {
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        let file = image();
        assert_eq!(plan(&file, Some(&[]), "", &memory, 0), plan(&file, None, "", &memory, 0));
    }
}
