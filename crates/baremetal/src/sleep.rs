//! ACPI's sleep types, as far as switching a machine off needs them.

/// The sleep type of soft-off for the first control register, from the code of the DSDT: the name
/// `_S5_`, then a package of at least one small integer (ACPI 6.5, sections 7.4.2 and 20.2.5.4).
pub fn sleep_type_s5(code: &[u8]) -> Option<u8> {
    const PACKAGE: u8 = 0x12;
    const BYTE: u8 = 0x0a;
    const ONE: u8 = 0x01;
    let place = code.windows(5).position(|bytes| bytes == b"_S5_\x12")?;
    let [PACKAGE, lead, rest @ ..] = code.get(place + 4..)? else { return None };
    // The two highest bits of the package's first length byte give the number of further length
    // bytes; then comes the count.
    match rest.get(usize::from(*lead >> 6) + 1..)? {
        [BYTE, value, ..] => Some(*value),
        [value @ 0..=ONE, ..] => Some(*value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sleep_type_is_found_in_every_form_of_the_package() {
        // QEMU's: four zeros. Then a byte constant, ones, and a package whose length takes two
        // bytes.
        for (code, expected) in [
            (&b"\x08_S5_\x12\x06\x04\x00\x00\x00\x00"[..], Some(0)),
            (b"\x08_S5_\x12\x0a\x04\x0a\x05\x0a\x05\x00\x00", Some(5)),
            (b"abc\x08_S5_\x12\x06\x04\x01\x01\x00\x00", Some(1)),
            (b"\x08_S5_\x12\x4a\x00\x04\x0a\x07\x0a\x07", Some(7)),
        ] {
            assert_eq!(sleep_type_s5(code), expected, "{code:?}");
        }
    }

    #[test]
    fn what_is_not_a_package_of_integers_has_no_sleep_type() {
        for code in [
            &b""[..],
            b"_S5_",
            b"_S5_\x12",
            b"_S5_\x12\x06",
            b"_S5_\x12\x06\x04",
            b"_S5_\x12\x06\x04\x0a",
            b"_S5_\x12\x06\x04\x0c\x05\x00",
            b"_S4_\x12\x06\x04\x00\x00\x00\x00",
        ] {
            assert_eq!(sleep_type_s5(code), None, "{code:?}");
        }
    }
}
