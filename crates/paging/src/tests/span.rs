use crate::span::{SpanPiece, exact, pieces, widened};
use crate::{Amd64Host, Amd64Nested, Level};

const HALF: u64 = 1 << 47;
const HIGH: u64 = HALF.wrapping_neg();

#[test]
fn exact_reaches_both_ends() {
    assert_eq!(exact::<Amd64Host>(&(0..HALF)), Ok(0..HALF));
    assert_eq!(exact::<Amd64Host>(&(HIGH..0u64.wrapping_sub(0x1000))), Ok(HALF..(1 << 48) - 0x1000));
    assert_eq!(exact::<Amd64Nested>(&(0..1 << 48)), Ok(0..1 << 48));
    #[expect(clippy::reversed_empty_ranges, reason = "the case under test")]
    let reversed = 0x2000..0x1000;
    assert_eq!(exact::<Amd64Host>(&reversed), Ok(0..0));
}

#[test]
fn h9_widened_keeps_the_valid_rest_of_a_range_over_the_hole() {
    assert_eq!(widened::<Amd64Host>(&(HALF - 1..HIGH + 1)), [HALF - 0x1000..HALF, HALF..HALF + 0x1000]);
    assert_eq!(widened::<Amd64Host>(&(0..u64::MAX)), [0..HALF, HALF..1 << 48]);
    assert_eq!(widened::<Amd64Nested>(&(0..u64::MAX)), [0..1 << 48, 0..0]);
    assert_eq!(widened::<Amd64Nested>(&(1..2)), [0..0x1000, 0..0]);
    let [low, high] = widened::<Amd64Host>(&(HALF..HIGH));
    assert!(low.is_empty() && high.is_empty(), "the hole itself is empty");
    let [low, high] = widened::<Amd64Nested>(&(1 << 48..1 << 50));
    assert!(low.is_empty() && high.is_empty());
}

#[test]
fn pieces_follow_the_entries() {
    let size = Level::Page2M.size();
    let found: Vec<_> = pieces(size - 0x1000..2 * size + 0x1000, Level::Page2M).collect();
    let expected = [
        SpanPiece { span: size - 0x1000..size, whole: false, entry_start: 0 },
        SpanPiece { span: size..2 * size, whole: true, entry_start: size },
        SpanPiece { span: 2 * size..2 * size + 0x1000, whole: false, entry_start: 2 * size },
    ];
    assert_eq!(found, expected);
    assert_eq!(pieces(0..1 << 48, Level::Page512G).count(), 512);
}
