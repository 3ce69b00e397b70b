//! Whoever judges a run does so by values, in a room where a table shows each reason to refuse it:
//! a verdict that is not made any more, or by something else, leaves a row that does not fail.

use super::panics::not_for_tests;
use super::style;
use crate::prelude::*;

/// Files with verdicts; in some other things are done as well, before this text and after it.
const ROOMS: [(&str, &str, &str); 4] = [
    ("check/mod.rs", "pub(crate) fn ended(", "impl fmt::Display"),
    ("debian/boot.rs", "fn judge(", "#[cfg(test)]"),
    ("machine/process/ended.rs", "", "pub(crate) fn explain("),
    ("test/guests/expect.rs", "", "/// Adds the ends of console"),
];

/// Where else it is asked how a run has ended: to note that it hung, or to run it again.
const ENDS: &str = "bench/all/machine.rs bench/isolation/pair.rs run/mod.rs test/guests/bodies.rs \
    test/guests/mod.rs test/several/stage.rs";

/// The reasons in a text: of each literal with words, the longest part that is always the same.
fn reasons(code: &str) -> Vec<&str> {
    let literals = code.split('"').skip(1).step_by(2).filter(|text| text.contains(' '));
    let longest = literals.filter_map(|text| {
        let parts = text.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
        parts.flat_map(|part| part.split("\\n")).map(str::trim).max_by_key(|part| part.len())
    });
    longest.filter(|part| part.len() > 3).collect()
}

/// The tool's sources without tests, by their names, and all that is in its tests.
fn sources() -> (BTreeMap<&'static str, &'static str>, String) {
    let (mut sources, mut tests) = (BTreeMap::new(), include_str!("guests/verdicts.txt").to_owned());
    for (name, text) in not_for_tests("host/src") {
        let (code, of_tests) = text.split_once("mod tests {").unwrap_or((text, ""));
        sources.insert(name.trim_start_matches("host/src/"), code);
        tests += of_tests;
    }
    let root = workspace::root().join("host/src");
    let is_test = |name: &str| !sources.contains_key(name);
    for path in style::sources(&root) {
        if is_test(&path.strip_prefix(&root).unwrap().to_string_lossy()) {
            tests += &fs::read_to_string(path).unwrap();
        }
    }
    (sources, tests)
}

#[test]
fn each_reason_to_refuse_a_run_is_shown_by_a_test() {
    let (sources, tests) = sources();
    let (mut missing, mut count) = (Vec::new(), 0);
    for (file, begin, end) in ROOMS {
        let (_, room) = sources[file].split_once(begin).unwrap_or_else(|| panic!("{file}: {begin}"));
        for reason in reasons(room.split(end).next().unwrap_or(room)) {
            count += 1;
            if !tests.contains(reason) {
                missing.push(format!("{file}: '{reason}'"));
            }
        }
    }
    assert!(count > 70, "{count} reasons: the sources are not read as they are meant to be");
    assert!(missing.is_empty(), "no row of a test fails for:\n{}", missing.join("\n"));
}

#[test]
fn runs_are_judged_in_these_places() {
    let (mut sources, _) = sources();
    sources.retain(|file, _| ROOMS.iter().all(|(room, ..)| room != file));
    let with = |is: fn(&str) -> bool| {
        let found = sources.iter().filter(|(_, code)| code.lines().any(is));
        found.map(|(file, _)| *file).collect::<Vec<_>>().join(" ")
    };
    let judges = with(|line| line.contains("(outcome: &Outcome") && line.contains("-> Result<()>"));
    assert_eq!(judges, "", "who judges a run does so in a room");
    assert_eq!(with(|line| line.replace("outcome.ended_by", "").contains("outcome.end")), ENDS);
}
