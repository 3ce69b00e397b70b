//! Values of keys that are words, numbers, or on/off.

use core::fmt;
use core::ops::RangeInclusive;

/// Enumerations whose values are written as words. The first is the default.
macro_rules! words {
    ($(
        $(#[$about:meta])*
        $name:ident { $(#[$first_about:meta])* $First:ident = $first:literal, $($(#[$rest_about:meta])* $Rest:ident = $rest:literal,)+ }
    )+) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[$first_about])*
            #[default]
            $First,
            $($(#[$rest_about])* $Rest,)+
        }

        impl $name {
            /// All values.
            pub const ALL: [Self; 1 + [$($rest),+].len()] = [Self::$First, $(Self::$Rest),+];

            /// The expected value.
            pub const EXPECTED: &str = concat!($first, $(" or ", $rest),+);

            /// The word for this value.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::$First => $first,
                    $(Self::$Rest => $rest,)+
                }
            }

            /// The value for a word.
            pub fn named(word: &str) -> Option<Self> {
                match word {
                    $first => Some(Self::$First),
                    $($rest => Some(Self::$Rest),)+
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    )+};
}
pub(crate) use words;

/// A number in this range, or none, for which there is a word.
pub(crate) fn number<N>(value: &str, range: RangeInclusive<N>, none: &str) -> Option<Option<N>>
where
    N: core::str::FromStr + PartialOrd,
{
    if value == none {
        return Some(None);
    }
    value.parse().ok().filter(|number| range.contains(number)).map(Some)
}

/// Writes the form that [`number`] reads.
pub(crate) struct Number<'a, N>(pub(crate) Option<N>, pub(crate) &'a str);

impl<N: fmt::Display> fmt::Display for Number<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(number) => write!(f, "{number}"),
            None => f.write_str(self.1),
        }
    }
}

/// Reads on or off.
pub(crate) fn on_or_off(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}
