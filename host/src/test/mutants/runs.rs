//! Tests and mutants are run: each test alone without a mutant, which says what it reaches; then
//! each mutant against the tests that reach it, quickest first.

use super::tree::Program;
use crate::prelude::*;
use crate::test::progress::Running;
use crate::test::{Queue, lines};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Child;

/// Tests that run in one process take this long together, and are as many at most.
const PART_TIME: Duration = Duration::from_millis(300);
const PART_TESTS: usize = 200;
/// A mutant that no test fails in this time, by the tests' usual times, has survived.
const TRIED_MAX: Duration = Duration::from_secs(20);
/// How many times as long as usual a test may take, in CPU time, and in time of its own.
const SLOWER: u32 = 10;
const SLACK: Duration = Duration::from_secs(2);
/// A process that takes less than a tick of CPU time in so long counts as one that does not end: no
/// test waits so long for time to pass.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Tests that have killed mutants of the same function, and of the same file, that are tried first.
const NEARBY: usize = 4;
/// Property tests try the same values for every mutant: none is killed by luck, or by a value that
/// an earlier failure has saved.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("PROPTEST_RNG_SEED", "1"),
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1"),
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
];

pub(super) struct Test {
    program: usize,
    pub(super) name: String,
    pub(super) time: Duration,
}

/// What came of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Outcome {
    /// These tests fail, of those that were run.
    Killed(Vec<String>),
    /// No test fails.
    Survived,
    NotReached,
}

/// The tests, and which of them reach which mutant.
pub(super) struct Tests {
    programs: Vec<Program>,
    tests: Vec<Test>,
    reaching: BTreeMap<u32, Vec<usize>>,
}

/// What earlier runs have found, in a file to which each adds.
pub(super) struct Kept<K, V>(BTreeMap<K, V>, Mutex<File>);

impl<K: Ord + Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> Kept<K, V> {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let context = || format!("cannot write {}", path.display());
        let file = File::options().create(true).append(true).open(path).with_context(context)?;
        // A line that was cut short is left out.
        let lines = fs::read_to_string(path)?;
        let kept = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok(Self(kept, Mutex::new(file)))
    }

    /// What was there when the file was opened.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    pub(super) fn add(&self, key: &K, value: &V) -> Result<()> {
        let line = serde_json::to_string(&(key, value))?;
        writeln!(self.1.lock().expect("no panic"), "{line}").context("cannot write what was found")
    }
}

/// Tests that are tried before others.
pub(super) struct Killers {
    /// What has killed a mutant of this name last time, whatever the tests were then.
    before: Kept<String, String>,
    /// What has killed mutants of a file, or of a function, the latest at the end.
    nearby: Mutex<BTreeMap<String, Vec<String>>>,
}

impl Killers {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Ok(Self { before: Kept::open(path)?, nearby: Mutex::default() })
    }

    /// The file of a mutant, and its function there, by its name.
    fn places(name: &str) -> [&str; 2] {
        [0, 1].map(|part| name.match_indices(": ").nth(part).map_or(name, |(end, _)| &name[..end]))
    }

    /// For a mutant, the most promising first.
    pub(super) fn of(&self, name: &String) -> Vec<String> {
        let nearby = self.nearby.lock().expect("no panic");
        let [file, function] = Self::places(name).map(|place| nearby.get(place).into_iter().flatten().rev());
        let all = self.before.get(name).into_iter().chain(function.take(NEARBY)).chain(file.take(NEARBY));
        all.cloned().collect()
    }

    pub(super) fn add(&self, name: &String, test: &String) -> Result<()> {
        let mut nearby = self.nearby.lock().expect("no panic");
        for place in Self::places(name) {
            let tests = nearby.entry(place.to_owned()).or_default();
            tests.retain(|other| other != test);
            tests.push(test.clone());
        }
        if self.before.get(name) == Some(test) { Ok(()) } else { self.before.add(name, test) }
    }
}

/// What came of a process of tests.
struct Ran {
    /// Names of those that failed.
    failed: Vec<String>,
    /// Names of those that are over: all, unless one has ended the process.
    over: BTreeSet<String>,
    /// CPU time, which other processes do not change.
    took: Duration,
    /// It has not come to its end within its bounds.
    is_stuck: bool,
}

