//! Attacks on AMD64 machines.

use crate::test::cases::Case;

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[];
