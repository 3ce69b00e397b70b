//! Plots, as SVG in the page's own colours: a plot is drawn in placeholder colours, which are
//! replaced by the page's variables, so that it is readable in light, in dark and on paper.

use super::runs::Way;
use crate::results::Subject;
use anyhow::anyhow;
use plotters::prelude::*;

mod bars;
mod lines;

pub(super) use bars::{ratios, ways};
pub(super) use lines::{Line, Scale, lines};

/// Colours of the plots, and their meaning in the page.
pub(super) const INK: RGBColor = RGBColor(1, 1, 1);
pub(super) const GRID: RGBColor = RGBColor(1, 1, 2);
const QUELL: RGBColor = RGBColor(1, 1, 3);
const KVM: RGBColor = RGBColor(1, 1, 4);
const TARGET: RGBColor = RGBColor(1, 1, 5);
const QUELL_IPI: RGBColor = RGBColor(1, 1, 6);
const KVM_IPI: RGBColor = RGBColor(1, 1, 7);
const KVM_PARAVIRTUAL: RGBColor = RGBColor(1, 1, 8);
const COLOURS: [(&str, &str); 8] = [
    ("#010101", "var(--ink)"),
    ("#010102", "var(--grid)"),
    ("#010103", "var(--quell)"),
    ("#010104", "var(--kvm)"),
    ("#010105", "var(--target)"),
    ("#010106", "var(--quell-ipi)"),
    ("#010107", "var(--kvm-ipi)"),
    ("#010108", "var(--kvm-paravirtual)"),
];

/// The colour of a hypervisor and the way in which its guest flushes.
fn colour_of(way: &Way) -> RGBColor {
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
pub(super) const FONT: &str = "sans-serif";

/// The page's variable for a colour.
fn variable_of(RGBColor(red, green, blue): RGBColor) -> &'static str {
    let drawn = format!("#{red:02x}{green:02x}{blue:02x}");
    COLOURS.iter().find(|colour| colour.0 == drawn).map_or("var(--ink)", |colour| colour.1)
}

/// Converts an error of the library.
pub(super) fn said(error: impl std::fmt::Display) -> anyhow::Error {
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
}
