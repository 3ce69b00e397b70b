//! The help screen: keys and columns.

use super::rates::COLUMNS;
use ratatui::Frame;
use ratatui::layout::Constraint;
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

const KEYS: [(&str, &str); 9] = [
    ("← → s S", "sort by another column"),
    ("r", "reverse the order"),
    ("↑ ↓ PgUp PgDn", "scroll"),
    ("Tab", "the next machine"),
    ("p", "pause, and go on"),
    ("w", "waits: interval, or all"),
    ("g", "guests, or their vCPUs"),
    ("?", "this help, and back"),
    ("q", "quit"),
];
/// Width of a key and its description.
#[cfg(test)]
const KEY_WIDTH: usize = 38;
/// Width of the help with two keys side by side, and with one.
const WIDE: u16 = 78;
const NARROW: u16 = 54;

/// Draws the help over the middle of the screen. If the screen is too small, the keys come first.
pub(super) fn draw(frame: &mut Frame<'_>) {
    let row = |(name, about): (&str, &str)| format!("{name:<14}{about:<24}");
    let is_wide = frame.area().width >= WIDE;
    let keys: Vec<String> = if is_wide {
        KEYS.chunks(2).map(|pair| pair.iter().map(|&key| row(key)).collect()).collect()
    } else {
        KEYS.into_iter().map(row).collect()
    };
    let columns = COLUMNS.iter().map(|column| row((column.title, column.about)));
    let lines: Vec<Line<'_>> = keys.into_iter().chain(columns).map(Line::from).collect();
    let height = u16::try_from(lines.len()).unwrap_or(0).saturating_add(2);
    let width = if is_wide { WIDE } else { NARROW };
    let area = frame.area().centered(Constraint::Length(width), Constraint::Length(height));
    let block = Block::bordered().title(Line::from(" keys, and columns: per second ").bold());
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_keys_fit_beside_each_other() {
        for (name, about) in KEYS {
            assert!(name.chars().count() < 14 && about.chars().count() <= 24, "{name}");
        }
        assert!(2 * KEY_WIDTH + 2 <= usize::from(WIDE));
    }
}
