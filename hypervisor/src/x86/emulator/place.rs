//! The bytes of one access, which may be in two pages.

use super::Memory;
use arrayvec::ArrayVec;
use baremetal::pages::PAGE;
use paging::Gpa;

/// Size of the widest access in bytes.
const SIZE_MAX: usize = 8;

/// Bytes within one page.
#[derive(Clone, Copy, Debug)]
struct PageBytes {
    gpa: Gpa,
    len: usize,
}

#[derive(Clone, Debug)]
pub(super) struct AccessBytes(ArrayVec<PageBytes, 2>);

impl AccessBytes {
    /// Translates the addresses of `size` bytes, 1 to 8, from a linear address on.
    pub(super) fn locate<M: Memory>(
        memory: &mut M,
        linear: u64,
        size: u32,
        is_write: bool,
    ) -> Result<Self, M::Error> {
        let size = size as usize;
        let here = size.min((PAGE - linear % PAGE) as usize);
        let mut pieces = ArrayVec::new();
        pieces.push(PageBytes { gpa: memory.translate(linear, is_write)?, len: here });
        if here < size {
            let next = linear.wrapping_add(here as u64);
            pieces.push(PageBytes { gpa: memory.translate(next, is_write)?, len: size - here });
        }
        Ok(Self(pieces))
    }

    /// Whether the processor itself can do the access.
    pub(super) fn is_direct(&self, memory: &mut impl Memory, is_write: bool) -> bool {
        self.0.iter().all(|piece| memory.is_direct(piece.gpa, is_write))
    }

    pub(super) fn crosses_pages(&self) -> bool {
        self.0.len() > 1
    }

    pub(super) fn read(&self, memory: &mut impl Memory) -> u64 {
        let mut bytes = [0; SIZE_MAX];
        let mut rest = &mut bytes[..];
        for piece in &self.0 {
            let (part, behind) = rest.split_at_mut(piece.len);
            memory.read(piece.gpa, part);
            rest = behind;
        }
        u64::from_le_bytes(bytes)
    }

    pub(super) fn write(&self, memory: &mut impl Memory, value: u64) {
        let bytes = value.to_le_bytes();
        let mut rest = &bytes[..];
        for piece in &self.0 {
            let (part, behind) = rest.split_at(piece.len);
            memory.write(piece.gpa, part);
            rest = behind;
        }
    }
}
