//! Every atomic operation with an order names its partner, on another CPU, that it is ordered with.
//!
//! An order without a partner has no effect, and one whose partner is unknown gets changed without
//! considering it. So if there is `Acquire`, `Release`, `AcqRel` or `SeqCst` in code that is not
//! for tests, a comment says "pairs with" or "partner": in the same line, in one of the three
//! before it, or in the documentation of the function.

use super::panics::not_for_tests;

/// Sources of code that runs concurrently.
const CRATES: &str = "baremetal coherence hostlink iommu memslots migration paging pic pvflush stay tlfs";

const ORDERS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];
const NAMING: [&str; 3] = ["pairs with ", "pair with ", "partner"];
/// A comment applies to operations up to this many lines below.
const LINES_BEFORE: usize = 3;

/// The code of a line, and its comment.
fn parts(line: &str) -> (&str, &str) {
    line.split_once("//").unwrap_or((line, ""))
}

fn names_partner(comment: &str) -> bool {
    let comment = comment.to_lowercase();
    NAMING.iter().any(|phrase| comment.contains(phrase))
}

fn has_order(code: &str) -> bool {
    let mut words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.any(|word| ORDERS.contains(&word))
}

fn begins_function(code: &str) -> bool {
    code.starts_with("fn ") || code.contains(" fn ")
}

/// Whether the documentation right before line `index` names a partner.
fn documentation_names_partner(lines: &[&str], index: usize) -> bool {
    let is_before = |line: &&&str| {
        let line = line.trim_start();
        line.starts_with("///") || line.starts_with("#[")
    };
    lines[..index].iter().rev().take_while(is_before).any(|line| names_partner(parts(line).1))
}

/// The numbers of the lines with an order whose partner is not named.
fn nameless(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let (mut in_tests, mut in_use, mut function) = (false, false, None);
    for (index, line) in lines.iter().enumerate() {
        let (code, comment) = parts(line);
        // Modules for tests and models, which `rustfmt` ends at the beginning of a line.
        if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
            in_tests =
                lines.get(index + 1).is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        }
        if in_tests {
            in_tests = *line != "}";
            continue;
        }
        in_use |=
            ["use ", "pub use ", "pub(crate) use "].iter().any(|start| code.trim_start().starts_with(start));
        if in_use {
            in_use = !code.contains(';');
            continue;
        }
        if begins_function(code) {
            function = Some(index);
        }
        if !has_order(code) {
            continue;
        }
        let near =
            lines[index.saturating_sub(LINES_BEFORE)..index].iter().any(|line| names_partner(parts(line).1));
        let is_named = near
            || names_partner(comment)
            || function.is_some_and(|function| documentation_names_partner(&lines, function));
        if !is_named {
            found.push(index + 1);
        }
    }
    found
}

#[test]
fn each_order_names_its_partner() {
    let mut missing = Vec::new();
    let mut orders = 0;
    let sources = CRATES.split(' ').map(|name| format!("crates/{name}/src"));
    for source in sources.chain(["hypervisor/src".to_owned()]) {
        for (name, text) in not_for_tests(&source) {
            orders += text.lines().filter(|line| has_order(parts(line).0)).count();
            missing.extend(nameless(text).iter().map(|line| format!("{name}:{line}")));
        }
    }
    assert!(orders > 150, "{orders} orders: the sources are not read as they are meant to be");
    assert!(missing.is_empty(), "what does it pair with?\n{}", missing.join("\n"));
}

#[test]
fn an_order_without_a_partner_is_found() {
    let nameless = |text: &str| nameless(text).len();
    assert_eq!(nameless("fn a() {\n    b.load(Acquire);\n}\n"), 1);
    assert_eq!(nameless("fn a() {\n    b.load(Ordering::AcqRel); // c\n}\n"), 1);
    assert_eq!(nameless("fn a() {\n    b.load(Acquire); // Pairs with `c`.\n}\n"), 0);
    assert_eq!(nameless("fn a() {\n    // Its partner is `c`.\n    b\n        .load(Acquire);\n}\n"), 0);
    let far = "// Pairs with `c`.\nfn a() {\n    d();\n    e();\n    b.load(Acquire);\n}\n";
    assert_eq!(nameless(far), 1, "too far");
    let near = "/// Pairs with `c`.\n#[inline]\nfn a() {\n    d();\n    e();\n    b.load(Acquire);\n}\n";
    assert_eq!(nameless(near), 0);
    let other = "/// Pairs with `c`.\nfn a() {}\n\nfn d() {\n    e();\n    f();\n    b.load(Acquire);\n}\n";
    assert_eq!(nameless(other), 1);
    assert_eq!(nameless("let pairs_with = \"pairs with \"; b.load(SeqCst);\n"), 1, "not a comment");
    assert_eq!(nameless("use a::{\n    Acquire,\n};\nfn b() -> Released { c.load(Relaxed) }\n"), 0);
    let ends = "#[cfg(test)]\nmod tests {\n    fn a() { b.load(Acquire) }\n}\nc.store(1, Release);\n";
    assert_eq!(nameless(ends), 1);
    assert_eq!(nameless("#[cfg(all(test, loom))]\nmod model;\nc.store(1, Release);\n"), 1);
}
