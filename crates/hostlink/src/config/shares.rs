//! Regions of memory that a guest shares with other guests.

use super::MAX_GUESTS;
use crate::name::Name;
use core::fmt;
use core::ops::RangeInclusive;

/// The sizes that a region can have in bytes: powers of two.
pub const REGION_BYTES: RangeInclusive<u64> = 4 << 10..=64 << 20;

/// Most regions of one guest.
pub const MAX_REGIONS: usize = 4;

/// A region, as one of its guests sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its name, which is the same for all of its guests.
    pub name: Name,
    /// Its size in bytes: a power of two, one of [`REGION_BYTES`].
    pub size: u64,
    /// By this number its other guests name this guest. It is less than [`MAX_GUESTS`].
    pub id: u16,
}

impl Share {
    /// The region in a text: name, size and number, with colons between them.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let share = Self {
            name: Name::parse(parts.next()?)?,
            size: parts.next()?.parse().ok().filter(is_size)?,
            id: parts.next()?.parse().ok().filter(|id| u32::from(*id) < MAX_GUESTS)?,
        };
        parts.next().is_none().then_some(share)
    }
}

impl fmt::Display for Share {
    /// Writes the form that [`Shares::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.name, self.size, self.id)
    }
}

/// Whether a region can have this size.
fn is_size(size: &u64) -> bool {
    size.is_power_of_two() && REGION_BYTES.contains(size)
}

/// The regions of one guest, as text that was checked: [`Share`]s, separated by spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares<'a>(&'a str);

impl<'a> Shares<'a> {
    /// What the text has to be.
    pub const EXPECTED: &'static str =
        "at most 4 of NAME:BYTES:NUMBER with spaces between them, bytes a power of two from 4096 to 67108864";

    /// The regions in a text; `None` if one of them is wrong, there are too many, or two have the
    /// same name.
    pub fn parse(text: &'a str) -> Option<Self> {
        let words = || text.split_ascii_whitespace();
        for (index, word) in words().enumerate() {
            let share = Share::parse(word)?;
            let is_again = |other: Share| other.name == share.name;
            if index == MAX_REGIONS || words().take(index).filter_map(Share::parse).any(is_again) {
                return None;
            }
        }
        Some(Self(text))
    }

    /// The regions.
    pub fn iter(self) -> impl Iterator<Item = Share> + 'a {
        self.0.split_ascii_whitespace().filter_map(Share::parse)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }
}

impl fmt::Display for Shares<'_> {
    /// Writes the form that [`parse`](Self::parse) reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::format;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn regions_are_read_and_written() {
        let text = "ring:4096:0 big-one:67108864:63";
        let shares: Vec<Share> = Shares::parse(text).expect("is right").iter().collect();
        let name = |name| Name::parse(name).expect("is one");
        let expected = [
            Share { name: name("ring"), size: 4096, id: 0 },
            Share { name: name("big-one"), size: 64 << 20, id: 63 },
        ];
        assert_eq!(shares, expected);
        assert_eq!(shares.iter().map(Share::to_string).collect::<Vec<_>>().join(" "), text);
        let line = format!("shared={text}");
        let config = Config::parse(&line).expect("is right");
        assert_eq!(config.shared.iter().count(), 2);
        assert_eq!(Config::parse(&config.to_string()), Ok(config), "written and read again");
        let none = Config::parse("vcpus=1").expect("is right");
        assert!(none.shared.is_empty() && !none.to_string().contains("shared"));
        assert!(Shares::parse(" ").is_some_and(Shares::is_empty));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for wrong in [
            "ring",
            "ring:4096",
            ":4096:0",
            "Ring:4096:0",
            "ring:4096:0:0",
            "ring:0:0",
            "ring:2048:0",
            "ring:12288:0",
            "ring:134217728:0",
            "ring:99999999999999999999:0",
            "ring:4K:0",
            "ring:4096:64",
            "ring:4096:-1",
            "ring:4096:65536",
            "ring:4096:0,db:4096:0",
            "ring:4096:0 ring:8192:1",
            "a:4096:0 b:4096:0 c:4096:0 d:4096:0 e:4096:0",
        ] {
            assert_eq!(Shares::parse(wrong), None, "{wrong}");
            assert!(Config::parse(&format!("shared={wrong}")).is_err(), "{wrong}");
        }
    }
}
