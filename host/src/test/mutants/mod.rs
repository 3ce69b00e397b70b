//! Tests of the tests: statements are left out or exchanged, constants and arguments changed, and
//! the unit tests have to fail for each. All changes are in one build, and a number chooses the one
//! that is made. `docs/mutants.md` lists those that nothing can see, with their reasons.

mod built;
mod expressions;
mod inserted;
mod runs;
mod sites;
mod tree;

use super::progress::ProgressView;
use super::{Queue, Tally, verdict};
use crate::cli::TestArgs;
use crate::prelude::*;
use runs::{Kept, Killers, Outcome, Test, Tests, on_all_cpus};
use tree::Tree;

/// The list of survivors, below the root of the source tree.
const LIST: &str = "docs/mutants.md";
/// Directories whose code is changed, and how many in a hundred of its mutants a large sample must
/// kill. Where most is driven by rows with emulators, a room keeps what it had on 2026-11-29.
const ROOMS: [(&str, usize); 23] = [
    ("hypervisor/src/vm", 90),
    ("hypervisor/src/x86", 90),
    ("hypervisor/src/svm", 90),
    ("hypervisor/src/vmx", 90),
    ("hypervisor/src/arm64", 90),
    ("hypervisor/src/iommu", 90),
    ("hypervisor/src/owned", 90),
    ("hypervisor/src/sched", 60),
    ("hypervisor/src/devices", 75),
    ("hypervisor/src/loader", 90),
    ("host/src/migration", 90),
    ("host/src/machine", 60),
    ("host/src/bench", 25),
    ("host/src/test", 10),
    ("crates/stay", 95),
    ("crates/coherence", 95),
    ("crates/tlfs", 95),
    ("crates/migration", 95),
    ("crates/memslots", 95),
    ("crates/paging", 95),
    ("crates/iommu", 95),
    ("crates/pci", 95),
    ("crates/pic", 95),
];
/// A room of this package is reached by the tests of the other one's, too.
const HYPERVISOR: &str = "hypervisor/src";
const TOOL: &str = "host/src";
/// What a stay does is driven by the abstract machine: its tests reach it, too.
const STAY: &str = "crates/stay";
const MACHINE: &str = "crates/machine";
/// The package of a room: its directory, and the file that its modules begin in.
fn package(room: &'static str) -> (&'static str, &'static str) {
    let directory = room.split_once("/src").map_or(room, |(directory, _)| directory);
    (directory, if directory == "host" { "main.rs" } else { "lib.rs" })
}

/// A mutant of the sample, and what came of it.
#[derive(serde::Serialize)]
struct Tried {
    room: usize,
    name: String,
    line: usize,
    outcome: Outcome,
}

/// Tests that are looked for to kill each mutant, where those are sought that others can replace.
const KILLERS_IF_REDUNDANT: usize = 5;
/// Tests that are left for each mutant where others go.
const KEPT: usize = 2;
/// Mutants of each room that a long run of all tests tries.
const SAMPLE_OF_LONG_RUN: usize = 20;

/// Tries a sample of a long run; the status is that of `test`.
pub(super) fn try_some(signals: &Signals) -> Result<u8> {
    try_rooms(SAMPLE_OF_LONG_RUN, false, &|_| true, signals)
}

/// Tries mutants of each room whose name contains one of `wanted`, which commas separate; the
/// status is 1 if fewer than its share are killed in one.
pub(super) fn test(args: &TestArgs, wanted: &str, signals: &Signals) -> Result<u8> {
    let wanted = |room: &str| wanted.split(',').any(|wanted| room.contains(wanted));
    if args.list {
        ROOMS.iter().filter(|(room, _)| wanted(room)).for_each(|(room, _)| println!("{room}"));
        return Ok(0);
    }
    try_rooms(args.sample, args.redundant, &wanted, signals)
}

