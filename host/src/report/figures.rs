//! README, `docs/performance.md` and `docs/report.html` show the same figures.

const README: &str = include_str!("../../../README.md");
const PERFORMANCE: &str = include_str!("../../../docs/performance.md");
const REPORT: &str = include_str!("../../../docs/report.html");
/// The part of the README with the table.
const HEADING: &str = "Comparison with Linux KVM";

/// A figure without what only one of the documents says of it: which of KVM's ways it is of, its
/// unit if that is usual, marks, and zeros that say nothing.
fn figure(cell: &str) -> String {
    let cell = cell.replace("**", "").replace(" instructions", "");
    let cell = cell.trim();
    let words = cell.split([',', '(']).next().unwrap_or_default().trim().to_owned();
    // A comma within a number separates thousands.
    let is_large = words.chars().all(|digit| digit.is_ascii_digit()) && cell.contains(',');
    let text = if is_large { cell.split(' ').next().unwrap_or_default().to_owned() } else { words };
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

fn rows(text: &str) -> impl Iterator<Item = Vec<String>> {
    let lines = text.lines().filter(|line| line.starts_with("| ") && line.contains(char::is_numeric));
    lines.map(|line| line.trim_matches('|').split('|').skip(1).map(figure).collect())
}

/// Whether these are a row's figures, in this order, perhaps with others between.
fn has(row: &[String], figures: &[String]) -> bool {
    let mut rest = row.iter();
    figures.iter().all(|figure| rest.any(|other| other == figure))
}

#[test]
fn the_readme_shows_what_was_measured() {
    let part = README.split("\n## ").find(|part| part.starts_with(HEADING)).expect("is a part");
    let of_performance: Vec<_> = rows(PERFORMANCE).collect();
    let of_report: Vec<Vec<_>> =
        REPORT.lines().map(|line| line.split("<td>").skip(1).map(figure).collect()).collect();
    // Quell, KVM, and their ratio.
    let shown: Vec<Vec<_>> = rows(part).map(|row| row[..3].to_vec()).collect();
    assert!(shown.len() >= 10, "{shown:?}");
    for row in shown {
        assert!(of_performance.iter().any(|other| has(other, &row)), "docs/performance.md: {row:?}");
        assert!(of_report.iter().any(|other| has(other, &row)), "docs/report.html: {row:?}");
    }
}

#[test]
fn figures_are_compared_without_what_surrounds_them() {
    for (cell, text) in [
        (" **0.33** (0.27 to 0.37) ", "0.33"),
        (" 1.07 s, its own flush ", "1.07 s"),
        ("4,397 instructions (hyperv)", "4,397"),
        ("66,646,476 ", "66,646,476"),
        ("437,241", "437,241"),
        ("1.0", "1"),
    ] {
        assert_eq!(figure(cell), text);
    }
    let row = ["1", "2", "3"].map(str::to_owned);
    assert!(has(&row, &row[1..]) && !has(&row[1..], &row));
}
