//! Sealed blocks: what a connection and a file consist of.
//!
//! A block is its length (4 bytes, little-endian), so many bytes, and a tag of 32 bytes: BLAKE3
//! with a key over the block's number and its bytes. So a block that is altered, left out, repeated
//! or taken from elsewhere is noticed before anything in it is looked at.

use crate::prelude::*;
use std::io::Read;

/// More bytes are never in a block.
pub(super) const BLOCK_MAX: usize = 256 << 10;
const LENGTH: usize = 4;
const TAG: usize = 32;

/// Makes the tags of blocks, one after the other.
pub(super) struct Seal {
    key: [u8; 32],
    number: u64,
}

impl Seal {
    /// The key is for this purpose, and made of these bytes.
    pub(super) fn new(purpose: &str, bytes: &[u8]) -> Self {
        Self { key: blake3::derive_key(purpose, bytes), number: 0 }
    }

    fn tag(&mut self, bytes: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.number.to_le_bytes());
        self.number += 1;
        hasher.update(bytes).finalize()
    }

    /// The next block, with these bytes in it.
    pub(super) fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        debug_assert!(bytes.len() <= BLOCK_MAX);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        let tag = self.tag(bytes);
        [&length, bytes, tag.as_bytes()].concat()
    }
}

/// Opens blocks, whose bytes come in pieces.
pub(super) struct Opener {
    seal: Seal,
    arrived: Vec<u8>,
    piece: Vec<u8>,
    /// Where the next block begins.
    at: u64,
}

impl Opener {
    /// The first block begins at this byte.
    pub(super) fn new(seal: Seal, at: u64) -> Self {
        Self { seal, arrived: Vec::new(), piece: vec![0; BLOCK_MAX], at }
    }

    /// Reads once; returns how many bytes that gave.
    pub(super) fn read_from(&mut self, source: &mut impl Read) -> io::Result<usize> {
        let count = source.read(&mut self.piece)?;
        self.arrived.extend_from_slice(&self.piece[..count]);
        Ok(count)
    }

    /// The next block, if all of it has arrived.
    pub(super) fn open(&mut self) -> Result<Option<Vec<u8>>> {
        let Some((length, rest)) = self.arrived.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        ensure!(length <= BLOCK_MAX, "{} claims {length} bytes, more than any block has", self.place());
        let Some((bytes, rest)) = rest.split_at_checked(length) else { return Ok(None) };
        let Some((tag, _)) = rest.split_first_chunk::<TAG>() else { return Ok(None) };
        let (bytes, tag) = (bytes.to_vec(), *tag);
        // `Hash` compares in constant time.
        ensure!(self.seal.tag(&bytes) == blake3::Hash::from_bytes(tag), "{} has a wrong tag", self.place());
        let whole = LENGTH + length + TAG;
        self.arrived.drain(..whole);
        self.at += whole as u64;
        Ok(Some(bytes))
    }

    /// Whether nothing has arrived behind the last block that was opened.
    pub(super) fn is_at_a_border(&self) -> bool {
        self.arrived.is_empty()
    }

    /// The block that is read next, as messages name it.
    pub(super) fn place(&self) -> String {
        format!("block {} (from byte {} on)", self.seal.number, self.at)
    }
}

/// Random bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> Seal {
        Seal::new("test", b"key")
    }

    fn opened(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut opener = Opener::new(seal(), 0);
        let mut source = bytes;
        while opener.read_from(&mut source)? != 0 {}
        std::iter::from_fn(|| opener.open().transpose()).collect()
    }

    #[test]
    fn each_byte_of_a_secret_is_random() {
        let all: Vec<[u8; 32]> = (0..16).map(|_| random().expect("there are any")).collect();
        assert!((0..32).all(|index| all.iter().any(|bytes| bytes[index] != all[0][index])), "{all:?}");
    }

    #[test]
    fn blocks_arrive_as_they_were_sealed_and_in_their_order_only() {
        let mut sealing = seal();
        let blocks = [vec![1, 2, 3], vec![], vec![7; BLOCK_MAX]];
        let sealed = blocks.clone().map(|block| sealing.seal(&block));
        assert_eq!(opened(&sealed.concat()).expect("opens"), blocks);
        for wrong in [[0, 0, 1], [1, 0, 2], [0, 2, 1]] {
            let bytes = wrong.map(|index: usize| sealed[index].clone()).concat();
            assert!(opened(&bytes).is_err(), "{wrong:?}");
        }
        let foreign = Seal::new("test", b"another").seal(&[1, 2, 3]);
        let place = |bytes: &[u8]| opened(bytes).expect_err("is refused").to_string();
        assert_eq!(place(&foreign), "block 1 (from byte 0 on) has a wrong tag");
        let second = [&sealed[0][..], &foreign].concat();
        assert_eq!(place(&second), format!("block 2 (from byte {} on) has a wrong tag", sealed[0].len()));
    }

    #[test]
    fn m6_each_flipped_byte_is_noticed_and_no_length_is_believed() {
        let whole = seal().seal(b"some bytes");
        for at in 0..whole.len() {
            assert!(opened(&whole[..at]).expect("is incomplete").is_empty(), "{at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(opened(&flipped).map_or(true, |blocks| blocks.is_empty()), "{at}");
        }
        let error = opened(&u32::MAX.to_le_bytes()).expect_err("is refused").to_string();
        assert!(error.contains("4294967295 bytes"), "{error}");
    }
}
