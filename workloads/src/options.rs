//! Command lines of `--name value` pairs.

use std::env::{self, Args};
use std::iter::Skip;
use std::process::ExitCode;

/// The options of this process, read by `parse`.
///
/// # Errors
///
/// The arguments are invalid. Then the error and `usage` have been printed, and the process must
/// end with this status.
pub fn of_process<O>(
    program: &str,
    usage: &str,
    parse: impl FnOnce(Skip<Args>) -> Result<O, String>,
) -> Result<O, ExitCode> {
    parse(env::args().skip(1)).map_err(|message| {
        eprintln!("{program}: {message}\n{usage}");
        ExitCode::from(2)
    })
}

/// The pairs of name and value. A name without a value is an error, and the last item.
pub fn pairs(
    args: impl IntoIterator<Item = String>,
) -> impl Iterator<Item = Result<(String, String), String>> {
    let mut args = args.into_iter();
    std::iter::from_fn(move || {
        let name = args.next()?;
        Some(match args.next() {
            Some(value) => Ok((name, value)),
            None => Err(format!("{name}: unknown, or its value is missing")),
        })
    })
}

/// The value as a number from `min` to `max`.
pub fn number(name: &str, value: &str, min: u64, max: u64) -> Result<u64, String> {
    let number = value.parse().ok().filter(|n| (min..=max).contains(n));
    number.ok_or_else(|| format!("{name} {value}: expected a number from {min} to {max}"))
}

/// The error for an unknown name.
pub fn unknown(name: &str) -> String {
    format!("{name}: unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(args: &[&str]) -> Result<Vec<(String, String)>, String> {
        pairs(args.iter().map(|arg| (*arg).to_owned())).collect()
    }

    #[test]
    fn a_name_without_value_is_an_error() {
        assert!(split(&["--a", "1", "--b"]).is_err_and(|message| message.starts_with("--b:")));
        assert_eq!(split(&["--a", "1"]), Ok(vec![("--a".into(), "1".into())]));
        assert_eq!(split(&[]), Ok(vec![]));
    }

    #[test]
    fn numbers_are_within_their_limits() {
        for value in ["", "x", "-1", "1", "6", "99999999999999999999"] {
            assert!(number("--n", value, 2, 5).is_err_and(|message| message.contains("2 to 5")), "{value}");
        }
        assert_eq!((number("--n", "2", 2, 5), number("--n", "5", 2, 5)), (Ok(2), Ok(5)));
    }
}
