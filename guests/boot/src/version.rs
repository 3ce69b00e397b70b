//! The order of versions, as in the UAPI group's "Version Format Specification", but for its
//! characters with a meaning of their own, which no kernel's name has, except `~`.

use core::cmp::Ordering;

/// Which of two versions is newer: numbers by their value, `~` before everything, also the end.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let (first, second) = (take(&mut a), take(&mut b));
        match weight(first).cmp(&weight(second)).then_with(|| first.cmp(second)) {
            Ordering::Equal if first.is_empty() => return Ordering::Equal,
            Ordering::Equal => {}
            order => return order,
        }
    }
}

/// The next run of digits, without zeros before it, or the next other character.
fn take<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (head, rest) = text.split_at(digits.max(1).min(text.len()));
    *text = rest;
    let zeros = head.iter().take_while(|byte| **byte == b'0').count();
    if digits == 0 { head } else { &head[zeros.min(digits - 1)..] }
}

/// What counts before the characters: a pre-release, the end, a separator, letters, numbers by
/// their length.
fn weight(piece: &[u8]) -> usize {
    match piece.first() {
        Some(b'~') => 0,
        None => 1,
        Some(byte) if byte.is_ascii_digit() => 3 + piece.len(),
        Some(byte) if byte.is_ascii_alphabetic() => 3,
        Some(_) => 2,
    }
}
