//! What operators do, and what they hand in.

use crate::test::cases::Case;

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[];
