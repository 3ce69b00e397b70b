//! Plots, as SVG in the page's own colours: a plot is drawn in placeholder colours, which are
//! replaced by the page's variables, so that it is readable in light, in dark and on paper.

use super::escape;
use super::results::Ratio;
use super::runs::{ShownWay, short};
use crate::prelude::*;
use plotters::prelude::*;

/// Colours of the plots: each is `#0101` and a number in [`VARIABLES`], from 1.
const INK: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(1, 1, 2);
const QUELL: RGBColor = RGBColor(1, 1, 3);
const KVM: RGBColor = RGBColor(1, 1, 4);
const TARGET: RGBColor = RGBColor(1, 1, 5);
const QUELL_IPI: RGBColor = RGBColor(1, 1, 6);
const KVM_IPI: RGBColor = RGBColor(1, 1, 7);
const KVM_PARAVIRTUAL: RGBColor = RGBColor(1, 1, 8);
/// The page's variables for them.
const VARIABLES: [&str; 8] =
    ["ink", "grid", "quell", "kvm", "target", "quell-ipi", "kvm-ipi", "kvm-paravirtual"];

fn colour_of(way: &ShownWay) -> RGBColor {
    match (way.subject, way.flushes.as_str()) {
        (Subject::Quell, "ipi") => QUELL_IPI,
        (Subject::Quell, _) => QUELL,
        (_, "ipi") => KVM_IPI,
        (_, "paravirtual") => KVM_PARAVIRTUAL,
        _ => KVM,
    }
}

const WIDTH: u32 = 900;
const ROW: u32 = 24;
const FONT: &str = "sans-serif";

/// Replaces the colours by the page's, and fills the available width.
fn themed(svg: &str) -> String {
    let themed = (1..).zip(VARIABLES).fold(svg.to_owned(), |svg, (number, variable)| {
        svg.replace(&format!("#0101{number:02x}"), &format!("var(--{variable})"))
    });
    let start = themed.find("<svg").unwrap_or(0);
    themed[start..].replacen("<svg width=", "<svg class=\"plot\" data-width=", 1).replacen(
        " height=",
        " data-height=",
        1,
    )
}

const SMALL_WIDTH: u32 = 440;

struct Bar {
    label: String,
    colour: RGBColor,
    spread: Spread,
    target: Option<f64>,
}

pub(super) fn ratios(ratios: &[Ratio]) -> Result<String> {
    let bar =
        |ratio: &Ratio| Bar { label: ratio.name(), colour: QUELL, spread: ratio.ratio, target: ratio.target };
    // The axis reaches 1 at least, where both sides are equal.
    bars(&ratios.iter().take(200).map(bar).collect::<Vec<_>>(), 1.0, (WIDTH, 300))
}

pub(super) fn ways(ways: &[(ShownWay, Spread)]) -> Result<String> {
    let bar = |(way, spread): &(ShownWay, Spread)| Bar {
        label: way.title(),
        colour: colour_of(way),
        spread: *spread,
        target: None,
    };
    bars(&ways.iter().take(20).map(bar).collect::<Vec<_>>(), f64::MIN_POSITIVE, (SMALL_WIDTH, 130))
}

/// Draws bars from the top to the bottom. The axis reaches `least` at least; labels
/// have this width.
fn bars(bars: &[Bar], least: f64, (width, labels): (u32, u32)) -> Result<String> {
    let rows = u32::try_from(bars.len()).unwrap_or(u32::MAX);
    let end = |bar: &Bar| bar.spread.max.max(bar.target.unwrap_or(0.0));
    let most = bars.iter().map(end).fold(least, f64::max) * 1.05;
    let mut svg = String::new();
    {
        let size = (width, rows * ROW + 60);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .margin_right(20)
            .x_label_area_size(30)
            .y_label_area_size(labels)
            .build_cartesian_2d(0.0..most, (0..rows - 1).into_segmented())?;
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
            .x_labels((width / 80) as usize)
            .x_label_formatter(&|value| short(*value))
            .y_labels(bars.len())
            .y_label_formatter(&label)
            .draw()?;
        for (row, bar) in (0..rows).rev().zip(bars) {
            let (below, above) = (SegmentValue::Exact(row), SegmentValue::Exact(row + 1));
            let corners = [(0.0, below.clone()), (bar.spread.median, above.clone())];
            let mut shape = Rectangle::new(corners, bar.colour.filled());
            shape.set_margin(4, 4, 0, 0);
            chart.draw_series([shape])?;
            let centre = SegmentValue::CenterOf(row);
            let spread = [(bar.spread.min, centre.clone()), (bar.spread.max, centre)];
            chart.draw_series([PathElement::new(spread, INK.stroke_width(2))])?;
            if let Some(target) = bar.target {
                let tick = [(target, below), (target, above)];
                chart.draw_series([PathElement::new(tick, TARGET.stroke_width(3))])?;
            }
        }
        area.present()?;
    }
    Ok(themed(&svg))
}

const HEIGHT: u32 = 360;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) way: ShownWay,
    pub(super) points: Vec<(f64, Spread)>,
}

