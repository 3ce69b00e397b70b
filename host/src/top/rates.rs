//! Rates: the counts between two samples, divided by the time between them.

use super::source::Sample;
use crate::machine::counters::RowVcpu;
use crate::machine::guests::{GuestSeen, Identity};
use crate::prelude::*;
use std::cmp::Ordering;

/// The figure that a column shows for a vCPU.
#[derive(Clone, Copy, Debug)]
enum Figure {
    Vcpu,
    Exits,
    FlushRequests,
    /// The sum of these counters.
    Sum(&'static [Counter]),
    /// The percentage of time in which it was runnable but did not run.
    Steal,
}

#[derive(Debug)]
pub(crate) struct Column {
    /// Its heading, at most as wide as the column.
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    figure: Figure,
}

const fn column(title: &'static str, about: &'static str, figure: Figure) -> Column {
    Column { title, about, figure }
}

const fn sum(title: &'static str, about: &'static str, counters: &'static [Counter]) -> Column {
    column(title, about, Figure::Sum(counters))
}

/// The columns, from left to right. Exits without a column of their own count as other ones.
pub(crate) const COLUMNS: [Column; 16] = [
    column("vcpu", "number of the vCPU", Figure::Vcpu),
    column("exits", "exits a second, for all reasons", Figure::Exits),
    sum("io", "of these for port I/O", &[Counter::ExitIo]),
    sum("reg", "system registers", &[Counter::ExitRegisterRead, Counter::ExitRegisterWrite]),
    sum("hcall", "hypercalls", &[Counter::ExitHypercall]),
    sum("nest", "nested page faults", &[Counter::ExitNested]),
    sum("intr", "interrupts of the machine", &[Counter::ExitInterrupt, Counter::ExitWindow]),
    sum("wait", "HLT, WFI", &[Counter::ExitWait]),
    sum("pause", "PAUSE, WFE", &[Counter::ExitPause]),
    sum(
        "other",
        "the rest",
        &[Counter::ExitCpuid, Counter::ExitControl, Counter::ExitSvm, Counter::ExitInner, Counter::ExitOther],
    ),
    column("flush", "flush hypercalls it made, a second", Figure::FlushRequests),
    sum("merge", "targets that joined another's flush", &[Counter::FlushMerged]),
    sum("defer", "targets left to flush at their entry", &[Counter::FlushDeferred]),
    sum("kick", "CPUs kicked for its flushes", &[Counter::FlushKicks]),
    sum("inj", "interrupts delivered to it", &[Counter::IrqInjected]),
    column("steal", "% of the time it waited for a CPU", Figure::Steal),
];

#[derive(Clone, Debug)]
pub(crate) struct Rates {
    pub(crate) seconds: f64,
    /// Ticks of the hypervisor's clock in it.
    ticks: f64,
    all: Snapshot,
    each: Vec<Snapshot>,
    labels: Vec<String>,
    /// The guests, if there are several.
    pub(crate) guests: Vec<GuestRate>,
    /// Whether a row is a guest, not a vCPU.
    is_by_guest: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct GuestRate {
    pub(crate) seen: GuestSeen,
    /// CPUs that it used in the interval, on average.
    pub(crate) cpus: f64,
}

impl Rates {
    /// Of the interval between two samples of one machine; `None` if no time has passed.
    pub(super) fn between(before: &Sample, after: &Sample) -> Option<Self> {
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64();
        let all = after.counters.since(&before.counters);
        let (each, ticks) = (all.each().collect(), seconds * float(after.hz));
        let labels = all.owners().iter().map(RowVcpu::label).collect();
        let guest = |seen: &GuestSeen| {
            let is_same = |before: &&GuestSeen| before.identity() == seen.identity();
            let used = before.guests.iter().find(is_same).map_or(0, |before| before.used_ticks);
            let ticks_used = float(seen.used_ticks.saturating_sub(used));
            GuestRate { seen: seen.clone(), cpus: ticks_used / ticks.max(1.0) }
        };
        let guests = after.guests.iter().map(guest).collect();
        (seconds > 0.0).then_some(Self { seconds, ticks, all, each, labels, guests, is_by_guest: false })
    }

