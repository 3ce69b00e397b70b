//! Draws the state. If something does not fit, rows and columns are scrolled, and waits are shown
//! in larger steps or left out.

use super::app::{App, Life};
use super::rates::{COLUMNS, Column, GuestRate, Rates, short};
use crate::prelude::*;
use hostlink::guests::GuestState;
use ratatui::Frame;
use ratatui::layout::Constraint::{Fill, Length};
use ratatui::layout::{Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Bar, BarChart, BarGroup, Block, Cell, Clear, Paragraph, Row, Table};

/// Width of each column except the first, and of the gap between two.
const COLUMN_WIDTH: u16 = 5;
const FIRST_WIDTH: u16 = 4;
const FIRST_WIDTH_MAX: u16 = 24;
const GAP: u16 = 1;
/// Height of the waits with title and labels, and of the smallest screen that shows them.
const WAITS_HEIGHT: u16 = 7;
const HEIGHT_FOR_WAITS: u16 = 18;
/// Height of the smallest screen that shows the command that started the machine.
const HEIGHT_FOR_TITLE: u16 = 20;
const BAR_WIDTH: u16 = 4;
/// Rows of the table above those of vCPUs: headings and sums.
const ROWS_ABOVE: u16 = 2;
/// The steal time, in percent, from which it is highlighted.
const STEAL_IS_MUCH: f64 = 50.0;

/// For anything that deserves attention.
const NOTABLE: Style = Style::new().add_modifier(Modifier::BOLD).fg(Color::Yellow);

/// The parts of the screen: header, table, waits and footer.
fn parts(area: Rect) -> [Rect; 4] {
    let header = match area.height {
        0..4 => 0,
        4..6 => 1,
        6..HEIGHT_FOR_TITLE => 2,
        _ => 3,
    };
    let waits =
        if area.height >= HEIGHT_FOR_WAITS && waits_in_one(area.width).is_some() { WAITS_HEIGHT } else { 0 };
    let footer = u16::from(area.height >= 4);
    Layout::vertical([Length(header), Fill(1), Length(waits), Length(footer)]).areas(area)
}

pub(super) fn rows(area: Rect) -> usize {
    parts(area)[1].height.saturating_sub(ROWS_ABOVE).into()
}

pub(super) fn draw(frame: &mut Frame<'_>, app: &App, has_colours: bool) {
    let [head, table, waits, foot] = parts(frame.area());
    frame.render_widget(Paragraph::new(header(app)), head);
    match app.shown() {
        Some(rates) => draw_table(frame, table, app, &rates),
        None => frame.render_widget(Paragraph::new(absence(app)), table),
    }
    if app.rates.is_some() {
        draw_waits(frame, waits, app);
    }
    frame.render_widget(Paragraph::new(footer(app)), foot);
    if app.has_help {
        draw_help(frame);
    }
    if !has_colours {
        frame.buffer_mut().content.iter_mut().for_each(|cell| cell.fg = Color::Reset);
    }
}

fn absence(app: &App) -> String {
    match (&app.trouble, app.life) {
        (Some(trouble), _) => trouble.clone(),
        (None, Life::Starts) => "its hypervisor has not begun to count".to_owned(),
        (None, Life::Runs) => "one moment".to_owned(),
        (None, Life::Ended) => "it has ended".to_owned(),
    }
}

pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn header(app: &App) -> Vec<Line<'static>> {
    let mut first = vec![Span::from(format!("machine {}", app.machine.name)).bold()];
    if let Some((place, count)) = app.place().filter(|&(_, count)| count > 1) {
        first.push(Span::from(format!(" ({place} of {count})")));
    }
    match app.life {
        Life::Ended => first.push(Span::styled(" has ended", NOTABLE)),
        _ if app.is_paused => first.push(Span::styled(" paused", NOTABLE)),
        _ => {}
    }
    if let Some(source) = &app.source {
        first.push(Span::from(format!("  {}", source.notice.arch)));
        if let Some(sample) = &app.last {
            let vcpus = sample.counters.each().count();
            first.push(Span::from(format!("  {vcpus} vCPUs : {} CPUs", sample.cpus)));
        }
        if app.life != Life::Ended {
            first.push(Span::from(format!("  up {}", clock(source.notice.uptime()))));
        }
    }
    let second = app.rates.as_ref().map_or_else(String::new, |rates| {
        let (exits, flushes) = (short(rates.exits()), short(rates.flush_requests()));
        format!("{exits} exits/s  {flushes} flush requests/s  over {:.1} s", rates.seconds)
    });
    let title = app.source.as_ref().map_or_else(String::new, |source| source.notice.title.clone());
    let third = match &app.trouble {
        // Without figures it is shown in their place.
        Some(trouble) if app.rates.is_some() => Line::styled(trouble.clone(), NOTABLE),
        _ if app.rates.as_ref().is_some_and(Rates::has_guests) => guests(app),
        _ if app.names.len() > 1 => Line::from(format!("running: {}", app.names.join(" "))).dim(),
        _ => Line::from(title).dim(),
    };
    vec![Line::from(first), Line::from(second), third]
}

