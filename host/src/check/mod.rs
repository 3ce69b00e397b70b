//! `quell check`: tlbcheck on the bare machine, on Quell, on Linux KVM or Xen, on Quell on KVM, or
//! on KVM on Quell.

use crate::cli::CheckArgs;
use crate::guest::cache::XenVersion;
use crate::guest::peer::{self, Flushes};
use crate::machine::process::Outcome;
use crate::prelude::*;
use crate::results::Writer;
use crate::run::refuse_foreign_defect;
use clap::ValueEnum;
use console::style;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Pass,
    Fail,
    Skip,
}

/// What tlbcheck runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum On {
    /// Quell
    #[default]
    Quell,
    /// The emulated machine itself
    Bare,
    /// Linux KVM in the same machine: Debian's kernel, and this system's QEMU, in an initial RAM
    /// disk
    Kvm,
    /// Quell on Linux KVM in the same machine: KVM checks what Quell does with the processor
    Nested,
    /// Linux KVM in a guest of Quell: a guest of that guest
    KvmOnQuell,
    /// Xen in the same machine, in a PVH domain: Debian's Xen, with its tools in an initial RAM
    /// disk
    Xen,
}

impl On {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Quell => "quell",
            Self::Bare => "bare",
            Self::Kvm => "kvm",
            Self::Nested => "nested",
            Self::KvmOnQuell => "kvm-on-quell",
            Self::Xen => "xen",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub(crate) row: String,
    /// The subject that it ran on.
    pub(crate) subject: &'static str,
    pub(crate) result: Verdict,
    /// Why it did not pass.
    pub(crate) why: String,
}

pub(crate) fn check(args: &CheckArgs, signals: &Signals) -> Result<u8> {
    let platform = args.platform.platform()?;
    ensure!(args.xen.is_none() || args.on == On::Xen, "--xen is for --on xen");
    // Three levels deep each vCPU takes much of a run.
    let usual = if args.on == On::Nested { args.cpus } else { vcpus(platform.arch()) };
    let run = Run {
        platform,
        on: args.on,
        xen: args.xen.unwrap_or_default(),
        cpus: args.cpus,
        vcpus: args.vcpus.unwrap_or(usual),
        switches: Switches { defect: args.defect, ..Switches::default() },
        only: args.only.as_deref(),
        omission: args.drop,
        timeout: args.output.timeout(),
    };
    let (rows, outcome) = run.start(signals, |row| println!("{row}"))?;
    let counts = ended(&outcome, &rows)?;
    println!("{} passed, {} failed, {} skipped", counts[0], counts[1], counts[2]);
    if let Some(path) = &args.output.json {
        Writer::new(path.clone(), "check", None).write(&rows, &[])?;
    }
    Ok(status(counts))
}

/// Rows that passed, failed and were skipped.
type Counts = [u64; 3];

/// 0 if some have passed and none has failed.
fn status([passed, failed, _]: Counts) -> u8 {
    u8::from(failed != 0 || passed == 0)
}

/// On AMD64 some have VP indices of a second bank; Arm's rows need several to share a CPU.
pub(crate) const fn vcpus(arch: Arch) -> u32 {
    arch.pick(66, 8)
}

pub(crate) struct Run<'a> {
    pub(crate) platform: Platform,
    pub(crate) on: On,
    pub(crate) xen: XenVersion,
    pub(crate) cpus: u32,
    /// vCPUs on Quell.
    pub(crate) vcpus: u32,
    pub(crate) switches: Switches,
    pub(crate) only: Option<&'a str>,
    /// Instructions that it omits itself.
    pub(crate) omission: Option<Omission>,
    pub(crate) timeout: Duration,
}