    /// The same with a row for each guest instead of each vCPU. Shares of stolen time are added up.
    pub(crate) fn by_guest(&self) -> Self {
        let (guests, each): (Vec<_>, Vec<_>) = self.all.by_guest().into_iter().unzip();
        let label = |guest: Option<Identity>| guest.map_or_else(String::new, |guest| guest.name.to_string());
        let labels = guests.into_iter().map(label).collect();
        Self { each, labels, is_by_guest: true, ..self.clone() }
    }

    /// Whether the rows can be guests: there are several.
    pub(crate) fn has_guests(&self) -> bool {
        !self.guests.is_empty()
    }

    pub(crate) const fn first_title(&self) -> &'static str {
        if self.is_by_guest { "guest" } else { COLUMNS[0].title }
    }

    pub(crate) fn label(&self, row: usize) -> &str {
        self.labels.get(row).map_or("", String::as_str)
    }

    pub(crate) fn case(&self, row: usize) -> String {
        self.all.owners().get(row).map_or_else(String::new, RowVcpu::case)
    }

    /// Number of rows: of vCPUs, or of guests.
    pub(crate) fn vcpus(&self) -> usize {
        self.each.len()
    }

    /// A column's figure for a vCPU, which must exist.
    pub(crate) fn of(&self, vcpu: usize, column: &Column) -> f64 {
        match column.figure {
            #[expect(clippy::cast_precision_loss, reason = "there are few vCPUs")]
            Figure::Vcpu => vcpu as f64,
            figure => self.figure(&self.each[vcpu], figure),
        }
    }

    /// A column's figure for all vCPUs together; shares of stolen time are added up as well.
    pub(crate) fn total(&self, column: &Column) -> f64 {
        self.figure(&self.all, column.figure)
    }

    pub(crate) fn exits(&self) -> f64 {
        self.figure(&self.all, Figure::Exits)
    }

    pub(crate) fn flush_requests(&self) -> f64 {
        self.figure(&self.all, Figure::FlushRequests)
    }

    fn figure(&self, counted: &Snapshot, figure: Figure) -> f64 {
        let count = match figure {
            Figure::Vcpu => return f64::NAN,
            Figure::Steal => {
                return 100.0 * float(counted.get(Counter::SchedSteal)) / self.ticks.max(1.0);
            }
            Figure::Exits => counted.exits(),
            Figure::FlushRequests => counted.flush_requests(),
            Figure::Sum(counters) => counters.iter().map(|&counter| counted.get(counter)).sum(),
        };
        float(count) / self.seconds
    }

    /// Every counter's rate, by name: of all vCPUs, or of one. Steal time is a share of the time.
    pub(crate) fn by_name(&self, vcpu: Option<usize>) -> impl Iterator<Item = (&'static str, f64)> {
        let counted = vcpu.map_or(&self.all, |vcpu| &self.each[vcpu]);
        counted.iter().map(|(name, count)| {
            let per = if name == Counter::SchedSteal.name() { self.ticks.max(1.0) } else { self.seconds };
            (name, float(count) / per)
        })
    }

    pub(crate) fn waits(&self) -> [u64; Counter::WAITS.len()] {
        waits(&self.all)
    }

    /// The vCPUs sorted by a column; vCPUs with equal figures are sorted by number.
    pub(crate) fn order(&self, column: &Column, is_falling: bool) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.vcpus()).collect();
        order.sort_by(|&a, &b| {
            let order = self.of(a, column).partial_cmp(&self.of(b, column)).unwrap_or(Ordering::Equal);
            if is_falling { order.reverse() } else { order }
        });
        order
    }
}

/// The number of flushes by waiting time, shortest first; see [`Counter::WAITS`].
pub(crate) fn waits(counted: &Snapshot) -> [u64; Counter::WAITS.len()] {
    Counter::WAITS.map(|counter| counted.get(counter))
}

