//! `quell demo`: the same guest and workload, both ways in turn: flushing by IPI and by hypercall;
//! on Arm a different comparison.

pub(crate) mod flush;
mod unmap;

use crate::arch::PlatformArgs;
use crate::bench::lab;
use crate::cli::{DemoArgs, SizeArgs};
use crate::machine::kvm::Accel;
use crate::prelude::*;
use crate::results::{Row, Writer};
use crate::run::conclude;
use comfy_table::Table;
use indicatif::{HumanFloatCount, ProgressBar};

/// A guest that KVM runs is up in so long, or the first command of a newcomer would seem to hang.
const UP_MAX: Duration = Duration::from_secs(20);

/// A comparison of two sides, in the order of the table's columns.
struct Demo<'a> {
    args: &'a DemoArgs,
    platform: Platform,
    about: String,
    names: [&'static str; 2],
    cases: [String; 2],
    command: String,
    /// Makes a guest that of this side.
    guest: fn(usize, Guest) -> Guest,
    spare: u64,
    observer: fn(&DemoArgs, ProgressBar) -> Box<dyn Observer>,
    /// The metric that counts, and the name of its ratio.
    metric: &'static str,
    ratio: &'static str,
    rows: [&'static Rows; 2],
    /// One sentence with the result, from the metric of both sides.
    sentence: fn(&DemoArgs, f64, f64) -> String,
}

/// Follows a run through the guest's report channel and the hypervisor's counters.
trait Observer {
    /// Processes one line of the report channel, and performs the step that it waits for.
    fn observe(&mut self, report: &Value, machine: &mut Machine) -> Result<()>;

    fn measured(&self) -> Option<Measured>;
}

struct Measured {
    /// Metrics with units and values; the first one counts.
    figures: Vec<(&'static str, &'static str, f64)>,
    counters: Snapshot,
}

impl Measured {
    fn add_to(&self, samples: &mut Samples, case: &str) {
        for (metric, unit, value) in &self.figures {
            samples.add(case, Subject::Quell, metric, *unit, *value);
        }
        samples.add_count(case, Subject::Quell, "exit.all", self.counters.exits());
        for (name, value) in self.counters.iter() {
            samples.add_count(case, Subject::Quell, name, value);
        }
    }
}

pub(crate) fn demo(args: &DemoArgs, signals: &Signals) -> Result<u8> {
    let accel = args.platform.accel.or(Some(Accel::Auto));
    let lab = Lab::new(args.output.timeout(), signals)?;
    let platform = PlatformArgs { accel, ..args.platform }.platform()?;
    let platform = tried(platform, accel, || fails(platform, args.size, &lab))?;
    let demo = match platform {
        Platform::X86_64 | Platform::Kvm(_) => flush::demo(args, platform),
        Platform::Bochs(_) => bail!("the demo measures time, and Bochs's is not that of a processor"),
        platform @ Platform::Aarch64(_) => unmap::demo(args, platform),
    };
    let stock = lab.stock(demo.platform.arch())?;
    let by = if let Platform::Kvm(_) = platform { "; this computer's processor, by KVM" } else { "" };
    println!("{}; {} runs a side{by}", demo.about, args.runs);
    println!("guest: {}\n", stock.versions().kernel);
    let mut samples = Samples::default();
    for run in 0..args.runs {
        // In alternating order, so that a change in the host's load affects both sides.
        for side in if run.is_multiple_of(2) { [0, 1] } else { [1, 0] } {
            let title = format!("{:<9} {}/{}", demo.names[side], run + 1, args.runs);
            match demo.run(side, &title, &lab)? {
                Ok(measured) => measured.add_to(&mut samples, &demo.cases[side]),
                Err(status) => return Ok(status),
            }
        }
    }
    let [left, right] = demo.cases.each_ref().map(|case| samples.of_quell(case, demo.metric));
    samples.add(&demo.cases[1], Subject::Quell, demo.ratio, "ratio", right / left);
    println!("\n{}\n", table(&samples, demo.names, demo.cases.each_ref(), demo.rows));
    println!("{}", demo.sentence(left, right));
    if let Some(path) = &args.output.json {
        Writer::new(path.clone(), "demo", Some(stock.versions())).write(samples.rows(), &[])?;
    }
    Ok(0)
}

/// The platform of the demo: an emulator, where KVM was only taken as it is there and a guest fails
/// to come up by it.
fn tried(
    platform: Platform,
    accel: Option<Accel>,
    fails: impl FnOnce() -> Result<Option<String>>,
) -> Result<Platform> {
    if let (Platform::Kvm(_), Some(Accel::Auto)) = (platform, accel)
        && let Some(why) = fails()?
    {
        eprintln!("quell: emulated, as by KVM no guest was up in {} s: {why}", UP_MAX.as_secs());
        return Ok(Platform::X86_64);
    }
    Ok(platform)
}

/// Why a guest does not come up on this platform, if it does not.
fn fails(platform: Platform, size: SizeArgs, lab: &Lab<'_>) -> Result<Option<String>> {
    let stock = lab.stock(platform.arch())?;
    let guest = lab::linux(stock, platform, stock.initrd(Some("true")), size.vcpus);
    let guest = Guest { memory: size.memory, ..guest };
    let spec = Spec { timeout: Some(UP_MAX), ..lab.on_quell(&guest, size.cpus, Clock::Wall)? };
    let outcome = Machine::start(&spec, lab.signals)?.run(|_, _| Ok(Flow::Continue))?;
    Ok(outcome.ended_by(&[OFF]).err().map(|why| why.to_string()))
}

impl Demo<'_> {
    /// Boots the guest of a side and runs the workload in it. The inner error is the exit status,
    /// after the reason has been printed.
    fn run(&self, side: usize, title: &str, lab: &Lab<'_>) -> Result<Result<Measured, u8>> {
        let (size, stock) = (self.args.size, lab.stock(self.platform.arch())?);
        let guest = lab::linux(stock, self.platform, stock.initrd(Some(&self.command)), size.vcpus);
        let guest = (self.guest)(side, Guest { memory: size.memory, ..guest });
        let mut spec = lab.on_quell(&guest, size.cpus, Clock::Wall)?;
        spec.memory += self.spare;

        let bar = steps::bar("{prefix}  {bar:40} {percent:>3}%  {msg}", 1);
        bar.set_prefix(title.to_owned());
        bar.set_message("booting");
        let mut observer = (self.observer)(self.args, bar.clone());
        let outcome = lab.start(spec)?.run(|report, machine| {
            if report["event"] == "boot" {
                bar.set_message(format!("booted in {:.1} s", machine.elapsed().as_secs_f64()));
            }
            observer.observe(report, machine).map(|()| Flow::Continue)
        })?;
        bar.finish_and_clear();
        let judged = outcome.without_complaint().and_then(|()| outcome.ended_by(&[OFF]));
        match (observer.measured(), judged) {
            (Some(measured), Ok(())) => {
                let (_, unit, value) = measured.figures[0];
                println!("{title}  {value:8.decimals$} {unit}", decimals = if unit == "s" { 2 } else { 1 });
                Ok(Ok(measured))
            }
            (_, judged) => {
                let why = judged.map_or_else(|error| error.to_string(), |()| "no figures".to_owned());
                eprintln!("quell: {title} failed: {why}; the guest's console ends with:");
                eprintln!("{}", tail(&outcome.console));
                Ok(Err(conclude(&outcome, false).max(1)))
            }
        }
    }

    fn sentence(&self, left: f64, right: f64) -> String {
        if left > 0.0 && right > 0.0 {
            (self.sentence)(self.args, left, right)
        } else {
            "Nothing was measured.".to_owned()
        }
    }
}

