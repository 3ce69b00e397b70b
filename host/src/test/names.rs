//! Every test that the documents name exists.

use super::style;
use crate::prelude::*;

/// Documents, the crate of tests that are named without one, and the minimum number of names: with
/// fewer, the document was not parsed as intended.
const DOCUMENTS: [(&str, &str, usize); 3] =
    [("docs/coherence.md", "coherence", 40), (INDEX, "", 250), ("ARCHITECTURE.md", "", 25)];

/// The pitfalls, and the list of tests that are not named for them.
const PITFALLS: &str = "docs/pitfalls.md";
const INDEX: &str = "docs/pitfalls-tests.md";

/// Pitfalls that do not apply here, or that no test holds yet.
const WITHOUT_TESTS: [&str; 6] = ["A14", "E1", "P22", "P23", "U44", "U68"];

const PREFIXES: [&str; 19] = [
    "coherence", "iommu", "pci", "pic", "pvflush", "tlfs", "paging", "memslots", "stay", "machine",
    "hypervisor", "host", "hostlink", "plugin", "baremetal", "hostile", "probe", "tlbcheck", "migration",
];

/// Where the tests of a prefix are.
fn place(prefix: &str) -> String {
    match prefix {
        "paging" | "memslots" | "machine" => format!("crates/{prefix}"),
        "hypervisor" | "host" | "tlbcheck" => format!("{prefix}/src"),
        "plugin" => "host/plugin/src".to_owned(),
        "hostile" => "guests/hostile/src".to_owned(),
        "probe" => "guests/probe/src/tests".to_owned(),
        _ => format!("crates/{prefix}/src"),
    }
}

/// The beginning of paragraphs that name tests.
const BEGINNINGS: [&str; 2] = ["Held by: ", "Where it stands: "];

/// The rows of a document's tables, and its paragraphs that name tests, each in one line.
fn rows(text: &str) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        if line.starts_with('|') || BEGINNINGS.iter().any(|beginning| line.starts_with(beginning)) {
            is_open = !line.starts_with('|');
            rows.push(line.to_owned());
        } else if line.is_empty() {
            is_open = false;
        } else if is_open && let Some(row) = rows.last_mut() {
            *row += " ";
            *row += line;
        }
    }
    rows
}

/// The names in the rows of a document, with their prefix. A prefix applies to the end of its row.
fn names<'t>(rows: &'t [String], default: &'t str) -> Vec<(&'t str, &'t str)> {
    let mut names = Vec::new();
    for row in rows {
        let mut prefix = default;
        for span in row.split('`').skip(1).step_by(2) {
            let (is_test, name) = match span.split_once(": ") {
                Some((word, name)) => {
                    prefix = word;
                    (true, name)
                }
                // Other code spans are files, types, or operations.
                None => (span.contains('_') || is_table(prefix), span),
            };
            let is_name = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*');
            if is_test && !prefix.is_empty() && name.bytes().all(is_name) {
                names.push((prefix, name));
            }
        }
    }
    names
}

/// Whether a prefix's tests are rows of a table in an image, not functions.
fn is_table(prefix: &str) -> bool {
    matches!(prefix, "hostile" | "probe" | "tlbcheck")
}

fn sources(directory: &Path) -> String {
    style::sources(directory).iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Whether `sources` define the test: as a function, as the test that a mutant of the protocol
/// fails, as a row of the bare guest's table, or as a mistake that the abstract machine or a model
/// must detect. A name that ends in `*` stands for several.
fn is_defined(sources: &str, prefix: &str, name: &str) -> bool {
    let (name, end) = match name.strip_suffix('*') {
        Some(start) => (start, ""),
        None => (name, if is_table(prefix) { "\"" } else { "(" }),
    };
    match prefix {
        "hostile" | "probe" => return sources.contains(&format!("test(\"{name}{end}")),
        "tlbcheck" => return sources.contains(&format!("row(\"{name}{end}")),
        _ => {}
    }
    if matches!(prefix, "machine" | "coherence" | "paging" | "memslots")
        && [" ", "\n"].iter().any(|end| sources.contains(&format!("    {name}:{end}")))
    {
        return true;
    }
    let fails_ends: &[&str] = if end.is_empty() { &[""] } else { &[":", " within "] };
    sources.contains(&format!("fn {name}{end}"))
        || fails_ends.iter().any(|end| sources.contains(&format!("fails {name}{end}")))
}

#[test]
fn tests_that_the_documents_name_exist() {
    let texts: BTreeMap<_, _> =
        PREFIXES.map(|prefix| (prefix, sources(&workspace::root().join(place(prefix))))).into();
    let mut missing = Vec::new();
    for (document, default, least) in DOCUMENTS {
        let text = fs::read_to_string(workspace::root().join(document)).unwrap();
        let rows = rows(&text);
        let names = names(&rows, default);
        assert!(names.len() >= least, "{document}: {} names", names.len());
        missing.extend(names.into_iter().filter_map(|(prefix, name)| {
            let exists = match texts.get(prefix) {
                Some(sources) => is_defined(sources, prefix, name),
                None => prefix == "guests" && super::ALL_CASES.iter().any(|case| case.name == name),
            };
            (!exists).then(|| format!("{document}: {prefix}: {name}"))
        }));
    }
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
}

/// The ids with which lines of a document begin, and what follows up to the next one.
fn entries<'t>(text: &'t str, begins: &str) -> Vec<(&'t str, &'t str)> {
    let parts = text.split(begins).skip(1);
    parts.filter_map(|part| part.split_once("**")).collect()
}

