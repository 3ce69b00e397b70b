//! An ELF, of 64 or 32 bits, with Xen's PVH entry note (docs/misc/pvh.pandoc and
//! public/arch-x86/hvm/start_info.h of Xen).

use super::layout::{ACPI, BOOT_INFO, COMMAND_LINE, KERNEL_MIN};
use crate::loader::{Boot, EntryKind, EntryState, LoadError, LoadPlan, Placement};
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::ops::Range;
use elf::ElfBytes;
use elf::abi::{EM_386, EM_X86_64, PT_LOAD, PT_NOTE};
use elf::endian::LittleEndian;
use elf::file::Class;
use elf::note::Note;
use elf::segment::SegmentTable;
use hostlink::bzimage::Unusable;

/// Owner and type of the note that holds the entry's physical address.
const NOTE_NAME: &[u8] = b"Xen\0";
const XEN_ELFNOTE_PHYS32_ENTRY: u64 = 18;

/// No kernel has more program headers, or longer notes. They bound the heap and the time that a
/// plan takes.
const SEGMENTS_MAX: usize = 64;
const NOTES_MAX: u64 = 64 << 10;

const START_MAGIC: u32 = 0x336e_c578;
const START_INFO_LEN: u64 = 56;
const MODULE_LEN: u64 = 32;

type Elf<'a> = ElfBytes<'a, LittleEndian>;
type Segments<'a> = SegmentTable<'a, LittleEndian>;

const fn unsupported(reason: &'static str) -> LoadError {
    LoadError::UnsupportedElf { reason }
}

pub(in crate::loader) fn plan<'a>(file: &'a [u8], boot: &Boot<'a, '_>) -> Result<LoadPlan<'a>, LoadError> {
    let elf = parse(file)?;
    boot.check_command_line(usize::MAX)?;
    let table = elf.segments().ok_or(unsupported("an ELF without program headers"))?;
    if table.len() > SEGMENTS_MAX {
        return Err(unsupported("an ELF with more than 64 program headers"));
    }
    let rip = u64::from(entry(&elf, &table)?);
    let (mut placements, ranges) = segments(&elf, &table, file, boot)?;
    let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    if !ranges.iter().any(|range| range.contains(&rip)) {
        return Err(unsupported("an ELF whose PVH entry lies outside its segments"));
    }
    let initrd = boot.place_initrd(end.max(KERNEL_MIN), u64::MAX)?;
    placements.push(Placement { gpa: BOOT_INFO, bytes: Cow::Owned(start_info(initrd.as_ref(), boot)) });
    placements.extend(initrd);
    Ok(LoadPlan { placements, entry: EntryState { kind: EntryKind::Pvh, rip, rsi: 0, rbx: BOOT_INFO } })
}

fn parse(file: &[u8]) -> Result<Elf<'_>, LoadError> {
    let elf = Elf::minimal_parse(file)
        .map_err(|_| unsupported("a damaged ELF, or one for a big-endian machine"))?;
    // The entry is in 32-bit mode, so either class is suitable.
    match (elf.ehdr.class, elf.ehdr.e_machine) {
        (Class::ELF64, EM_X86_64) | (Class::ELF32, EM_386) => Ok(elf),
        _ => Err(unsupported("an ELF for another machine")),
    }
}

/// The loadable segments by physical address: bytes to copy, and the ranges that they occupy. The
/// part of a range after its bytes is zero already.
fn segments<'a>(
    elf: &Elf<'a>,
    table: &Segments<'a>,
    file: &'a [u8],
    boot: &Boot<'a, '_>,
) -> Result<(Vec<Placement<'a>>, Vec<Range<u64>>), LoadError> {
    let (mut placements, mut ranges) = (Vec::new(), Vec::<Range<u64>>::new());
    for segment in table.iter().filter(|segment| segment.p_type == PT_LOAD && segment.p_memsz != 0) {
        let end = segment.p_paddr.saturating_add(segment.p_memsz);
        let range = segment.p_paddr..end;
        // The boot data and the ACPI tables are below 1 MiB.
        if range.start < KERNEL_MIN || end > boot.memory.low_end() {
            return Err(LoadError::SegmentOutsideRam { start: range.start, end });
        }
        if ranges.iter().any(|other| other.start < range.end && range.start < other.end) {
            return Err(unsupported("an ELF with segments that overlap"));
        }
        if segment.p_filesz > segment.p_memsz {
            return Err(unsupported("an ELF with a segment that is larger in the file than in memory"));
        }
        let found = file.len() as u64;
        let expected = segment.p_offset.saturating_add(segment.p_filesz);
        let bytes = elf.segment_data(&segment).map_err(|_| Unusable::Truncated { expected, found })?;
        placements.push(Placement { gpa: range.start, bytes: Cow::Borrowed(bytes) });
        ranges.push(range);
    }
    Ok((placements, ranges))
}

