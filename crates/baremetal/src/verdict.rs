//! Results of tests of bare guests.

use core::fmt::{self, Display, Write};

use arrayvec::ArrayString;

use crate::text::{Cut, Quoted};
use crate::watch::Unseen;

/// Why a test failed.
pub type Failure = ArrayString<120>;

/// The result of a test.
pub type Verdict = Result<(), Failure>;

/// A failure with this text; an overlong end is dropped.
pub fn failure(text: fmt::Arguments<'_>) -> Failure {
    let mut failure = Failure::new();
    let _ = Cut(&mut failure).write_fmt(text);
    failure
}

impl From<Unseen> for Failure {
    fn from(unseen: Unseen) -> Self {
        match unseen {
            Unseen::Silent(round) => {
                failure(format_args!("the watching processor does not look at round {round}"))
            }
            Unseen::Unnoticed(tries) => {
                failure(format_args!("{tries} pages are replaced without a flush, and each is seen at once"))
            }
        }
    }
}

/// Fails with a text unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::verdict::failure(format_args!($($text)+)));
        }
    };
}

/// A test's verdict as a line of text.
pub fn in_words(name: &str, verdict: &Verdict) -> impl Display {
    fmt::from_fn(move |f| match verdict {
        Ok(()) => write!(f, "PASS {name}"),
        Err(why) => write!(f, "FAIL {name}: {why}"),
    })
}

/// The same as JSON, for the host.
pub fn as_json(name: &str, verdict: &Verdict) -> impl Display {
    fmt::from_fn(move |f| match verdict {
        Ok(()) => write!(f, r#"{{"test":"{}","result":"pass"}}"#, Quoted(name)),
        Err(why) => write!(f, r#"{{"test":"{}","result":"fail","why":"{}"}}"#, Quoted(name), Quoted(why)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn both_forms_name_the_test_and_the_reason() {
        let check = |value: u32| -> Verdict {
            ensure!(value == 1, "{value} \"instead\" of 1");
            Ok(())
        };
        assert_eq!(in_words("a", &check(1)).to_string(), "PASS a");
        assert_eq!(in_words("a", &check(2)).to_string(), "FAIL a: 2 \"instead\" of 1");
        assert_eq!(as_json("a", &check(1)).to_string(), r#"{"test":"a","result":"pass"}"#);
        let failed = r#"{"test":"a","result":"fail","why":"2 'instead' of 1"}"#;
        assert_eq!(as_json("a", &check(2)).to_string(), failed);
    }
}
