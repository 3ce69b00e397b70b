//! Sizes in human-readable form.

use hostlink::config::MEMORY_MAX;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Reads `512M`, `1G`, `2048K` or a number of bytes, up to [`MEMORY_MAX`]; the units are powers of
/// 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size; write for example 512M or 1G");
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).filter(|bytes| (1..=MEMORY_MAX).contains(bytes)).ok_or_else(bad)
}

/// Writes a size in the largest unit in which it is at least 1.
pub(crate) fn display(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift != 0);
    match unit {
        Some((shift, name)) if bytes.is_multiple_of(1 << shift) => format!("{} {name}", bytes >> shift),
        #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
        Some((shift, name)) => format!("{:.1} {name}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "0", "0G", "-1M", "1.5G", "12X", "65T", "18446744073707454464", "99999999999T"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in
            [("512M", 512 * MIB), ("1g", 1 << 30), ("2048K", 2 * MIB), ("4096", 4096), ("64T", 1 << 46)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_their_largest_unit() {
        assert_eq!(display(512 * MIB), "512 MiB");
        assert_eq!(display(3 << 29), "1.5 GiB");
        assert_eq!(display(12), "12 bytes");
    }
}
