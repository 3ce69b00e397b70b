//! The ring by which a driver offers requests to a virtio device.
//!
//! Source: Virtual I/O Device 1.1, section 2.6.6.

/// The words of a ring that offers `count` chains of `parts` descriptors each, the first ones of
/// the table, with their places in the ring. They have to be stored in this order, each with
/// `Release`: the last one has the count, and a device may look as soon as its queue is enabled.
pub fn offered<const WORDS: usize>(count: u16, parts: u16) -> impl Iterator<Item = (usize, u64)> {
    // Flags, the count, and the first descriptor of each chain: 16 bits each.
    let mut words = [0; WORDS];
    for (place, first) in (2..4 * WORDS).zip((0..count).map(|number| u64::from(number * parts))) {
        words[place / 4] |= first << (16 * (place % 4));
    }
    words[0] |= u64::from(count) << 16;
    words.into_iter().enumerate().rev()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn the_count_is_stored_after_all_that_it_counts() {
        let words: Vec<_> = offered::<3>(7, 3).collect();
        let second = 6 | 9 << 16 | 12 << 32 | 15 << 48;
        assert_eq!(words, [(2, 18), (1, second), (0, 7 << 16 | 3 << 48)]);
    }
}
