//! Files and comments fit the limits that CONTRIBUTING.md names. Functions are clippy's business
//! (`too_many_lines`, with its limit in `clippy.toml`).

use super::invariants::WIDTH;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines that a source file has at most.
const LINES_MAX: usize = 400;

/// Tables, which are as long as there are rows.
const TABLES: [&str; 3] = [
    "crates/coherence/src/model/mutants.rs",
    "crates/coherence/src/shootdown/model/mutants.rs",
    "host/src/test/cases.rs",
];

/// All Rust sources of the tree.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = Vec::from([workspace::root().to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let (name, path) = entry.map(|entry| (entry.file_name(), entry.path())).unwrap();
            let name = name.to_string_lossy();
            if path.is_dir() && !name.starts_with('.') && !name.starts_with("target") {
                directories.push(path);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    found
}

fn is_table(path: &Path) -> bool {
    TABLES.iter().any(|table| path.ends_with(table))
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["//!", "///", "//"].iter().find_map(|start| line.strip_prefix(start))
}

/// Lines of comments that are too wide: of prose, not of code, tables or links.
fn wide_comments(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(said) = comment(line) else {
            is_code = false;
            continue;
        };
        is_code ^= said.trim_start().starts_with("```");
        let has_columns = said.trim_start().starts_with(['|', '[']) || said.trim_start().contains("   ");
        if !is_code && !has_columns && line.chars().count() > WIDTH {
            found.push(line);
        }
    }
    found
}

#[test]
fn sources_have_at_most_400_lines() {
    let sources = sources();
    assert!(sources.len() > 500, "{} sources", sources.len());
    let lines = |path: &PathBuf| fs::read_to_string(path).unwrap().lines().count();
    let long = sources.iter().filter(|path| !is_table(path)).map(|path| (lines(path), path));
    let long: Vec<_> = long.filter(|&(count, _)| count > LINES_MAX).collect();
    assert!(long.is_empty(), "{long:#?}");
    for table in TABLES {
        assert!(lines(&workspace::root().join(table)) > LINES_MAX, "{table} needs no exception");
    }
}

#[test]
fn comments_are_as_wide_as_a_terminal() {
    let mut found = String::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        wide_comments(&text).iter().for_each(|line| found += &format!("{}: {line}\n", path.display()));
    }
    assert!(found.is_empty(), "{found}");
    let wide = format!("    // {}", "a ".repeat(50));
    let text = format!("{wide}\n/// ```\n{wide}\n/// ```\n// | {wide}\n// a    b{wide}\nlet b;");
    assert_eq!(wide_comments(&text), [wide.as_str()]);
}
