//! Whether Quell's barriers for Arm are right, by Arm's own model of its memory (herd7). What the
//! code emits is recorded. The model must find it right, and must find it wrong with each barrier
//! and each TLBI left out, weaker or late.

mod record;
mod text;

use crate::guest::cache::{self, LinkedProgram};
use crate::test::prelude::*;
use record::{BREAK, MAKE, PAGES, RANGES, REPEATS, WHOLE};
use std::fmt::Write;
use text::{Mutant, Mutation, Role, View};

pub(super) const ACTS: &[Named] = &[("litmus_arm_barriers", barriers)];

/// The page with the table that a run makes.
const DOCUMENT: &str = "docs/barriers.md";
const HEADER: &str = "| sequence | step | left out | weaker | after the next | what `never` is for |\n\
    |---|---|---|---|---|---|\n";

type Record = fn() -> Result<Vec<&'static str>>;
/// Steps with mutants that nothing shows, and why.
type Unseen = &'static [(usize, &'static str)];

struct Sequence(&'static str, Role, Record, Unseen);

const REPEATED: &str = "errata, which the model has not: one of the two is enough for it";
const LEVELS: &str =
    "the entries of the new table, before the entry that leads to it: the model has one level";
const ANY_STEP: &str = "DMB is for accesses; what comes next may be none";
const DROPS_ALL: &str = "what is walked before the TLBI is dropped";
const DEPENDS: &str = "the VMID is not new, and the TLBI depends on the lock of the hand-over";

const SEQUENCES: [Sequence; 13] = [
    Sequence("a page is removed", Role::Changes, || record::removal(PAGES, 1, true), &[]),
    Sequence("where another machine runs", Role::Changes, || record::removal(PAGES, 1, false), &[]),
    Sequence("a range is removed", Role::Changes, || record::removal(RANGES, 2, true), &[]),
    Sequence("a VMID is dropped", Role::Changes, || record::removal(WHOLE, 1, true), &[]),
    Sequence(
        "a TLBI is repeated",
        Role::Changes,
        || record::removal(REPEATS, 1, true),
        &[(2, REPEATED), (3, REPEATED), (4, REPEATED), (5, REPEATED), (6, REPEATED), (7, REPEATED)],
    ),
    Sequence("a block is split", Role::Changes, record::split, &[(7, LEVELS), (9, ANY_STEP)]),
    Sequence("all VMIDs are dropped", Role::Changes, record::start, &[]),
    Sequence("a new VMID", Role::Enters { fresh: true }, record::new_vmid, &[]),
    Sequence("a new generation", Role::Enters { fresh: false }, record::new_generation, &[(0, DROPS_ALL)]),
    Sequence("a vCPU arrives", Role::Arrives, || record::arrival(false), &[]),
    Sequence("after another machine", Role::Arrives, || record::arrival(true), &[(0, DEPENDS)]),
    Sequence("a request is taken", Role::Arrives, record::request, &[]),
    Sequence("a kernel's shootdown", Role::Changes, record::shootdown, &[]),
];

fn barriers(room: &Room<'_>) -> Result<()> {
    let herd = cache::herd()?;
    let sequences = SEQUENCES.iter().map(|sequence| sequence.judged(&herd, room.directory));
    let table = HEADER.to_owned() + &sequences.collect::<Result<String>>()?;
    if room.is_long {
        print!("{}\n{table}", herd.version);
    }
    let page = workspace::root().join(DOCUMENT);
    let page = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    ensure!(page.contains(&table), "{DOCUMENT} has another table than {} makes:\n{table}", herd.version);
    Ok(())
}

impl Sequence {
    /// The rows of the table.
    fn judged(&self, herd: &LinkedProgram, directory: &Path) -> Result<String> {
        let Self(name, role, record, unseen) = self;
        let whole = record::instructions(&record()?)?;
        let stores = whole.iter().filter(|step| *step == BREAK || *step == MAKE).cloned().collect();
        let (all, mut seen) = (text::mutants(&whole), BTreeMap::new());
        for view in role.views(whole.iter().any(|step| step == MAKE)) {
            let left: Vec<_> = (0..all.len()).filter(|index| !seen.contains_key(index)).collect();
            let sequences = [&whole, &stores].into_iter().chain(left.iter().map(|&index| &all[index].steps));
            let litmus = |(index, steps): (usize, &Vec<String>)| {
                text::litmus(&format!("t{index}"), steps, &whole, *role, *view)
            };
            let texts: Vec<_> = sequences.enumerate().map(litmus).collect();
            let verdicts = judge(herd, directory, &texts)?;
            let who = called(*view);
            ensure!(!verdicts[0], "{name}: the {who} finds something stale\n{}", texts[0]);
            ensure!(verdicts[1], "{name}: the {who} finds nothing stale without all of it\n{}", texts[1]);
            let found = left.into_iter().zip(&verdicts[2..]).filter(|(_, is_seen)| **is_seen);
            seen.extend(found.map(|(index, _)| (index, who.clone())));
        }
        let mut rows = String::new();
        for (at, step) in whole.iter().enumerate() {
            let cell = |is: fn(Mutation) -> bool| {
                let cells =
                    all.iter().enumerate().filter(|(_, mutant)| mutant.at == at && is(mutant.mutation));
                cells.map(|(index, mutant)| told(mutant, seen.get(&index))).collect::<Vec<_>>().join("; ")
            };
            let out = cell(|mutation| mutation == Mutation::LeftOut);
            let weaker = cell(|mutation| !matches!(mutation, Mutation::LeftOut | Mutation::Late));
            let late = cell(|mutation| mutation == Mutation::Late);
            let why = unseen.iter().find(|(step, _)| *step == at).map_or("", |(_, why)| why);
            let is_unseen = [&out, &weaker, &late].iter().any(|cell| cell.contains("never"));
            ensure!(
                is_unseen != why.is_empty(),
                "{name}, {at} {step}: {out}; {weaker}; {late}; excused by '{why}'"
            );
            let name = if at == 0 { name } else { "" };
            let _ = writeln!(rows, "| {name} | `{step}` | {out} | {weaker} | {late} | {why} |");
        }
        Ok(rows)
    }
}

fn called((entry, observer): View) -> String {
    format!("{}, {}", observer.name, entry.name())
}

fn told(mutant: &Mutant, seen: Option<&String>) -> String {
    let seen = seen.map_or("never", String::as_str);
    match mutant.mutation {
        Mutation::Weaker(text) => format!("{text}: {seen}"),
        Mutation::Local => format!("local: {seen}"),
        _ => seen.to_owned(),
    }
}

/// Whether each test's outcome is possible.
fn judge(herd: &LinkedProgram, directory: &Path, tests: &[String]) -> Result<Vec<bool>> {
    let mut command = herd.command()?;
    command.args(["-variant", "vmsa,fatal", "-speedcheck", "fast", "-set-libdir"]).arg(herd.data());
    for (index, text) in tests.iter().enumerate() {
        let path = directory.join(format!("t{index}.litmus"));
        fs::write(&path, text)?;
        command.arg(path);
    }
    let output = command.stdin(Stdio::null()).output().context("cannot start herd7")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let why = |text: &String| format!("{}\n{text}", String::from_utf8_lossy(&output.stderr));
    let verdict = |(index, text)| verdict(&said, index).with_context(|| why(text));
    tests.iter().enumerate().map(verdict).collect()
}

/// Whether the outcome of the test with this number is possible, by what the model says.
fn verdict(said: &str, index: usize) -> Result<bool> {
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("Observation t{index} ")));
    match line.and_then(|line| line.split(' ').next()) {
        Some("Never") => Ok(false),
        Some("Sometimes" | "Always") => Ok(true),
        _ => bail!("herd7 does not answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_code_emits_is_recorded_with_the_images_instructions() {
        let recorded = SEQUENCES.map(|Sequence(name, _, record, _)| {
            let steps = record::instructions(&record().expect(name)).expect(name);
            assert!(steps.len() >= 3 && steps.iter().all(|step| *step == step.trim()), "{name}: {steps:?}");
            steps.join("; ")
        });
        let page = "STR invalid; DSB ISHST; TLBI IPAS2E1IS; DSB ISH; TLBI VMALLE1IS; DSB ISH; ISB";
        assert_eq!(recorded[0], page);
        assert_eq!(recorded[2], page.replace("IPAS2", "RIPAS2"));
        assert_eq!(recorded[1], page.replacen(";", "; MSR VTTBR_EL2,ours; ISB;", 1));
    }

    #[test]
    fn the_model_answers_each_test_or_has_not_answered() {
        let said = "Observation t1 Never 0 4\nObservation t10 Always 4 0\nObservation t2 Sometimes 1 3\n";
        let verdict = |index| verdict(said, index).map_err(|error| error.to_string());
        assert_eq!([1, 2, 10].map(verdict), [Ok(false), Ok(true), Ok(true)]);
        assert_eq!(verdict(0), Err("herd7 does not answer".to_owned()));
        assert!(super::verdict("Observation t0 Perhaps", 0).is_err());
    }

    #[test]
    fn a_tlbi_counts_while_the_register_names_the_machine() {
        let steps = |text: &str| text.split("; ").map(str::to_owned).collect::<Vec<_>>();
        let whole = steps("MSR VTTBR_EL2,ours; ISB; TLBI VMALLE1; DSB NSH; ISB");
        let view = Role::Arrives.views(false)[0];
        let code = |steps: &[String]| text::litmus("t", steps, &whole, Role::Arrives, view);
        assert!(code(&whole).contains("TLBI VMALLE1"));
        for mutant in text::mutants(&whole).into_iter().filter(|mutant| mutant.at < 2) {
            assert!(!code(&mutant.steps).contains("TLBI"), "{mutant:?}");
        }
    }
}
