//! Bars.

use super::super::results::Ratio;
use super::super::runs::{Way, short};
use super::{FONT, GRID, INK, QUELL, ROW, TARGET, WIDTH, colour_of, said, themed};
use crate::results::Spread;
use anyhow::Result;
use plotters::prelude::*;

const SMALL_WIDTH: u32 = 440;

struct Bar {
    label: String,
    colour: RGBColor,
    spread: Spread,
    target: Option<f64>,
}

/// The room that a plot of bars takes.
struct Layout {
    width: u32,
    /// Height without the bars.
    around: u32,
    labels: u32,
    margin: u32,
    margin_right: u32,
    axis: u32,
}

/// A bar for each ratio, with its spread, and a tick at its target.
pub(in super::super) fn ratios(ratios: &[Ratio]) -> Result<String> {
    let bar =
        |ratio: &Ratio| Bar { label: ratio.name(), colour: QUELL, spread: ratio.ratio, target: ratio.target };
    let layout = Layout { width: WIDTH, around: 60, labels: 300, margin: 10, margin_right: 10, axis: 30 };
    // The axis reaches 1 at least, where both sides are equal.
    bars(&ratios.iter().take(200).map(bar).collect::<Vec<_>>(), 1.0, &layout)
}

/// A bar for each way, with its spread. All are of one case, metric and unit.
pub(in super::super) fn ways(ways: &[(Way, Spread)]) -> Result<String> {
    let bar = |(way, spread): &(Way, Spread)| Bar {
        label: way.title(),
        colour: colour_of(way),
        spread: *spread,
        target: None,
    };
    let layout =
        Layout { width: SMALL_WIDTH, around: 40, labels: 130, margin: 4, margin_right: 20, axis: 24 };
    bars(&ways.iter().take(20).map(bar).collect::<Vec<_>>(), f64::MIN_POSITIVE, &layout)
}

/// Draws bars from the top to the bottom. The axis reaches `least` at least.
fn bars(bars: &[Bar], least: f64, layout: &Layout) -> Result<String> {
    let rows = u32::try_from(bars.len()).unwrap_or(u32::MAX);
    let end = |bar: &Bar| bar.spread.max.max(bar.target.unwrap_or(0.0));
    let most = bars.iter().map(end).fold(least, f64::max) * 1.05;
    let mut svg = String::new();
    {
        let size = (layout.width, rows * ROW + layout.around);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(layout.margin)
            .margin_right(layout.margin_right)
            .x_label_area_size(layout.axis)
            .y_label_area_size(layout.labels)
            .build_cartesian_2d(0.0..most, (0..rows - 1).into_segmented())
            .map_err(said)?;
        let label = |row: &SegmentValue<u32>| match row {
            SegmentValue::CenterOf(row) => {
                bars.get(rows.wrapping_sub(row + 1) as usize).map(|bar| bar.label.clone()).unwrap_or_default()
            }
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(GRID.mix(0.0))
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style((FONT, 13, &INK))
            .x_labels((layout.width / 80) as usize)
            .x_label_formatter(&|value| short(*value))
            .y_labels(bars.len())
            .y_label_formatter(&label)
            .draw()
            .map_err(said)?;
        for (row, bar) in (0..rows).rev().zip(bars) {
            let (below, above) = (SegmentValue::Exact(row), SegmentValue::Exact(row + 1));
            let corners = [(0.0, below.clone()), (bar.spread.median, above.clone())];
            let mut shape = Rectangle::new(corners, bar.colour.filled());
            shape.set_margin(4, 4, 0, 0);
            chart.draw_series([shape]).map_err(said)?;
            let centre = SegmentValue::CenterOf(row);
            let spread = [(bar.spread.min, centre.clone()), (bar.spread.max, centre)];
            chart.draw_series([PathElement::new(spread, INK.stroke_width(2))]).map_err(said)?;
            if let Some(target) = bar.target {
                let tick = [(target, below), (target, above)];
                chart.draw_series([PathElement::new(tick, TARGET.stroke_width(3))]).map_err(said)?;
            }
        }
        area.present().map_err(said)?;
    }
    Ok(themed(&svg))
}
