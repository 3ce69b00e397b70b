//! `quell top --once`: the rates of one interval, as a table and as JSON.

use super::rates::{COLUMNS, GuestRate, Rates, short};
use super::source::{Sample, Source};
use super::view::{clock, longest};
use crate::cli::TopArgs;
use crate::machine::control;
use crate::prelude::*;
use crate::results::Writer;

/// How often the machine and signals are checked while time passes.
const POLL_PERIOD: Duration = Duration::from_millis(20);

pub(super) fn once(args: &TopArgs, signals: &Signals) -> Result<u8> {
    let machine = control::choose(args.vm.as_deref(), &control::running()?)?;
    let Some(source) = Source::open(&machine)? else {
        if machine.is_alive() {
            bail!("machine {} does not say where its counters are", machine.name);
        }
        println!("machine {} has ended", machine.name);
        return Ok(0);
    };
    let mut before = None;
    let after = loop {
        if let Some(signal) = signals.caught() {
            return Ok(u8::try_from(128 + signal).unwrap_or(128));
        }
        let is_running = source.is_running();
        let sample = source.sample()?;
        match (&before, sample) {
            // The interval begins when there is something to count.
            (None, sample) => before = sample,
            (Some(begin), Some(sample)) if begin.at.elapsed() >= args.interval() || !is_running => {
                break sample;
            }
            _ => {}
        }
        if !is_running {
            println!("machine {} ended before its hypervisor had begun to count", machine.name);
            return Ok(0);
        }
        let due = before.as_ref().map(|sample: &Sample| sample.at + args.interval());
        let left = due.map_or(POLL_PERIOD, |due| due.saturating_duration_since(Instant::now()));
        thread::sleep(left.min(POLL_PERIOD));
    };
    let before = before.context("the interval has begun")?;
    let rates = Rates::between(&before, &after).context("no time has passed")?;
    println!("{}", text(&source, &after, &rates));
    if let Some(path) = &args.json {
        Writer::new(path.clone(), "top", None).write(samples(&rates).rows(), &[])?;
    }
    if !source.is_running() {
        println!("machine {} has ended meanwhile", machine.name);
    }
    Ok(0)
}

fn text(source: &Source, sample: &Sample, rates: &Rates) -> String {
    let row = |name: String, figure: &dyn Fn(usize) -> f64| {
        let figures = (1..COLUMNS.len()).map(|column| short(figure(column)));
        std::iter::once(name).chain(figures).collect::<Vec<_>>()
    };
    let all = row("all".to_owned(), &|column| rates.total(&COLUMNS[column]));
    let vcpus = (0..rates.vcpus())
        .map(|vcpu| row(rates.label(vcpu).to_owned(), &|column| rates.of(vcpu, &COLUMNS[column])));
    let header: Vec<_> = COLUMNS.iter().map(|column| column.title).collect();
    let mut text = format!(
        "machine {}: {}, {} vCPUs : {} CPUs, up {}; a second, over {:.1} s\n{}",
        source.machine.name,
        source.notice.arch,
        rates.vcpus(),
        sample.cpus,
        clock(source.notice.uptime()),
        rates.seconds,
        table(header, std::iter::once(all).chain(vcpus)),
    );
    if rates.has_guests() {
        text += &format!("\n{}", guests(rates));
    }
    let inner = rates.by_name(None).filter(|&(_, rate)| rate > 0.0);
    let inner =
        inner.filter_map(|(name, rate)| Some(format!("{} {}", name.strip_prefix("inner.")?, short(rate))));
    let inner: Vec<_> = inner.collect();
    if !inner.is_empty() {
        text += &format!("\nguests of guests: {}", inner.join(", "));
    }
    let waits: Vec<_> = rates.waits().into_iter().enumerate().filter(|&(_, count)| count > 0).collect();
    if !waits.is_empty() {
        let wait = |(step, count): (usize, u64)| match longest(step) {
            Some(longest) => format!("≤{longest}s {count}"),
            None => format!("longer {count}"),
        };
        text += &format!("\nflush waits: {}", waits.into_iter().map(wait).collect::<Vec<_>>().join(", "));
    }
    text
}

fn guests(rates: &Rates) -> String {
    let row = |GuestRate { seen, cpus }: &GuestRate| {
        let cap = seen.cap.map_or_else(|| "none".to_owned(), |cap| format!("{cap} %"));
        [
            seen.name.to_string(),
            seen.state.to_string(),
            seen.vcpus.to_string(),
            size::display(seen.memory),
            seen.weight.to_string(),
            cap,
            format!("{cpus:.2}"),
        ]
    };
    let header = ["guest", "state", "vCPUs", "memory", "weight", "cap", "CPUs used"];
    table(header, rates.guests.iter().map(row)).to_string()
}