/// Rows of a table that are always shown: label and metric.
type Rows = [(&'static str, &'static str)];

/// The table: one column per case, and the ratio of the second to the first. Between the rows of
/// `head` and `tail` are the reasons of exits, except for those that occur in neither case.
fn table(
    samples: &Samples,
    [left_name, right_name]: [&str; 2],
    [left_case, right_case]: [&String; 2],
    [head, tail]: [&Rows; 2],
) -> Table {
    let reasons = samples.rows().iter().filter(|row| row.case == *left_case);
    let reasons = reasons.map(|row| row.metric.clone()).filter(|m| m.starts_with("exit.") && m != "exit.all");
    let exits =
        reasons.map(|metric| (format!("  {}", metric.trim_start_matches("exit.").replace('.', " ")), metric));
    let owned = |(label, metric): &(&str, &str)| ((*label).to_owned(), (*metric).to_owned());
    let lines = head.iter().map(owned).chain(exits).chain(tail.iter().map(owned));
    let mut rows = Vec::new();
    for (label, metric) in lines {
        let row = |case: &String| samples.row(case, Subject::Quell, &metric);
        let (Some(left), Some(right)) = (row(left_case), row(right_case)) else { continue };
        if label.starts_with(' ') && left.spread.max == 0.0 && right.spread.max == 0.0 {
            continue;
        }
        rows.push([label, value(left), value(right), ratio(left.spread.median, right.spread.median)]);
    }
    crate::table::table(["", left_name, right_name, "ratio"], rows)
}

