//! `docs/panics.md` lists every place in the hypervisor that may panic after the guest has begun,
//! with the reason why it does not.
//!
//! A place is a macro that panics, an unwrap, an index, or a call of a function of the standard
//! library that panics for some of its arguments. The sources are parsed, so an entry for a
//! function applies to all code written in it, including macros' arguments. Arithmetic that
//! overflows panics, too; it is not listed individually, see the document.

use super::style;
use crate::prelude::*;
use std::sync::LazyLock;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Meta, Token};

const DOCUMENT: &str = "docs/panics.md";

/// The sources of the hypervisor's image. `pic` is not listed: it is called before any guest runs.
const CRATES: [&str; 8] =
    ["baremetal", "coherence", "hostlink", "memslots", "paging", "stay", "tlfs", "migration"];

/// Macros that panic, by their names in the document; not those that the image lacks.
const MACROS: [(&str, &[&str]); 2] = [
    ("panic", &["panic", "unreachable", "todo", "unimplemented"]),
    ("assert", &["assert", "assert_eq", "assert_ne"]),
];

/// Methods that panic for some values.
const METHODS: [(&str, &[&str]); 7] = [
    ("unwrap", &["unwrap", "unwrap_err"]),
    ("expect", &["expect", "expect_err"]),
    ("slice", &["copy_from_slice", "clone_from_slice", "copy_within"]),
    ("slice", &["split_at", "split_at_mut", "chunks_exact"]),
    ("clamp", &["clamp"]),
    ("ilog2", &["ilog2"]),
    ("step", &["step_by"]),
];

/// The kinds of places by file and function.
type Places = BTreeMap<(String, String), BTreeSet<String>>;

/// Walks one file.
struct Finder<'p> {
    file: String,
    /// The type whose methods these are, and the enclosing functions.
    path: Vec<String>,
    places: &'p mut Places,
}

impl Finder<'_> {
    fn found(&mut self, kind: &str) {
        let function = if self.path.is_empty() { "–".to_owned() } else { self.path.join("::") };
        self.places.entry((self.file.clone(), function)).or_default().insert(kind.to_owned());
    }

    fn within(&mut self, name: String, walk: impl FnOnce(&mut Self)) {
        self.path.push(name);
        walk(self);
        self.path.pop();
    }
}