impl Run<'_> {
    pub(crate) fn start(&self, signals: &Signals, mut each: impl FnMut(&Row)) -> Result<(Vec<Row>, Outcome)> {
        let directory = tempfile::Builder::new().prefix("quell-check-").tempdir()?;
        let spec = Spec { timeout: Some(self.timeout), ..self.spec(directory.path())? };
        let mut rows = Vec::new();
        let outcome = Machine::start(&spec, signals)?.run(|report, _| {
            if let Some(row) = row(report, self.on.name()) {
                each(&row);
                rows.push(row);
            }
            // A PVH domain cannot switch itself off as other machines do.
            let has_ended = matches!(report["event"].as_str(), Some("end" | "bail"));
            Ok(if self.on == On::Xen && has_ended { Flow::Stop } else { Flow::Continue })
        })?;
        let outcome = if self.on == On::Nested { outcome.of_inner() } else { outcome };
        Ok((rows, outcome))
    }

    /// The machine on which tlbcheck runs.
    fn spec(&self, directory: &Path) -> Result<Spec> {
        let (platform, cpus) = (self.platform, self.cpus);
        let (arch, has_defect) = (platform.arch(), self.switches.defect.is_some());
        ensure!(self.omission.is_none() || arch == Arch::Aarch64, "--drop is for --arch aarch64");
        let has_quell = matches!(self.on, On::Quell | On::Nested | On::KvmOnQuell);
        ensure!(!has_defect || has_quell, "only Quell has defects that can be switched on");
        refuse_foreign_defect(self.switches, platform)?;
        let report = if arch.reports_on_console() { "" } else { " report=com2" };
        let mut words = vec![format!("check json{report}")];
        let omitted = self.omission.and_then(|omission| omission.to_possible_value());
        words.extend(omitted.map(|omission| format!("drop={}", omission.get_name())));
        words.extend(self.only.map(|row| format!("only={row}")));
        let guest = Guest::bare(workspace::TLBCHECK, platform, words.join(" "), self.vcpus, MEMORY)?;
        let guest = Guest { switches: self.switches, ..guest };
        let hypervisor = || if has_defect { Hypervisor::with_defects(arch) } else { Hypervisor::build(arch) };
        match self.on {
            On::Bare => guest.on_bare_machine(cpus, directory),
            On::Quell => guest.on_quell(&hypervisor()?, cpus, Clock::Wall, directory),
            On::Nested => {
                StockGuest::prepare(arch)?.with_quell_on_kvm(&guest, &hypervisor()?, cpus, directory)
            }
            On::Xen => {
                peer::xen::spec(self.xen, &Guest { vcpus: cpus, ..guest }, Flushes::HyperV, cpus, directory)
            }
            On::KvmOnQuell => {
                let guest = Guest { vcpus: cpus, ..guest };
                let inner = guest.under_kvm(Flushes::HyperV, false);
                let hypervisor = hypervisor()?;
                StockGuest::prepare(arch)?.with_kvm_on_quell(
                    platform,
                    &inner,
                    &hypervisor,
                    self.switches,
                    (cpus, Clock::Wall),
                    directory,
                )
            }
            On::Kvm => {
                let guest = Guest { vcpus: cpus, ..guest };
                let inner = guest.under_kvm(Flushes::HyperV, false);
                StockGuest::prepare(arch)?.with_kvm(platform, &inner, cpus, Clock::Wall, directory)
            }
        }
    }
}

pub(crate) fn row(report: &Value, subject: &'static str) -> Option<Row> {
    let result = match report["result"].as_str()? {
        "pass" => Verdict::Pass,
        "skip" => Verdict::Skip,
        _ => Verdict::Fail,
    };
    let text = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
    Some(Row { row: text("row"), subject, result, why: text("why") })
}

