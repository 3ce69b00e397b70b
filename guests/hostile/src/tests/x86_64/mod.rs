//! Tests of x86-64.

use super::Test;

/// The tests.
pub(super) const OWN: &[Test] = &[];
