//! ELF files in their memory layout, for loaders that do not support ELF: arm64 boot images; and
//! bzImages of ELF files that are prepared for it (`crates/baremetal`, `linux.rs`): their setup
//! sectors, the code that moves the image to its place, and the image. Source: the kernel's
//! Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header".

use crate::prelude::*;
use hostlink::bzimage::{PARAGRAPH, SetupHeader};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Object, ObjectSection, ObjectSymbol};

/// The largest size of an image: a wrong address would make it as large as the address space.
pub(crate) const IMAGE_MAX: u64 = 64 << 20;

/// Of an arm64 boot image: Linux, Documentation/arch/arm64/booting.rst, "Call the kernel image".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArmHeader {
    /// The image's load offset from a multiple of 2 MiB.
    pub(crate) text_offset: u64,
    /// Bytes of memory that it needs, including memory that is not in the file.
    pub(crate) image_size: u64,
}

impl ArmHeader {
    const MAGIC: &[u8] = b"ARM\x64";
    const MAGIC_AT: usize = 56;

    pub(crate) fn of(image: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(image.get(at..at + 8)?.try_into().ok()?));
        let magic = image.get(Self::MAGIC_AT..Self::MAGIC_AT + 4)?;
        (magic == Self::MAGIC).then_some(Self { text_offset: word(8)?, image_size: word(16)? })
    }

    /// Where QEMU's loader puts the image: it leaves room for its own first instructions.
    fn load_address(self) -> u64 {
        const OWN: u64 = 4096;
        let offset = if self.text_offset < OWN { self.text_offset + (2 << 20) } else { self.text_offset };
        Arch::Aarch64.ram_base().saturating_add(offset)
    }
}

/// The lowest physical address, and the bytes from there on, without trailing zeroes.
pub(crate) fn flat(file: &ElfFile64<'_>) -> Result<(u64, Vec<u8>)> {
    let endian = file.endian();
    let headers = file.elf_program_headers().iter();
    let mut loaded: Vec<_> = headers
        .filter(|header| header.p_type(endian) == object::elf::PT_LOAD && header.p_filesz(endian) != 0)
        .collect();
    loaded.sort_by_key(|header| header.p_paddr(endian));
    let start = loaded.first().context("the file has nothing to load")?.p_paddr(endian);
    let mut image = Vec::new();
    for header in loaded {
        let data = header.data(endian, file.data()).ok();
        let data = data.context("a segment lies beyond the end of the file")?;
        let offset = header.p_paddr(endian) - start;
        ensure!(
            offset.saturating_add(data.len() as u64) <= IMAGE_MAX,
            "the segments are too far from each other"
        );
        let end = usize::try_from(offset)? + data.len();
        image.resize(end.max(image.len()), 0);
        image[end - data.len()..end].copy_from_slice(data);
    }
    Ok((start, image))
}

/// Makes the boot image of an ELF file that begins with its header, linked where QEMU loads it.
fn boot_image(elf: &[u8]) -> Result<Vec<u8>> {
    let file = ElfFile64::<object::Endianness>::parse(elf).context("not an ELF64 file")?;
    let header = file.elf_header();
    ensure!(header.e_machine(file.endian()) == object::elf::EM_AARCH64, "the file is not for Arm64");
    let (start, image) = flat(&file)?;
    let told = ArmHeader::of(&image).context("the file does not begin with an arm64 boot image's header")?;
    ensure!(
        start == told.load_address(),
        "the file is linked at {start:#x}, and its header has it loaded at {:#x}",
        told.load_address()
    );
    ensure!(
        told.image_size >= image.len() as u64,
        "the header says {:#x} bytes, and the file has {:#x}",
        told.image_size,
        image.len()
    );
    Ok(image)
}

