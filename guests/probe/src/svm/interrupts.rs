//! Interrupts and NMIs while a guest runs.

use super::l2::{L2, stgi};
use crate::interrupts::{VECTOR_TEST, count};
use crate::processors::send_to_self;

/// Whether an interrupt is held though the probe's IF is 1, and is taken after STGI.
pub(super) fn self_is_held(_: &mut L2) -> bool {
    let before = count(VECTOR_TEST);
    send_to_self(VECTOR_TEST);
    x86_64::instructions::interrupts::enable();
    x86_64::instructions::nop();
    let is_held = count(VECTOR_TEST) == before;
    stgi();
    x86_64::instructions::nop();
    x86_64::instructions::nop();
    x86_64::instructions::interrupts::disable();
    is_held && count(VECTOR_TEST) == before + 1
}