/// A figure in at most five characters.
pub(crate) fn short(value: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
    if value <= 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    // A value that would be rounded up to 1000 gets the next unit.
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| value >= unit * 0.9995).unwrap_or((1.0, ""));
    let scaled = value / unit;
    match scaled {
        _ if scaled >= 9_999.5 => ">9999".to_owned(),
        _ if scaled >= 99.95 || (name.is_empty() && scaled >= 9.95) => format!("{scaled:.0}{name}"),
        _ if scaled >= 9.995 || name.is_empty() => format!("{scaled:.1}{name}"),
        _ => format!("{scaled:.2}{name}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Rates over two seconds of vCPUs with these counts.
    pub(crate) fn rates(vcpus: &[&[(Counter, u64)]]) -> Rates {
        let at = Instant::now();
        let sample = |at, counts: &[&[(Counter, u64)]]| Sample {
            at,
            counters: Snapshot::of_counts(counts),
            hz: 1000,
            cpus: 2,
            guests: vec![],
        };
        let before = sample(at, &vec![&[][..]; vcpus.len()]);
        let after = sample(at + Duration::from_secs(2), vcpus);
        Rates::between(&before, &after).expect("time has passed")
    }

    fn column_of(title: &str) -> &'static Column {
        COLUMNS.iter().find(|column| column.title == title).expect("is there")
    }

    #[test]
    fn counts_are_divided_by_the_time_and_added_up() {
        let rates = rates(&[
            &[(Counter::ExitRegisterRead, 3), (Counter::ExitRegisterWrite, 5), (Counter::SchedSteal, 500)],
            &[(Counter::ExitIo, 2), (Counter::FlushLists, 4), (Counter::FlushWholeAsked, 2)],
        ]);
        let figures = |title: &str| {
            let column = column_of(title);
            [rates.of(0, column), rates.of(1, column), rates.total(column)]
        };
        for (title, expected) in [
            ("exits", [4.0, 1.0, 5.0]),
            ("reg", [4.0, 0.0, 4.0]),
            ("io", [0.0, 1.0, 1.0]),
            ("flush", [0.0, 3.0, 3.0]),
            ("steal", [25.0, 0.0, 25.0]),
        ] {
            let wrong = figures(title).iter().zip(expected).any(|(is, should)| (is - should).abs() > 1e-9);
            assert!(!wrong, "{title}: {:?}", figures(title));
        }
        let (mut names, mut sum) = (0, 0.0);
        for (name, rate) in rates.by_name(None) {
            names += 1;
            sum += if name.starts_with("exit.") { rate } else { 0.0 };
            assert!(name != "sched.steal" || (rate - 0.25).abs() < 1e-9, "{rate}");
        }
        assert!(names > Counter::COUNT && (sum - rates.exits()).abs() < 1e-9);
    }

    #[test]
    fn every_exit_is_in_one_column() {
        let exits: Vec<_> = Counter::ALL.into_iter().filter(|it| it.name().starts_with("exit.")).collect();
        for exit in exits {
            let rates = rates(&[&[(exit, 2)]]);
            let counts =
                |column: &&Column| matches!(column.figure, Figure::Sum(_)) && rates.total(column) > 0.0;
            assert_eq!(COLUMNS.iter().filter(counts).count(), 1, "{}", exit.name());
        }
    }

    #[test]
    fn no_time_is_no_rate() {
        let sample = |at| Sample { at, counters: Snapshot::of_counts(&[]), hz: 1, cpus: 1, guests: vec![] };
        let now = Instant::now();
        assert!(Rates::between(&sample(now), &sample(now)).is_none());
    }

    #[test]
    fn rows_are_sorted_by_any_column_both_ways() {
        let io = |count| vec![(Counter::ExitIo, count)];
        let counts = [io(5), io(9), io(5), io(1)];
        let rates = rates(&counts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!(rates.order(column_of("io"), true), [1, 0, 2, 3]);
        assert_eq!(rates.order(column_of("io"), false), [3, 0, 2, 1]);
        assert_eq!(rates.order(column_of("vcpu"), true), [3, 2, 1, 0]);
        for column in &COLUMNS {
            let mut order = rates.order(column, true);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3], "{}", column.title);
        }
    }

    #[test]
    fn figures_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (-1.0, "0"),
            (f64::NAN, "0"),
            (0.04, "0.0"),
            (0.5, "0.5"),
            (9.94, "9.9"),
            (9.96, "10"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (1_234.0, "1.23k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (999_600.0, "1.00M"),
            (5e8, "500M"),
            (7e12, "7000G"),
            (1e18, ">9999"),
        ] {
            assert_eq!(short(value), text, "{value}");
        }
        for power in -20..190 {
            let value = 1.26f64.powi(power);
            assert!(short(value).len() <= 5, "{value}: {}", short(value));
        }
    }

    #[test]
    fn headings_are_no_wider_than_figures() {
        assert!(COLUMNS.iter().all(|column| column.title.len() <= 5 && column.about.len() <= 36));
    }
}
