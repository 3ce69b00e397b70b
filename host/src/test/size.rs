//! `docs/size.md` says how many lines of Rust each directory may have, and all of them together.

use super::style::sources;
use crate::workspace;
use std::collections::BTreeMap;
use std::fs;

const DOCUMENT: &str = "docs/size.md";
/// A ceiling is as near to what is there.
const SLACK: usize = 200;

/// Directories and their ceilings, by the rows of the document's table. That of the root is what
/// all may have together.
fn ceilings(document: &str) -> BTreeMap<&str, usize> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(room, rest)| {
        let number = rest.split(' ').next().unwrap_or_default().replace(',', "");
        (room, number.parse().unwrap_or_else(|_| panic!("{room}: no number of lines: {rest}")))
    })
    .collect()
}

/// What is wrong, given the lines of each source.
fn faults(mut ceilings: BTreeMap<&str, usize>, lines: &[(String, usize)]) -> Vec<String> {
    let mut found = Vec::new();
    let most = ceilings.remove(".").unwrap_or(0);
    let sum = ceilings.values().sum::<usize>();
    if sum != most {
        found.push(format!("the ceilings are {sum} together, and {most} is said: lower another one"));
    }
    let mut counts: BTreeMap<&str, usize> = ceilings.keys().map(|room| (*room, 0)).collect();
    for (name, count) in lines {
        let rooms = counts
            .iter_mut()
            .filter(|(room, _)| name.strip_prefix(**room).is_some_and(|rest| rest.starts_with('/')));
        match rooms.max_by_key(|(room, _)| room.len()) {
            Some((_, sum)) => *sum += count,
            None => found.push(format!("{name} is in none of the directories")),
        }
    }
    for (room, count) in counts {
        match ceilings[room] {
            most if count > most => found.push(format!("{room} has {count} lines, at most {most}")),
            most if count + SLACK < most => found.push(format!("{room} has {count} lines: lower its {most}")),
            _ => {}
        }
    }
    found
}

#[test]
fn each_directory_keeps_its_ceiling_of_lines() {
    let root = workspace::root();
    let lines: Vec<_> = sources(root)
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).unwrap().lines().count())
        })
        .collect();
    let document = fs::read_to_string(root.join(DOCUMENT)).unwrap();
    assert_eq!(faults(ceilings(&document), &lines), [""; 0]);
}

#[test]
fn what_grows_or_has_no_ceiling_is_found() {
    let check = |table: &str, expected: &[&str]| {
        let lines = [("a/x.rs", 900), ("a/b/y.rs", 1_000), ("a/bc.rs", 50)];
        let lines = lines.map(|(name, count)| (name.to_owned(), count));
        let found = faults(ceilings(table), &lines);
        let is_so = found.len() == expected.len()
            && found.iter().zip(expected).all(|(found, expected)| found.starts_with(expected));
        assert!(is_so, "{table}: {found:?}");
    };
    check("| `.` | 2,000 | all |\n| `a` | 1,000 |\n| `a/b` | 1,000 |", &[]);
    check("| `.` | 1,900 | all |\n| `a` | 1,000 |\n| `a/b` | 1,000 |", &["the ceilings are 2000"]);
    check("| `.` | 1,999 | all |\n| `a` | 1,000 |\n| `a/b` | 999 |", &["a/b has 1000 lines, at most 999"]);
    check("| `.` | 2,200 | all |\n| `a` | 1,000 |\n| `a/b` | 1,200 |", &[]);
    check("| `.` | 2,201 | all |\n| `a` | 1,000 |\n| `a/b` | 1,201 |", &["a/b has 1000 lines: lower its"]);
    check("| `.` | 1,000 | all |\n| `a/b` | 1,000 |", &["a/x.rs is in none", "a/bc.rs is in none"]);
}
