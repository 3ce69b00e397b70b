//! Guests that try everything: random values, and each register there is.

use crate::test::cases::Case;

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[];