pub(super) fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string().replace(' ', "");
            ["test", "loom", "any(test,loom)", "any(test,feature=\"mock\")"].contains(&&*condition)
                || condition.starts_with("all(test,")
                || condition.starts_with("all(loom,")
        }
        _ => false,
    })
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            // Code that is evaluated while the image is built fails the build.
            syn::Item::Const(_) | syn::Item::Static(_) => return,
            _ => return visit::visit_item(self, item),
        };
        if !is_of_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.within(item.sig.ident.to_string(), |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        self.within(name.unwrap_or_else(|| "_".to_owned()), |finder| visit::visit_item_impl(finder, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(item.ident.to_string(), |finder| visit::visit_item_trait(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_of_tests(&item.attrs) {
            self.within(item.sig.ident.to_string(), |finder| visit::visit_impl_item_fn(finder, item));
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.within(item.sig.ident.to_string(), |finder| visit::visit_trait_item_fn(finder, item));
    }

    // Constants of types and blocks that are evaluated while the image is built.
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_index(&mut self, index: &'ast syn::ExprIndex) {
        self.found("index");
        visit::visit_expr_index(self, index);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let Some((kind, _)) =
            METHODS.iter().find(|(_, names)| names.iter().any(|name| call.method == name))
        {
            self.found(kind);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(name) = call.path.segments.last()
            && let Some((kind, _)) =
                MACROS.iter().find(|(_, names)| names.iter().any(|known| name.ident == known))
        {
            self.found(kind);
        }
        // Arguments that are expressions, such as those of `format_args`.
        let arguments = Punctuated::<Expr, Token![,]>::parse_terminated;
        if let Ok(arguments) = arguments.parse2(call.tokens.clone()) {
            arguments.iter().for_each(|argument| self.visit_expr(argument));
        }
    }
}

/// Where code is that the tests of sources look at.
const ROOTS: [&str; 5] = ["crates", "guests", "host", "hypervisor", "tlbcheck"];

/// Name and text of each Rust source there except modules that are compiled only for tests and
/// models, by name. A name is the path below the workspace's root. Read once for all tests.
static NOT_FOR_TESTS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let files = ROOTS.iter().flat_map(|root| style::sources(&workspace::root().join(root)));
    let mut texts: Vec<_> = files.map(|file| (fs::read_to_string(&file).unwrap(), file)).collect();
    let of_tests: Vec<_> = texts.iter().flat_map(|(text, file)| test_modules(file, text)).collect();
    texts.retain(|(_, file)| {
        !of_tests.iter().any(|module| file.starts_with(module) || file.with_extension("") == *module)
    });
    let name = |file: &Path| file.strip_prefix(workspace::root()).unwrap().to_string_lossy().into_owned();
    let mut named: Vec<_> = texts.into_iter().map(|(text, file)| (name(&file), text)).collect();
    named.sort();
    named
});

pub(super) fn not_for_tests(directory: &str) -> impl Iterator<Item = &'static (String, String)> {
    NOT_FOR_TESTS.iter().filter(move |(name, _)| Path::new(name).starts_with(directory))
}

/// The modules of tests that a file declares and that have their own files, without extension.
fn test_modules(file: &Path, text: &str) -> Vec<PathBuf> {
    // Parsing takes long.
    if !text.contains("#[cfg(") {
        return Vec::new();
    }
    let below = match file.file_stem().unwrap().to_str() {
        Some("lib" | "main" | "mod") => file.parent().unwrap().to_owned(),
        _ => file.with_extension(""),
    };
    let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let modules = parsed.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && is_of_tests(&module.attrs) => Some(module),
        _ => None,
    });
    modules.map(|module| below.join(module.ident.to_string())).collect()
}

fn find(text: &str, file: String, places: &mut Places) {
    let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
    if !is_of_tests(&parsed.attrs) {
        Finder { file, path: Vec::new(), places }.visit_file(&parsed);
    }
}

/// The items of the document's lists, each in one line.
fn items(document: &str) -> Vec<String> {
    let joined = document.replace("\n  ", " ");
    let items = joined.lines().filter_map(|line| line.strip_prefix("* "));
    items.filter(|item| item.starts_with('`')).map(str::to_owned).collect()
}

