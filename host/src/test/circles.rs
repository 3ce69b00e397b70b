//! Files beside each other that use each other in a circle.

use super::style;
use crate::prelude::*;

/// Circles that are known: each is one thing in more than one file. None is to be added.
const KNOWN: &[(&str, &[&str])] = &[
    ("coherence/src", &["broadcast", "space"]),
    ("coherence/src", &["owner", "target"]),
    ("coherence/src/shootdown", &["batch", "space"]),
    ("machine/src", &["driver", "machine", "stage2"]),
    (
        "machine/src/driver",
        &["cpu", "device", "fault", "guest", "guest_tables", "life", "mirror", "processor", "vm"],
    ),
    ("machine/src/hw", &["cpu", "instruction", "marks"]),
    ("memslots/src", &["memslots", "update"]),
    ("memslots/src/space", &["job", "owed", "walk"]),
];

/// The modules of a directory that are used by each.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Whether a file or directory holds tests or a model.
fn is_test(path: &Path) -> bool {
    path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs" | "model")))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

/// The files of a module below its directory's, and how often `super` leads from each to that.
fn files(path: &Path) -> Vec<(PathBuf, usize)> {
    let all = if path.is_dir() { style::sources(path) } else { Vec::from([path.to_owned()]) };
    let files = all.into_iter().filter(|file| !is_test(file));
    let count = |path: &Path| path.components().count();
    let depth = |file: &Path| count(file) - count(path) - usize::from(file.ends_with("mod.rs"));
    files.map(|file| (file.clone(), depth(&file))).collect()
}

/// The first names behind `prefix` in the code, groups in braces taken apart.
fn names<'c>(code: &'c str, prefix: &str) -> Vec<&'c str> {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let first = |text: &'c str| text.split(|character| !is_word(character)).next().unwrap_or("");
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        // `$crate::` in a macro is expanded elsewhere, and `super::super::` is another prefix.
        if code[..at].ends_with(|before| is_word(before) || matches!(before, ':' | '$')) {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{').and_then(|group| group.split_once(';')) {
            Some((group, _)) => {
                let mut depth = 0;
                for item in group.split_inclusive(['{', '}', ',']) {
                    // Behind a group there is a comma alone.
                    if depth == 0 && item != "," {
                        names.push(first(item.trim_start()));
                    }
                    depth += i32::from(item.ends_with('{')) - i32::from(item.ends_with('}'));
                }
            }
            None => names.push(first(rest)),
        }
    }
    names
}

/// Which of a directory's modules use which. `in_crate` is the directory's path in its crate.
fn uses(directory: &Path, in_crate: &str) -> Uses {
    let mut modules = BTreeMap::new();
    for path in entries(directory) {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or("").to_owned();
        if !matches!(name.as_str(), "mod" | "lib" | "main") {
            modules.insert(name, files(&path));
        }
    }
    let used = |name: &str, found: &[(PathBuf, usize)]| {
        let mut used = BTreeSet::new();
        for (path, depth) in found {
            let text = fs::read_to_string(path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = lines.collect::<Vec<_>>().join("\n");
            for prefix in ["super::".repeat(depth + 1), format!("crate::{in_crate}")] {
                let names = names(&code, &prefix).into_iter().filter(|other| modules.contains_key(*other));
                used.extend(names.filter(|other| *other != name).map(str::to_owned));
            }
        }
        used
    };
    modules.iter().map(|(name, found)| (name.clone(), used(name, found))).collect()
}

/// The modules that a module uses, and those that these use, and so on.
fn reached<'u>(uses: &'u Uses, from: &'u String) -> BTreeSet<&'u String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(uses[module].iter().filter(|other| reached.insert(*other)));
    }
    reached
}

fn circles(uses: &Uses) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<_, _> = uses.keys().map(|module| (module, reached(uses, module))).collect();
    let circle = |module: &String| {
        let others = reached[module].iter().filter(|other| reached[**other].contains(module));
        others.map(|other| (*other).clone()).collect::<Vec<_>>()
    };
    uses.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn files_do_not_use_each_other_in_a_circle() {
    let root = workspace::root();
    let mut found = BTreeSet::new();
    let crates = entries(&root.join("crates"));
    let mut directories: Vec<_> = crates.iter().map(|path| (path.join("src"), String::new())).collect();
    // Of the hypervisor only the rooms.
    let rooms = uses(&root.join("hypervisor/src"), "");
    assert_eq!(circles(&rooms), BTreeSet::new(), "new circles of the hypervisor's rooms");
    while let Some((directory, in_crate)) = directories.pop() {
        if !directory.is_dir() || is_test(&directory) {
            continue;
        }
        let place = directory.strip_prefix(root.join("crates")).unwrap().display().to_string();
        found.extend(circles(&uses(&directory, &in_crate)).into_iter().map(|circle| (place.clone(), circle)));
        for below in entries(&directory) {
            let name = below.file_name().unwrap().to_string_lossy().into_owned();
            directories.push((below, format!("{in_crate}{name}::")));
        }
    }
    let known = |(place, modules): &(&str, &[&str])| {
        ((*place).to_owned(), modules.iter().map(|module| (*module).to_owned()).collect::<Vec<_>>())
    };
    let known: BTreeSet<_> = KNOWN.iter().map(known).collect();
    assert_eq!(found.difference(&known).collect::<Vec<_>>(), Vec::<&_>::new(), "new circles");
    assert_eq!(known.difference(&found).collect::<Vec<_>>(), Vec::<&_>::new(), "these are cut");
}

#[test]
fn names_behind_a_prefix_are_found() {
    let code = "use super::{alpha, beta::{gamma, delta}, epsilon};use super::zeta::Eta;$super::theta;super::super::iota::f()";
    assert_eq!(names(code, "super::"), ["alpha", "beta", "epsilon", "zeta", "super"]);
    let uses = |list: &[(&str, &[&str])]| -> Uses {
        let set = |others: &[&str]| others.iter().map(|other| (*other).to_owned()).collect();
        list.iter().map(|(module, others)| ((*module).to_owned(), set(others))).collect()
    };
    let found = circles(&uses(&[("a", &["b"]), ("b", &["c"]), ("c", &["b", "d"]), ("d", &[])]));
    assert_eq!(found, BTreeSet::from([vec!["b".to_owned(), "c".to_owned()]]));
}
