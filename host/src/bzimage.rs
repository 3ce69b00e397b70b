//! Makes a Linux boot image of an ELF file that is prepared for it (`crates/baremetal`, `linux.rs`): its setup sectors, the
//! code that brings the image to its place, and the image as it lies in memory.

use anyhow::{Context, Result, ensure};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSegment};

const SETUP: &str = ".linux.setup";
const HIGH: &str = ".linux.high";
const SECTOR: usize = 512;
/// Most that an image takes: a wrong address would make it as large as the address space.
const IMAGE_MAX: u64 = 64 << 20;

/// The boot image of the ELF file with these bytes.
pub(crate) fn from_elf(elf: &[u8]) -> Result<Vec<u8>> {
    let file = ElfFile64::<object::Endianness>::parse(elf).context("not an ELF64 file")?;
    let section = |name: &str| -> Result<&[u8]> {
        let section =
            file.section_by_name(name).with_context(|| format!("the file has no section {name}"))?;
        section.data().with_context(|| format!("the section {name} has no contents"))
    };
    let (setup, high) = (section(SETUP)?, section(HIGH)?);
    ensure!(setup.len().is_multiple_of(SECTOR), "the setup is {} bytes long, not whole sectors", setup.len());
    Ok([setup, high, &flat(&file)?].concat())
}

/// What of the file is loaded, from its lowest address on.
fn flat(file: &ElfFile64<'_>) -> Result<Vec<u8>> {
    let mut start = u64::MAX;
    let mut image = Vec::new();
    let mut segments: Vec<_> = file.segments().collect();
    segments.sort_by_key(ObjectSegment::address);
    for segment in segments {
        let data = segment.data().context("a segment lies beyond the end of the file")?;
        if data.is_empty() {
            continue;
        }
        start = start.min(segment.address());
        let offset = segment.address() - start;
        ensure!(offset + data.len() as u64 <= IMAGE_MAX, "the segments are too far from each other");
        let end = usize::try_from(offset)? + data.len();
        image.resize(end.max(image.len()), 0);
        image[end - data.len()..end].copy_from_slice(data);
    }
    ensure!(!image.is_empty(), "the file has nothing to load");
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_prepared_is_refused() {
        assert!(from_elf(b"#!/bin/sh").is_err());
        let own = std::fs::read(std::env::current_exe().expect("has a path")).expect("reads");
        let error = from_elf(&own).expect_err("is no boot image");
        assert!(format!("{error:#}").contains(SETUP), "{error:#}");
    }
}
