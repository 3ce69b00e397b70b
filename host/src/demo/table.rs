//! The demo's table.

use crate::report::grouped;
use crate::results::{Row, Samples, Subject};
use comfy_table::Table;

/// Rows of a table that are always shown: label and metric.
pub(super) type Rows = [(&'static str, &'static str)];

/// The table: one column per case, and the ratio of the second to the first. Between the rows of
/// `head` and `tail` are the reasons of exits, except for those that occur in neither case.
pub(super) fn table(
    samples: &Samples,
    [left_name, right_name]: [&str; 2],
    [left_case, right_case]: [&String; 2],
    [head, tail]: [&Rows; 2],
) -> Table {
    let reasons = samples.rows().into_iter().filter(|row| row.case == *left_case);
    let reasons = reasons.map(|row| row.metric).filter(|m| m.starts_with("exit.") && m != "exit.all");
    let exits =
        reasons.map(|metric| (format!("  {}", metric.trim_start_matches("exit.").replace('.', " ")), metric));
    let owned = |(label, metric): &(&str, &str)| ((*label).to_owned(), (*metric).to_owned());
    let lines = head.iter().map(owned).chain(exits).chain(tail.iter().map(owned));
    let mut rows = Vec::new();
    for (label, metric) in lines {
        let row = |case: &String| samples.row(case, Subject::Quell, &metric);
        let (Some(left), Some(right)) = (row(left_case), row(right_case)) else { continue };
        if label.starts_with(' ') && left.max == 0.0 && right.max == 0.0 {
            continue;
        }
        rows.push([label, value(&left), value(&right), ratio(left.median, right.median)]);
    }
    crate::table::table(["", left_name, right_name, "ratio"], rows)
}

fn value(row: &Row) -> String {
    match &*row.unit {
        "s" => format!("{:.2} s", row.median),
        "ms" => format!("{:.1} ms", row.median),
        _ => grouped(&format!("{:.0}", row.median.max(0.0))),
    }
}

fn ratio(left: f64, right: f64) -> String {
    if left > 0.0 { format!("{:.2}", right / left) } else { "–".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::flush::{HEAD, TAIL};
    use super::*;

    #[test]
    fn reasons_that_never_occurred_are_left_out() {
        let mut samples = Samples::default();
        for (case, real) in [("i", 2.0), ("h", 1.0)] {
            samples.add(case, Subject::Quell, "real", "s", real);
            samples.add_count(case, Subject::Quell, "exit.wait", 0);
            samples.add_count(case, Subject::Quell, "exit.register.read", 1000);
        }
        let text = table(&samples, ["left", "right"], ["i", "h"].map(str::to_owned).each_ref(), [HEAD, TAIL])
            .to_string();
        assert!(
            text.contains("2.00 s")
                && text.contains("0.50")
                && text.contains("1,000")
                && text.contains("  register read ")
                && text.contains("left"),
            "{text}"
        );
        assert!(!text.contains("wait"), "{text}");
    }
}
