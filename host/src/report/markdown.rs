//! The table of ratios as Markdown, for documents.

use super::results::{Ratio, Results};
use super::runs::{best_unit, short};
use crate::results::significant;
use std::fmt::Write as _;

/// The versions that a document names, and what it calls them.
const VERSIONS: [(&str, &str); 5] = [
    ("guest_kernel", "guest's kernel"),
    ("peer_kernel", "KVM"),
    ("peer_newer_kernel_aarch64", "newer KVM on Arm"),
    ("peer_qemu", "KVM's QEMU"),
    ("qemu", "the emulator"),
];

/// The table, and a paragraph with date and versions. Ratios that miss their target are bold; those
/// that differ from 1 by less than their spread are marked as equal.
pub(super) fn table(results: &Results) -> String {
    let mut out = "| | Quell | KVM | ratio | at most |\n|---|---|---|---|---|\n".to_owned();
    for ratio in &results.ratios {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {} | {} | {} ({}) | {} | {} |",
            cell(&ratio.name()),
            amount(ratio.quell.median, &ratio.unit),
            amount(ratio.kvm.median, &ratio.unit),
            cell(&ratio.peer_way),
            shown(ratio),
            ratio.target.map_or_else(String::new, |target| target.to_string()),
        );
    }
    let versions = VERSIONS.iter().filter_map(|(key, name)| {
        let (_, version) = results.facts.iter().find(|(fact, _)| fact == key)?;
        Some(format!("{name} {}", cell(version)))
    });
    let measured: Vec<_> =
        results.date.iter().map(|date| format!("measured {date}")).chain(versions).collect();
    let _ = writeln!(out, "\n{}.", sentence(&measured.join("; ")));
    out
}

/// The ratio, with its spread if it has one.
fn shown(ratio: &Ratio) -> String {
    let median = significant(ratio.ratio.median);
    let marked = if ratio.verdict == "missed" { format!("**{median}**") } else { median };
    let marked = if ratio.is_equal { format!("{marked}, equal") } else { marked };
    if ratio.ratio.min < ratio.ratio.max {
        format!("{marked} ({} to {})", significant(ratio.ratio.min), significant(ratio.ratio.max))
    } else {
        marked
    }
}

fn amount(value: f64, unit: &str) -> String {
    let (factor, unit) = best_unit(value, unit);
    // The table is of instructions unless it says otherwise.
    format!("{} {}", short(value * factor), cell(unit.strip_prefix("instructions").unwrap_or(unit)))
        .trim_end()
        .to_owned()
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The same with a capital letter at the beginning.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn a_table_has_a_row_for_each_ratio_and_names_the_versions() {
        let mut value = results(&[("a|b", 0.5, Some(0.8)), ("c", 1.4, Some(1.0))]);
        value["ratios"][1]["verdict"] = "missed".into();
        value["versions"]["qemu"] = "QEMU 7".into();
        value["runs"] = serde_json::json!([{
            "case": "flush", "subject": "quell", "way": "hypercall", "round": 1,
            "at": "2026-11-25T01:05:37Z", "wall": 1.0, "deaths": [], "values": [],
        }]);
        let text = table(&Results::of(&value).expect("reads"));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[2],
            "| flush: a\\|b, hypercall | 500 | 1,000 (hyperv) | 0.50 (0.45 to 0.60) | 0.8 |"
        );
        assert!(lines[3].contains("| **1.40** (1.26 to 1.68) | 1 |"), "{text}");
        assert_eq!(lines[5], "Measured 2026-11-25; the emulator QEMU 7.");
        assert_eq!(lines.len(), 6);
    }
}
