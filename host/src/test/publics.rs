//! The API of the published crates: each item has one path, and each enum says whether it may grow.
//!
//! An item with two paths is documented twice, and users name it in two ways. Adding a variant to
//! an enum breaks users that match it, unless it is `#[non_exhaustive]`. If that would let a user
//! overlook a case that must not be overlooked, the enum's documentation says so: "Exhaustive: "
//! and the reason. The same applies to structs that are errors.

use super::packages::{LICENCES, PUBLISHED};
use super::panics::is_of_tests;
use crate::workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};

const EXHAUSTIVE: &str = "Exhaustive: ";

/// The parsed contents of a crate; modules are identified by their paths, `""` for the root.
#[derive(Default)]
struct Sources {
    modules: BTreeMap<String, Module>,
    /// Types that functions return as errors, or that implement `Error`.
    errors: BTreeSet<String>,
}

#[derive(Default)]
struct Module {
    /// Its modules, and whether each is public.
    children: BTreeMap<String, bool>,
    /// Public items by name, with the undecided property of each.
    items: BTreeMap<String, Option<&'static str>>,
    uses: Vec<Use>,
}

/// One name that is imported from another module; `*` for all.
struct Use {
    is_public: bool,
    module: Vec<String>,
    name: String,
    renamed: String,
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

/// Whether it is decided if a type may grow.
fn is_decided(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("non_exhaustive"),
        syn::Meta::NameValue(doc) if doc.path.is_ident("doc") => {
            let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &doc.value else {
                return false;
            };
            let reason = text.value();
            reason.trim().strip_prefix(EXHAUSTIVE.trim_end()).is_some_and(|reason| reason.trim().len() > 10)
        }
        _ => false,
    })
}

impl Sources {
    /// Reads a module, `text`, and those below it, by `load`.
    fn read(&mut self, path: &str, text: &str, load: &impl Fn(&str) -> String) {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        self.read_items(path, &file.items, load);
    }

    fn read_items(&mut self, path: &str, items: &[syn::Item], load: &impl Fn(&str) -> String) {
        let mut module = Module::default();
        for item in items {
            match item {
                syn::Item::Mod(inner) if !is_of_tests(&inner.attrs) => {
                    let name = inner.ident.to_string();
                    let inner_path = join(path, &name);
                    match &inner.content {
                        Some((_, items)) => self.read_items(&inner_path, items, load),
                        None => self.read(&inner_path, &load(&inner_path), load),
                    }
                    module.children.insert(name, is_public(&inner.vis));
                }
                syn::Item::Use(item) if !is_of_tests(&item.attrs) => {
                    flatten(&item.tree, is_public(&item.vis), &mut Vec::new(), &mut module.uses);
                }
                syn::Item::Impl(item) if !is_of_tests(&item.attrs) => {
                    if let (Some((_, of, _)), syn::Type::Path(this)) = (&item.trait_, &*item.self_ty)
                        && of.segments.last().is_some_and(|last| last.ident == "Error")
                    {
                        self.errors.extend(this.path.segments.last().map(|last| last.ident.to_string()));
                    }
                }
                _ => {}
            }
            if let Some((name, attributes, undecided)) = declared(item)
                && !is_of_tests(attributes)
            {
                module.items.insert(name, undecided.filter(|_| !is_decided(attributes)));
            }
            Results(&mut self.errors).visit_item(item);
        }
        self.modules.insert(path.to_owned(), module);
    }

    /// The module that a path in `module` refers to; `None` if that is in another crate.
    fn find(&self, module: &str, path: &[String]) -> Option<String> {
        let mut at = module.to_owned();
        for (index, word) in path.iter().enumerate() {
            at = match word.as_str() {
                "crate" if index == 0 => String::new(),
                "self" if index == 0 => at,
                "super" => at.rsplit_once("::").map_or(String::new(), |(outer, _)| outer.to_owned()),
                name if self.modules[&at].children.contains_key(name) => join(&at, name),
                _ => return None,
            };
        }
        Some(at)
    }

    /// Where a name in a module is defined, through any number of imports.
    fn origin(&self, module: &str, name: &str) -> String {
        let of_module = &self.modules[module];
        if !of_module.items.contains_key(name)
            && let Some(found) = of_module.uses.iter().find(|found| found.renamed == name)
        {
            return match self.find(module, &found.module) {
                Some(inner) => self.origin(&inner, &found.name),
                None => format!("{}::{}", found.module.join("::"), found.name),
            };
        }
        join(module, name)
    }