impl Tests {
    /// Lists all tests and runs each, or reads in `cache` what an earlier run has found of the same
    /// tree. Those that fail without a mutant are said, and left out.
    pub(super) fn find(
        programs: Vec<Program>,
        cache: &Path,
        of_interest: &BTreeSet<u32>,
        running: &Running<'_>,
        signals: &Signals,
    ) -> Result<(Self, Vec<String>)> {
        fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
        let mut names = Vec::new();
        for (program, of) in programs.iter().enumerate() {
            names.extend(listed(of)?.into_iter().map(|name| (program, name)));
        }
        let (count, queue) = (names.len(), Queue::of(names.into_iter().enumerate()));
        let found = Mutex::new(Vec::new());
        let failed = Mutex::new(Vec::new());
        on_all_cpus(|| {
            while let Some((index, (program, name))) = queue.next(signals) {
                running.note(format!("test {index} of {count}"));
                match record(&programs[program], &name, &cache.join(index.to_string()))? {
                    Some((time, reached)) => {
                        let reached: Vec<_> =
                            reached.into_iter().filter(|number| of_interest.contains(number)).collect();
                        found.lock().expect("no panic").push((Test { program, name, time }, reached));
                    }
                    None => failed.lock().expect("no panic").push(name),
                }
            }
            Ok(())
        })?;
        let (mut tests, mut reaching) = (Vec::new(), BTreeMap::<u32, Vec<usize>>::new());
        let mut found = found.into_inner().expect("no panic");
        found.sort_by(|(one, _), (other, _)| (one.time, &one.name).cmp(&(other.time, &other.name)));
        for (index, (test, reached)) in found.into_iter().enumerate() {
            tests.push(test);
            reached.into_iter().for_each(|number| reaching.entry(number).or_default().push(index));
        }
        Ok((Self { programs, tests, reaching }, failed.into_inner().expect("no panic")))
    }

    /// All, quickest first.
    pub(super) fn all(&self) -> &[Test] {
        &self.tests
    }

    /// Runs a mutant against the tests that reach it, `first` before the others, until `enough`
    /// have failed.
    pub(super) fn try_mutant(
        &self,
        number: u32,
        first: &[String],
        enough: usize,
        signals: &Signals,
    ) -> Result<Option<Outcome>> {
        let Some(reaching) = self.reaching.get(&number) else { return Ok(Some(Outcome::NotReached)) };
        let mut killed = Vec::new();
        let place = |test: &usize| first.iter().position(|name| *name == self.tests[*test].name);
        let (mut first, others) = reaching.iter().partition::<Vec<_>, _>(|test| place(test).is_some());
        first.sort_by_key(|test| place(test));
        let mut taken = Duration::ZERO;
        for part in [first, others].iter().flat_map(|tests| self.parts(tests)) {
            taken += part.iter().map(|test| self.tests[*test].time).sum::<Duration>();
            if taken > TRIED_MAX || killed.len() >= enough {
                break;
            }
            let program = &self.programs[self.tests[part[0]].program];
            let mut left: Vec<_> = part.iter().map(|index| &self.tests[*index]).collect();
            while !left.is_empty() && killed.len() < enough {
                if signals.caught().is_some() {
                    return Ok(None);
                }
                let names: Vec<_> = left.iter().map(|test| test.name.as_str()).collect();
                let time = left.iter().map(|test| test.time).sum();
                let chosen = ("QUELL_MUTANT", &*number.to_string());
                let ran = run(program, &names, chosen, time, enough - killed.len())?;
                left.retain(|test| !ran.over.contains(&test.name));
                killed.extend(ran.failed);
                // What makes one test go on for ever does so to others.
                if ran.is_stuck {
                    return Ok(Some(Outcome::Killed(killed)));
                }
            }
        }
        Ok(Some(if killed.is_empty() { Outcome::Survived } else { Outcome::Killed(killed) }))
    }

    /// Tests by process: of one program, quickest first.
    fn parts(&self, reaching: &[usize]) -> Vec<Vec<usize>> {
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut open = BTreeMap::<usize, (usize, Duration)>::new();
        for index in reaching {
            let test = &self.tests[*index];
            let fits = open
                .get(&test.program)
                .filter(|(part, time)| *time + test.time <= PART_TIME && parts[*part].len() < PART_TESTS);
            let (part, time) = fits.copied().unwrap_or_else(|| {
                parts.push(Vec::new());
                (parts.len() - 1, Duration::ZERO)
            });
            parts[part].push(*index);
            open.insert(test.program, (part, time + test.time));
        }
        parts
    }
}

/// Runs `each` twice per CPU: some tests wait most of the time. Limits by the clock leave room.
pub(super) fn on_all_cpus(each: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let lanes = 2 * thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(&each)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().expect("a lane does not panic"))
    })
}

fn command(program: &Program) -> Command {
    let mut command = Command::new(&program.path);
    command.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package).envs(ENVIRONMENT);
    command
}

