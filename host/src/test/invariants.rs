//! The statements of ARCHITECTURE.md about where things are done, compared with the sources.
//!
//! Each invariant there ends with a line "Held by:", which names tests; `names.rs` checks that they
//! exist. Some invariants are checked here, by searching for the words with which a thing is done.

use super::panics::not_for_tests;
use super::style::{documents, sources as sources_of};
use crate::prelude::*;

const DOCUMENT: &str = "ARCHITECTURE.md";
/// The beginning of an invariant, and of the line with its tests.
const BEGINNING: &str = "**Architecture invariant: ";
const HELD_BY: &str = "Held by: ";

/// All sources below these directories except tests, by name, without comments.
fn sources(directories: &[&str]) -> BTreeMap<String, String> {
    let texts = directories.iter().flat_map(|directory| not_for_tests(directory));
    texts.map(|(name, text)| (name.clone(), code_of(text))).collect()
}

/// A text without comments, and without a module of tests at its end.
fn code_of(text: &str) -> String {
    let end = text.find("\n#[cfg(test)]\nmod ").or_else(|| text.find("\n#[cfg(all(test, not(loom)))]\nmod "));
    let code = text[..end.unwrap_or(text.len())].lines();
    code.map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect::<Vec<_>>().join("\n")
}

fn places(sources: &BTreeMap<String, String>, words: &[&str]) -> BTreeMap<String, usize> {
    let counted = sources.iter().map(|(name, text)| {
        (name.clone(), words.iter().map(|word| text.matches(word).count()).sum::<usize>())
    });
    counted.filter(|&(_, count)| count != 0).collect()
}

/// What a section of `places.txt` lists: files, or rooms, and a count for each, if there is one.
fn expected(section: &str) -> BTreeMap<String, usize> {
    let text = include_str!("places.txt").split_once(&format!("[{section}]\n")).expect("is there").1;
    let lines = text.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (place, count) = line.split_once(' ').unwrap_or((line, "1"));
        (place.to_owned(), count.parse().expect("is a count"))
    };
    lines.map(pair).collect()
}

fn constant(sources: &BTreeMap<String, String>, file: &str, name: &str) -> u64 {
    let text = &sources[file];
    let (_, rest) = text.split_once(&format!("const {name}: ")).unwrap_or_else(|| panic!("{file}: {name}"));
    let value = rest.split_once('=').unwrap().1.split_once(';').unwrap().0.trim().replace('_', "");
    value.split("<<").map(|part| part.trim().parse::<u64>().unwrap()).reduce(|a, b| a << b).unwrap()
}

/// The numbers in a document that name their constant: `6,144 (\`STEP_ENTRIES\`)`, or with the
/// module in front if several have the name.
fn constants_of(document: &str) -> Vec<(&str, u64)> {
    let mut found = Vec::new();
    for (at, _) in document.match_indices(" (`") {
        let Some((name, _)) = document[at + 3..].split_once("`)") else { continue };
        let number = document[..at].rsplit([' ', '\n', '(']).next().unwrap_or_default().replace(',', "");
        let constant = name.rsplit("::").next().unwrap_or(name);
        let is_constant = constant.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'_' | b'0'..=b'9'));
        if let (true, Ok(number)) = (is_constant, number.parse()) {
            found.push((name, number));
        }
    }
    found
}

/// The rooms of instruction sets, of what virtualizes their processors, and of IOMMUs.
const ROOMS: &str = "hypervisor/src/arm64 hypervisor/src/iommu hypervisor/src/svm hypervisor/src/vmx \
    hypervisor/src/x86";

/// What creates guests, describes boards, serves requests, finds devices: no exit goes there.
const CREATE: &str = "/devices/pc/acpi/ /devices/virt/fdt.rs /owned/domains.rs /owned/machine.rs \
    /owned/registers.rs /vm/control/ /vm/files.rs /vm/host.rs /vm/machine.rs /vm/slot_memory.rs";

