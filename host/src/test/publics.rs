//! The API of the published crates: each item has one path, and each enum says whether it may grow.
//!
//! An item with two paths is documented twice, and users name it in two ways. Adding a variant to
//! an enum breaks users that match it, unless it is `#[non_exhaustive]`. If that would let a user
//! overlook a case that must not be overlooked, the enum's documentation says so: "Exhaustive: "
//! and the reason. The same applies to structs that are errors. What is `pub` can be reached, by
//! the lint `unreachable_pub`.

use super::packages::PUBLISHED;
use super::panics::{is_of_tests, not_for_tests};
use crate::prelude::*;
use syn::visit::Visit;

const EXHAUSTIVE: &str = "Exhaustive: ";

/// What a crate offers, by paths: `a::B` for `B` in its module `a`.
#[derive(Default)]
struct Api {
    /// Modules, and whether each is public in the one around it.
    modules: BTreeMap<String, bool>,
    /// Public items, with the undecided property of each.
    items: BTreeMap<String, Option<&'static str>>,
    /// Names that are imported, whether each is public, and where it comes from.
    uses: BTreeMap<String, (bool, String)>,
    /// Types that functions return as errors, or that implement `Error`.
    errors: BTreeSet<String>,
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

fn around(path: &str) -> &str {
    path.rsplit_once("::").map_or("", |(module, _)| module)
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

impl Api {
    fn read(&mut self, module: &str, text: &str) {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{module}: {error}"));
        self.read_items(module, &file.items);
    }

    fn read_items(&mut self, module: &str, items: &[syn::Item]) {
        for item in items {
            match item {
                syn::Item::Mod(inner) if !is_of_tests(&inner.attrs) => {
                    let path = join(module, &inner.ident.to_string());
                    inner.content.iter().for_each(|(_, items)| self.read_items(&path, items));
                    self.modules.insert(path, is_public(&inner.vis));
                }
                syn::Item::Use(item) if !is_of_tests(&item.attrs) => {
                    self.import(module, is_public(&item.vis), "", &item.tree);
                }
                syn::Item::Mod(_) | syn::Item::Use(_) => {}
                item => self.visit_item(item),
            }
            if let Some((name, attributes, undecided)) = declared(item)
                && !is_of_tests(attributes)
            {
                self.items.insert(join(module, &name), undecided.filter(|_| !is_decided(attributes)));
            }
        }
    }

    fn import(&mut self, module: &str, is_public: bool, from: &str, tree: &syn::UseTree) {
        let mut add = |name: &dyn ToString, renamed: &dyn ToString| {
            let from = join(from, &name.to_string());
            self.uses.insert(join(module, &renamed.to_string()), (is_public, from));
        };
        match tree {
            syn::UseTree::Name(name) => add(&name.ident, &name.ident),
            syn::UseTree::Rename(name) => add(&name.ident, &name.rename),
            // All of it has two paths, or should be named.
            syn::UseTree::Glob(_) => add(&"*", &format!("* of {from}")),
            syn::UseTree::Path(path) => {
                self.import(module, is_public, &join(from, &path.ident.to_string()), &path.tree);
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(module, is_public, from, tree));
            }
        }
    }

    /// Where a name is defined, through any number of imports. What is in another crate keeps the
    /// path by which it was imported.
    fn origin(&self, path: &str) -> String {
        let Some((_, from)) = self.uses.get(path) else { return path.to_owned() };
        let (mut at, mut rest) = (around(path), from.as_str());
        loop {
            let (word, more) = rest.split_once("::").unwrap_or((rest, ""));
            (at, rest) = match word {
                "crate" => ("", more),
                "self" => (at, more),
                "super" => (around(at), more),
                name if self.modules.contains_key(&join(at, name)) || more.is_empty() => {
                    return self.origin(&join(at, rest));
                }
                _ => return rest.to_owned(),
            };
        }
    }

    fn is_reached(&self, module: &str) -> bool {
        module.is_empty()
            || self.modules.get(module).is_some_and(|public| *public) && self.is_reached(around(module))
    }

    fn faults(&self) -> Vec<String> {
        let mut paths = BTreeMap::<String, Vec<&str>>::new();
        let modules = self.modules.iter().filter(|(_, public)| **public).map(|(path, _)| path);
        let imported = self.uses.iter().filter(|(_, (public, _))| *public).map(|(path, _)| path);
        for path in
            self.items.keys().chain(modules).chain(imported).filter(|path| self.is_reached(around(path)))
        {
            paths.entry(self.origin(path)).or_default().push(path);
        }
        let several = paths.iter().filter(|(origin, paths)| paths.len() > 1 || origin.ends_with('*'));
        let several = several.map(|(origin, paths)| format!("{origin} has several paths: {paths:?}"));
        let is_error = |path: &str| path.rsplit("::").next().is_some_and(|name| self.errors.contains(name));
        let undecided = self.items.iter().filter_map(|(path, undecided)| match *undecided {
            Some("struct") if !is_error(path) => None,
            kind => Some(format!("{} {path}: non_exhaustive, or \"{EXHAUSTIVE}\" and why", kind?)),
        });
        several.chain(undecided).collect()
    }
}

impl<'a> Visit<'a> for Api {
    fn visit_signature(&mut self, signature: &'a syn::Signature) {
        let syn::ReturnType::Type(_, kind) = &signature.output else { return };
        let syn::Type::Path(kind) = &**kind else { return };
        let Some(last) = kind.path.segments.last().filter(|last| last.ident == "Result") else { return };
        let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else { return };
        if let Some(syn::GenericArgument::Type(syn::Type::Path(error))) = arguments.args.iter().nth(1) {
            self.errors.extend(error.path.segments.last().map(|last| last.ident.to_string()));
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if let (Some((_, of, _)), syn::Type::Path(this)) = (&item.trait_, &*item.self_ty)
            && of.segments.last().is_some_and(|last| last.ident == "Error")
        {
            self.errors.extend(this.path.segments.last().map(|last| last.ident.to_string()));
        }
        syn::visit::visit_item_impl(self, item);
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

#[test]
fn an_item_with_two_paths_or_an_enum_without_a_decision_is_in_no_published_crate() {
    let (mut faults, mut item_count) = (Vec::new(), 0);
    for name in PUBLISHED {
        let (mut api, directory) = (Api::default(), format!("crates/{name}/src/"));
        for (file, text) in not_for_tests(directory.trim_end_matches('/')) {
            let module = file.trim_start_matches(&directory).trim_end_matches(".rs").trim_end_matches("/mod");
            api.read(&if module == "lib" { String::new() } else { module.replace('/', "::") }, text);
        }
        faults.extend(api.faults().iter().map(|fault| format!("{name}: {fault}")));
        item_count += api.items.len();
    }
    assert!(item_count > 180, "{item_count} items: the sources are not read as they are meant to be");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_a_crate_offers_is_found_as_the_compiler_finds_it() {
    let twice = "mod a { pub struct B; } mod c { pub use super::a::B; } pub use a::B; pub use c::B as D;";
    for (text, count) in [
        ("mod a { pub struct B; pub(crate) enum C {} } pub use a::B;", 0),
        // Through the module and not.
        ("pub mod a { pub struct B; } pub use a::B;", 1),
        ("pub mod a { pub struct B; } use a::B;", 0),
        ("mod a { pub fn a() {} } pub use a::a; pub mod b { pub use crate::a::a as c; }", 1),
        (twice, 1),
        ("mod a { mod c { pub struct B; } pub use c::B; } pub use a::B;", 0),
        ("pub mod a { pub const B: u8 = 0; } pub use a::*;", 1),
        ("pub mod a { pub const B: u8 = 0; } pub use a as c;", 1),
        ("pub use other::A; pub mod b { pub use other::A; }", 1),
        ("#[cfg(all(test, not(loom)))] mod tests; #[cfg(test)] pub enum A {}", 0),
        ("pub enum A {}", 1),
        ("#[non_exhaustive] pub enum A {} /// Exhaustive: there is nothing else.\npub enum B {}", 0),
        // It does not say why.
        ("/// Exhaustive:\npub enum B {}", 1),
        ("mod a { pub enum B {} } pub use a::B;", 1),
        ("pub struct A; pub fn b() -> Result<(), A> {}", 1),
        ("pub struct A; impl core::error::Error for A {}", 1),
        ("pub struct A(u8); impl core::error::Error for A {} pub struct B;", 0),
    ] {
        let mut api = Api::default();
        api.read("", text);
        assert_eq!(api.faults().len(), count, "{text}: {:?}", api.faults());
    }
}
