//! Figures that have a limit: one table of all of them, and one word for what is missed.

use crate::prelude::*;
use crate::table;
use comfy_table::Table;

/// A figure, and the range in which it has to be. What was not measured is in none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Limit {
    pub(crate) label: String,
    /// NaN, and null in JSON, if it was not measured.
    pub(crate) measured: f64,
    /// Infinite, and null in JSON, if there is none.
    at_least: f64,
    /// The same.
    at_most: f64,
    /// The figure for Linux KVM 6.1, by the same method, if there is one.
    #[serde(skip_serializing_if = "str::is_empty")]
    kvm: &'static str,
}

impl Limit {
    pub(crate) fn at_most(label: impl Into<String>, measured: f64, at_most: f64) -> Self {
        Self { label: label.into(), measured, at_least: f64::NEG_INFINITY, at_most, kvm: "" }
    }

    pub(crate) fn at_least(label: impl Into<String>, measured: f64, at_least: f64) -> Self {
        Self { at_least, ..Self::shown(label, measured) }
    }

    /// A figure that may have any value, but has to be there.
    pub(crate) fn shown(label: impl Into<String>, measured: f64) -> Self {
        Self::at_most(label, measured, f64::INFINITY)
    }

    pub(crate) fn beside(self, kvm: &'static str) -> Self {
        Self { kvm, ..self }
    }

    /// As that of a case with this name.
    pub(crate) fn of(self, case: &str) -> Self {
        Self { label: format!("{case}: {}", self.label), ..self }
    }

    pub(crate) fn is_met(&self) -> bool {
        self.at_least <= self.measured && self.measured <= self.at_most
    }

    fn bound(&self) -> String {
        match (self.at_least, self.at_most) {
            (_, at_most) if at_most.is_finite() => format!("≤ {}", text(at_most)),
            (at_least, _) if at_least.is_finite() => format!("≥ {}", text(at_least)),
            _ => String::new(),
        }
    }

    pub(crate) fn missed(&self) -> Option<String> {
        let words = || format!("{}: {}, which has to be {}", self.label, text(self.measured), self.bound());
        (!self.is_met()).then(words)
    }
}

fn text(number: f64) -> String {
    match number {
        _ if number.is_nan() => "not measured".to_owned(),
        100.0.. => format!("{number:.0}"),
        _ => format!("{number:.3}"),
    }
}

pub(crate) fn all_met(limits: &[Limit]) -> bool {
    limits.iter().all(Limit::is_met)
}

pub(crate) fn table(limits: &[Limit]) -> Table {
    let has_kvm = limits.iter().any(|limit| !limit.kvm.is_empty());
    let columns = |cells: [String; 5]| cells.into_iter().enumerate().filter(|(at, _)| has_kvm || *at != 3);
    let row = |cells: [String; 5]| columns(cells).map(|(_, cell)| cell).collect::<Vec<_>>();
    let rows = limits.iter().map(|limit| {
        let verdict = if limit.is_met() { "" } else { "missed" };
        let cells = [&limit.label, &text(limit.measured), &limit.bound(), limit.kvm, verdict];
        row(cells.map(str::to_owned))
    });
    table::table(row(["", "measured", "limit", "KVM 6.1", ""].map(str::to_owned)), rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_outside_its_limit_or_not_measured_is_not_good() {
        let one = |measured| Limit::at_most("a", measured, 1.0);
        assert!(all_met(&[one(1.0)]) && !all_met(&[one(1.0), one(1.1)]));
        assert!(!all_met(&[one(f64::NAN)]) && !all_met(&[Limit::shown("a", f64::NAN)]));
        let least = |measured| Limit::at_least("a", measured, 0.9).is_met();
        assert!(least(0.9) && !least(0.89) && !least(f64::NAN));
        assert_eq!(one(1.1).missed().as_deref(), Some("a: 1.100, which has to be ≤ 1.000"));
        assert_eq!(one(0.5).missed(), None);
    }

    #[test]
    fn the_table_says_what_is_missed_and_has_kvms_figures_if_there_are_some() {
        let without = table(&[Limit::at_most("a", 2.0, 1.0), Limit::shown("b", 3000.4)]).to_string();
        assert!(without.contains("missed") && without.contains("3000") && !without.contains("KVM"));
        let with = table(&[Limit::at_most("a", f64::NAN, 400.0).beside("3,259")]).to_string();
        assert!(["KVM 6.1", "3,259", "not measured"].iter().all(|text| with.contains(text)), "{with}");
    }
}