fn value(row: &Row) -> String {
    match &*row.unit {
        "s" => format!("{:.2} s", row.spread.median),
        "ms" => format!("{:.1} ms", row.spread.median),
        _ => format!("{:.0}", HumanFloatCount(row.spread.median.max(0.0))),
    }
}

fn ratio(left: f64, right: f64) -> String {
    if left > 0.0 { format!("{:.2}", right / left) } else { "–".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::machine::kvm::Vendor;

    #[test]
    fn the_sentence_says_which_is_faster() {
        let args = cli::arguments(&[]).expect("parses");
        let demo = unmap::demo(&args, Platform::Aarch64(ArmCpu::Max));
        assert!(demo.sentence(500.0, 16.0).contains("31 times as fast"));
        assert!(demo.sentence(1.0, 2.0).contains("not faster"));
        assert!(demo.sentence(f64::NAN, 2.0).contains("Nothing"));
        assert!(flush::demo(&args, Platform::X86_64).sentence(3.0, 1.0).contains("3.00 times as fast"));
    }

    #[test]
    fn a_guest_that_fails_on_kvm_is_emulated_where_kvm_was_not_asked_for() {
        let kvm = Platform::Kvm(Vendor::Amd);
        for (accel, why, expected) in [
            (Accel::Auto, Some("no kernel"), Platform::X86_64),
            (Accel::Auto, None, kvm),
            (Accel::Kvm, Some("it is not asked"), kvm),
        ] {
            let platform = tried(kvm, Some(accel), || Ok(why.map(str::to_owned)));
            assert_eq!(platform.expect("is one"), expected);
        }
        let emulated = tried(Platform::X86_64, Some(Accel::Auto), || panic!("no guest is tried"));
        assert_eq!(emulated.expect("is one"), Platform::X86_64);
    }

    #[test]
    fn reasons_that_never_occurred_are_left_out() {
        let mut samples = Samples::default();
        for (case, real) in [("i", 2.0), ("h", 1.0)] {
            samples.add(case, Subject::Quell, "real", "s", real);
            samples.add_count(case, Subject::Quell, "exit.wait", 0);
            samples.add_count(case, Subject::Quell, "exit.register.read", 1000);
        }
        let text = table(
            &samples,
            ["left", "right"],
            ["i", "h"].map(str::to_owned).each_ref(),
            [flush::HEAD, flush::TAIL],
        )
        .to_string();
        assert!(
            text.contains("2.00 s")
                && text.contains("0.50")
                && text.contains("1,000")
                && text.contains("  register read ")
                && text.contains("left"),
            "{text}"
        );
        assert!(!text.contains("wait"), "{text}");
    }
}
