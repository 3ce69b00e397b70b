//! Plots, as SVG in the page's own colours: a plot is drawn in placeholder colours, which are
//! replaced by the page's variables, so that it is readable in light, in dark and on paper.

use super::results::Ratio;
use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Colours of the plots, and their meaning in the page.
const INK: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(1, 1, 2);
const QUELL: RGBColor = RGBColor(1, 1, 3);
const KVM: RGBColor = RGBColor(1, 1, 4);
const TARGET: RGBColor = RGBColor(1, 1, 5);
const COLOURS: [(&str, &str); 5] = [
    ("#010101", "var(--ink)"),
    ("#010102", "var(--grid)"),
    ("#010103", "var(--quell)"),
    ("#010104", "var(--kvm)"),
    ("#010105", "var(--target)"),
];

const WIDTH: u32 = 900;
const ROW: u32 = 24;
const FONT: &str = "sans-serif";

/// Converts an error of the library.
fn said(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw a plot: {error}")
}

/// Replaces the colours by the page's, and fills the available width.
fn themed(svg: &str) -> String {
    let themed = COLOURS.iter().fold(svg.to_owned(), |svg, (drawn, shown)| svg.replace(drawn, shown));
    let start = themed.find("<svg").unwrap_or(0);
    themed[start..].replacen("<svg width=", "<svg class=\"plot\" data-width=", 1).replacen(
        " height=",
        " data-height=",
        1,
    )
}

/// A bar for each ratio, with its spread, and a tick at its target.
pub(super) fn ratios(ratios: &[Ratio]) -> Result<String> {
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

/// Two lines: instructions against targets, both on logarithmic axes.
pub(super) fn flush_cost(costs: &[(u32, f64, f64)]) -> Result<String> {
    let most_targets = costs.iter().map(|cost| cost.0).max().unwrap_or(1).max(2);
    let most = costs.iter().map(|cost| cost.1.max(cost.2)).fold(1.0, f64::max) * 1.3;
    let least = costs.iter().map(|cost| cost.1.min(cost.2)).fold(most, f64::min) / 1.5;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, 360)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d((1u32..most_targets).log_scale(), (least..most).log_scale())
            .map_err(said)?;
        chart
            .configure_mesh()
            .light_line_style(GRID.mix(0.0))
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style((FONT, 13, &INK))
            .x_desc("targets")
            .y_desc("instructions")
            .draw()
            .map_err(said)?;
        for (name, colour, pick) in
            [("Quell", QUELL, (|cost| cost.1) as fn(&(u32, f64, f64)) -> f64), ("KVM", KVM, |cost| cost.2)]
        {
            let points = costs.iter().map(|cost| (cost.0, pick(cost)));
            let line = LineSeries::new(points, colour.stroke_width(3)).point_size(4);
            chart
                .draw_series(line)
                .map_err(said)?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 16, y + 5)], colour.filled()));
        }
        chart.configure_series_labels().label_font((FONT, 14, &INK)).draw().map_err(said)?;
        area.present().map_err(said)?;
    }
    Ok(themed(&svg))
}

#[cfg(test)]
mod tests {
    use super::super::results::Results;
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn plots_have_a_bar_for_each_ratio_and_no_colours_of_their_own() {
        let value = results(&[("a", 0.5, Some(0.8)), ("b", 1.4, None)]);
        let svg = ratios(&Results::of(&value).expect("reads").ratios).expect("draws");
        assert!(svg.starts_with("<svg class=\"plot\"") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
        for name in ["flush: a, hypercall", "flush: b, hypercall"] {
            assert_eq!(svg.matches(name).count(), 1, "{svg}");
        }
        assert!(!svg.contains("#0101"), "a colour is not the page's");
        assert_eq!(svg.matches("var(--target)").count(), 1);
    }

    #[test]
    fn one_ratio_is_a_plot_too() {
        let svg = ratios(&Results::of(&results(&[("a", 0.5, None)])).expect("reads").ratios).expect("draws");
        assert_eq!(svg.matches("<rect").count(), 1, "{svg}");
    }

    #[test]
    fn costs_of_flushes_are_two_lines() {
        let svg =
            flush_cost(&[(1, 701.0, 4395.0), (8, 778.0, 6096.0), (64, 1460.0, 18034.0)]).expect("draws");
        for colour in ["var(--quell)", "var(--kvm)"] {
            let is_line = |line: &&str| line.starts_with("<polyline") && line.contains(colour);
            assert_eq!(
                svg.lines().filter(is_line).count(),
                1,
                "{colour}:
{svg}"
            );
        }
        assert!(svg.contains("Quell") && svg.contains("KVM") && svg.contains("targets"));
    }
}
