//! A timeline as a picture of its own: an SVG file for documents, in light and dark.

use super::plots::{FONT, GRID, INK, said};
use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

/// Placeholders for colours, and the colours in light and in dark.
const PAPER: RGBColor = RGBColor(1, 2, 1);
const GUEST: RGBColor = RGBColor(1, 2, 2);
const HYPERVISOR: RGBColor = RGBColor(1, 2, 3);
const IDLE: RGBColor = RGBColor(1, 2, 4);
const KICK: RGBColor = RGBColor(1, 2, 5);
const DEFERRED: RGBColor = RGBColor(1, 2, 6);
const COLOURS: [(&str, &str, &str, &str); 8] = [
    ("#010101", "ink", "#1c1e21", "#e7e9ec"),
    ("#010102", "grid", "#d8dbe0", "#343a42"),
    ("#010201", "paper", "#ffffff", "#15181c"),
    ("#010202", "guest", "#8fc4a9", "#3a8263"),
    ("#010203", "hypervisor", "#e0935f", "#c9713f"),
    ("#010204", "idle", "#e6e8ec", "#2b3138"),
    ("#010205", "kick", "#b3261e", "#ff7b72"),
    ("#010206", "deferred", "#3b4cc0", "#9fb0ff"),
];

/// Twice the size at which a document shows it, because the library knows whole pixels only.
const WIDTH: i32 = 1800;
const LEFT: i32 = 110;
const RIGHT: i32 = WIDTH - 20;
const TOP: i32 = 60;
const ROW: i32 = 80;
const GAP: i32 = 90;
const LEGEND: i32 = 60;
const FONT_SIZE: i32 = 25;
/// The least width of a span with a name.
const NAMED: i32 = 100;
/// The maximum number of marks on the axis.
const MARKS_MAX: u64 = 10;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the data of a timeline.
pub(super) fn timeline(shown: &Value) -> Result<String> {
    let cpus = shown["cpus"].as_array().context("the timeline has no CPUs")?;
    let rows = i32::try_from(cpus.len())?;
    let height = TOP + rows * (ROW + GAP) + LEGEND;
    let mut svg = String::new();
    {
        let size = (WIDTH.unsigned_abs(), height.unsigned_abs());
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&PAPER).map_err(said)?;
        let picture = Picture {
            area: &area,
            length: shown["length"].as_u64().unwrap_or(1).max(1),
            cpus: cpus.iter().map(|cpu| cpu["cpu"].as_u64().unwrap_or_default()).collect(),
        };
        picture.axis(height - LEGEND - GAP / 2)?;
        for cpu in cpus {
            picture.row(cpu, &shown["names"])?;
        }
        for are_arrows in [false, true] {
            for flush in shown["flushes"].as_array().into_iter().flatten() {
                picture.flush(flush, are_arrows)?;
            }
        }
        picture.legend(height - LEGEND)?;
        area.present().map_err(said)?;
    }
    Ok(styled(&svg))
}

/// Replaces the placeholders by variables, which depend on the reader's preference.
fn styled(svg: &str) -> String {
    let mut styled = svg.to_owned();
    let (mut light, mut dark) = (String::new(), String::new());
    for (drawn, name, of_light, of_dark) in COLOURS {
        styled = styled.replace(drawn, &format!("var(--{name})"));
        light += &format!("--{name}:{of_light};");
        dark += &format!("--{name}:{of_dark};");
    }
    let style =
        format!("<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}</style>");
    // Behind the first tag, <svg …>.
    match styled.find("<svg").and_then(|svg| Some(svg + styled[svg..].find('>')? + 1)) {
        Some(at) => {
            styled.insert_str(at, &style);
            styled.replace(" opacity=\"1\"", "").replace(" stroke=\"none\"", "")
        }
        None => styled,
    }
}

struct Picture<'a, 'b> {
    area: &'a Area<'b>,
    /// In nanoseconds.
    length: u64,
    cpus: Vec<u64>,
}

impl Picture<'_, '_> {
    /// The column of a time; times behind the end are outside the picture.
    fn x(&self, at: u64) -> i32 {
        let width = u64::from((RIGHT - LEFT).unsigned_abs());
        let column = at.min(2 * self.length).saturating_mul(width) / self.length;
        LEFT.saturating_add(i32::try_from(column).unwrap_or(i32::MAX))
    }

    /// The top of a CPU's row.
    fn y(&self, cpu: &Value) -> i32 {
        let row = self.cpus.iter().position(|known| Some(*known) == cpu.as_u64()).unwrap_or_default();
        TOP + i32::try_from(row).unwrap_or_default() * (ROW + GAP)
    }

    fn rectangle(&self, from: (i32, i32), to: (i32, i32), colour: RGBColor) -> Result<()> {
        self.area.draw(&Rectangle::new([from, to], colour.filled())).map_err(said)
    }

    fn text(&self, text: &str, at: (i32, i32)) -> Result<()> {
        let style = (FONT, FONT_SIZE).into_font().color(&INK);
        self.area.draw(&Text::new(text.to_owned(), at, style)).map_err(said)
    }

    /// Lines at round times.
    fn axis(&self, bottom: i32) -> Result<()> {
        let steps = (0..18).flat_map(|power| [1, 2, 5].map(|first| first * 10u64.pow(power)));
        let step = steps.into_iter().find(|step| self.length / step < MARKS_MAX).unwrap_or(self.length);
        for at in (0..=self.length).step_by(usize::try_from(step)?) {
            let x = self.x(at);
            let line = PathElement::new([(x, TOP - 20), (x, bottom)], GRID.stroke_width(2));
            self.area.draw(&line).map_err(said)?;
            if x + NAMED < WIDTH {
                #[expect(clippy::cast_precision_loss, reason = "windows are far shorter than 2^53 ns")]
                self.text(&format!("{} ms", at as f64 / 1e6), (x + 6, TOP - 44))?;
            }
        }
        Ok(())
    }

