//! The word that selects the processor that is to start, for processors that begin wherever an
//! interprocessor interrupt sends them.

/// The stack offered to the processor with an id, as the word that both sides exchange: the id
/// above, the stack's top below. 0 is no offer, as no stack ends at 0.
#[must_use]
pub const fn offer(id: u32, stack_top: u32) -> u64 {
    (id as u64) << 32 | stack_top as u64
}
