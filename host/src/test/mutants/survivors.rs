//! The survivors that `docs/mutants.md` lists, each under the reason why it may survive.

use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// A mutant without the position in its file, which changes with every line above it:
/// `crates/x/src/y.rs: replace + with - in z`.
pub(super) fn without_position(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(path), Some(_line), Some(_column), Some(what)) => format!("{path}:{what}"),
        _ => name.to_owned(),
    }
}

/// How many mutants of each name may survive.
#[derive(Debug, Default)]
pub(super) struct Listed {
    counts: BTreeMap<String, usize>,
}

impl Listed {
    /// Reads the list: items of the form ``- `NAME` `` or ``- `NAME` ×2``, under a heading of third
    /// level that gives the reason.
    ///
    /// # Errors
    /// An item that cannot be read, or that has no reason.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut listed = Self::default();
        let mut has_reason = false;
        for line in text.lines() {
            if line.starts_with('#') {
                has_reason = line.strip_prefix("### ").is_some_and(|reason| !reason.trim().is_empty());
            }
            let Some(item) = line.strip_prefix("- `crates/") else { continue };
            let Some((name, rest)) = item.split_once('`') else { bail!("no name ends in: {line}") };
            if !has_reason {
                bail!("listed without a reason: {name}");
            }
            let count = match rest.trim() {
                "" => 1,
                rest => match rest.strip_prefix('×').and_then(|count| count.parse().ok()) {
                    Some(count) => count,
                    None => bail!("not a count: {rest}"),
                },
            };
            *listed.counts.entry(format!("crates/{name}")).or_default() += count;
        }
        Ok(listed)
    }

    /// Those of `missed` that are not listed, or that occur more often than listed.
    pub(super) fn unlisted(&self, missed: &[String]) -> Vec<String> {
        let mut left = self.counts.clone();
        let mut is_listed = |name: &str| match left.get_mut(&without_position(name)) {
            Some(count @ 1..) => {
                *count -= 1;
                true
            }
            _ => false,
        };
        missed.iter().filter(|name| !is_listed(name)).cloned().collect()
    }

    /// Listed ones below `directory` that occur less often in `missed`.
    pub(super) fn outdated(&self, missed: &[String], directory: &str) -> Vec<String> {
        let survived = |name: &str| missed.iter().filter(|missed| without_position(missed) == name).count();
        let ours = self.counts.iter().filter(|(name, _)| name.starts_with(directory));
        ours.filter(|(name, count)| survived(name) < **count).map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "crates/x/src/a.rs:1:2: replace | with ^ in f";
    const OTHER: &str = "crates/x/src/a.rs:9:7: replace | with ^ in f";
    const THIRD: &str = "crates/y/src/b.rs:3:1: replace <impl A for B>::f -> Option<'_> with None";

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn survivor_needs_a_reason() {
        assert!(Listed::parse("## Survivors\n- `crates/x/src/a.rs: f`").is_err());
        assert!(Listed::parse("### \n- `crates/x/src/a.rs: f`").is_err());
        assert!(Listed::parse("### Why\n## Else\n- `crates/x/src/a.rs: f`").is_err());
        assert!(Listed::parse("### Why\n- `crates/x/src/a.rs: f").is_err());
        assert!(Listed::parse("### Why\n- `crates/x/src/a.rs: f` often").is_err());
        assert!(Listed::parse("### Why\nprose\n\n- `crates/x/src/a.rs: f`\n- `other`").is_ok());
    }

    #[test]
    fn one_that_is_listed_excuses_no_second_of_its_name() {
        let listed = Listed::parse("### Why\n- `crates/x/src/a.rs: replace | with ^ in f`\n").unwrap();
        assert_eq!(listed.unlisted(&names(&[ONE, OTHER, THIRD])), names(&[OTHER, THIRD]));
        let listed = Listed::parse("### Why\n- `crates/x/src/a.rs: replace | with ^ in f` ×2\n").unwrap();
        assert_eq!(listed.unlisted(&names(&[ONE, OTHER, THIRD])), names(&[THIRD]));
        assert_eq!(Listed::default().unlisted(&names(&[ONE])), names(&[ONE]));
    }

    #[test]
    fn listed_mutant_that_is_caught_is_outdated_in_its_own_crate_only() {
        let text = "### Why\n- `crates/x/src/a.rs: replace | with ^ in f` ×2\n- `crates/y/src/b.rs: gone`\n";
        let listed = Listed::parse(text).unwrap();
        assert!(listed.outdated(&names(&[ONE, OTHER]), "crates/x/").is_empty());
        let outdated = names(&["crates/x/src/a.rs: replace | with ^ in f"]);
        assert_eq!(listed.outdated(&names(&[OTHER, THIRD]), "crates/x/"), outdated);
    }

    #[test]
    fn positions_are_taken_off_and_nothing_else() {
        let bare = "crates/y/src/b.rs: replace <impl A for B>::f -> Option<'_> with None";
        assert_eq!(without_position(THIRD), bare);
        assert_eq!(without_position("odd"), "odd");
    }
}