#[test]
fn each_invariant_says_what_holds_it() {
    let text = fs::read_to_string(workspace::root().join(DOCUMENT)).unwrap();
    let (_, invariants) = text.split_once(BEGINNING).unwrap();
    let (invariants, _) = invariants.split_once("\n## ").unwrap();
    let invariants: Vec<&str> = invariants.split(BEGINNING).collect();
    assert!(invariants.len() > 15, "{} invariants", invariants.len());
    let holds = |text: &&str| text.lines().any(|line| line.starts_with(HELD_BY) && line.contains('`'));
    let without: Vec<_> = invariants.into_iter().filter(|text| !holds(text)).collect();
    assert!(without.is_empty(), "no test is named for:\n{}", without.join("\n\n"));
}

#[test]
fn constants_in_the_documents_are_those_of_the_code() {
    let sources = sources(&["crates", "hypervisor/src", "tlbcheck/src"]);
    let mut count = 0;
    for document in documents().unwrap() {
        let text = fs::read_to_string(&document).unwrap();
        for (name, said) in constants_of(&text) {
            let (module, name) = name.rsplit_once("::").unwrap_or(("", name));
            let declaration = format!("const {name}: ");
            let file =
                sources.iter().find(|(file, text)| file.contains(module) && text.contains(&declaration));
            let (file, _) = file.unwrap_or_else(|| panic!("{}: there is no {name}", document.display()));
            let is = constant(&sources, file, name);
            assert_eq!(said, is, "{} says {said} of {name}, which is {is}", document.display());
            count += 1;
        }
    }
    assert!(count >= 2, "the documents name no constants");
}

#[test]
fn model_checks_in_the_documents_leave_examples_out() {
    let mut count = 0;
    for document in documents().unwrap() {
        let text = fs::read_to_string(&document).unwrap().replace('\n', " ");
        for (at, _) in text.match_indices("RUSTFLAGS=\"--cfg loom\" cargo test") {
            let command = text[at..].split('`').next().unwrap();
            let is_library = command.contains(" --lib");
            assert!(is_library, "{}: no example runs under loom: {command}", document.display());
            count += 1;
        }
    }
    assert!(count >= 2, "the documents say no longer how models are run by hand");
}

#[test]
fn the_target_is_asked_for_where_an_architecture_is_chosen() {
    let sources = sources(&["hypervisor/src", "crates", "tlbcheck/src", "guests"]);
    let found: Vec<_> = places(&sources, &["target_arch", "target_os"]).into_keys().collect();
    let may = |name: &str| {
        let root =
            ["/lib.rs", "/main.rs", "/mod.rs", "build.rs", "link.rs"].iter().any(|end| name.ends_with(end));
        root || name == "guests/hostile/src/tests/storm.rs"
    };
    let others: Vec<_> = found.iter().filter(|name| !may(name)).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(found.iter().any(|name| name == "hypervisor/src/arch/mod.rs"), "{found:?}");
    let core = found.iter().filter(|name| name.starts_with("hypervisor/src/vm/"));
    assert_eq!(core.count(), 0);
}

#[test]
fn interrupts_are_taken_in_these_places() {
    let sources = sources(&ROOMS.split(' ').chain(["hypervisor/src/vm"]).collect::<Vec<_>>());
    let found = places(
        &sources,
        &["A::take_interrupts()", "A::wait_for_interrupt()", "A::open_window(", " open_window("],
    );
    assert_eq!(found, expected("interrupts"));
}

#[test]
fn other_processors_are_waited_for_in_these_places() {
    let core = ["crates/iommu/src", "hypervisor/src/owned", "hypervisor/src/sched", "hypervisor/src/vm"];
    let sources = sources(&ROOMS.split(' ').chain(core).collect::<Vec<_>>());
    assert_eq!(places(&sources, &["spin_loop()"]), expected("waits"));
}

#[test]
fn orders_begin_in_these_places() {
    let sources = sources(&["hypervisor/src"]);
    assert_eq!(places(&sources, &["Published::here", "Taken::NONE"]), expected("orders"));
}

#[test]
fn instructions_that_drop_translations_are_in_these_files() {
    let sources = sources(&["hypervisor/src"]);
    let words = ["\"tlbi ", "\"invlpga", "\"invlpg", "\"invvpid", "\"invept", "tlb::flush"];
    assert!(places(&sources, &words).keys().eq(expected("flushes").keys()), "{:?}", places(&sources, &words));
}

