//! The list of capabilities that the guest sees.
//!
//! It is made once, from the function's: MSI-X, MSI, then what the vendor says. At the end there
//! may be advanced features, with a reset. Nothing else is in it. The capabilities follow one
//! another from the end of the header on.

use crate::config::register;
use crate::physical::{Msi, Msix, Vendor, capability_id as id};

/// Double words of configuration space below the extended part.
pub(super) const WORDS: usize = (register::EXTENDED / 4) as usize;

/// Index of the first double word behind the header.
const FIRST: usize = (register::HEADER_END / 4) as usize;

/// The list, and where its writable registers are: indices of double words.
#[derive(Clone, Debug)]
pub(super) struct List {
    /// What is read, apart from what can be written.
    words: [u32; WORDS],
    /// Offset of the first capability, or 0.
    pub(super) first: u8,
    pub(super) msix: Option<usize>,
    pub(super) msi: Option<usize>,
    /// The double word by which a reset begins.
    pub(super) reset: Option<usize>,
    /// Index of the next capability.
    end: usize,
    /// Index of the last one.
    last: Option<usize>,
}

impl List {
    /// The list for a function. `msix` and `msi` are its capabilities if the guest gets them, with
    /// as many vectors as the guest sees.
    pub(super) fn new(msix: Option<&Msix>, msi: Option<&Msi>, vendors: &[Vendor]) -> Self {
        let (words, end) = ([0; WORDS], FIRST);
        let mut list = Self { words, first: 0, msix: None, msi: None, reset: None, end, last: None };
        if let Some(msix) = msix {
            let place = |place: crate::physical::BarPlace| place.offset | u32::from(place.bar);
            let head = u32::from(id::MSIX) | u32::from(msix.vectors - 1) << 16;
            list.msix = list.push(&[head, place(msix.table), place(msix.pending)]);
        }
        if let Some(msi) = msi {
            let words = [msi_head(msi), 0, 0, 0, 0, 0];
            list.msi = list.push(&words[..usize::from(msi.capability_len() / 4)]);
        }
        for vendor in vendors {
            list.push(&vendor.words);
        }
        list
    }

    /// Adds advanced features: a function level reset, and the bit of pending transactions, which
    /// are none when the guest asks.
    pub(super) fn add_reset(&mut self) {
        const LEN: u32 = 6;
        const PENDING_AND_FLR: u32 = 3;
        let head = u32::from(id::ADVANCED_FEATURES) | LEN << 16 | PENDING_AND_FLR << 24;
        self.reset = self.push(&[head, 0]).map(|at| at + 1);
    }

    /// Adds a capability, if there is room for it, and returns its index.
    fn push(&mut self, words: &[u32]) -> Option<usize> {
        let at = self.end;
        self.words.get_mut(at..at + words.len())?.copy_from_slice(words);
        let pointer = (at * 4) as u8;
        match self.last {
            Some(last) => self.words[last] |= u32::from(pointer) << 8,
            None => self.first = pointer,
        }
        self.last = Some(at);
        self.end = at + words.len();
        Some(at)
    }

    /// A double word behind the header.
    pub(super) fn word(&self, index: usize) -> u32 {
        self.words.get(index).copied().unwrap_or(0)
    }
}

/// The first double word of MSI: one message, and addresses and masks as the function has them.
fn msi_head(msi: &Msi) -> u32 {
    u32::from(id::MSI) | u32::from(msi.is_64_bit) << 23 | u32::from(msi.has_masks) << 24
}
