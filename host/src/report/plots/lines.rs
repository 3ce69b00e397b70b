//! Lines with a spread.

use super::super::escape;
use super::super::runs::{Way, short};
use super::{FONT, GRID, INK, WIDTH, colour_of, said, themed, variable_of};
use crate::results::Spread;
use anyhow::{Result, ensure};
use plotters::prelude::*;
use std::ops::Range;

const HEIGHT: u32 = 360;

/// One line: a way, and its numbers by x.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Line {
    pub(in super::super) way: Way,
    pub(in super::super) points: Vec<(f64, Spread)>,
}

/// Both axes are logarithmic; the names of their units.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Scale<'s> {
    pub(in super::super) x: &'s str,
    pub(in super::super) y: &'s str,
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

/// Draws lines, with a bar for the spread of each point.
pub(in super::super) fn lines(lines: &[Line], scale: Scale<'_>) -> Result<String> {
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
            )
            .map_err(said)?;
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
            .draw()
            .map_err(said)?;
        for line in lines {
            let colour = colour_of(&line.way);
            let medians = line.points.iter().map(|(x, spread)| (*x, spread.median));
            chart
                .draw_series(LineSeries::new(medians, colour.stroke_width(3)).point_size(4))
                .map_err(said)?;
            let spread = |(x, spread): &(f64, Spread)| {
                PathElement::new([(*x, spread.min), (*x, spread.max)], colour.stroke_width(2))
            };
            chart.draw_series(line.points.iter().filter(|(_, s)| s.min < s.max).map(spread)).map_err(said)?;
        }
        area.present().map_err(said)?;
    }
    // Below the plot, a legend hides no line.
    let legend = lines.iter().map(|line| {
        let colour = variable_of(colour_of(&line.way));
        format!("<li style=\"--mark:{colour}\">{}</li>", escape(&line.way.title()))
    });
    Ok(format!("{}<ul class=\"legend\">{}</ul>", themed(&svg), legend.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Subject;

    fn line(subject: Subject, flushes: &str, points: &[(f64, f64)]) -> Line {
        let spread = |&(x, median)| (x, Spread { median, min: median * 0.9, max: median * 1.1 });
        Line { way: Way::new(subject, flushes), points: points.iter().map(spread).collect() }
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
