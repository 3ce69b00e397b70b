use super::*;
use std::string::String;
use std::vec::Vec;

/// 10 by 4 characters, with a gap behind each line.
const FRAME: Frame =
    Frame { address: 0x1000, pitch: 300, width: 72, height: 65, bits: 32, has_byte_colours: true };

/// The pixels of a framebuffer.
struct Pixels(Vec<u32>);

impl Memory for Pixels {
    fn store(&mut self, first: usize, pixels: &[u32]) {
        self.0[first..first + pixels.len()].copy_from_slice(pixels);
    }
}

fn screen(frame: Frame) -> Screen<Pixels> {
    let mut screen = Screen::none();
    screen.open(frame, Pixels(std::vec![7; frame.bytes() as usize / 4])).expect("can be used");
    screen
}

fn write(screen: &mut Screen<Pixels>, text: &str) {
    text.bytes().for_each(|byte| screen.put(byte));
}

/// The cells of each row, without blanks at its end.
fn rows(screen: &Screen<Pixels>) -> Vec<String> {
    let (columns, _) = screen.size().expect("there is one");
    let cells: Vec<u8> = screen.text.cells().map(|(_, _, byte)| byte).collect();
    cells.chunks(columns).map(|row| String::from_utf8_lossy(row).trim_end().into()).collect()
}

#[test]
fn a_glyph_is_where_its_cell_is_in_shades_that_are_the_same_in_all_colours() {
    let mut screen = screen(FRAME);
    write(&mut screen, "a\n M");
    let glyph = glyph(b'M').expect("is in the font");
    let pixels = &screen.brush.as_ref().expect("there is one").memory.0;
    for (x, y) in (0..GLYPH_WIDTH).flat_map(|x| (0..GLYPH_HEIGHT).map(move |y| (x, y))) {
        let grey = glyph.pixel(x, y).expect("is within it");
        assert_eq!(pixels[(GLYPH_HEIGHT + y) * 75 + GLYPH_WIDTH + x], u32::from(grey) * 0x0101_0101);
    }
    // Right of the last column and below the last row there is black.
    assert_eq!((pixels[3 * 75 + 71], pixels[64 * 75 + 3]), (0, 0));
}

#[test]
fn what_cannot_be_drawn_on_is_refused() {
    for (wrong, why) in [
        (Frame { has_byte_colours: false, ..FRAME }, "32 bits"),
        (Frame { bits: 24, ..FRAME }, "32 bits"),
        (Frame { pitch: 71 * 4, ..FRAME }, "no size"),
        (Frame { pitch: 301, ..FRAME }, "no size"),
        (Frame { address: 0, ..FRAME }, "no size"),
        (Frame { address: 0x1001, ..FRAME }, "no size"),
        (Frame { address: u64::MAX - 3, ..FRAME }, "no size"),
        (Frame { height: u32::MAX, ..FRAME }, "no size"),
        (Frame { height: 0, ..FRAME }, "no size"),
        (Frame { height: 15, ..FRAME }, "no room"),
    ] {
        let mut screen = Screen::none();
        let said = screen.open(wrong, Pixels(Vec::new())).expect_err("is refused");
        assert!(said.contains(why) && screen.size().is_none(), "{wrong:?}: {said}");
    }
}

#[test]
fn rows_wrap_and_move_up_and_what_is_drawn_is_what_the_cells_say() {
    let mut shown = screen(FRAME);
    assert_eq!(shown.size(), Some((10, 4)));
    write(&mut shown, "0123456789");
    assert_eq!(rows(&shown)[..2], ["0123456789", ""], "a full row does not go on before it must");
    write(&mut shown, "ab\r\nc\td\x08e\rX\n2");
    assert_eq!(rows(&shown), ["0123456789", "ab", "X       e", "2"]);
    write(&mut shown, "\nlast");
    assert_eq!(rows(&shown), ["ab", "X       e", "2", "last"]);
    let mut drawn = screen(FRAME);
    write(&mut drawn, "ab\nX       e\n2\nlast");
    let pixels = |screen: &Screen<Pixels>| screen.brush.as_ref().expect("there is one").memory.0.clone();
    assert_eq!(pixels(&shown), pixels(&drawn));
    drawn.show("a longer text\nthat is shown\nin place of it, but for its beginning".bytes());
    assert_eq!(rows(&drawn), ["in place o", "f it, but", "for its be", "ginning"]);
    shown.show(rows(&drawn).join("\n").bytes());
    assert_eq!(pixels(&shown), pixels(&drawn));
}

#[test]
fn control_sequences_edit_a_line_and_others_are_not_shown() {
    for (text, expected) in [
        ("abc\x08\x08\x1b[K", "a"),
        ("one\ntwo\x08\x08\x1b[J\x1b[1;34mx\x1b[0m", "one\ntx"),
        ("o\x1b[2;3H\x1b[?25l\x1b[6n\x1bMn\x1b[999999999999999999999De\x1b[2J\x1b[1K\x1b[;;;;H.", "one."),
        ("caf\u{e9} \u{2013} \u{7f}x", "caf? ? x"),
        ("\x1b[1\x1b[Ko", "o"),
    ] {
        let mut screen = screen(FRAME);
        write(&mut screen, text);
        assert_eq!(rows(&screen).join("\n").trim_end(), expected, "{text:?}");
    }
}

#[test]
fn whatever_comes_is_survived_on_any_screen() {
    let mut random = crate::random::Random::new(11);
    for (width, height) in [(7, 16), (70, 16), (72, 65), (1119, 1700)] {
        let mut screen = screen(Frame { pitch: width * 4, width, height, ..FRAME });
        for _ in 0..20_000 {
            screen.put(random.one_of([0x1b, u64::from(b'['), u64::from(b'H'), 10, random.clone().word()]) as u8);
        }
    }
}
