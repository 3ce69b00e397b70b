//! The hypervisor's models run what its image runs.
//!
//! A model with its own copy of the image's lines proves nothing about the image. So a scenario
//! that must hold reaches each function of the modelled module that orders something against
//! another CPU, and orders nothing itself. Mistakes, which must fail, have lines of their own.

use crate::prelude::*;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// What orders: the atomics' orders, and the operations on a notify word.
const ORDERS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];
const WORD: [&str; 4] = ["post_event", "post_to_processor", "take_events", "try_halt"];

/// The files of a model except those of mistakes alone, and the module that it is of. A module with
/// the same file has the model in it.
const MODELS: [(&[&str], &str); 6] = [
    (&["devices/pc/inbox/model.rs"], "devices/pc/inbox/mod.rs"),
    (&["devices/virt/gic/inbox/model.rs"], "devices/virt/gic/inbox/mod.rs"),
    (&["devices/virt/psci/power/model.rs"], "devices/virt/psci/power/mod.rs"),
    (
        &[
            "sched/model/accounts.rs",
            "sched/model/board.rs",
            "sched/model/hints.rs",
            "sched/model/scenarios.rs",
        ],
        "sched/notify.rs",
    ),
    (&["stopping/model.rs"], "stopping/mod.rs"),
    (&["bringup.rs"], "bringup.rs"),
];

/// What is right nevertheless, and why.
const EXCEPTIONS: [(&str, &str); 2] = [
    ("bringup.rs: take has an order of its own", "the start-up page's code is assembly"),
    (
        "bringup.rs: u15_a_late_cpu_never_takes_the_stack_of_the_next has an order of its own",
        "the words of the start-up page are memory that loom does not know",
    ),
];

#[derive(Default)]
struct Function {
    words: Vec<String>,
    /// It is a test that must pass.
    is_scenario: bool,
}

/// By name. Of several with one name there is all they have.
type Functions = BTreeMap<String, Function>;

#[derive(Default)]
struct Reader {
    functions: Functions,
    /// The function that words belong to; nothing for those of tests in an image.
    current: String,
    is_image: bool,
}

impl Reader {
    fn of(stream: TokenStream, is_image: bool) -> Functions {
        let mut reader = Self { is_image, ..Self::default() };
        reader.read(stream, false);
        reader.functions.remove("");
        reader.functions
    }

    fn read(&mut self, stream: TokenStream, in_explored: bool) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let word = |at: usize| tokens.get(at).map(ToString::to_string).unwrap_or_default();
        let outer = self.current.clone();
        // What an attribute says of the next item.
        let (mut is_of_tests, mut is_test, mut must_fail) = (false, in_explored, false);
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) if at > 0 && word(at - 1) == "#" => {
                    let attribute = group.stream().to_string();
                    is_of_tests |= attribute.starts_with("cfg") && attribute.contains("test");
                    is_test |= attribute == "test";
                    must_fail |= attribute.starts_with("should_panic");
                }
                TokenTree::Group(group) => {
                    let is_body = group.delimiter() == Delimiter::Brace;
                    if !(self.is_image && is_of_tests && is_body) {
                        let is_explored = at > 1 && word(at - 1) == "!" && word(at - 2) == "explored";
                        self.read(group.stream(), is_explored);
                    }
                    if is_body {
                        self.current.clone_from(&outer);
                        (is_of_tests, is_test, must_fail) = (false, in_explored, false);
                    }
                }
                TokenTree::Ident(name) if at > 0 && word(at - 1) == "const" && name != "fn" => {
                    self.current = word(at);
                    self.functions.entry(self.current.clone()).or_default();
                }
                TokenTree::Ident(_) if at > 0 && word(at - 1) == "fn" => {
                    let is_left_out = self.is_image && is_of_tests;
                    self.current = if is_left_out { String::new() } else { word(at) };
                    let fails = must_fail || word(at + 2) == "fails";
                    self.functions.entry(self.current.clone()).or_default().is_scenario |= is_test && !fails;
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => {
                    (is_of_tests, is_test, must_fail) = (false, in_explored, false);
                }
                token => {
                    let function = self.functions.entry(self.current.clone()).or_default();
                    function.words.push(token.to_string());
                }
            }
        }
    }
}

