//! Bars.

use super::super::results::Ratio;
use super::super::runs::{Way, short};
use super::{FONT, GRID, INK, QUELL, ROW, TARGET, WIDTH, colour_of, said, themed};
use crate::results::Spread;
use anyhow::Result;
use plotters::prelude::*;

/// The width of a small plot.
const SMALL_WIDTH: u32 = 440;

/// A bar for each ratio, with its spread, and a tick at its target.
pub(in super::super) fn ratios(ratios: &[Ratio]) -> Result<String> {
    let rows = u32::try_from(ratios.len()).unwrap_or(u32::MAX).min(200);
    let most =
        ratios.iter().map(|ratio| ratio.ratio.max.max(ratio.target.unwrap_or(0.0))).fold(1.0, f64::max)
            * 1.05;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, rows * ROW + 60)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(300)
            .build_cartesian_2d(0.0..most, (0..rows - 1).into_segmented())
            .map_err(said)?;
        let name = |row: &SegmentValue<u32>| match row {
            SegmentValue::CenterOf(row) => {
                ratios.get(rows.wrapping_sub(row + 1) as usize).map(Ratio::name).unwrap_or_default()
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
            .y_labels(ratios.len())
            .y_label_formatter(&name)
            .draw()
            .map_err(said)?;
        for (row, ratio) in (0..rows).rev().zip(ratios) {
            let (centre, above) = (SegmentValue::CenterOf(row), SegmentValue::Exact(row + 1));
            let bar = [(0.0, SegmentValue::Exact(row)), (ratio.ratio.median, above)];
            let mut bar = Rectangle::new(bar, QUELL.filled());
            bar.set_margin(4, 4, 0, 0);
            chart.draw_series([bar]).map_err(said)?;
            let spread = [(ratio.ratio.min, centre.clone()), (ratio.ratio.max, centre)];
            chart.draw_series([PathElement::new(spread, INK.stroke_width(2))]).map_err(said)?;
            if let Some(target) = ratio.target {
                let tick = [(target, SegmentValue::Exact(row)), (target, SegmentValue::Exact(row + 1))];
                chart.draw_series([PathElement::new(tick, TARGET.stroke_width(3))]).map_err(said)?;
            }
        }
        area.present().map_err(said)?;
    }
    Ok(themed(&svg))
}

/// A bar for each way, with its spread. All are of one case, metric and unit.
pub(in super::super) fn ways(bars: &[(Way, Spread)]) -> Result<String> {
    let rows = u32::try_from(bars.len()).unwrap_or(u32::MAX).min(20);
    let most = bars.iter().map(|bar| bar.1.max).fold(f64::MIN_POSITIVE, f64::max) * 1.05;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (SMALL_WIDTH, rows * ROW + 40)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin_right(20)
            .margin_top(4)
            .x_label_area_size(24)
            .y_label_area_size(130)
            .build_cartesian_2d(0.0..most, (0..rows - 1).into_segmented())
            .map_err(said)?;
        let name = |row: &SegmentValue<u32>| match row {
            SegmentValue::CenterOf(row) => {
                bars.get(rows.wrapping_sub(row + 1) as usize).map(|bar| bar.0.title()).unwrap_or_default()
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
            .x_labels(5)
            .x_label_formatter(&|value| short(*value))
            .y_labels(bars.len())
            .y_label_formatter(&name)
            .draw()
            .map_err(said)?;
        for (row, (way, spread)) in (0..rows).rev().zip(bars) {
            let (centre, above) = (SegmentValue::CenterOf(row), SegmentValue::Exact(row + 1));
            let bar = [(0.0, SegmentValue::Exact(row)), (spread.median, above)];
            let mut bar = Rectangle::new(bar, colour_of(way).filled());
            bar.set_margin(4, 4, 0, 0);
            chart.draw_series([bar]).map_err(said)?;
            let line = [(spread.min, centre.clone()), (spread.max, centre)];
            chart.draw_series([PathElement::new(line, INK.stroke_width(2))]).map_err(said)?;
        }
        area.present().map_err(said)?;
    }
    Ok(themed(&svg))
}
