//! Tables of rows: run, or only named.

use tlbcheck::command_line::{Options, Task};
use tlbcheck::report::{Totals, Verdict, skip};

use super::console;

pub(super) struct Row {
    name: &'static str,
    run: fn() -> Verdict,
}

pub(super) const fn row(name: &'static str, run: fn() -> Verdict) -> Row {
    Row { name, run }
}

pub(super) fn run(rows: impl Iterator<Item = &'static Row> + Clone, options: &Options<'_>) -> Totals {
    let is_list = options.task == Task::List;
    let wanted = rows.filter(|row| is_list || options.wants(row.name));
    let mut totals = Totals::default();
    console::report(|report| report.plan(wanted.clone().count()));
    for row in wanted {
        let verdict = if is_list {
            Err(skip(format_args!("only named")))
        } else {
            console::report(|report| report.begin(row.name));
            (row.run)()
        };
        totals.count(&verdict);
        console::report(|report| report.row(row.name, &verdict));
    }
    totals
}
