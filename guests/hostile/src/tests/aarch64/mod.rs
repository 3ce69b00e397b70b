//! Tests of Arm64.

use super::Test;

/// The tests.
pub(super) const OWN: &[Test] = &[];