fn listed(program: &Program) -> Result<Vec<String>> {
    let output = command(program).args(["--list", "--format", "terse"]).output();
    let output = output.with_context(|| format!("cannot start {}", program.path.display()))?;
    ensure!(output.status.success(), "{} does not list its tests", program.path.display());
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Time and reached numbers of a test; `None` if it fails.
fn record(program: &Program, name: &str, file: &Path) -> Result<Option<(Duration, Vec<u32>)>> {
    let times = file.with_extension("time");
    if !times.exists() {
        let _ = fs::remove_file(file);
        let reached = ("QUELL_MUTANTS_REACHED", &*file.to_string_lossy());
        let ran = run(program, &[name], reached, Duration::from_secs(60), usize::MAX)?;
        let text = if ran.failed.is_empty() { ran.took.as_millis().to_string() } else { "failed".to_owned() };
        fs::write(&times, text).with_context(|| format!("cannot write {}", times.display()))?;
    }
    let Ok(millis) = fs::read_to_string(&times)?.parse() else { return Ok(None) };
    let bytes = fs::read(file).unwrap_or_default();
    let (numbers, _) = bytes.as_chunks();
    let numbers = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    Ok(Some((Duration::from_millis(millis), numbers)))
}

/// Runs tests in a process of its own, within bounds that follow from their usual time: until
/// `enough` have failed.
fn run(
    program: &Program,
    names: &[&str],
    environment: (&str, &str),
    usual: Duration,
    enough: usize,
) -> Result<Ran> {
    let limit = usual * SLOWER + SLACK;
    let mut tests = command(program);
    tests.args(names).args(["--exact", "--test-threads", "1"]).env(environment.0, environment.1);
    let output = tempfile::tempfile()?;
    let mut tests = lines::limited(&tests, limit);
    tests.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(Stdio::null()).process_group(0);
    let mut child = tests.spawn().context("cannot start /bin/sh")?;
    let deadline = Instant::now() + limit * 6;
    let (mut pause, mut is_enough, mut took) = (Duration::from_millis(2), false, Duration::ZERO);
    let mut worked = Instant::now();
    let status = loop {
        if has_ended(&child)? {
            took = cpu_time(&child)?;
            break Some(child.wait()?);
        }
        is_enough = text_of(&output)?.matches(" ... FAILED\n").count() >= enough;
        let had = cpu_time(&child)?;
        if had > took {
            (took, worked) = (had, Instant::now());
        }
        if is_enough || Instant::now() > deadline || worked.elapsed() > IDLE_MAX {
            kill_process_group(Pid::from_child(&child), Signal::KILL)?;
            child.wait()?;
            break None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    let mut text = text_of(&output)?;
    if is_enough {
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
    }
    let (failed, over) = read(&text, names, status.is_some_and(|status| status.success()));
    let is_stuck = !is_enough && status.is_none_or(|status| status.signal() == Some(Signal::XCPU.as_raw()));
    Ok(Ran { failed, over, took, is_stuck })
}

/// Whether a process has ended, which is not waited for yet.
fn has_ended(child: &Child) -> Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(rustix::process::waitid(WaitId::Pid(Pid::from_child(child)), options)?.is_some())
}

/// What a process has had, which may have ended, and one tick more: it has had something.
fn cpu_time(child: &Child) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
    // Behind the program's name, which may have any letters: fields 14 and 15 of proc(5).
    let (_, fields) = text.rsplit_once(") ").context("/proc/PID/stat")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis((ticks + 1) * 1000 / rustix::param::clock_ticks_per_second()))
}

/// What a file has until now.
fn text_of(file: &File) -> Result<String> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?; // The process writes where it is: it has the same position.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What a process of the tests `names` has printed. The name of a test is printed before it runs.
/// Those that failed, and those that are over.
fn read(text: &str, names: &[&str], has_succeeded: bool) -> (Vec<String>, BTreeSet<String>) {
    let tests = || text.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let of = |name: &str| {
        let name = name.trim_end_matches(" - should panic");
        names.contains(&name).then(|| name.to_owned())
    };
    let failed = tests().filter(|(_, how)| *how == "FAILED").filter_map(|(name, _)| of(name));
    // The last one has ended the process, or has no end.
    let ended = tests().next_back().filter(|(_, how)| how.is_empty()).and_then(|(name, _)| of(name));
    let over = match &ended {
        Some(_) => tests().filter_map(|(name, _)| of(name)).collect(),
        None => names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let mut failed: Vec<_> = failed.chain(ended).collect();
    if !has_succeeded && failed.is_empty() {
        failed.push(names[0].to_owned());
    }
    (failed, over)
}

#[test]
fn a_test_that_ends_its_process_has_failed_and_those_behind_it_are_not_over() {
    let names = ["a", "b", "c"];
    let first = "\nrunning 3 tests\ntest a - should panic ... ok\n";
    for (text, has_succeeded, failed, expected) in [
        ("test b ... ok\ntest c ... ok\n\ntest result: ok. 3 passed", true, "", "a b c"),
        ("test b ... FAILED\ntest c ... ok\n\nfailures:\n", false, "b", "a b c"),
        ("test b ... ", false, "b", "a b"),
        ("test b ... FAILED\ntest c ... ", false, "b c", "a b c"),
        // It does not say where it ended.
        ("", false, "a", "a b c"),
    ] {
        let (said, over) = read(&format!("{first}{text}"), &names, has_succeeded);
        let over: Vec<_> = over.iter().map(String::as_str).collect();
        assert_eq!((&*said.join(" "), &*over.join(" ")), (failed, expected), "{text}");
    }
}