/// The content of the module of this name.
fn module(stream: TokenStream, name: &str) -> TokenStream {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let found = tokens.windows(3).find_map(|window| match window {
        [first, second, TokenTree::Group(group)]
            if first.to_string() == "mod" && second.to_string() == name =>
        {
            Some(group.stream())
        }
        _ => None,
    });
    found.expect("the model is in it")
}

fn orders(function: &Function, of: &[&str]) -> bool {
    function.words.iter().any(|word| of.contains(&word.as_str()))
}

/// What is wrong with a model of an image's functions.
fn faults(model: &Functions, image: &Functions) -> BTreeSet<String> {
    let mut next: Vec<&str> =
        model.iter().filter(|(_, function)| function.is_scenario).map(|(name, _)| name.as_str()).collect();
    let mut faults = BTreeSet::new();
    let (mut reached, mut called) = (BTreeSet::new(), BTreeSet::new());
    while let Some(name) = next.pop() {
        // The model's own function hides the image's of the same name, which it may call itself.
        if let Some(function) = model.get(name).filter(|_| reached.insert(name)) {
            next.extend(function.words.iter().map(String::as_str));
            if orders(function, &ORDERS) {
                faults.insert(format!("{name} has an order of its own"));
            }
            if function.words.iter().any(|word| word == name) {
                called.insert(name);
            }
        } else if image.contains_key(name) && !model.contains_key(name) {
            called.insert(name);
        }
    }
    let mut next: Vec<&str> = called.iter().copied().collect();
    while let Some(name) = next.pop() {
        let words = image.get(name).into_iter().flat_map(|function| &function.words);
        next.extend(
            words.map(String::as_str).filter(|word| image.contains_key(*word) && called.insert(word)),
        );
    }
    let matters = |function: &Function| orders(function, &ORDERS) || orders(function, &WORD);
    let missing =
        image.iter().filter(|(name, function)| matters(function) && !called.contains(name.as_str()));
    faults.extend(missing.map(|(name, _)| format!("no scenario reaches {name}")));
    faults
}

fn read(file: &str) -> TokenStream {
    let path = workspace::root().join("hypervisor/src").join(file);
    fs::read_to_string(path).unwrap().parse().unwrap()
}

#[test]
fn models_run_what_the_image_runs() {
    let (mut found, mut functions) = (Vec::new(), 0);
    for (files, of) in MODELS {
        let model =
            files.iter().flat_map(|file| if *file == of { module(read(of), "model") } else { read(file) });
        let (model, image) = (Reader::of(model.collect(), false), Reader::of(read(of), true));
        functions += image.values().filter(|function| orders(function, &ORDERS)).count();
        assert!(model.values().any(|function| function.is_scenario), "{of}: no scenario is found");
        found.extend(faults(&model, &image).into_iter().map(|fault| format!("{of}: {fault}")));
    }
    assert!(functions > 25, "{functions} functions order: the sources are not read as they are meant to be");
    let excepted = |fault: &String| EXCEPTIONS.iter().any(|(known, _)| known == fault);
    let unknown: Vec<_> = found.iter().filter(|fault| !excepted(fault)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert_eq!(found.len(), EXCEPTIONS.len(), "exceptions that are none: {found:#?}");
}

#[test]
fn a_model_with_lines_of_its_own_is_found() {
    const IMAGE: &str = "impl A { fn post(&self) { self.mark(); } fn mark(&self) { self.0.store(1, Release) }
        #[cfg(test)] fn look(&self) { self.0.load(Acquire) } }";
    let faults = |model: &str| {
        let [model, image] = [model, IMAGE].map(|text| text.parse().unwrap());
        faults(&Reader::of(model, false), &Reader::of(image, true)).into_iter().collect::<Vec<_>>()
    };
    assert!(faults("explored! { fn a(None): || run(A::post); } fn run(post: fn(&A)) {}").is_empty());
    assert!(faults("#[test] fn a() { post(); } fn post() { a.post(); }").is_empty(), "the image's");
    let none = ["no scenario reaches mark"];
    assert_eq!(
        faults(
            "explored! { fn a(None): || A::new(); /// post
        fn b(None) fails \"c\": || A::post(); }"
        ),
        none,
        "a mistake alone"
    );
    assert_eq!(faults("#[test] #[should_panic] fn a() { post() } #[test] fn b() {}"), none);
    let own = ["no scenario reaches mark", "run has an order of its own"];
    assert_eq!(faults("#[test] fn a() { run(); } fn run() { a.0.store(1, Ordering::Release); }"), own);
}