    /// Records the public paths of each item in the module `at`, whose own path is `path`.
    fn reach(&self, at: &str, path: &str, reached: &mut BTreeMap<String, BTreeSet<String>>) {
        let module = &self.modules[at];
        let mut note = |origin: String, name: &str| {
            reached.entry(origin).or_default().insert(join(path, name));
        };
        for name in module.items.keys() {
            note(join(at, name), name);
        }
        let mut inner = Vec::new();
        for found in module.uses.iter().filter(|found| found.is_public) {
            match self.find(at, &found.module) {
                Some(from) if found.name == "*" => inner.push((from, path.to_owned())),
                Some(from) => {
                    let is_module =
                        self.modules[&from].children.get(&found.name).is_some_and(|&public| public);
                    if is_module {
                        inner.push((join(&from, &found.name), join(path, &found.renamed)));
                    }
                    note(self.origin(&from, &found.name), &found.renamed);
                }
                None => note(format!("{}::{}", found.module.join("::"), found.name), &found.renamed),
            }
        }
        let public = module.children.iter().filter(|(_, public)| **public);
        inner.extend(public.map(|(name, _)| (join(at, name), join(path, name))));
        for (from, path) in inner {
            self.reach(&from, &path, reached);
        }
    }

    fn faults(&self) -> (Vec<String>, usize) {
        let (mut reached, mut faults) = (BTreeMap::new(), Vec::new());
        self.reach("", "", &mut reached);
        for (origin, paths) in &reached {
            if paths.len() > 1 {
                faults.push(format!("{origin} has several paths: {paths:?}"));
            }
            let (module, name) = origin.rsplit_once("::").unwrap_or(("", origin));
            let undecided = self.modules.get(module).and_then(|module| *module.items.get(name)?);
            match undecided {
                Some("struct") if !self.errors.contains(name) => {}
                Some(kind) => {
                    faults.push(format!("{kind} {origin}: non_exhaustive, or \"{EXHAUSTIVE}\" and why"))
                }
                None => {}
            }
        }
        (faults, reached.len())
    }
}

/// The name and the attributes of a public declaration; and the property that has to be decided.
fn declared(item: &syn::Item) -> Option<(String, &[syn::Attribute], Option<&'static str>)> {
    let (name, visibility, attributes, undecided) = match item {
        syn::Item::Const(item) => (&item.ident, &item.vis, &item.attrs, None),
        syn::Item::Enum(item) => (&item.ident, &item.vis, &item.attrs, Some("enum")),
        syn::Item::Fn(item) => (&item.sig.ident, &item.vis, &item.attrs, None),
        syn::Item::Static(item) => (&item.ident, &item.vis, &item.attrs, None),
        // With a private field no user can construct one, or match it without `..`.
        syn::Item::Struct(item) => {
            let is_open = item.fields.iter().all(|field| is_public(&field.vis));
            (&item.ident, &item.vis, &item.attrs, is_open.then_some("struct"))
        }
        syn::Item::Trait(item) => (&item.ident, &item.vis, &item.attrs, None),
        syn::Item::Type(item) => (&item.ident, &item.vis, &item.attrs, None),
        syn::Item::Union(item) => (&item.ident, &item.vis, &item.attrs, None),
        _ => return None,
    };
    is_public(visibility).then(|| (name.to_string(), attributes.as_slice(), undecided))
}

fn flatten(tree: &syn::UseTree, is_public: bool, module: &mut Vec<String>, uses: &mut Vec<Use>) {
    let mut found = |name: String, renamed: String| {
        uses.push(Use { is_public, module: module.clone(), name, renamed });
    };
    match tree {
        syn::UseTree::Path(path) => {
            module.push(path.ident.to_string());
            flatten(&path.tree, is_public, module, uses);
            module.pop();
        }
        syn::UseTree::Name(name) => found(name.ident.to_string(), name.ident.to_string()),
        syn::UseTree::Rename(name) => found(name.ident.to_string(), name.rename.to_string()),
        syn::UseTree::Glob(_) => found("*".to_owned(), "*".to_owned()),
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, is_public, module, uses))
        }
    }
}

/// Collects the errors that public functions return.
struct Results<'a>(&'a mut BTreeSet<String>);

