use super::*;
use std::string::String;
use std::vec::Vec;

const RGB: Format = Format::Colours([
    Field { position: 16, size: 8 },
    Field { position: 8, size: 8 },
    Field { position: 0, size: 8 },
]);
/// 10 by 4 characters, with a gap behind each line.
const FRAME: Frame = Frame { address: 0x1000, pitch: 300, width: 72, height: 65, bits: 32, format: RGB };

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
    let other = Format::Colours([
        Field { position: 11, size: 5 },
        Field { position: 5, size: 6 },
        Field { position: 0, size: 5 },
    ]);
    let deep = Format::Colours([0, 10, 20].map(|position| Field { position, size: 10 }));
    let bgr = Format::Colours([8, 16, 24].map(|position| Field { position, size: 8 }));
    let white: [(Format, u8, &[u8]); 5] = [
        (RGB, 32, &[0xff, 0xff, 0xff, 0]),
        (RGB, 24, &[0xff, 0xff, 0xff]),
        (bgr, 32, &[0, 0xff, 0xff, 0xff]),
        (other, 16, &[0xff, 0xff]),
        (deep, 32, &[0xfc, 0xf3, 0xcf, 0x3f]),
    ];
    for (format, bits, white) in white {
        let mut screen = screen(Frame { format, bits, ..FRAME });
        write(&mut screen, "a\n M");
        let (glyph, mut seen) = (glyph(b'M').expect("is in the font"), 0);
        for y in 0..GLYPH_HEIGHT {
            for x in 0..GLYPH_WIDTH {
                let shown = pixel(&screen, GLYPH_WIDTH + x, GLYPH_HEIGHT + y);
                match glyph.pixel(x, y) {
                    Some(0xff) => {
                        seen += 1;
                        assert_eq!(shown, white, "{format:?}");
                    }
                    Some(0) => assert!(shown.iter().all(|byte| *byte == 0), "{format:?}"),
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
fn text_on_a_large_screen_is_as_large_and_has_no_more_columns() {
    for (width, height, size) in [(1024, 768, (146, 48)), (1920, 1080, (137, 33)), (3840, 2160, (137, 33))] {
        let frame = Frame { pitch: width * 4, width, height, ..FRAME };
        assert_eq!(frame.size(), size);
    }
    let frame = Frame { pitch: 4 * 1200, width: 1200, height: 64, ..FRAME };
    let mut screen = screen(frame);
    write(&mut screen, "\n#");
    let glyph = glyph(b'#').expect("is in the font");
    for (x, y) in (0..2 * GLYPH_WIDTH).flat_map(|x| (0..2 * GLYPH_HEIGHT).map(move |y| (x, y))) {
        let intensity = glyph.pixel(x / 2, y / 2).expect("is within it");
        assert_eq!(pixel(&screen, x, 2 * GLYPH_HEIGHT + y)[..3], [intensity; 3]);
    }
}

#[test]
fn a_text_mode_has_characters_with_attributes() {
    let frame = Frame { address: 0xb8000, pitch: 160, width: 80, height: 25, bits: 16, format: Format::Text };
    let mut screen = screen(frame);
    write(&mut screen, "ab\nc");
    let memory = &screen.brush.as_ref().expect("there is one").memory.0;
    assert_eq!((&memory[..6], &memory[160..164]), (&b"a\x07b\x07 \x07"[..], &b"c\x07 \x07"[..]));
}

#[test]
fn linux_describes_a_framebuffer_wherever_it_is() {
    let mut info = [0; 64];
    let fields: [(usize, &[u8]); 6] = [
        (0xf, &[0x70]),
        (0x12, &[0x80, 0x07, 0x38, 0x04, 32, 0]),
        (0x18, &[0, 0, 0, 0xc0]),
        (0x24, &[0, 0x1e]),
        (0x26, &[8, 16, 8, 8, 8, 0]),
        (0x36, &[2, 0, 0, 0, 0x7c, 1, 0, 0]),
    ];
    for (at, bytes) in fields {
        info[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let read = |info: [u8; 64]| {
        Frame::of_linux(&core::array::from_fn(|word| info[4 * word..][..4].try_into().unwrap()))
    };
    let high =
        Frame { address: 0x17c_c000_0000, pitch: 7680, width: 1920, height: 1080, bits: 32, format: RGB };
    assert_eq!(read(info), Some(high));
    info[0x36] = 0;
    info[0xf] = 0x23;
    assert_eq!(read(info), Some(Frame { address: 0xc000_0000, ..high }));
    info[0xf] = 1;
    assert_eq!(read(info), None, "a text mode");
}

#[test]
fn what_cannot_be_drawn_on_is_refused() {
    let odd = |position, size| Format::Colours([Field { position, size }; 3]);
    for (wrong, why) in [
        (Frame { format: Format::Other, ..FRAME }, "colours of 15"),
        (Frame { bits: 8, ..FRAME }, "colours of 15"),
        (Frame { bits: 64, ..FRAME }, "colours of 15"),
        (Frame { format: odd(25, 8), ..FRAME }, "colours of 15"),
        (Frame { format: odd(0, 0), ..FRAME }, "colours of 15"),
        (Frame { format: odd(40, 4), ..FRAME }, "colours of 15"),
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
        ("abc\x1b[2D\x1b[K", "a"),
        ("abc\x1b[2DX\x1b[C!", "aXc!"),
        ("one\ntwo\x1b[H\x1b[J\x1b[1;34mx\x1b[0m", "x"),
        ("one\x1b[2J\x1b[Hy", "y"),
        ("a\x1b[2;3Hb\x1b[AZ\x1b[99B\x1b[99D.", "a  Z\n  b\n\n."),
        ("\x1b[?25l\x1b[6n\x1bMq\x1b[999999999999999999999Dr\x1b[;;;;Hs", "s"),
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