/// The ids with which a test's name begins, after `arm_`, unless that is all of the name but a
/// word.
fn ids(name: &str) -> Vec<String> {
    let name = name.strip_prefix("arm_").unwrap_or(name);
    let is_id = |word: &&str| {
        word.starts_with(['o', 'a', 'p', 'h', 'i', 'e', 'm', 'n', 'u'])
            && word.len() > 1
            && word[1..].bytes().all(|byte| byte.is_ascii_digit())
    };
    let count = name.split('_').take_while(is_id).count();
    let has_words = name.split('_').count() > count + 1;
    name.split('_').take(if has_words { count } else { 0 }).map(str::to_uppercase).collect()
}

/// The names of what may be a test: as [`is_defined`] finds it, unless it is a row of a bare guest.
fn defined(sources: &str) -> impl Iterator<Item = &str> {
    let after = ["fn ", "fails "].into_iter().flat_map(|word| sources.split(word).skip(1));
    let rows = sources.lines().filter_map(|line| line.strip_prefix("    ")?.trim_start().split_once(':'));
    after.chain(rows.map(|(name, _)| name)).filter_map(first_name)
}

/// The name with which a text begins.
fn first_name(text: &str) -> Option<&str> {
    let is_name = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '_');
    text.split(|letter| !is_name(letter)).next()
}

#[test]
fn each_pitfall_has_a_test_that_is_named_for_it_or_in_the_list() {
    let read = |document: &str| fs::read_to_string(workspace::root().join(document)).unwrap();
    let (pitfalls, index) = (read(PITFALLS), read(INDEX));
    let known: BTreeSet<_> = entries(&pitfalls, "\n* **").into_iter().map(|(id, _)| id).collect();
    assert!(known.len() > 150, "{} pitfalls", known.len());
    let mut held: BTreeSet<String> = super::ALL_CASES.iter().flat_map(|case| ids(case.name)).collect();
    for prefix in PREFIXES.into_iter().filter(|prefix| !is_table(prefix)) {
        held.extend(defined(&sources(&workspace::root().join(place(prefix)))).flat_map(ids));
    }
    let mut wrong = Vec::new();
    let mut listed = BTreeSet::new();
    for (id, tests) in entries(&index, "\n| **") {
        if !known.contains(id) || !listed.insert(id) {
            wrong.push(format!("{INDEX}: {id} is no pitfall, or has two lines"));
        }
        let tests = [tests.lines().next().unwrap_or_default().to_owned()];
        let names = names(&tests, "");
        let needless = names.iter().filter(|(_, name)| ids(name).iter().any(|of| of == id));
        wrong.extend(needless.map(|(_, name)| format!("{INDEX}: {id}: its name says what {name} holds")));
        if names.is_empty() {
            wrong.push(format!("{INDEX}: {id} has a line without tests"));
        }
    }
    for id in known {
        let has_test = held.contains(id) || listed.contains(id);
        if has_test == WITHOUT_TESTS.contains(&id) {
            wrong.push(format!("{id}: {}", if has_test { "it has a test now" } else { "it has no test" }));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_test_is_named_for_the_ids_that_it_begins_with() {
    assert_eq!(ids("o13_o14_two_initiators"), ["O13", "O14"]);
    assert_eq!(ids("u16_at"), [""; 0]);
    assert_eq!(ids("all_of_them"), [""; 0]);
    assert_eq!(ids("arm_o1_on_max"), ["O1"]);
    let sources = "fn a_b() {} fn c(d: e)\nX fails f_g: h\n    i_j: k\n// l_m\n";
    assert_eq!(defined(sources).collect::<Vec<_>>(), ["a_b", "c", "f_g", "i_j"]);
    assert_eq!(entries("x\n* **A1** b\n* **A2** c", "\n* **"), [("A1", " b"), ("A2", " c")]);
}

#[test]
fn names_are_found_in_rows_only_and_keep_their_prefix() {
    let row =
        "| O1 | see `qemu.md`, `is_not_one` | `memslots: a_b`, `c_d`; ✗ `e_*`; `probe: nmi`, `f-g`, `wait` |";
    let found = [
        ["a_b", "c_d", "e_*"].map(|name| ("memslots", name)),
        ["nmi", "f-g", "wait"].map(|name| ("probe", name)),
    ];
    let text = format!("`memslots: prose_only`\n{row}");
    assert_eq!(names(&rows(&text), ""), found.concat());
    let paragraph = rows("Held by: `hypervisor: u1_a`,\n`u1_b`.\n\n`hypervisor: u1_c`");
    assert_eq!(names(&paragraph, ""), [("hypervisor", "u1_a"), ("hypervisor", "u1_b")]);
    assert_eq!(names(&rows("| `h_i`, `wait`, `crate::a_b` |"), "tlfs"), [("tlfs", "h_i")]);
}

#[test]
fn names_are_found_where_they_are_defined_and_not_elsewhere() {
    let sources =
        "fn ab_cd() {} mutant! { X fails ef_gh: y } mutant! { Z fails mn_op within 2: y } test(\"ij-kl\", z)";
    assert!(is_defined(sources, "tlfs", "ab_cd") && is_defined(sources, "tlfs", "ef_gh"));
    assert!(is_defined(sources, "tlfs", "mn_op") && !is_defined(sources, "tlfs", "mn"));
    assert!(is_defined(sources, "tlfs", "ab_*") && is_defined(sources, "tlfs", "ef*"));
    assert!(is_defined(sources, "probe", "ij-kl") && !is_defined(sources, "probe", "ij"));
    assert!(
        is_defined("row(\"a-b\", c)", "tlbcheck", "a-b") && !is_defined("row(\"a-b\", c)", "tlbcheck", "a")
    );
    for absent in ["ab", "cd", "ab_cde", "ef_g", "gh_*", "ij-kl"] {
        assert!(!is_defined(sources, "tlfs", absent), "{absent}");
    }
}
