//! Target sets in the form that the headers of calls use.

use super::{Interface, Writer};
use crate::call::{SET_ALL, SET_SPARSE};
use crate::{Targets, VPS_PER_BANK, VpSet};

/// The form in which a call names its targets.
#[derive(Clone, Copy, Debug)]
pub(super) enum TargetForm<'a> {
    /// All processors.
    All,
    /// VP indices below 64.
    Mask(u64),
    /// Any VP indices; `valid_banks` contains only the banks that are not empty.
    Banks { valid_banks: u64, set: VpSet<'a> },
}

impl<'a> TargetForm<'a> {
    /// `None` if there are no targets: then no call is made, and in particular none that the
    /// hypervisor could read as a call to all processors.
    pub(super) fn of(targets: Targets<'a>) -> Option<Self> {
        let Targets::Set(set) = targets else { return Some(Self::All) };
        let valid_banks = set
            .banks()
            .filter(|(_, contents)| *contents != 0)
            .fold(0u64, |valid_banks, (bank, _)| valid_banks | 1 << bank);
        match valid_banks {
            0 => None,
            1 => Some(Self::Mask(set.banks().map(|(_, contents)| contents).next().unwrap_or_default())),
            _ => Some(Self::Banks { valid_banks, set }),
        }
    }

    /// The same targets in a form that `interface` offers. A set that it cannot name becomes all
    /// processors. That flushes too much, which is harmless; it must not be done for interrupts.
    pub(super) const fn widened(self, interface: Interface) -> Self {
        match self {
            Self::Banks { .. } if !interface.vp_sets => Self::All,
            form => form,
        }
    }

    /// Words of the variable header.
    pub(super) const fn bank_count(&self) -> u16 {
        match self {
            Self::Banks { valid_banks, .. } => valid_banks.count_ones() as u16,
            _ => 0,
        }
    }

    /// Writes an HV_VP_SET.
    pub(super) fn write_set(&self, writer: &mut Writer<'_>) {
        match *self {
            Self::All => [SET_ALL, 0].into_iter().for_each(|word| writer.push(word)),
            Self::Mask(mask) => [SET_SPARSE, 1, mask].into_iter().for_each(|word| writer.push(word)),
            Self::Banks { valid_banks, set } => {
                writer.push(SET_SPARSE);
                writer.push(valid_banks);
                // Exactly the banks of the mask, so that the count matches the header's whatever
                // the set contains.
                set.banks()
                    .filter(|(bank, _)| valid_banks >> bank & 1 != 0)
                    .for_each(|(_, contents)| writer.push(contents));
            }
        }
    }
}

const _: () = assert!(VPS_PER_BANK == u64::BITS);