fn samples(rates: &Rates) -> Samples {
    const ALL: &str = "top";
    let mut samples = Samples::default();
    let mut add = |case: &str, name, rate| {
        let unit = if name == Counter::SchedSteal.name() { "ratio" } else { "per second" };
        samples.add(case, Subject::Quell, name, unit, rate);
    };
    for (name, rate) in rates.by_name(None) {
        add(ALL, name, rate);
    }
    for vcpu in 0..rates.vcpus() {
        for (name, rate) in rates.by_name(Some(vcpu)).filter(|&(_, rate)| rate > 0.0) {
            add(&rates.case(vcpu), name, rate);
        }
    }
    for GuestRate { seen, cpus } in &rates.guests {
        samples.add(seen.name.as_str(), Subject::Quell, "cpus used", "ratio", *cpus);
    }
    samples.add(ALL, Subject::Quell, "interval", "s", rates.seconds);
    samples
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::rates;
    use super::super::source::made::MockMachine;
    use super::*;

    #[test]
    fn the_table_has_all_vcpus_and_their_sum() {
        let machine = MockMachine::new(2);
        machine.begin();
        let source = Source::open(&machine.found).expect("opens").expect("is there");
        let sample = source.sample().expect("reads").expect("counts");
        let first = [(Counter::ExitIo, 400), (Counter::FlushWait4us, 3)];
        let counts = [&first[..], &[(Counter::FlushWaitMore, 2), (Counter::InnerRuns, 20)]];
        let text = text(&source, &sample, &rates(&counts));
        let line = |begin: &str| text.lines().find(|line| line.trim_start().starts_with(begin)).expect(begin);
        assert!(line("machine").contains("x86_64, 2 vCPUs : 2 CPUs"), "{text}");
        assert!(line("vcpu").ends_with("steal ") && line("all").matches("200").count() == 2, "{text}");
        assert!(line("0 ").contains("200") && !line("1 ").contains("200"), "{text}");
        assert!(line("guests of guests").ends_with("runs 10"), "{text}");
        assert!(line("flush waits").ends_with("≤4µs 3, longer 2"), "{text}");
    }

    #[test]
    fn guests_are_listed_with_the_cpus_that_they_use() {
        use crate::machine::counters::Snapshot;
        use crate::machine::guests::{Entries, made};
        use hostlink::guests::{GuestEntry, GuestState};
        use std::mem::offset_of;
        let machine = made::MockGuests::new(2);
        machine.count_columns();
        machine.fill(0, "web", GuestState::Running);
        machine.fill(1, "db", GuestState::Paused);
        let begin = Instant::now();
        let sample = |ms| {
            let entries = Entries::find(&machine.ram, made::BEACON).expect("reads").expect("is filled in");
            let counters = Snapshot::read(&machine.ram, made::BEACON).expect("reads").expect("is there");
            let guests = entries.guests(&machine.ram).expect("reads");
            Sample { at: begin + Duration::from_millis(ms), counters, hz: 1000, cpus: 2, guests }
        };
        let before = sample(0);
        machine.put(made::MockGuests::field(0, offset_of!(GuestEntry, used_ticks)), 3000);
        machine.put(made::COUNTERS + Counter::ExitIo as u64 * 8, 400);
        let rates = Rates::between(&before, &sample(2000)).expect("time has passed");
        let text = guests(&rates);
        let row = |name: &str| text.lines().find(|line| line.contains(name)).expect(name).to_owned();
        assert!(row("web").contains("running") && row("web").contains("1.50"), "{text}");
        assert!(row("db").contains("paused") && row("db").contains("0.00"), "{text}");
        let labels: Vec<_> = (0..rates.vcpus()).map(|row| rates.label(row)).collect();
        assert_eq!((labels, rates.first_title()), (vec!["web.0", "web.1", "db.0", "db.1"], "vcpu"));
        let by_guest = rates.by_guest();
        let labels: Vec<_> = (0..by_guest.vcpus()).map(|row| by_guest.label(row)).collect();
        assert_eq!((labels, by_guest.first_title()), (vec!["web", "db"], "guest"));
        let exits = COLUMNS.iter().find(|column| column.title == "exits").expect("is there");
        assert!((by_guest.of(0, exits) - 200.0).abs() < 1e-9);
        let samples = samples(&rates);
        assert!(
            samples
                .row("web.vcpu-0", Subject::Quell, "exit.io")
                .is_some_and(|row| row.spread.median == 200.0)
        );
        assert!(samples.row("web", Subject::Quell, "cpus used").is_some_and(|row| row.spread.median == 1.5));
    }

    #[test]
    fn rates_are_written_with_their_units() {
        let counts = [&[(Counter::ExitIo, 400), (Counter::SchedSteal, 1000)][..], &[]];
        let samples = samples(&rates(&counts));
        let row = |case: &str, metric: &str| samples.row(case, Subject::Quell, metric);
        let is = |case: &str, metric: &str, value: f64, unit: &str| {
            row(case, metric).is_some_and(|row| (row.spread.median - value).abs() < 1e-9 && row.unit == unit)
        };
        assert!(is("top", "exit.io", 200.0, "per second") && is("vcpu-0", "exit.io", 200.0, "per second"));
        assert!(is("vcpu-0", "sched.steal", 0.5, "ratio") && is("top", "interval", 2.0, "s"));
        assert!(is("top", "flush.requests", 0.0, "per second") && row("vcpu-1", "exit.io").is_none());
    }
}
