//! The kernel's files of settings and counts.

use crate::Failure;
use std::{fs, io};

pub(crate) fn read(path: &str) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| named(path, &error))
}

/// A number that is alone in its file.
pub(crate) fn number(path: &str) -> Result<u64, Failure> {
    let text = read(path)?;
    text.trim().parse().map_err(|_| format!("{path}: '{}' is no number", text.trim()).into())
}

pub(crate) fn write(path: &str, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| named(path, &error))
}

fn named(path: &str, error: &io::Error) -> Failure {
    format!("{path}: {error}").into()
}

/// The numbers of a list such as `0-2,5`.
pub(crate) fn list(text: &str) -> Result<Vec<usize>, Failure> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>()?..=last.parse()?);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(list("0-2,5\n").expect("is a list"), [0, 1, 2, 5]);
        assert!(list("\n").expect("is empty").is_empty());
        assert!(list("0-x").is_err());
    }

    #[test]
    fn errors_name_the_file() {
        for error in [read("/no/file").map(drop), number("/proc/version").map(drop), write("/no/file", "")] {
            let why = error.expect_err("fails").to_string();
            assert!(why.starts_with("/no/file: ") || why.starts_with("/proc/version: "), "{why}");
        }
    }
}
