//! Tables of rows: run, or listed.

use tlbcheck::command_line::Options;
use tlbcheck::report::{Stop, Totals, Verdict, reason};

use super::console;

pub(super) struct Row {
    name: &'static str,
    run: fn() -> Verdict,
}

pub(super) const fn row(name: &'static str, run: fn() -> Verdict) -> Row {
    Row { name, run }
}

pub(super) fn run(rows: impl Iterator<Item = &'static Row> + Clone, options: &Options<'_>) -> Totals {
    let wanted = rows.filter(|row| options.wants(row.name));
    let mut totals = Totals::default();
    console::report(|report| report.plan(wanted.clone().count()));
    for row in wanted {
        console::report(|report| report.begin(row.name));
        let verdict = (row.run)();
        totals.count(&verdict);
        console::report(|report| report.row(row.name, &verdict));
    }
    totals
}

pub(super) fn list(rows: impl Iterator<Item = &'static Row> + Clone) -> Totals {
    let mut totals = Totals::default();
    console::report(|report| report.plan(rows.clone().count()));
    for row in rows {
        let verdict = Err(Stop::Skip(reason(format_args!("only named"))));
        totals.count(&verdict);
        console::report(|report| report.row(row.name, &verdict));
    }
    totals
}
