//! What can be changed in a file, and how: each change is text that is inserted around a place, so
//! that changes inside of each other do not meet.

use super::built::is_built;
use super::expressions::{
    assigned, has_attributes, has_let, is_effect, is_reference, is_result_of_nothing, is_simple, neighbour,
};
use super::inserted::Wrap;
use crate::prelude::*;
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, ReturnType, Stmt, Type};

/// A mutant: what changes, where, and the text that asks whether it runs, with `#` for its number.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// `fn name: leave out `text``.
    pub(super) what: String,
    pub(super) line: usize,
    pub(super) wraps: Vec<Wrap>,
    /// The function around it, if the compiler can compute that (`const fn`).
    pub(super) computed: Option<String>,
}

/// What is in a file.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) sites: Vec<Site>,
    /// Functions that the compiler can compute, and where it says so.
    pub(super) computed: Vec<(String, Range<usize>)>,
}

struct Finder<'a> {
    text: &'a str,
    function: String,
    is_computed: bool,
    /// Constants of the file by name: the next one of the same type.
    neighbours: &'a BTreeMap<String, String>,
    found: Found,
}

/// All sites of a file.
///
/// # Errors
/// What cannot be parsed.
pub(super) fn find(text: &str) -> syn::Result<Found> {
    let file = syn::parse_file(text)?;
    let mut constants = BTreeMap::<String, Vec<String>>::new();
    for item in &file.items {
        if let syn::Item::Const(item) = item
            && is_built(&item.attrs)
        {
            constants.entry(cut(text, item.ty.span())).or_default().push(item.ident.to_string());
        }
    }
    let neighbours = constants.values().filter(|names| names.len() > 1).flat_map(|names| {
        let next = names.iter().cycle().skip(1);
        names.iter().cloned().zip(next.cloned())
    });
    let neighbours = neighbours.collect();
    let found = Found { sites: Vec::new(), computed: Vec::new() };
    let mut finder =
        Finder { text, function: String::new(), is_computed: false, neighbours: &neighbours, found };
    finder.visit_file(&file);
    let found = finder.found;
    proc_macro2::extra::invalidate_current_thread_spans();
    Ok(found)
}

fn cut(text: &str, span: Span) -> String {
    text[span.byte_range()].to_owned()
}

/// One line, of bounded length.
fn short(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(70) {
        Some((end, _)) => format!("{} …", &words[..end]),
        None => words,
    }
}

const YES: &str = "::quell_mutant::is(#)";

