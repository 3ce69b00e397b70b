//! Runs all cases on one machine.

use crate::bench::phases::Phases;
use crate::machine::devices::SINK;
use crate::prelude::*;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Counted {
    /// What the devices did: reads, writes, or frames that were sent.
    pub(super) ios: f64,
    pub(super) instructions: f64,
    /// Exits by name; empty without Quell.
    pub(super) exits: BTreeMap<&'static str, f64>,
}

impl Counted {
    pub(super) fn instructions_each(&self) -> f64 {
        self.instructions / self.ios
    }

    pub(super) fn exits_each(&self) -> f64 {
        self.exits.values().sum::<f64>() / self.ios
    }
}

#[derive(Clone, Debug, Default)]
struct Heard {
    reports: [Option<Value>; 2],
    counters: [Option<Snapshot>; 2],
}

impl Heard {
    fn gained(&self, name: &str) -> Option<f64> {
        let [begin, end] = self.reports.each_ref().map(|report| report.as_ref()?[name].as_f64());
        Some(end? - begin?)
    }

    fn ios(&self, case: &Case) -> Result<f64> {
        let gained = |name| self.gained(name).context("the guest did not report its end");
        match case.work {
            Work::Disk { count, .. } => {
                let count = float(count);
                let ios = gained("reads")? + gained("writes")?;
                ensure!((ios - count).abs() < 0.5, "the disk has done {ios} transfers instead of {count}");
                Ok(ios)
            }
            Work::Stream { .. } => gained("frames"),
            Work::Nothing => Ok(1.0),
        }
    }

    fn exits(&self) -> BTreeMap<&'static str, f64> {
        let [Some(begin), Some(end)] = &self.counters else { return BTreeMap::new() };
        let exits = end.since(begin);
        let all = exits.iter().filter(|(name, _)| name.starts_with("exit."));
        all.map(|(name, count)| (name, float(count))).collect()
    }
}

/// Runs the machine; returns the counts of each case, less those of the one without work.
pub(super) fn run(lab: &Lab<'_>, spec: Spec) -> Result<Vec<Counted>> {
    let mut heard: BTreeMap<String, Heard> = BTreeMap::new();
    let mut last = "boot".to_owned();
    let counted = lab.count(spec, |report, machine| {
        last = report.to_string();
        let place = match report["event"].as_str() {
            Some("begin") => 0,
            Some("end") => 1,
            Some("failed") => bail!("a command has failed"),
            _ => return Ok(Flow::Continue),
        };
        let case = heard.entry(report["case"].as_str().unwrap_or_default().to_owned()).or_default();
        // Each comes twice: what lies between the last beginning and the first end is counted.
        if place == 0 || case.reports[1].is_none() {
            case.counters[place] = machine.counters()?;
            case.reports[place] = Some(report.clone());
        }
        Ok(Flow::Continue)
    });
    let (_, phases) = counted.with_context(|| format!("after {last}"))?;
    self::counted(&heard, &phases)
}

fn counted(heard: &BTreeMap<String, Heard>, phases: &Phases) -> Result<Vec<Counted>> {
    let all = CASES.iter().zip(1..).map(|(case, phase)| {
        let heard = heard.get(case.name).with_context(|| format!("the guest did not begin {}", case.name))?;
        let instructions = float(phases.numbered(phase)?.instructions);
        let ios = heard.ios(case).with_context(|| case.name)?;
        Ok((case, Counted { ios, instructions, exits: heard.exits() }))
    });
    let all = all.collect::<Result<Vec<_>>>()?;
    let nothing = all.iter().find(|(case, _)| case.name == NOTHING).map(|(_, counted)| counted.clone());
    let nothing = nothing.context("there is nothing to subtract")?;
    let others = all.into_iter().filter(|(case, _)| case.name != NOTHING);
    Ok(others.map(|(_, counted)| without(counted, &nothing)).collect())
}

fn without(mut counted: Counted, nothing: &Counted) -> Counted {
    counted.instructions = (counted.instructions - nothing.instructions).max(0.0);
    for (name, count) in &mut counted.exits {
        *count = (*count - nothing.exits.get(name).copied().unwrap_or(0.0)).max(0.0);
    }
    counted
}

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) work: Work,
}

#[derive(Clone, Copy)]
pub(super) enum Work {
    /// By fio, past the guest's page cache.
    Disk {
        /// As in fio's `rw`.
        pattern: &'static str,
        block: u64,
        /// How many are under way at a time.
        depth: u32,
        count: u64,
    },
    /// A TCP stream of this many bytes; frames that are sent count.
    Stream { bytes: u64 },
    /// Only what surrounds the others: it is subtracted from their counts.
    Nothing,
}

const fn disk(name: &'static str, pattern: &'static str, block: u64, depth: u32, count: u64) -> Case {
    Case { name, work: Work::Disk { pattern, block, depth, count } }
}