    fn row(&self, cpu: &Value, names: &Value) -> Result<()> {
        let y = self.y(&cpu["cpu"]);
        self.text(&format!("CPU {}", cpu["cpu"]), (8, y + ROW / 2 - FONT_SIZE / 2))?;
        let mut drawn = None;
        for span in cpu["spans"].as_array().into_iter().flatten() {
            let number = |index: usize| span[index].as_u64().unwrap_or_default();
            let (from, to) = (self.x(number(0)), self.x(number(1)).max(self.x(number(0)) + 1));
            let colour = [GUEST, HYPERVISOR, IDLE][usize::try_from(number(2))?.min(2)];
            // Of several spans in one column, the first is drawn.
            if drawn.replace(to).is_some_and(|end| to <= end) {
                continue;
            }
            self.rectangle((from, y), (to, y + ROW), colour)?;
            let name = names[usize::try_from(number(3))?].as_str().unwrap_or_default();
            if colour == GUEST && to - from > NAMED {
                self.text(name, (from + 8, y + ROW / 2 - FONT_SIZE / 2))?;
            }
        }
        Ok(())
    }

    fn flush(&self, flush: &Value, are_arrows: bool) -> Result<()> {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let y = self.y(&flush["cpu"]);
        let (from, to) = (self.x(number(&flush["start"])), self.x(number(&flush["end"])));
        let colour = if number(&flush["kicked"]) == 0 { DEFERRED } else { KICK };
        if !are_arrows {
            self.rectangle((from, y + ROW - 14), (to.max(from + 4), y + ROW), colour)?;
        }
        for arrow in flush["arrows"].as_array().into_iter().flatten() {
            let (end, row) = (self.x(number(&arrow["at"])), self.y(&arrow["cpu"]));
            // An arrow of a kick, which lies above the marks, or such a mark.
            match (end <= RIGHT, arrow["kind"] == "kick") {
                (true, true) if are_arrows => self.arrow((from + 2, y), (end, row))?,
                (true, false) if !are_arrows => self.mark((end, row + ROW), DEFERRED)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// From the row at one place to the nearer edge of another.
    fn arrow(&self, (x, y): (i32, i32), (end, row): (i32, i32)) -> Result<()> {
        let (from, to, back) = if row > y { (y + ROW, row, -16) } else { (y, row + ROW, 16) };
        let line = PathElement::new([(x, from), (end, to + back)], KICK.stroke_width(3));
        self.area.draw(&line).map_err(said)?;
        let head = vec![(end, to), (end - 8, to + back), (end + 8, to + back)];
        self.area.draw(&Polygon::new(head, KICK)).map_err(said)
    }

    /// A diamond below a row.
    fn mark(&self, (x, y): (i32, i32), colour: RGBColor) -> Result<()> {
        let corners = vec![(x, y), (x + 9, y + 11), (x, y + 22), (x - 9, y + 11)];
        self.area.draw(&Polygon::new(corners, colour)).map_err(said)
    }

    fn legend(&self, y: i32) -> Result<()> {
        let parts = [
            (LEFT, GUEST, "guest"),
            (LEFT + 160, HYPERVISOR, "hypervisor"),
            (LEFT + 380, IDLE, "idle"),
            (LEFT + 510, KICK, "flush, and its kick"),
            (LEFT + 810, DEFERRED, "flush without a kick"),
            (LEFT + 1130, DEFERRED, "deferred flush, carried out at this entry"),
        ];
        for (index, (x, colour, text)) in parts.into_iter().enumerate() {
            if index + 1 == parts.len() {
                self.mark((x + 10, y + 2), colour)?;
            } else {
                self.rectangle((x, y), (x + 24, y + 24), colour)?;
            }
            self.text(text, (x + 34, y))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_picture_has_rows_arrows_and_marks_in_both_themes() {
        let arrows = json!([
            {"kind": "kick", "cpu": 2, "at": 500}, {"kind": "deferred flush", "cpu": 2, "at": 900},
            {"kind": "deferred flush", "cpu": 2, "at": 5000},
        ]);
        let shown = json!({
            "length": 1000, "start": 0, "names": ["vCPU 3", "exit.hypercall"],
            "cpus": [
                {"cpu": 1, "spans": [[0, 400, 0, 0], [400, 401, 1, 1], [401, 1000, 1, 1]]},
                {"cpu": 2, "spans": [[0, 1000, 2, 0]]},
            ],
            "flushes": [{"cpu": 1, "start": 420, "end": 600, "kicked": 1, "arrows": arrows}],
        });
        let svg = timeline(&shown).expect("draws");
        assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("--guest:#8fc4a9"), "{svg}");
        assert!(!svg.contains("#0101") && !svg.contains("#0102"), "{svg}");
        for text in ["CPU 1", "CPU 2", "vCPU 3", "hypervisor"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let of = |colour: &str| svg.matches(&format!("fill=\"var(--{colour})\"")).count();
        // Its part of the legend, and a bar, an arrow's head, or the mark inside the picture.
        assert_eq!((of("guest"), of("idle"), of("kick"), of("deferred")), (2, 2, 3, 3), "{svg}");
    }

    #[test]
    fn the_axis_has_round_times() {
        let shown =
            json!({"length": 8_000_000, "names": [], "cpus": [{"cpu": 0, "spans": []}], "flushes": []});
        let svg = timeline(&shown).expect("draws");
        for text in ["\n0 ms\n", "\n1 ms\n", "\n7 ms\n"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
