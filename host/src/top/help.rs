//! The help screen: keys and columns.

use super::rates::COLUMNS;
use ratatui::Frame;
use ratatui::layout::Rect;
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
    let area = middle(frame.area(), if is_wide { WIDE } else { NARROW }, height);
    let block = Block::bordered().title(Line::from(" keys, and columns: per second ").bold());
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A rectangle in the middle of another, as large as requested if there is room.
fn middle(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    Rect { x, y, width, height }
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

    #[test]
    fn what_is_larger_than_the_screen_is_cut() {
        let screen = Rect::new(0, 0, 10, 4);
        assert_eq!(middle(screen, 54, 20), screen);
        assert_eq!(middle(screen, 4, 2), Rect::new(3, 1, 4, 2));
    }
}
