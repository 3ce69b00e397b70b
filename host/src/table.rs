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

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_line_up_on_the_right() {
        let text = super::table(["", "count"], [["a", "7"], ["b", "1,234"]]).to_string();
        let ends: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "{text}");
        assert!(text.contains("    7 \n"), "{text}");
    }
}