#[test]
fn memory_is_accessed_by_its_address_in_these_files() {
    let mut sources = sources(&["crates/memslots/src", "crates/stay/src", "hypervisor/src"]);
    sources.retain(|name, _| !["/arch/", "/image/"].iter().any(|room| name.contains(room)));
    let words = ["read_volatile", "write_volatile", "copy_nonoverlapping", "from_raw_parts", "::from_ptr("];
    let found = places(&sources, &words);
    assert!(found.keys().eq(expected("dereferences").keys()), "{found:?}");
}

#[test]
fn unsafe_is_in_so_many_files() {
    let mut found = BTreeMap::new();
    let mut sources = sources(&["crates", "guests", "hypervisor/src", "tlbcheck/src"]);
    sources.retain(|name, _| name.contains("/src/"));
    for name in places(&sources, &["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe("]).keys()
    {
        let depth = if name.starts_with("hypervisor/") { 3 } else { 2 };
        let room = name.split('/').take(depth).collect::<Vec<_>>().join("/");
        *found.entry(room).or_insert(0) += 1;
    }
    assert_eq!(found, expected("unsafe"));
}

#[test]
fn no_cpu_finds_its_data_by_a_segment() {
    let sources = sources(&["hypervisor/src"]);
    let found = places(&sources, &[" gs:[", " fs:[", "swapgs", "GsBase", "FsBase"]);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn no_exit_and_no_call_allocates() {
    let rooms = ["devices", "owned", "sched", "stopping", "vm"].map(|room| format!("hypervisor/src/{room}"));
    let mut sources = sources(&rooms.iter().map(String::as_str).chain(ROOMS.split(' ')).collect::<Vec<_>>());
    sources.retain(|name, _| !CREATE.split(' ').any(|creates| name.contains(creates)));
    assert!(sources.len() > 150, "{}", sources.len());
    let makes = ["Box::new", "Vec::", "vec!", "format!", " String::", "Arc::new"];
    let copies = [".to_vec()", ".to_string()", ".to_owned()", ".collect()", ".collect::<"];
    let words = [&makes[..], &copies].concat();
    assert_eq!(places(&sources, &words), expected("allocates"));
}

/// Files of SVM's tests that do not name the VMCB, and why they are no tests for all of x86.
const SVM_ALONE: [(&str, &str); 3] = [
    ("due.rs", "what tests of both kinds have, and no tests"),
    ("migrated.rs", "the mock of VMX's instructions has one CPU"),
    ("mod.rs", "what the tests there have in common"),
];

#[test]
fn tests_that_do_not_name_the_vmcb_run_on_vmx_too() {
    let room = |kind: &str| workspace::root().join(format!("hypervisor/src/{kind}/tests"));
    let modules = ["svm", "vmx"].map(|kind| fs::read_to_string(room(kind).join("mod.rs")).unwrap());
    let names_of = |kind| {
        let room = room(kind);
        let name = |path: PathBuf| path.strip_prefix(&room).unwrap().to_str().unwrap().to_owned();
        sources_of(&room).into_iter().map(name).collect::<Vec<_>>()
    };
    for name in names_of("x86").into_iter().filter(|name| name != "mod.rs") {
        let path = format!("#[path = \"../../x86/tests/{name}\"]");
        assert!(modules.iter().all(|module| module.contains(&path)), "x86/tests/{name} does not run on both");
    }
    let names_vmcb = |name: &String| {
        let text = fs::read_to_string(room("svm").join(name)).unwrap();
        ["vmcb", "Vmcb"].iter().any(|word| text.contains(word))
    };
    let alone: Vec<_> = names_of("svm").into_iter().filter(|name| !names_vmcb(name)).collect();
    let listed = SVM_ALONE.map(|(name, _)| name);
    assert!(alone.iter().all(|name| listed.contains(&&**name)), "why do they not run on VMX? {alone:?}");
    assert_eq!(alone.len(), listed.len(), "reasons for files that are not there: {alone:?}");
}

#[test]
fn comments_and_modules_of_tests_are_no_code() {
    let text = "a(); // b();\n/// c();\nd();\n\n#[cfg(test)]\nmod tests {\n e();\n}\n";
    assert_eq!(code_of(text).trim(), "a(); \n\nd();");
    assert_eq!(
        constants_of("at most 6,144 (`space::STEP`) or 5 (`x`)\n7 (`B_C`)"),
        [("space::STEP", 6144), ("B_C", 7)]
    );
}
