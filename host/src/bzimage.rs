//! Makes a Linux boot image from an ELF file that is prepared for it (`crates/baremetal`,
//! `linux.rs`): its setup sectors, the code that moves the image to its place, and the image in its
//! memory layout.
//!
//! Source: the kernel's Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header".

use crate::machine::flat::{IMAGE_MAX, flat};
use crate::prelude::*;
use hostlink::bzimage::{PARAGRAPH, SetupHeader};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol};

const SETUP: &str = ".linux.setup";
const HIGH: &str = ".linux.high";
/// Symbol whose value is the number of bytes that `.linux.high` copies.
const LOAD_SIZE: &str = "__image_load_size";

pub(crate) fn from_elf(elf: &[u8]) -> Result<Vec<u8>> {
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
mod tests {
    use super::*;
    use hostlink::bzimage::SECTOR_SIZE;

    #[test]
    fn what_is_not_prepared_is_refused() {
        assert!(from_elf(b"#!/bin/sh").is_err());
        let own = std::fs::read(std::env::current_exe().expect("has a path")).expect("reads");
        let error = from_elf(&own).expect_err("is no boot image");
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