fn spans(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The contents of the document: entries for functions, several in an item if all is the same for
/// them, and for files that no guest reaches.
fn read(document: &str) -> (Places, BTreeSet<String>) {
    let (mut places, mut early) = (Places::new(), BTreeSet::new());
    for item in items(document) {
        let (names, rest) = item.split_once(" – ").unwrap_or_else(|| panic!("{DOCUMENT}: no dash: {item}"));
        let mut names = spans(names);
        let file = names.next().unwrap_or_default();
        let functions: Vec<_> = names.collect();
        let (kinds, why) =
            if functions.is_empty() { ("", rest) } else { rest.split_once(": ").unwrap_or((rest, "")) };
        assert!(why.len() > 10, "{DOCUMENT}: no reason: {item}");
        if functions.is_empty() {
            early.insert(file);
            continue;
        }
        let kinds: BTreeSet<_> = kinds.split(", ").map(str::to_owned).collect();
        for function in functions {
            let former = places.insert((file.clone(), function.clone()), kinds.clone());
            assert!(former.is_none(), "{DOCUMENT}: {file}: {function} is there twice");
        }
    }
    (places, early)
}

/// The missing items, as they would begin, and the superfluous ones.
fn differences(places: &Places, documented: &Places, early: &BTreeSet<String>) -> Vec<String> {
    let item = |(file, function): &(String, String), kinds: &BTreeSet<String>| {
        let kinds: Vec<_> = kinds.iter().map(String::as_str).collect();
        format!("* `{file}`: `{function}` – {}: …", kinds.join(", "))
    };
    let is_early = |file: &str| early.iter().any(|place| file.starts_with(place.as_str()));
    let missing = places.iter().filter(|(at, kinds)| !is_early(&at.0) && documented.get(*at) != Some(kinds));
    let missing = missing.map(|(at, kinds)| format!("not in the document: {}", item(at, kinds)));
    let gone = documented.iter().filter(|(at, kinds)| is_early(&at.0) || places.get(*at) != Some(kinds));
    let gone = gone.map(|(at, kinds)| format!("not in the sources:  {}", item(at, kinds)));
    let is_used = |place: &&String| places.keys().any(|(file, _)| file.starts_with(place.as_str()));
    let unused =
        early.iter().filter(|place| !is_used(place)).map(|place| format!("nothing there panics: `{place}`"));
    missing.chain(gone).chain(unused).collect()
}

#[test]
fn whatever_may_panic_is_in_the_table_with_its_reason() {
    let mut places = Places::new();
    let mut sources: Vec<_> = CRATES.map(|name| format!("crates/{name}/src")).into();
    sources.push("hypervisor/src".to_owned());
    for (name, text) in sources.iter().flat_map(|source| not_for_tests(source)) {
        find(text, name.clone(), &mut places);
    }
    assert!(places.len() > 50, "{} places: the sources are not read as they are meant to be", places.len());
    let document = fs::read_to_string(workspace::root().join(DOCUMENT)).unwrap();
    let (documented, early) = read(&document);
    let differences = differences(&places, &documented, &early);
    assert!(differences.is_empty(), "{DOCUMENT} and the sources differ:\n{}", differences.join("\n"));
}

#[test]
fn places_are_found_wherever_they_are_written_and_tests_are_not_places() {
    let text = "
        const A: u8 = B[0];
        impl<T> Thing<T> {
            const C: () = assert!(true);
            fn indexed(&self) { log!(\"{}\", self.0[1]); }
            #[cfg(test)] fn tested(&self) { panic!() }
        }
        fn unwrapped() { let f = |x: Option<u8>| { debug_assert!(true); x.unwrap() }; const { None.unwrap() } }
        fn harmless() { thing.unwrap_or(1); }
        #[cfg(not(test))] fn real() { core::unreachable!() }
        #[cfg(any(test, feature = \"defects\"))] fn spoiled() { panic!() }
        #[cfg(all(test, not(loom)))] mod tests { fn one() { panic!() } }
    ";
    let mut places = Places::new();
    find(text, "a.rs".to_owned(), &mut places);
    let found: Vec<_> =
        places.iter().map(|((_, function), kinds)| (function.as_str(), kinds.len())).collect();
    assert_eq!(found, [("Thing::indexed", 1), ("real", 1), ("spoiled", 1), ("unwrapped", 1)]);
}

#[test]
fn an_item_that_is_missing_or_too_much_is_a_difference() {
    let mut places = Places::new();
    find("fn a() { b[0]; } fn c() { d.unwrap(); }", "x/e.rs".to_owned(), &mut places);
    let compare = |text: &str| {
        let (documented, early) = read(text);
        differences(&places, &documented, &early).len()
    };
    let (a, c) = ("* `x/e.rs`: `a` – index: this is\n  why.", "* `x/e.rs`: `c` – unwrap: this is why.");
    assert_eq!(compare(&format!("{a}\n{c}")), 0);
    assert_eq!(compare(a), 1);
    assert_eq!(compare(&format!("{a}\n{c}\n* `x/e.rs`: `f` – index: this is why.")), 1);
    assert_eq!(compare(&format!("{a}\n* `x/e.rs`: `c` – expect: this is why.")), 2);
    assert_eq!(compare("* `x/e.rs`: `a`, `c` – index: this is why."), 2);
    assert_eq!(compare("* `x/` – before the guest begins."), 0);
    assert_eq!(compare("* `x/` – before the guest begins.\n* `y/` – before the guest begins."), 1);
}