fn try_rooms(
    sample: usize,
    redundant: bool,
    wanted: &impl Fn(&str) -> bool,
    signals: &Signals,
) -> Result<u8> {
    let progress = ProgressView::new();
    let running = progress.begin("mutants");
    let rooms = ROOMS.map(|(room, _)| wanted(room).then_some(room));
    let mut packages: BTreeSet<_> = rooms.iter().flatten().map(|room| package(room)).collect();
    // The tool's tests run guests on boards of the hypervisor, which move.
    if packages.contains(&package(HYPERVISOR)) {
        packages.insert(package(TOOL));
    }
    if packages.contains(&package(STAY)) {
        packages.insert(package(MACHINE));
    }
    let packages: Vec<_> = packages.into_iter().collect();
    ensure!(!packages.is_empty(), "no such directory: --list names them");
    let mut tree = Tree::read(&rooms, packages)?;
    let programs = tree.make(&running, signals)?;
    let equal = listed()?;
    let chosen = choose(&tree, sample, &equal);
    let numbers: BTreeSet<_> = chosen.iter().map(|(number, _)| *number).collect();
    let cache = workspace::target_dir("mutants").join("reached").join(tree::fingerprint(&programs)?);
    let (tests, failed) = Tests::find(programs, &cache, &numbers, &running, signals)?;
    for name in &failed {
        progress.say(&format!("     | fails without a mutant, and is left out: {name}"));
    }
    let total = chosen.len();
    let known = Kept::open(&cache.join(if redundant { "killers" } else { "outcomes" }))?;
    let killers = Killers::open(&workspace::target_dir("mutants").join("killers"))?;
    let (queue, done) = (Queue::of(chosen.into_iter().enumerate()), Mutex::new(Vec::new()));
    on_all_cpus(|| {
        while let Some((index, (number, mut tried))) = queue.next(signals) {
            running.note(format!("{index} of {total} mutants, {} tests", tests.all().len()));
            if let Some(outcome) = known.get(&number) {
                tried.outcome = Outcome::clone(outcome);
            } else {
                // Without an order of its own, the quickest of the tests are those that stay.
                let (first, enough) =
                    if redundant { (Vec::new(), KILLERS_IF_REDUNDANT) } else { (killers.of(&tried.name), 1) };
                let Some(outcome) = tests.try_mutant(number, &first, enough, signals)? else { continue };
                known.add(&number, &outcome)?;
                if let Outcome::Killed(names) = &outcome {
                    killers.add(&tried.name, &names[0])?;
                }
                tried.outcome = outcome;
            }
            done.lock().expect("no panic").push(tried);
        }
        Ok(())
    })?;
    let mut done = done.into_inner().expect("no panic");
    done.sort_by(|one, other| (one.room, &one.name, one.line).cmp(&(other.room, &other.name, other.line)));
    let path = workspace::target_dir("mutants").join("result.json");
    fs::write(&path, serde_json::to_string_pretty(&done)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    running.end(true, &format!("{}", path.display()), "");
    if redundant {
        print_redundant(&done, tests.all());
    }
    let passed = table(&done, &tree);
    let tally = Tally { passed: passed.0, failed: passed.1, rows: done.len(), ..Tally::default() };
    Ok(verdict(tally, total, signals))
}

/// Names of mutants that change nothing that a test could see.
fn listed() -> Result<BTreeSet<String>> {
    let path = workspace::root().join(LIST);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let names = text.lines().filter_map(|line| line.strip_prefix("- ``")?.strip_suffix("``"));
    Ok(names.map(|name| name.trim().to_owned()).collect())
}

/// The mutants to be tried: of each room the same ones each time, in an order that says nothing.
fn choose(tree: &Tree, sample: usize, equal: &BTreeSet<String>) -> Vec<(u32, Tried)> {
    let mut all = ROOMS.map(|_| Vec::new());
    // Of those with one name the first, the second, and so on: no change elsewhere moves them.
    let mut seen = BTreeMap::<String, usize>::new();
    for (number, source, site) in tree.mutants() {
        let name = tree::name(source, site);
        if !equal.contains(&name) {
            let before = seen.entry(name.clone()).or_default();
            let order = *blake3::hash(format!("{name} {before}").as_bytes()).as_bytes();
            *before += 1;
            let tried = Tried { room: source.room, name, line: site.line, outcome: Outcome::NotReached };
            all[source.room].push((order, number, tried));
        }
    }
    all.iter_mut().for_each(|room| room.sort_by_key(|(order, ..)| *order));
    // The first of each room, the second of each, and so on: a run that is stopped has seen as much
    // of each room.
    let chosen = all.into_iter().flat_map(|room| room.into_iter().take(sample).enumerate());
    let mut chosen: Vec<_> = chosen.map(|(at, (_, number, tried))| (at, number, tried)).collect();
    chosen.sort_by_key(|(at, ..)| *at);
    chosen.into_iter().map(|(_, number, tried)| (number, tried)).collect()
}

/// Prints survivors and the table; how many rooms have their share, and how many do not.
fn table(done: &[Tried], tree: &Tree) -> (usize, usize) {
    let header = ["room", "mutants", "tried", "killed", "survived", "not reached", "killed of 100", "due"];
    let (mut rows, mut passed) = (Vec::new(), (0, 0));
    for (index, (room, due)) in ROOMS.into_iter().enumerate() {
        let tried: Vec<_> = done.iter().filter(|tried| tried.room == index).collect();
        let all = tree.mutants().filter(|(_, source, _)| source.room == index).count();
        if all == 0 {
            continue;
        }
        for tried in tried.iter().filter(|tried| !matches!(tried.outcome, Outcome::Killed(_))) {
            let (path, what) = tried.name.split_once(": ").unwrap_or((&tried.name, ""));
            let how = if tried.outcome == Outcome::Survived { "survived" } else { "not reached" };
            println!("{how:<12} {path}:{}: {what}", tried.line);
        }
        let count =
            |outcome: fn(&Outcome) -> bool| tried.iter().filter(|tried| outcome(&tried.outcome)).count();
        let killed = count(|outcome| matches!(outcome, Outcome::Killed(_)));
        passed = if has_share(killed, tried.len(), due) {
            (passed.0 + 1, passed.1)
        } else {
            (passed.0, passed.1 + 1)
        };
        let numbers = [
            all,
            tried.len(),
            killed,
            count(|outcome| *outcome == Outcome::Survived),
            count(|outcome| *outcome == Outcome::NotReached),
            killed * 100 / tried.len().max(1),
            due,
        ];
        let row = [room.to_owned()].into_iter().chain(numbers.map(|number| number.to_string()));
        rows.push(row.collect::<Vec<_>>());
    }
    println!("{}", crate::table::table(header, rows));
    passed
}

/// Prints the tests without which each mutant keeps tests that kill it, the slowest first.
fn print_redundant(done: &[Tried], tests: &[Test]) {
    let killers = done.iter().filter_map(|tried| match &tried.outcome {
        Outcome::Killed(tests) => Some(tests.iter().map(String::as_str).collect()),
        _ => None,
    });
    let killers: Vec<_> = killers.collect();
    let slowest_first: Vec<_> = tests.iter().rev().map(|test| test.name.as_str()).collect();
    let dispensable = dispensable(&killers, &slowest_first);
    for test in tests.iter().rev().filter(|test| dispensable.contains(test.name.as_str())) {
        println!("others kill what it kills  {:>6} ms  {}", test.time.as_millis(), test.name);
    }
    println!("{} of {} tests can go", dispensable.len(), tests.len());
}

/// The tests, in this order, that can go so that `KEPT` are left which kill each mutant. One that
/// kills nothing stays: what it sees is not changed by mutants.
fn dispensable<'a>(killers: &[BTreeSet<&str>], tests: &[&'a str]) -> BTreeSet<&'a str> {
    let mut left: Vec<_> = killers.iter().map(BTreeSet::len).collect();
    let mut gone = BTreeSet::new();
    for test in tests {
        let killed = || (0..killers.len()).filter(|&mutant| killers[mutant].contains(test));
        if killed().next().is_some() && killed().all(|mutant| left[mutant] > KEPT) {
            killed().for_each(|mutant| left[mutant] -= 1);
            gone.insert(*test);
        }
    }
    gone
}