/// The guests of a machine with several, in one line: what each does, and the CPUs that it uses.
fn guests(app: &App) -> Line<'static> {
    let rates = app.rates.iter().flat_map(|rates| &rates.guests);
    let guest = |GuestRate { seen, cpus }: &GuestRate| match seen.state {
        GuestState::Running => format!("{} {:.0}%", seen.name, 100.0 * cpus),
        state => format!("{} {state}", seen.name),
    };
    Line::from(rates.map(guest).collect::<Vec<_>>().join("  "))
}

fn footer(app: &App) -> Line<'static> {
    let pause = if app.is_paused { "go on" } else { "pause" };
    let keys = [
        ("q", "quit"),
        ("?", "help"),
        ("←→s", "sort"),
        ("r", "reverse"),
        ("p", pause),
        ("Tab", "machine"),
        ("w", "waits"),
        ("g", "guests"),
        ("↑↓", "scroll"),
    ];
    let key = |(key, about): (&'static str, &'static str)| {
        [Span::from(key).bold(), Span::from(format!(" {about}  "))]
    };
    Line::from_iter(keys.into_iter().flat_map(key))
}

/// The columns that fit beside the first one, including the one that rows are sorted by.
fn visible(width: u16, first_width: u16, sort: usize) -> std::ops::Range<usize> {
    let others = COLUMNS.len() - 1;
    let fit_in = |width: u16| usize::from(width / (COLUMN_WIDTH + GAP));
    let left = width.saturating_sub(first_width);
    // If columns are hidden, room is reserved behind the last one for the mark that says so.
    let fit = if fit_in(left) >= others { others } else { fit_in(left.saturating_sub(1)) };
    let begin = (sort + 1).saturating_sub(fit).max(1);
    begin..begin + fit
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, app: &App, rates: &Rates) {
    let labels = (0..rates.vcpus()).map(|row| rates.label(row).chars().count());
    let first_width = u16::try_from(labels.max().unwrap_or(0)).unwrap_or(u16::MAX);
    let first_width = first_width.clamp(FIRST_WIDTH.max(rates.first_title().len() as u16), FIRST_WIDTH_MAX);
    let shown = visible(area.width, first_width, app.sort);
    let columns = || std::iter::once(0).chain(shown.clone());
    let heading = |index: usize| {
        let bold = Style::new().bold();
        let style = if index == app.sort { bold.underlined().cyan() } else { bold };
        cell(if index == 0 { rates.first_title() } else { COLUMNS[index].title }.to_owned(), style)
    };
    let sums = columns().map(|index| match index {
        0 => cell("all".to_owned(), Style::new()),
        _ => cell(short(rates.total(&COLUMNS[index])), Style::new()),
    });
    let vcpu = |vcpu: usize| {
        Row::new(columns().map(|index| match index {
            0 => cell(rates.label(vcpu).to_owned(), Style::new()),
            _ => figure(rates.of(vcpu, &COLUMNS[index]), &COLUMNS[index]),
        }))
    };
    let page = usize::from(area.height.saturating_sub(ROWS_ABOVE));
    let order = rates.order(app.column(), app.is_falling);
    let first = app.first.min(order.len().saturating_sub(page));
    let vcpus = order.into_iter().skip(first).take(page).map(vcpu);
    let widths = columns().map(|at| Length(if at == 0 { first_width } else { COLUMN_WIDTH }));
    let rows = std::iter::once(Row::new(sums).bold()).chain(vcpus);
    let table = Table::new(rows, widths).header(Row::new(columns().map(heading))).column_spacing(GAP);
    frame.render_widget(table, area);
    mark_hidden(frame, area, first_width, &shown);
}