/// Both axes are logarithmic; the names of their units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale<'s> {
    pub(super) x: &'s str,
    pub(super) y: &'s str,
}

/// The values of x, which are labelled.
fn places(lines: &[Line]) -> Vec<f64> {
    let mut places: Vec<_> = lines.iter().flat_map(|line| &line.points).map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    places
}

/// Round numbers in a range of positive ones: 1, 2 and 5 times powers of ten.
fn round_numbers(range: &Range<f64>) -> Vec<f64> {
    let powers = (-12..=15).map(|power| 10f64.powi(power));
    powers
        .flat_map(|power| [power, 2.0 * power, 5.0 * power])
        .filter(|number| range.contains(number))
        .collect()
}

pub(super) fn lines(lines: &[Line], scale: Scale<'_>) -> Result<String> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let is_positive = |point: &(f64, Spread)| point.0 > 0.0 && point.1.min > 0.0;
    ensure!(points().count() > 0 && points().all(is_positive), "there is no logarithm of a value of 0");
    let range = |ends: fn(&(f64, Spread)) -> [f64; 2], room: f64| {
        let least = points().flat_map(ends).fold(f64::INFINITY, f64::min);
        let most = points().flat_map(ends).fold(0.0, f64::max);
        (least / room)..(most * room)
    };
    let (across, up) = (range(|point| [point.0; 2], 1.1), range(|point| [point.1.min, point.1.max], 1.3));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(
                across.log_scale().with_key_points(places(lines)),
                up.clone().log_scale().with_key_points(round_numbers(&up)),
            )?;
        chart
            .configure_mesh()
            .light_line_style(GRID.mix(0.0))
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style((FONT, 13, &INK))
            .x_label_formatter(&|value| short(*value))
            .y_label_formatter(&|value| short(*value))
            .x_desc(scale.x)
            .y_desc(scale.y)
            .draw()?;
        for line in lines {
            let colour = colour_of(&line.way);
            let medians = line.points.iter().map(|(x, spread)| (*x, spread.median));
            chart.draw_series(LineSeries::new(medians, colour.stroke_width(3)).point_size(4))?;
            let spread = |(x, spread): &(f64, Spread)| {
                PathElement::new([(*x, spread.min), (*x, spread.max)], colour.stroke_width(2))
            };
            chart.draw_series(line.points.iter().filter(|(_, s)| s.min < s.max).map(spread))?;
        }
        area.present()?;
    }
    // Below the plot, a legend hides no line.
    let legend = lines.iter().map(|line| {
        let RGBColor(.., number) = colour_of(&line.way);
        let colour = VARIABLES[usize::from(number) - 1];
        format!("<li style=\"--mark:var(--{colour})\">{}</li>", escape(&line.way.title()))
    });
    Ok(format!("{}<ul class=\"legend\">{}</ul>", themed(&svg), legend.collect::<String>()))
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

    fn line(subject: Subject, flushes: &str, points: &[(f64, f64)]) -> Line {
        let spread = |&(x, median)| (x, Spread { median, min: median * 0.9, max: median * 1.1 });
        Line { way: ShownWay::new(subject, flushes), points: points.iter().map(spread).collect() }
    }

    #[test]
    fn each_way_is_a_line_in_its_colour_with_a_bar_at_each_point() {
        let all = [
            line(Subject::Quell, "hypercall", &[(1.0, 701.0), (8.0, 778.0), (64.0, 1460.0)]),
            line(Subject::Kvm, "paravirtual", &[(1.0, 4395.0), (8.0, 6096.0)]),
        ];
        let svg = lines(&all, Scale { x: "targets", y: "instructions" }).expect("draws");
        for (colour, points) in [("var(--quell)", 3), ("var(--kvm-paravirtual)", 2)] {
            let is_line = |line: &&str| line.starts_with("<polyline") && line.contains(colour);
            assert_eq!(svg.lines().filter(is_line).count(), 1 + points, "{colour}:\n{svg}");
        }
        for text in ["Quell hypercall", "KVM paravirtual", "targets", "instructions", "1,000"] {
            assert!(svg.contains(text), "{text}:\n{svg}");
        }
        assert!(!svg.contains("3,000") && !svg.contains("#0101"), "{svg}");
    }

    #[test]
    fn labels_are_at_the_points_and_at_round_numbers() {
        let all = [
            line(Subject::Kvm, "ipi", &[(2.0, 1.0), (16.0, 1.0)]),
            line(Subject::Quell, "ipi", &[(4.0, 1.0), (16.0, 2.0)]),
        ];
        assert_eq!(places(&all), [2.0, 4.0, 16.0]);
        assert_eq!(round_numbers(&(0.15..11.0)), [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]);
    }

    #[test]
    fn what_has_no_logarithm_is_refused() {
        let scale = Scale { x: "", y: "" };
        assert!(lines(&[], scale).is_err());
        assert!(lines(&[line(Subject::Kvm, "ipi", &[(1.0, 0.0)])], scale).is_err());
    }
}