impl Results<'_> {
    fn signature(&mut self, signature: &syn::Signature) {
        let syn::ReturnType::Type(_, kind) = &signature.output else { return };
        let syn::Type::Path(kind) = &**kind else { return };
        let Some(last) = kind.path.segments.last().filter(|last| last.ident == "Result") else { return };
        let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return };
        if let Some(syn::GenericArgument::Type(syn::Type::Path(error))) = arguments.args.iter().nth(1) {
            self.0.extend(error.path.segments.last().map(|last| last.ident.to_string()));
        }
    }
}

impl<'a> Visit<'a> for Results<'_> {
    fn visit_item_mod(&mut self, _: &'a syn::ItemMod) {}
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        if is_public(&item.vis) {
            self.signature(&item.sig);
        }
    }
    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if is_public(&item.vis) {
            self.signature(&item.sig);
        }
    }
    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        self.signature(&item.sig);
        visit::visit_trait_item_fn(self, item);
    }
}

fn text_of(sources: &Path, module: &str) -> String {
    let file = sources.join(module.replace("::", "/"));
    fs::read_to_string(file.with_extension("rs"))
        .or_else(|_| fs::read_to_string(file.join("mod.rs")))
        .unwrap()
}

#[test]
fn an_item_with_two_paths_or_an_enum_without_a_decision_is_in_no_published_crate() {
    let (mut faults, mut item_count) = (Vec::new(), 0);
    for name in PUBLISHED {
        let directory = workspace::root().join("crates").join(name).join("src");
        let mut sources = Sources::default();
        sources.read("", &text_of(&directory, "lib"), &|module| text_of(&directory, module));
        let (of_crate, items) = sources.faults();
        faults.extend(of_crate.iter().map(|fault| format!("{name}: {fault}")));
        item_count += items;
    }
    assert!(item_count > 180, "{item_count} items: the sources are not read as they are meant to be");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_a_crate_offers_is_found_as_the_compiler_finds_it() {
    let faults = |text: &str| {
        let mut sources = Sources::default();
        sources.read("", text, &|module| panic!("{module} is in no file"));
        sources.faults().0.len()
    };
    assert_eq!(faults("mod a { pub struct B; pub(crate) enum C {} } pub use a::B;"), 0);
    assert_eq!(faults("pub mod a { pub struct B; } pub use a::B;"), 1, "through the module and not");
    assert_eq!(faults("pub mod a { pub struct B; } use a::B;"), 0);
    assert_eq!(faults("mod a { pub fn a() {} } pub use a::a; pub mod b { pub use crate::a::a as c; }"), 1);
    let twice = "mod a { pub struct B; } mod c { pub use super::a::B; } pub use a::B; pub use c::B as D;";
    assert_eq!(faults(twice), 1);
    assert_eq!(faults("pub mod a { pub const B: u8 = 0; } pub use a::*;"), 1);
    assert_eq!(faults("pub mod a { pub const B: u8 = 0; } pub use a as c;"), 1);
    assert_eq!(faults("pub use other::A; pub mod b { pub use other::A; }"), 1);
    assert_eq!(faults("#[cfg(all(test, not(loom)))] mod tests; #[cfg(test)] pub enum A {}"), 0);

    assert_eq!(faults("pub enum A {}"), 1);
    assert_eq!(
        faults("#[non_exhaustive] pub enum A {} /// Exhaustive: there is nothing else.\npub enum B {}"),
        0
    );
    assert_eq!(faults("/// Exhaustive:\npub enum B {}"), 1, "it does not say why");
    assert_eq!(faults("mod a { pub enum B {} } pub use a::B;"), 1);
    assert_eq!(faults("mod a { pub enum B {} } use a::B;"), 0, "nobody else sees it");
    assert_eq!(faults("pub struct A; pub fn b() -> Result<(), A> {}"), 1);
    assert_eq!(faults("pub struct A; impl core::error::Error for A {}"), 1);
    assert_eq!(faults("pub struct A(u8); impl core::error::Error for A {} pub struct B;"), 0);
}

#[test]
fn the_licences_of_the_published_crates_are_those_of_the_tree() {
    for name in PUBLISHED {
        for licence in LICENCES {
            let of_crate = fs::read(workspace::root().join("crates").join(name).join(licence)).unwrap();
            let of_tree = fs::read(workspace::root().join(licence)).unwrap();
            assert!(of_crate == of_tree, "{licence} of {name} is another one");
        }
    }
}