/// Writes the boot image of the ELF file at `elf` next to it; returns its path.
pub(crate) fn write_boot_image(elf: &Path) -> Result<PathBuf> {
    let bytes = fs::read(elf).with_context(|| format!("cannot read {}", elf.display()))?;
    let image =
        boot_image(&bytes).with_context(|| format!("cannot make a boot image of {}", elf.display()))?;
    let path = elf.with_added_extension("img");
    // Another run may be starting a machine from the existing file.
    let part = elf.with_added_extension(format!("{}.part", std::process::id()));
    fs::write(&part, image)
        .and_then(|()| fs::rename(&part, &path))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

const SETUP: &str = ".linux.setup";
const HIGH: &str = ".linux.high";
/// Symbol whose value is the number of bytes that `.linux.high` copies.
const LOAD_SIZE: &str = "__image_load_size";

pub(crate) fn bzimage_from_elf(elf: &[u8]) -> Result<Vec<u8>> {
    let file = ElfFile64::<object::Endianness>::parse(elf).context("not an ELF64 file")?;
    let section = |name: &str| -> Result<&[u8]> {
        let section =
            file.section_by_name(name).with_context(|| format!("the file has no section {name}"))?;
        section.data().with_context(|| format!("the section {name} has no contents"))
    };
    let (setup, high) = (section(SETUP)?, section(HIGH)?);
    let size =
        file.symbol_by_name(LOAD_SIZE).with_context(|| format!("the file has no symbol {LOAD_SIZE}"))?;
    joined(setup, high, flat(&file)?.1, size.address())
}

/// The parts joined, the last padded to `load_size` bytes, with the header's sizes.
fn joined(setup: &[u8], high: &[u8], mut image: Vec<u8>, load_size: u64) -> Result<Vec<u8>> {
    ensure!(
        SetupHeader::of(setup).is_some_and(|header| header.setup_len() == setup.len()),
        "the setup is {} bytes long, which is not what it says of itself",
        setup.len()
    );
    ensure!(
        image.len() as u64 <= load_size && load_size <= IMAGE_MAX,
        "the image has {} bytes, and {load_size} would be loaded",
        image.len()
    );
    image.resize(usize::try_from(load_size)?, 0);
    let mut all = [setup, high, &image].concat();
    all.resize(all.len().next_multiple_of(PARAGRAPH), 0);
    let paragraphs = u32::try_from((all.len() - setup.len()).div_ceil(PARAGRAPH))?;
    SetupHeader::of_mut(&mut all).context("the setup is shorter than its header")?.syssize =
        paragraphs.into();
    Ok(all)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use hostlink::bzimage::SECTOR_SIZE;

    pub(crate) fn arm_image(text_offset: u64, image_size: u64) -> Vec<u8> {
        let mut image = vec![0; 0x80];
        image[8..16].copy_from_slice(&text_offset.to_le_bytes());
        image[16..24].copy_from_slice(&image_size.to_le_bytes());
        image[56..60].copy_from_slice(b"ARM\x64");
        image
    }

    fn elf(segments: &[(u64, &[u8])]) -> Vec<u8> {
        let mut file = vec![0; 64 + 56 * segments.len()];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16] = 2; // e_type: executable
        file[18] = 183; // e_machine: AArch64
        file[20] = 1;
        file[32] = 64; // e_phoff
        file[52] = 64; // e_ehsize
        file[54] = 56; // e_phentsize
        file[56] = u8::try_from(segments.len()).expect("few");
        for (index, (address, data)) in segments.iter().enumerate() {
            let at = 64 + 56 * index;
            let words = [
                (8, file.len() as u64),
                (16, 0xffff_0000_0000_0000 + address),
                (24, *address),
                (32, data.len() as u64),
                (40, data.len() as u64 + 0x1000),
            ];
            file[at] = 1; // p_type: load
            for (offset, word) in words {
                file[at + offset..at + offset + 8].copy_from_slice(&word.to_le_bytes());
            }
            file.extend_from_slice(data);
        }
        file
    }

    fn reason(elf: &[u8]) -> String {
        format!("{:#}", boot_image(elf).expect_err("is refused"))
    }

    #[test]
    fn what_is_no_boot_image_is_refused_with_its_reason() {
        let image = arm_image(0x20_0000, 0x1000);
        assert!(reason(b"#!/bin/sh").contains("ELF64"));
        let own = fs::read(std::env::current_exe().expect("has a path")).expect("reads");
        assert!(reason(&own).contains("not for Arm64"), "{}", reason(&own));
        assert!(reason(&elf(&[])).contains("nothing to load"), "{}", reason(&elf(&[])));
        let no_header = elf(&[(0x4020_0000, &[0; 0x80])]);
        assert!(reason(&no_header).contains("header"), "{}", reason(&no_header));
        let elsewhere = elf(&[(0x4008_0000, &image)]);
        assert!(reason(&elsewhere).contains("0x40200000"), "{}", reason(&elsewhere));
        let far = elf(&[(0x4020_0000, &image), (0x8000_0000, &[1])]);
        assert!(reason(&far).contains("too far"), "{}", reason(&far));
        let short = elf(&[(0x4020_0000, &image), (0x4020_2000, &[1])]);
        assert!(reason(&short).contains("0x2001"), "{}", reason(&short));
    }

    #[test]
    fn segments_lie_at_their_physical_addresses_in_any_order() {
        let image = arm_image(0, 0x1000);
        let made = boot_image(&elf(&[(0x4020_0100, &[7, 8]), (0x4020_0000, &image)])).expect("makes");
        assert_eq!(made.len(), 0x102);
        assert_eq!((&made[..0x80], &made[0x100..]), (&image[..], &[7, 8][..]));
        assert!(made[0x80..0x100].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_header_is_read_where_it_is() {
        let header = ArmHeader::of(&arm_image(0x8_0000, 0x12_3456));
        assert_eq!(header, Some(ArmHeader { text_offset: 0x8_0000, image_size: 0x12_3456 }));
        assert_eq!(ArmHeader::of(&[0; 59]), None);
        assert_eq!(ArmHeader::of(&[0; 64]), None);
    }

    #[test]
    fn what_is_not_prepared_is_refused() {
        assert!(bzimage_from_elf(b"#!/bin/sh").is_err());
        let own = std::fs::read(std::env::current_exe().expect("has a path")).expect("reads");
        let error = bzimage_from_elf(&own).expect_err("is no boot image");
        assert!(format!("{error:#}").contains(SETUP), "{error:#}");
    }

    /// A setup whose header announces `sectors` sectors after the first one, but which has one.
    fn setup(sectors: u8) -> Vec<u8> {
        let mut setup = vec![0xee; 2 * SECTOR_SIZE];
        SetupHeader::of_mut(&mut setup).expect("is whole").setup_sects = sectors;
        setup
    }

    #[test]
    fn each_part_lies_where_the_code_looks_for_it_and_the_header_has_the_size() {
        let all = joined(&setup(1), &[1; 0x100], vec![2; 40], 50).expect("joins");
        assert_eq!(all.len(), 2 * SECTOR_SIZE + 0x100 + 64);
        assert_eq!(all[2 * SECTOR_SIZE..][..0x100], [1; 0x100]);
        assert_eq!(all[2 * SECTOR_SIZE + 0x100..][..40], [2; 40]);
        assert!(all[2 * SECTOR_SIZE + 0x140 - 24..].iter().all(|byte| *byte == 0));
        let mut expected = setup(1);
        SetupHeader::of_mut(&mut expected).expect("is whole").syssize = (0x10 + 4).into();
        assert_eq!(all[..2 * SECTOR_SIZE], expected, "the fields beside it stay");
    }

    #[test]
    fn sizes_that_do_not_fit_together_are_refused() {
        assert!(joined(&setup(2), &[], vec![2; 40], 40).is_err(), "a sector is missing");
        assert!(joined(&setup(1)[..SECTOR_SIZE + 1], &[], vec![2; 40], 40).is_err(), "half a sector");
        assert!(joined(&[], &[], vec![2; 40], 40).is_err(), "no setup");
        assert!(joined(&setup(1), &[], vec![2; 40], 39).is_err(), "not all would be copied");
        assert!(joined(&setup(1), &[], vec![2; 40], IMAGE_MAX + 1).is_err(), "more than there may be");
    }
}