/// How many rows ended how, if tlbcheck has come to its end with at least one, each row was heard,
/// and the machine has ended with it.
pub(crate) fn ended(outcome: &Outcome, rows: &[Row]) -> Result<Counts> {
    if let Some(bail) = outcome.report("bail") {
        bail!("tlbcheck gave up: {}", bail["why"].as_str().unwrap_or_default());
    }
    let begun = outcome.reports.iter().rev().find(|report| report["event"] == "row");
    let last = begun.and_then(|report| report["row"].as_str()).map(|row| format!(" after '{row}' had begun"));
    // It is stopped only after its end, on Xen.
    let how = outcome.ended_by(&[End::PowerOff, OFF, End::Stopped]);
    let end = outcome.report("end").with_context(|| {
        let (last, how) =
            (last.unwrap_or_default(), how.as_ref().map_or_else(ToString::to_string, |()| String::new()));
        outcome.explain(anyhow!("tlbcheck did not come to its end{last}: {how}")).to_string()
    })?;
    how.map_err(|error| outcome.explain(error))?;
    outcome.all_kept()?;
    let said = ["passed", "failed", "skipped"].map(|key| end[key].as_u64().unwrap_or(u64::MAX));
    ensure!(said != [0; 3], "tlbcheck has no such row");
    let heard = [Verdict::Pass, Verdict::Fail, Verdict::Skip]
        .map(|result| rows.iter().filter(|row| row.result == result).count() as u64);
    ensure!(
        heard == said,
        "{heard:?} rows have passed, failed and were skipped, and tlbcheck counts {said:?}"
    );
    Ok(said)
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.result {
            Verdict::Pass => style("ok  ").green(),
            Verdict::Fail => style("FAIL").red(),
            Verdict::Skip => style("skip").yellow(),
        };
        match self.why.as_str() {
            "" => write!(f, "{verdict} {}", self.row),
            why => write!(f, "{verdict} {:<44} {why}", self.row),
        }
    }
}

const MEMORY: u64 = 256 * MIB;

/// Instructions that tlbcheck omits, on Arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Omission {
    /// Every TLBI
    Tlbi,
    /// The TLBIs that drop everything
    Vmalle1,
    /// Broadcasting: each TLBI affects only the own TLB
    Broadcast,
    /// The barriers after TLBIs, which an emulator may not need
    Dsb,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::process::refuses;

    #[test]
    fn rows_are_read_and_other_lines_are_not() {
        assert_eq!(row(&json!({"event": "row", "row": "a"}), "bare"), None);
        let failed = row(&json!({"row": "a", "result": "fail", "why": "b"}), "bare").expect("is a row");
        assert_eq!((failed.row.as_str(), failed.result, failed.why.as_str()), ("a", Verdict::Fail, "b"));
        let odd = row(&json!({"row": "a", "result": "maybe"}), "bare").expect("is a row");
        assert_eq!(odd.result, Verdict::Fail, "what is not known does not pass");
    }

    #[test]
    fn tlbcheck_has_ended_with_all_that_it_counts() {
        let right = "end bare
            +event=row row=a
            +row=a result=pass
            +event=row row=b
            +row=b result=fail
            +event=end passed=1 failed=1 skipped=0";
        let wrong = "
            +event=bail why=APIC => tlbcheck gave up: APIC
            -4 => tlbcheck did not come to its end after 'b' had begun
            4.passed=0 => [1, 1, 0] rows have passed, failed and were skipped, and tlbcheck counts [0, 1, 0]
            -3 => [1, 0, 0] rows have passed, failed and were skipped
            4.skipped=null => rows have passed, failed and were skipped
            dropped 1 => 1 reports are not kept
            end Panic => ended by Hypervisor(Panic)";
        let judged = |it: &Outcome| {
            let rows: Vec<_> = it.reports.iter().filter_map(|report| row(report, "quell")).collect();
            ended(it, &rows).map(|counts| assert_eq!(counts, [1, 1, 0]))
        };
        refuses(judged, right, wrong);
        refuses(judged, &right.replacen("end bare", "end stopped", 1), "-4 => did not come to its end");
        let none = ended(&Outcome::of("+event=end passed=0 failed=0 skipped=0"), &[]).expect_err("no row");
        assert!(none.to_string().contains("tlbcheck has no such row"));
        assert_eq!([[1, 0, 0], [1, 0, 5], [1, 1, 0], [0, 0, 5]].map(status), [0, 0, 1, 1]);
    }
}