/// All cases. The place of one is the number of its phase, from 1 on.
pub(super) const CASES: [Case; 7] = [
    Case { name: NOTHING, work: Work::Nothing },
    disk("read-128K", "read", 128 << 10, 1, 500),
    disk("randread-4K", "randread", 4 << 10, 1, 1000),
    disk("randread-4K-16", "randread", 4 << 10, 16, 2000),
    disk("randwrite-4K", "randwrite", 4 << 10, 1, 1000),
    disk("randwrite-4K-16", "randwrite", 4 << 10, 16, 2000),
    Case { name: "stream", work: Work::Stream { bytes: 4 << 20 } },
];
const _: () = assert!(CASES.len() < Phase::ALL.len());

pub(super) const NOTHING: &str = "nothing";
/// Size of the disk that is read and written.
pub(super) const DATA_BYTES: u64 = 64 << 20;
/// The serial numbers of the disk with the programs, and of the other one.
const SERIALS: [&str; 2] = ["disk8", "disk9"];

/// Before all cases: finds the disks by their serial numbers, whichever driver was faster, and
/// makes Debian the system, of which nothing runs but what is started here.
///
/// `before` and `after` surround what is counted, report what the devices have done up to then, and
/// wait until the host has heard it. They report twice: a report was missing once.
const SETUP: &str = include_str!("setup.sh");

pub(super) fn command() -> String {
    let mut script = SETUP.replace("SERIAL_OF_PROGRAMS", SERIALS[0]).replace("SERIAL_OF_DATA", SERIALS[1]);
    // Programs and libraries are read from the disk once, before anything is counted.
    for case in CASES.iter().filter(|case| !matches!(case.work, Work::Nothing)) {
        script += &in_debian(&work(&short(case.work), "true", "true"));
    }
    for (case, phase) in CASES.iter().zip(1..) {
        let (before, after) =
            (format!("/tmp/before {phase} {}", case.name), format!("/tmp/after {}", case.name));
        script += &in_debian(&work(&case.work, &before, &after));
    }
    script
}

fn in_debian(command: &str) -> String {
    format!("in_debian '{command}'\n").replace("$data", "'$data'")
}

fn short(work: Work) -> Work {
    match work {
        Work::Disk { pattern, block, depth, .. } => Work::Disk { pattern, block, depth, count: 64 },
        Work::Stream { .. } => Work::Stream { bytes: 1 << 20 },
        Work::Nothing => Work::Nothing,
    }
}

fn work(work: &Work, before: &str, after: &str) -> String {
    match *work {
        Work::Disk { pattern, block, depth, count } => format!(
            "fio --name=job --filename=/dev/$data --direct=1 --ioengine=libaio --rw={pattern} --bs={block} \
             --iodepth={depth} --size={DATA_BYTES} --io_size={} --norandommap --thread --gtod_reduce=1 \
             --eta=never --disk_util=0 --output=/tmp/output --exec_prerun=\"{before}\" \
             --exec_postrun=\"{after}\" || {{ cat /tmp/output; exit 1; }}",
            block * count
        ),
        Work::Stream { bytes } => format!(
            "exec 3>/dev/tcp/{SINK}/9 && {before} && dd if=/dev/zero bs=64K count={} status=none >&3 && {after}",
            bytes >> 16
        ),
        Work::Nothing => format!("{before} && {after}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(reads: u64, frames: u64) -> Heard {
        let report = |reads, frames| Some(json!({"reads": reads, "writes": 7, "frames": frames}));
        Heard { reports: [report(10, 20), report(10 + reads, 20 + frames)], ..Heard::default() }
    }

    #[test]
    fn transfers_are_those_that_the_devices_have_done() {
        let [_, read, ..] = &CASES;
        assert_eq!(heard(500, 0).ios(read).expect("all are done"), 500.0);
        let error = heard(499, 0).ios(read).expect_err("one is missing").to_string();
        assert!(error.contains("499"), "{error}");
        let stream = CASES.iter().find(|case| case.name == "stream").expect("is one");
        assert_eq!(heard(5, 300).ios(stream).expect("counts"), 300.0);
        assert!(Heard::default().ios(stream).is_err());
    }

    #[test]
    fn what_surrounds_the_work_is_subtracted() {
        let counted = |instructions, waits| Counted {
            ios: 10.0,
            instructions,
            exits: BTreeMap::from([("exit.wait", waits)]),
        };
        let net = without(counted(1100.0, 25.0), &counted(100.0, 5.0));
        assert_eq!((net.instructions_each(), net.exits_each()), (100.0, 2.0));
        assert_eq!(without(counted(90.0, 1.0), &counted(100.0, 5.0)).exits_each(), 0.0);
    }

    #[test]
    fn every_case_has_a_phase_of_its_own_and_is_tried_before() {
        let command = command();
        for (case, phase) in CASES.iter().zip(1..) {
            assert!(command.contains(&format!("/tmp/before {phase} {}", case.name)), "{command}");
            assert!(command.contains(&format!("/tmp/after {}", case.name)), "{command}");
        }
        assert_eq!(command.matches("--rw=randread --bs=4096 --iodepth=16").count(), 2);
        assert!(
            command.contains("--io_size=8192000") && command.contains("dd if=/dev/zero bs=64K count=64 ")
        );
        assert!(!command.contains("SERIAL_OF"));
    }

    #[test]
    fn the_guest_is_told_which_disk_is_which() {
        assert_eq!(in_debian("fio /dev/$data"), "in_debian 'fio /dev/'$data''\n");
    }
}
