//! What the conditions (`cfg`) of an item leave of it.

use syn::{Expr, Lit};

/// Conditions that hold both in the product and in its tests on this computer.
pub(super) fn is_built(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().all(|attribute| {
        if attribute.path().is_ident("test") {
            return false;
        }
        let syn::Meta::List(list) = &attribute.meta else { return true };
        if !list.path.is_ident("cfg") {
            return true;
        }
        let Ok(condition) = list.parse_args::<syn::Meta>() else { return false };
        holds(&condition, false) && holds(&condition, true)
    })
}

fn holds(condition: &syn::Meta, in_test: bool) -> bool {
    let parts = |list: &syn::MetaList| {
        let parser = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
        list.parse_args_with(parser).unwrap_or_default()
    };
    match condition {
        syn::Meta::Path(path) => path.is_ident("test") && in_test || path.is_ident("unix"),
        syn::Meta::List(list) if list.path.is_ident("not") => {
            !parts(list).iter().all(|part| holds(part, in_test))
        }
        syn::Meta::List(list) if list.path.is_ident("any") => {
            parts(list).iter().any(|part| holds(part, in_test))
        }
        syn::Meta::List(list) => parts(list).iter().all(|part| holds(part, in_test)),
        syn::Meta::NameValue(pair) => {
            let value = match &pair.value {
                Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) => text.value(),
                _ => String::new(),
            };
            ["x86_64", "linux", "64", "little", "trace"].contains(&value.as_str())
        }
    }
}
