//! Questions about expressions.

use syn::{BinOp, Expr, Lit, Stmt, Type};

pub(super) fn is_result_of_nothing(path: &syn::TypePath) -> bool {
    let Some(last) = path.path.segments.last().filter(|last| last.ident == "Result") else { return false };
    let syn::PathArguments::AngleBracketed(of) = &last.arguments else { return false };
    matches!(of.args.first(), Some(syn::GenericArgument::Type(Type::Tuple(tuple))) if tuple.elems.is_empty())
}

/// An expression that is there for what it does.
pub(super) fn is_effect(expression: &Expr) -> bool {
    match expression {
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) => true,
        Expr::Binary(binary) => matches!(
            binary.op,
            BinOp::AddAssign(_)
                | BinOp::SubAssign(_)
                | BinOp::MulAssign(_)
                | BinOp::BitAndAssign(_)
                | BinOp::BitOrAssign(_)
                | BinOp::BitXorAssign(_)
                | BinOp::ShlAssign(_)
                | BinOp::ShrAssign(_)
        ),
        Expr::Try(inner) => is_effect(&inner.expr),
        _ => false,
    }
}

pub(super) fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

pub(super) fn is_simple(expression: &Expr) -> bool {
    match expression {
        Expr::Path(_) | Expr::Lit(_) => true,
        Expr::Field(field) => is_simple(&field.base),
        Expr::Reference(reference) => reference.mutability.is_none() && is_simple(&reference.expr),
        _ => false,
    }
}

pub(super) fn is_reference(expression: &Expr) -> bool {
    matches!(expression, Expr::Reference(_))
}

/// A literal's neighbour.
pub(super) fn neighbour(literal: &Lit) -> Option<String> {
    match literal {
        Lit::Bool(value) => Some((!value.value).to_string()),
        Lit::Int(value) => {
            let number: u128 = value.base10_parse().ok()?;
            let is_full = [0x7f, 0xff, 0xffff, 0xffff_ffff, u128::from(u64::MAX)].contains(&number);
            let other = if is_full { number - 1 } else { number.checked_add(1)? };
            Some(format!("{other}{}", value.suffix()))
        }
        _ => None,
    }
}

pub(super) fn has_attributes(expression: &Expr) -> bool {
    let attributes = match expression {
        Expr::Call(of) => &of.attrs,
        Expr::MethodCall(of) => &of.attrs,
        Expr::Assign(of) => &of.attrs,
        Expr::Binary(of) => &of.attrs,
        Expr::Try(of) => &of.attrs,
        Expr::If(of) => &of.attrs,
        Expr::Match(of) => &of.attrs,
        Expr::Block(of) => &of.attrs,
        Expr::Unsafe(of) => &of.attrs,
        Expr::ForLoop(of) => &of.attrs,
        Expr::While(of) => &of.attrs,
        Expr::Loop(of) => &of.attrs,
        _ => return false,
    };
    !attributes.is_empty()
}

/// Both sides of a statement that only assigns.
pub(super) fn assigned(statement: &Stmt) -> Option<(&Expr, &Expr)> {
    match statement {
        Stmt::Expr(Expr::Assign(assign), _) => Some((&assign.left, &assign.right)),
        Stmt::Expr(Expr::Binary(binary), _) if is_effect(&Expr::Binary(binary.clone())) => {
            Some((&binary.left, &binary.right))
        }
        _ => None,
    }
}