/// Marks in the headings that there are columns further left or right.
fn mark_hidden(frame: &mut Frame<'_>, area: Rect, first_width: u16, shown: &std::ops::Range<usize>) {
    let mut mark = |offset: u16, text: &str| {
        if offset < area.width && area.height > 0 {
            frame.buffer_mut().set_string(area.x + offset, area.y, text, Style::new().bold());
        }
    };
    if shown.start > 1 {
        mark(first_width, "‹");
    }
    if shown.end < COLUMNS.len() {
        let width = u16::try_from(shown.len()).unwrap_or(0) * (COLUMN_WIDTH + GAP);
        mark((first_width + width).min(area.width.saturating_sub(1)), "›");
    }
}

fn cell(text: String, style: Style) -> Cell<'static> {
    Cell::from(Text::from(text).right_aligned()).style(style)
}

/// A figure: zero is dimmed, and a high steal time is highlighted.
fn figure(value: f64, column: &Column) -> Cell<'static> {
    let style = match value {
        _ if value <= 0.0 => Style::new().dim(),
        _ if column.title == "steal" && value >= STEAL_IS_MUCH => Style::new().bold().red(),
        _ => Style::new(),
    };
    cell(if value <= 0.0 { "·".to_owned() } else { short(value) }, style)
}

/// The number of the hypervisor's wait steps per bar, so that all bars fit.
fn waits_in_one(width: u16) -> Option<usize> {
    let bars = |in_one: usize| u16::try_from(Counter::WAITS.len() / in_one).unwrap_or(u16::MAX);
    [1, 2, 4].into_iter().find(|&in_one| bars(in_one) * (BAR_WIDTH + GAP) - GAP <= width)
}

/// The longest wait of the step with this number: `4µ`, `16m`; `None` for the last one.
pub(super) fn longest(step: usize) -> Option<String> {
    match step {
        0..10 => Some(format!("{}µ", 1 << step)),
        10..15 => Some(format!("{}m", 1 << (step - 10))),
        _ => None,
    }
}

fn draw_waits(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let Some(in_one) = waits_in_one(area.width).filter(|_| area.height == WAITS_HEIGHT) else { return };
    let [title, chart] = Layout::vertical([Length(1), Fill(1)]).areas(area);
    let waits = app.waits();
    let what = if app.has_all_waits { "since it was started" } else { "in the interval" };
    let said = format!("flush waits {what}, by the longest in each bar (µs, ms)");
    frame.render_widget(Paragraph::new(Line::from(said).bold()), title);
    let bars: Vec<_> = waits
        .chunks(in_one)
        .enumerate()
        .map(|(index, counts)| {
            let count: u64 = counts.iter().sum();
            let last = (index + 1) * in_one - 1;
            // The last one has no upper limit: it is named after its lower limit.
            let label = longest(last)
                .unwrap_or_else(|| format!(">{}", longest(index * in_one - 1).unwrap_or_default()));
            let value = if count == 0 { String::new() } else { short_count(count) };
            Bar::default().value(count).text_value(value).label(Line::from(label))
        })
        .collect();
    let most = waits.chunks(in_one).map(|counts| counts.iter().sum()).max().unwrap_or(0);
    let chart_of = BarChart::default()
        .data(BarGroup::default().bars(&bars))
        .bar_width(BAR_WIDTH)
        .bar_gap(GAP)
        .bar_style(Style::new().cyan())
        .value_style(Style::new().cyan().reversed())
        .max(most.max(1));
    frame.render_widget(chart_of, chart);
}

/// A count in at most four characters, as wide as a bar.
fn short_count(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..1_000_000 => format!("{}k", count / 1000),
        1_000_000..1_000_000_000 => format!("{}M", count / 1_000_000),
        _ => "many".to_owned(),
    }
}

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
/// Width of the help with two keys side by side, and with one.
const WIDE: u16 = 78;
const NARROW: u16 = 54;

/// Draws the help over the middle of the screen. If the screen is too small, the keys come first.
fn draw_help(frame: &mut Frame<'_>) {
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
    let area = frame.area().centered(Length(width), Length(height));
    let block = Block::bordered().title(Line::from(" keys, and columns: per second ").bold());
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

#[cfg(test)]
mod tests;
