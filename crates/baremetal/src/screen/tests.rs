use super::*;
use std::string::String;
use std::vec::Vec;

const RGB: Option<Colours> =
    Some([Field { position: 16, size: 8 }, Field { position: 8, size: 8 }, Field { position: 0, size: 8 }]);
/// 10 by 4 characters, with a gap behind each line.
const FRAME: Frame = Frame { address: 0x1000, pitch: 300, width: 72, height: 65, bits: 32, colours: RGB };

/// A framebuffer, and what lies behind it.
struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        self.0.iter_mut().skip(offset).zip(bytes).for_each(|(place, byte)| *place = *byte);
    }
}

fn screen(frame: Frame) -> Screen<Bytes> {
    let mut screen = Screen::none();
    screen.open(frame, Bytes(std::vec![0xcc; frame.bytes() as usize])).expect("can be used");
    screen
}

fn write(screen: &mut Screen<Bytes>, text: &str) {
    text.bytes().for_each(|byte| screen.put(byte));
}

/// The cells of each row, without blanks at its end.
fn rows(screen: &Screen<Bytes>) -> Vec<String> {
    let (columns, _) = screen.size().expect("there is one");
    let cells: Vec<u8> = screen.text.cells().map(|(_, _, byte)| byte).collect();
    cells.chunks(columns).map(|row| String::from_utf8_lossy(row).trim_end().into()).collect()
}

/// The pixels, as the bytes that they consist of.
fn pixel(screen: &Screen<Bytes>, x: usize, y: usize) -> &[u8] {
    let Brush { frame, memory } = screen.brush.as_ref().expect("there is one");
    let bytes = frame.bytes_of_pixel();
    &memory.0[y * frame.pitch as usize + x * bytes..][..bytes]
}

#[test]
fn a_glyph_is_where_its_cell_is_and_white_is_all_bits_of_the_colours() {
    let other = Some([
        Field { position: 11, size: 5 },
        Field { position: 5, size: 6 },
        Field { position: 0, size: 5 },
    ]);
    let deep = Some([0, 10, 20].map(|position| Field { position, size: 10 }));
    let bgr = Some([8, 16, 24].map(|position| Field { position, size: 8 }));
    let white: [(Option<Colours>, u8, &[u8]); 5] = [
        (RGB, 32, &[0xff, 0xff, 0xff, 0]),
        (RGB, 24, &[0xff, 0xff, 0xff]),
        (bgr, 32, &[0, 0xff, 0xff, 0xff]),
        (other, 16, &[0xff, 0xff]),
        (deep, 32, &[0xfc, 0xf3, 0xcf, 0x3f]),
    ];
    for (colours, bits, white) in white {
        let mut screen = screen(Frame { colours, bits, ..FRAME });
        write(&mut screen, "a\n M");
        let (glyph, mut seen) = (glyph(b'M').expect("is in the font"), 0);
        for y in 0..GLYPH_HEIGHT {
            for x in 0..GLYPH_WIDTH {
                let shown = pixel(&screen, GLYPH_WIDTH + x, GLYPH_HEIGHT + y);
                match glyph.pixel(x, y) {
                    Some(0xff) => {
                        seen += 1;
                        assert_eq!(shown, white, "{colours:?}");
                    }
                    Some(0) => assert!(shown.iter().all(|byte| *byte == 0), "{colours:?}"),
                    _ => {}
                }
            }
        }
        assert!(seen > 0, "no pixel of the glyph is white");
        // Right of the last column and below the last row there is black, in the gap nothing.
        assert!(pixel(&screen, 71, 3).iter().chain(pixel(&screen, 3, 64)).all(|byte| *byte == 0));
    }
}

#[test]
fn what_cannot_be_drawn_on_is_refused() {
    let odd = |position, size| Some([Field { position, size }; 3]);
    for (wrong, why) in [
        (Frame { colours: None, ..FRAME }, "colours of 15"),
        (Frame { bits: 8, ..FRAME }, "colours of 15"),
        (Frame { bits: 64, ..FRAME }, "colours of 15"),
        (Frame { colours: odd(25, 8), ..FRAME }, "colours of 15"),
        (Frame { colours: odd(0, 0), ..FRAME }, "colours of 15"),
        (Frame { colours: odd(40, 4), ..FRAME }, "colours of 15"),
        (Frame { pitch: 72 * 4 - 1, ..FRAME }, "no size"),
        (Frame { address: 0, ..FRAME }, "no size"),
        (Frame { address: u64::MAX - 4, ..FRAME }, "no size"),
        (Frame { height: u32::MAX, ..FRAME }, "no size"),
        (Frame { height: 0, ..FRAME }, "no size"),
        (Frame { height: 15, ..FRAME }, "no room"),
    ] {
        let mut screen = Screen::none();
        let said = screen.open(wrong, Bytes(Vec::new())).expect_err("is refused");
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
    let pixels = |screen: &Screen<Bytes>| screen.brush.as_ref().expect("there is one").memory.0.clone();
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
