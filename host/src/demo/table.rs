//! The demo's table and its sentence.

use crate::cli::DemoArgs;
use crate::results::{Row, Samples, Subject};
use comfy_table::Table;

/// Rows of a table: label and metric.
type Rows = [(&'static str, &'static str)];

/// A column: its header, and the case that it shows.
pub(crate) type Column<'a> = (&'a str, &'a str);

/// Rows of the demo of flushes that are always shown, above the reasons of exits.
pub(crate) const HEAD: &Rows = &[
    ("real", "real"),
    ("user", "user"),
    ("sys", "sys"),
    ("guest's TLB IPIs", "guest.tlb_ipis"),
    ("exits", "exit.all"),
];

/// Its rows of the flush engine and the scheduler, always shown as well.
pub(crate) const TAIL: &Rows = &[
    ("IPIs sent by the guest", "irq.ipi"),
    ("flush requests", "flush.requests"),
    ("flushes deferred to entry", "flush.deferred"),
    ("flushes merged", "flush.merged"),
    ("kicks for flushes", "flush.kicks"),
    ("kicks for events", "kick.event"),
    ("ranges flushed", "flush.ranges"),
    ("whole-tag flushes", "flush.whole"),
    ("vCPUs preempted", "sched.preempted"),
];

/// The table: one column per case, and the ratio of the second to the first. Between the rows of
/// `head` and `tail` are the reasons of exits, except for those that occur in neither case.
pub(crate) fn table(samples: &Samples, columns: [Column<'_>; 2], [head, tail]: [&Rows; 2]) -> Table {
    let [(left_name, left_case), (right_name, right_case)] = columns;
    let reasons = samples.rows().into_iter().filter(|row| row.case == left_case);
    let reasons = reasons.map(|row| row.metric).filter(|m| m.starts_with("exit.") && m != "exit.all");
    let exits =
        reasons.map(|metric| (format!("  {}", metric.trim_start_matches("exit.").replace('.', " ")), metric));
    let owned = |(label, metric): &(&str, &str)| ((*label).to_owned(), (*metric).to_owned());
    let lines = head.iter().map(owned).chain(exits).chain(tail.iter().map(owned));
    let mut rows = Vec::new();
    for (label, metric) in lines {
        let row = |case| samples.row(case, Subject::Quell, &metric);
        let (Some(left), Some(right)) = (row(left_case), row(right_case)) else { continue };
        if label.starts_with(' ') && left.max == 0.0 && right.max == 0.0 {
            continue;
        }
        rows.push([label, value(&left), value(&right), ratio(left.median, right.median)]);
    }
    crate::table::table(["", left_name, right_name, "ratio"], rows)
}

pub(crate) fn sentence(samples: &Samples, ipi: &str, hypercall: &str, args: &DemoArgs) -> String {
    let median = |case| samples.row(case, Subject::Quell, "real").map(|row| row.median);
    let (Some(ipi), Some(hypercall)) = (median(ipi), median(hypercall)) else {
        return "Nothing was measured.".to_owned();
    };
    let size = format!("{} vCPUs on {} CPUs", args.size.vcpus, args.size.cpus);
    if hypercall < ipi {
        format!(
            "Flushing by hypercall, thrash takes {:.2} of the time it takes with IPIs: it is {:.2} times \
             as fast ({size}, medians of {}).",
            hypercall / ipi,
            ipi / hypercall,
            args.runs
        )
    } else {
        format!(
            "Flushing by hypercall, thrash is not faster here: it takes {:.2} of the time it takes with \
             IPIs ({size}, medians of {}).",
            hypercall / ipi,
            args.runs
        )
    }
}

fn value(row: &Row) -> String {
    match &*row.unit {
        "s" => format!("{:.2} s", row.median),
        "ms" => format!("{:.1} ms", row.median),
        _ => grouped(row.median),
    }
}

fn ratio(left: f64, right: f64) -> String {
    if left > 0.0 { format!("{:.2}", right / left) } else { "–".to_owned() }
}

/// An integer with its digits in groups of three.
fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.max(0.0));
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_from_the_right() {
        for (number, text) in [(0.0, "0"), (999.0, "999"), (1000.0, "1,000"), (1_234_567.0, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn reasons_that_never_occurred_are_left_out() {
        let mut samples = Samples::default();
        for (case, real) in [("i", 2.0), ("h", 1.0)] {
            samples.add(case, Subject::Quell, "real", "s", real);
            samples.add_count(case, Subject::Quell, "exit.wait", 0);
            samples.add_count(case, Subject::Quell, "exit.register.read", 1000);
        }
        let text = table(&samples, [("left", "i"), ("right", "h")], [HEAD, TAIL]).to_string();
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