/// The entry's physical address, from the note.
fn entry(elf: &Elf<'_>, table: &Segments<'_>) -> Result<u32, LoadError> {
    for segment in table.iter().filter(|segment| segment.p_type == PT_NOTE) {
        if segment.p_filesz > NOTES_MAX {
            return Err(unsupported("an ELF with more than 64 KiB of notes"));
        }
        let notes =
            elf.segment_data_as_notes(&segment).map_err(|_| unsupported("an ELF with damaged notes"))?;
        for note in notes {
            let Note::Unknown(note) = note else { continue };
            if note.name != NOTE_NAME || note.n_type != XEN_ELFNOTE_PHYS32_ENTRY {
                continue;
            }
            let address = match *note.desc {
                [a, b, c, d] | [a, b, c, d, 0, 0, 0, 0] => u32::from_le_bytes([a, b, c, d]),
                _ => return Err(unsupported("an ELF whose PVH entry is not a 32-bit address")),
            };
            return Ok(address);
        }
    }
    Err(unsupported("an ELF without a PVH entry note"))
}

/// `hvm_start_info` version 1, the module list and the memory map, in this order.
fn start_info(initrd: Option<&Placement<'_>>, boot: &Boot<'_, '_>) -> Vec<u8> {
    let map = boot.memory.map();
    let modules = u64::from(initrd.is_some());
    let module_list = BOOT_INFO + START_INFO_LEN;
    let memory_map = module_list + modules * MODULE_LEN;

    let mut info = Vec::new();
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let start = [
        pair(START_MAGIC, 1),
        pair(0, modules as u32),
        if modules == 0 { 0 } else { module_list },
        COMMAND_LINE.start,
        boot.rsdp,
        memory_map,
        pair(map.len() as u32, 0),
    ];
    let module = initrd.map(|initrd| [initrd.gpa, initrd.bytes.len() as u64, 0, 0]);
    let words = start.into_iter().chain(module.into_iter().flatten());
    let map = map.iter().flat_map(|entry| {
        [entry.range.start, entry.range.end - entry.range.start, pair(entry.kind as u32, 0)]
    });
    words.chain(map).for_each(|word: u64| info.extend_from_slice(&word.to_le_bytes()));
    info
}

const _: () = assert!(ACPI.end <= KERNEL_MIN && COMMAND_LINE.end <= KERNEL_MIN);

#[cfg(test)]
pub(in crate::loader) mod tests {
    use super::*;
    use crate::loader::pc::layout::GDT;
    use crate::loader::{MemoryLayout, plan};

    const MIB: u64 = 1 << 20;
    const ENTRY: u64 = 2 * MIB + 0x40;

    /// Offsets of the fields that tests corrupt.
    const MACHINE: usize = 18;
    const PROGRAM_HEADERS: usize = 64;
    const LOAD: usize = PROGRAM_HEADERS;
    const NOTE: usize = PROGRAM_HEADERS + 56;
    const NOTE_DATA: usize = PROGRAM_HEADERS + 2 * 56;
    const PADDR: usize = 24;
    const FILESZ: usize = 32;
    const MEMSZ: usize = 40;

