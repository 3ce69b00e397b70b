//! The common layout of all tables.

use comfy_table::{CellAlignment, LineStyle, Row, Table, TableStyle};

/// Rules only above, below and under the header.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// A table with this header and these rows: labels to the left, numbers to the right.
pub(crate) fn table<H: Into<Row>, R: Into<Row>>(header: H, rows: impl IntoIterator<Item = R>) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Prints values with their limits; returns whether all are within.
pub(crate) fn judge<L: AsRef<str>>(rows: impl IntoIterator<Item = (L, f64, f64)>) -> bool {
    let rows: Vec<_> = rows.into_iter().collect();
    let good = |value: f64, limit: f64| value <= limit;
    let cells = rows.iter().map(|(label, value, limit)| {
        let (label, value, limit) = (label.as_ref(), *value, *limit);
        let text =
            |number: f64| if number >= 100.0 { format!("{number:.0}") } else { format!("{number:.3}") };
        let limit_text = if limit.is_finite() { text(limit) } else { String::new() };
        let verdict = if good(value, limit) { "" } else { "over" };
        [label.to_owned(), text(value), limit_text, verdict.to_owned()]
    });
    println!("{}", table(["", "measured", "at most", ""], cells));
    rows.iter().all(|(_, value, limit)| good(*value, *limit))
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_value_over_its_limit_or_not_measured_is_not_good() {
        use super::judge;
        assert!(judge([("a", 1.0, 1.0)]) && !judge([("a", 1.0, 1.0), ("b", 1.1, 1.0)]));
        assert!(!judge([("a", f64::NAN, 1.0)]));
    }

    #[test]
    fn numbers_line_up_on_the_right() {
        let text = super::table(["", "count"], [["a", "7"], ["b", "1,234"]]).to_string();
        let ends: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "{text}");
        assert!(text.contains("    7 \n"), "{text}");
    }
}