impl Finder<'_> {
    fn add(&mut self, what: &str, place: Span, wraps: Vec<Wrap>) {
        let what = format!("fn {}: {what}", self.function);
        let computed = self.is_computed.then(|| self.function.clone());
        self.found.sites.push(Site { what, line: place.start().line, wraps, computed });
    }

    fn text_of(&self, spanned: &impl Spanned) -> &str {
        &self.text[spanned.span().byte_range()]
    }

    /// `spanned` becomes `other`.
    fn replace(&mut self, what: &str, spanned: &impl Spanned, other: &str) {
        let range = spanned.span().byte_range();
        let before = format!("(if {YES} {{ ({other}) }} else {{ (");
        self.add(what, spanned.span(), vec![Wrap { range, before, after: ") })" }]);
    }

    /// The line says which of a function's constants it is.
    fn constant(&mut self, constant: &impl Spanned, other: &str) {
        let Range { start, end } = constant.span().byte_range();
        let begin = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let end = self.text[end..].find('\n').map_or(self.text.len(), |len| end + len);
        let line = short(&self.text[begin..end]);
        let what = format!("{other} for `{}` in `{line}`", self.text_of(constant));
        self.replace(&what, constant, other);
    }

    fn omit(&mut self, spanned: &impl Spanned) {
        let what = format!("leave out `{}`", short(self.text_of(spanned)));
        let wrap = Wrap { range: spanned.span().byte_range(), before: format!("if !{YES} {{ "), after: " }" };
        self.add(&what, spanned.span(), vec![wrap]);
    }

    fn exchange(&mut self, first: &Stmt, second: &Stmt) {
        let (one, other) = (self.text_of(first), self.text_of(second));
        let what = format!("exchange `{}` and `{}`", short(one), short(other));
        let start = first.span().byte_range().start;
        let early = Wrap { range: start..start, before: format!("if {YES} {{ {other} }} "), after: "" };
        let late = Wrap { range: second.span().byte_range(), before: format!("if !{YES} {{ "), after: " }" };
        self.add(&what, first.span(), vec![early, late]);
    }

    /// Two assignments of which neither reads what the other writes.
    fn are_independent(&self, first: &Stmt, second: &Stmt) -> bool {
        let [Some((one, reads)), Some((other, also))] = [first, second].map(assigned) else { return false };
        !self.text_of(reads).contains(self.text_of(other)) && !self.text_of(also).contains(self.text_of(one))
    }

    fn body(&mut self, output: &ReturnType, block: &Block) {
        let start = block.brace_token.span.open().byte_range().end;
        // What it returns already.
        let known = match &block.stmts[..] {
            [only] => self.text_of(only).to_owned(),
            _ => String::new(),
        };
        let mut begin = |what: &str, value: &str| {
            if known == value {
                return;
            }
            let before = format!(" if {YES} {{ return {value}; }} ");
            self.add(
                what,
                block.brace_token.span.open(),
                vec![Wrap { range: start..start, before, after: "" }],
            );
        };
        match output {
            ReturnType::Default => {
                if let Some(Stmt::Expr(last, None)) = block.stmts.last()
                    && is_effect(last)
                {
                    self.omit(last);
                }
            }
            ReturnType::Type(_, of) => match &**of {
                Type::Path(path) if path.path.is_ident("bool") => {
                    begin("returns true", "true");
                    begin("returns false", "false");
                }
                Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Option") => {
                    begin("returns None", "None");
                }
                Type::Path(path) if is_result_of_nothing(path) => begin("returns Ok(())", "Ok(())"),
                _ => {}
            },
        }
    }

    fn function(&mut self, signature: &syn::Signature, block: &Block, more: impl FnOnce(&mut Self)) {
        // The start of a program is not a function to leave.
        if matches!(signature.output, ReturnType::Type(_, ref of) if matches!(**of, Type::Never(_))) {
            return;
        }
        let name = signature.ident.to_string();
        if let Some(says) = signature.constness {
            self.found.computed.push((name.clone(), says.span().byte_range()));
        }
        let outer = std::mem::replace(&mut self.function, name);
        let outside = std::mem::replace(&mut self.is_computed, signature.constness.is_some());
        self.body(&signature.output, block);
        more(self);
        (self.function, self.is_computed) = (outer, outside);
    }

    fn compared(&mut self, binary: &syn::ExprBinary) {
        let other = match binary.op {
            BinOp::Lt(_) => "<=",
            BinOp::Le(_) => "<",
            BinOp::Gt(_) => ">=",
            BinOp::Ge(_) => ">",
            BinOp::Eq(_) => "!=",
            BinOp::Ne(_) => "==",
            BinOp::Add(_) => "-",
            BinOp::Sub(_) => "+",
            BinOp::BitAnd(_) => "|",
            BinOp::BitOr(_) => "&",
            BinOp::Shl(_) => ">>",
            BinOp::Shr(_) => "<<",
            BinOp::And(_) => "||",
            BinOp::Or(_) => "&&",
            _ => return,
        };
        if has_let(&binary.left) || has_let(&binary.right) {
            return;
        }
        let (left, right) = (self.text_of(&binary.left), self.text_of(&binary.right));
        let what = format!("{other} in `{}`", short(self.text_of(binary)));
        let changed = format!("({left}) {other} ({right})");
        self.replace(&what, binary, &changed);
    }

    fn arguments<'e>(&mut self, arguments: impl Iterator<Item = &'e Expr>) {
        let arguments: Vec<_> = arguments.collect();
        for pair in arguments.windows(2) {
            let [first, second] = pair else { continue };
            let (one, other) = (self.text_of(*first).to_owned(), self.text_of(*second).to_owned());
            if one == other
                || !is_simple(first)
                || !is_simple(second)
                || is_reference(first) != is_reference(second)
            {
                continue;
            }
            let wrap = |of: &Expr, text: &str| Wrap {
                range: of.span().byte_range(),
                before: format!("(if {YES} {{ ({text}) }} else {{ ("),
                after: ") })",
            };
            let what = format!("exchange the arguments `{}` and `{}`", short(&one), short(&other));
            self.add(&what, first.span(), vec![wrap(first, &other), wrap(second, &one)]);
        }
    }

    fn condition(&mut self, condition: &Expr) {
        // A comparison is inverted as such.
        if has_let(condition)
            || matches!(condition, Expr::Binary(binary) if matches!(binary.op, BinOp::Eq(_) | BinOp::Ne(_)))
        {
            return;
        }
        let what = format!("not `{}`", short(self.text_of(condition)));
        let wrap = Wrap { range: condition.span().byte_range(), before: format!("({YES} != ("), after: "))" };
        self.add(&what, condition.span(), vec![wrap]);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        use syn::Item::{Const, Enum, Macro, Static, Type};
        if !matches!(item, Const(_) | Static(_) | Enum(_) | Macro(_) | Type(_)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if is_built(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        // What is printed is for people.
        let is_display = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let is_display =
            is_display.is_some_and(|last| ["Debug", "Display"].contains(&last.ident.to_string().as_str()));
        if is_built(&item.attrs) && !is_display {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if is_built(&item.attrs) {
            self.function(&item.sig, &item.block, |finder| finder.visit_block(&item.block));
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if is_built(&item.attrs) {
            self.function(&item.sig, &item.block, |finder| finder.visit_block(&item.block));
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default
            && is_built(&item.attrs)
        {
            self.function(&item.sig, block, |finder| finder.visit_block(block));
        }
    }

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_block(&mut self, block: &'ast Block) {
        let is_plain = |statement: &Stmt| matches!(statement, Stmt::Expr(of, Some(_)) if is_effect(of) && !has_attributes(of));
        for statement in block.stmts.iter().filter(|statement| is_plain(statement)) {
            self.omit(statement);
        }
        for pair in block.stmts.windows(2) {
            if let [first, second] = pair
                && is_plain(first)
                && is_plain(second)
                && !self.are_independent(first, second)
            {
                self.exchange(first, second);
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let is_built = match statement {
            Stmt::Local(local) => is_built(&local.attrs),
            Stmt::Expr(expression, _) => !has_attributes(expression),
            Stmt::Item(_) | Stmt::Macro(_) => true,
        };
        if is_built {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_expr_if(&mut self, expression: &'ast syn::ExprIf) {
        self.condition(&expression.cond);
        visit::visit_expr_if(self, expression);
    }

    fn visit_expr_while(&mut self, expression: &'ast syn::ExprWhile) {
        self.condition(&expression.cond);
        visit::visit_expr_while(self, expression);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !is_built(&arm.attrs) {
            return;
        }
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        self.compared(binary);
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        self.arguments(call.args.iter());
        // The name of a function is no constant.
        call.args.iter().for_each(|argument| self.visit_expr(argument));
        if !matches!(*call.func, Expr::Path(_)) {
            self.visit_expr(&call.func);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.arguments(call.args.iter());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_lit(&mut self, literal: &'ast syn::ExprLit) {
        if let Some(other) = neighbour(&literal.lit) {
            self.constant(literal, &other);
        }
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let neighbours = self.neighbours;
        if let Some(other) = path.path.get_ident().and_then(|name| neighbours.get(&name.to_string())) {
            self.constant(path, other);
        }
    }
}