#[test]
fn a_test_can_go_if_two_others_kill_what_it_kills() {
    let killers = [&["a", "b", "c"][..], &["a", "b", "c", "d"], &["d", "e", "f"], &["e"]];
    let killers: Vec<_> = killers.iter().map(|names| names.iter().copied().collect()).collect();
    assert_eq!(dispensable(&killers, &["none", "a", "b", "e", "d"]), BTreeSet::from(["a", "d"]));
}

/// A sample of so many is held to a room's share itself. A smaller one may miss it by what luck in
/// choosing it explains: two standard deviations.
const LARGE: usize = 100;

/// Whether some of a room's mutants were killed, and so many of a hundred that were tried.
fn has_share(killed: usize, tried: usize, due: usize) -> bool {
    let luck = if tried < LARGE { 2 * (tried * due * (100 - due)).isqrt() } else { 0 };
    killed != 0 && killed * 100 + luck >= due * tried
}

#[test]
fn a_room_without_its_share_has_failed_and_so_has_one_of_which_nothing_was_killed() {
    let good = [(90, 100, 90), (285, 300, 95), (16, 20, 90), (18, 20, 95), (1, 20, 10)];
    let bad = [(89, 100, 90), (284, 300, 95), (15, 20, 90), (17, 20, 95), (0, 20, 10), (0, 0, 90)];
    let is_good = |&(killed, tried, due): &(usize, usize, usize)| has_share(killed, tried, due);
    assert_eq!((good.map(|it| is_good(&it)), bad.map(|it| is_good(&it))), ([true; 5], [false; 6]));
}