    fn header(kind: u32, offset: u64, address: u64, file_size: u64, memory_size: u64) -> Vec<u8> {
        let words = [u64::from(kind) | 7 << 32, offset, address, address, file_size, memory_size, 4];
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn note(name: &[u8; 4], kind: u32, entry: &[u8]) -> Vec<u8> {
        let sizes = [4, entry.len() as u32, kind];
        sizes.into_iter().flat_map(u32::to_le_bytes).chain(*name).chain(entry.iter().copied()).collect()
    }

    /// One segment of 256 bytes (4 KiB in memory) at 2 MiB, and the note that follows the program
    /// headers.
    fn image(note: &[u8]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend([2, 0, EM_X86_64 as u8, 0, 1, 0, 0, 0]);
        let words = [0xffff_ffff_8100_0000, PROGRAM_HEADERS as u64, 0];
        words.into_iter().for_each(|word: u64| file.extend(word.to_le_bytes()));
        file.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
        let code = (NOTE_DATA + note.len()) as u64;
        file.extend(header(PT_LOAD, code, 2 * MIB, 256, 4096));
        file.extend(header(PT_NOTE, NOTE_DATA as u64, 0, note.len() as u64, note.len() as u64));
        file.extend(note);
        file.extend([0xf4; 256]);
        file
    }

    /// An ELF with its entry.
    pub(crate) fn kernel() -> Vec<u8> {
        image(&note(b"Xen\0", 18, &ENTRY.to_le_bytes()))
    }

    /// The same as a 32-bit ELF.
    fn kernel_of_32_bits() -> Vec<u8> {
        let note = note(b"Xen\0", 18, &(ENTRY as u32).to_le_bytes());
        let mut file = b"\x7fELF\x01\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend([2, 0, EM_386 as u8, 0, 1, 0, 0, 0]);
        let words = [ENTRY as u32, 52, 0, 0];
        words.into_iter().for_each(|word: u32| file.extend(word.to_le_bytes()));
        file.extend([52, 0, 32, 0, 2, 0, 40, 0, 0, 0, 0, 0]);
        let (notes, size) = (52 + 2 * 32, note.len() as u32);
        let load = [PT_LOAD, notes + size, 0xc000_0000, 2 * MIB as u32, 256, 4096, 7, 4];
        let note_header = [PT_NOTE, notes, 0, 0, size, size, 4, 4];
        load.into_iter().chain(note_header).for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(note);
        file.extend([0xf4; 256]);
        file
    }

    #[test]
    fn u24_an_elf_of_32_bits_starts_as_one_of_64_does() {
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        let (wide, narrow) = (kernel(), kernel_of_32_bits());
        let plan_of = |file| plan(file, Some(&[1, 2, 3]), "a b", &memory, 0xe_0000);
        assert_eq!(plan_of(&narrow).unwrap(), plan_of(&wide).unwrap());
        for len in 0..narrow.len() {
            assert!(plan(&narrow[..len], None, "", &memory, 0).is_err(), "{len}");
        }
    }

    fn patched(offset: usize, bytes: &[u8]) -> Vec<u8> {
        let mut file = kernel();
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        file
    }

    fn error(file: &[u8]) -> LoadError {
        plan(file, None, "", &MemoryLayout::new(64 * MIB).unwrap(), 0).unwrap_err()
    }

    fn is_unsupported(file: &[u8]) -> bool {
        matches!(error(file), LoadError::UnsupportedElf { .. })
    }

    #[test]
    fn elfs_for_something_else() {
        assert!(is_unsupported(&patched(MACHINE, &[0xb7])), "AArch64");
        assert!(is_unsupported(&patched(4, &[1])), "32-bit, for a 64-bit machine");
        let mut narrow = kernel_of_32_bits();
        narrow[MACHINE] = EM_X86_64 as u8;
        assert!(is_unsupported(&narrow), "x32");
        assert!(is_unsupported(&patched(5, &[2])), "big-endian");
        assert!(is_unsupported(b"\x7fELF"));
        assert!(is_unsupported(&image(&[])), "no note");
        assert!(is_unsupported(&image(&note(b"Xen\0", 17, &[0; 4]))), "another note");
        assert!(is_unsupported(&image(&note(b"GNU\0", 18, &ENTRY.to_le_bytes()))), "another owner");
        assert!(is_unsupported(&image(&note(b"Xen\0", 18, &[0; 3]))), "a size that is no address");
        assert!(is_unsupported(&image(&note(b"Xen\0", 18, &(1_u64 << 32).to_le_bytes()))), "above 4 GiB");
    }

    #[test]
    fn m6_the_work_of_a_plan_is_bounded() {
        /// Offset of the number of program headers.
        const COUNT: usize = 56;
        let table = |count: usize| {
            let mut file = patched(COUNT, &(count as u16).to_le_bytes());
            file[32..40].copy_from_slice(&(kernel().len() as u64).to_le_bytes());
            file.extend_from_slice(&kernel()[LOAD..NOTE_DATA]);
            file.resize(kernel().len() + count * 56, 0);
            file
        };
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        assert!(plan(&table(SEGMENTS_MAX), None, "", &memory, 0).is_ok());
        let many = LoadError::UnsupportedElf { reason: "an ELF with more than 64 program headers" };
        assert_eq!(error(&table(SEGMENTS_MAX + 1)), many);
        let long = image(&[note(b"Xen\0", 18, &ENTRY.to_le_bytes()), vec![0; 64 << 10]].concat());
        assert_eq!(
            error(&long),
            LoadError::UnsupportedElf { reason: "an ELF with more than 64 KiB of notes" }
        );
    }

    #[test]
    fn the_entry_must_lie_in_a_segment() {
        for entry in [0, MIB, 2 * MIB - 1, 2 * MIB + 4096] {
            assert!(is_unsupported(&image(&note(b"Xen\0", 18, &entry.to_le_bytes()))), "{entry:#x}");
        }
    }

    #[test]
    fn segments_outside_free_ram() {
        for address in [0, 0x7000, 0xe_0000, MIB - 1, 64 * MIB, 64 * MIB - 4095, u64::MAX - 4095, u64::MAX] {
            let file = patched(LOAD + PADDR, &address.to_le_bytes());
            assert!(matches!(error(&file), LoadError::SegmentOutsideRam { .. }), "{address:#x}");
        }
        let file = patched(LOAD + MEMSZ, &u64::MAX.to_le_bytes());
        assert!(matches!(error(&file), LoadError::SegmentOutsideRam { .. }));
        assert!(is_unsupported(&patched(LOAD + FILESZ, &4097_u64.to_le_bytes())), "more bytes than memory");
        // The note's header turned into a second segment at the same place.
        let twin = header(PT_LOAD, 0, 2 * MIB + 0xfff, 1, 1);
        assert!(is_unsupported(&patched(NOTE, &twin)), "overlap");
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = kernel();
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        for len in 0..file.len() {
            assert!(plan(&file[..len], None, "", &memory, 0).is_err(), "{len}");
        }
        assert!(plan(&file, None, "", &memory, 0).is_ok());
    }

    #[test]
    fn initrd_does_not_fit() {
        let file = kernel();
        let initrd = vec![0; 3 * MIB as usize];
        let load = |memory: u64| plan(&file, Some(&initrd), "", &MemoryLayout::new(memory).unwrap(), 0);
        let error = LoadError::InitrdTooLarge { size: 3 * MIB, available: 2 * MIB - 4096 };
        assert_eq!(load(4 * MIB), Err(error));
        assert!(load(6 * MIB).is_ok());
        let long = "x".repeat(0x1_0000);
        let memory = MemoryLayout::new(4 * MIB).unwrap();
        assert!(matches!(plan(&file, None, &long, &memory, 0), Err(LoadError::CommandLineTooLong { .. })));
    }

    #[test]
    fn the_note_may_hold_four_or_eight_bytes_and_follow_others() {
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        let other = note(b"Xen\0", 5, b"2.6\0");
        for entry in [&ENTRY.to_le_bytes()[..], &(ENTRY as u32).to_le_bytes()] {
            let file = image(&[other.clone(), note(b"Xen\0", 18, entry)].concat());
            let plan = plan(&file, None, "", &memory, 0).unwrap();
            let expected = EntryState { kind: EntryKind::Pvh, rip: ENTRY, rsi: 0, rbx: BOOT_INFO };
            assert_eq!(plan.entry, expected);
        }
    }

    #[test]
    fn start_info_says_where_everything_is() {
        let file = kernel();
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        let initrd = [7; 5000];
        let plan = plan(&file, Some(&initrd), "a b", &memory, 0xe_0000).unwrap();
        let bytes =
            |gpa: u64| &plan.placements.iter().find(|placement| placement.gpa == gpa).unwrap().bytes[..];
        let info: Vec<u64> =
            bytes(BOOT_INFO).chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let initrd_at = 64 * MIB - 8192;
        let modules = BOOT_INFO + 56;
        let start = [1 << 32 | 0x336e_c578, 1 << 32, modules, COMMAND_LINE.start, 0xe_0000, modules + 32, 5];
        assert_eq!(info[..7], start);
        assert_eq!(info[7..11], [initrd_at, 5000, 0, 0]);
        assert_eq!(info[11..14], [0, 0xa_0000, 1]);
        assert_eq!(info[17..20], [0xe_0000, 0x1_0000, 3]);
        assert_eq!(info.len(), 11 + 5 * 3);
        assert_eq!(bytes(initrd_at), initrd);
        assert_eq!(bytes(2 * MIB), [0xf4; 256]);
        assert_eq!(bytes(COMMAND_LINE.start), b"a b");
        assert_eq!(bytes(GDT).len(), 40);
    }

    #[test]
    fn no_module_without_an_initrd() {
        let file = kernel();
        let memory = MemoryLayout::new(64 * MIB).unwrap();
        let plan = plan(&file, None, "", &memory, 0).unwrap();
        let info = plan.placements.iter().find(|placement| placement.gpa == BOOT_INFO).unwrap();
        assert_eq!(info.bytes[8..24], [0; 16]);
        assert_eq!(info.bytes[40..48], (BOOT_INFO + 56).to_le_bytes());
    }
}
