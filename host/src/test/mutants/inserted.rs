//! Text that is inserted around places of a file: changes inside of each other do not meet.

use super::sites::Site;
use std::cmp::Reverse;
use std::ops::Range;

/// Text before and after a range of bytes. An empty range has text before it only.
#[derive(Clone, Debug)]
pub(super) struct Wrap {
    pub(super) range: Range<usize>,
    pub(super) before: String,
    pub(super) after: &'static str,
}

/// The file with the questions of `sites`, each with its number, and where in the new text each
/// number's places are.
pub(super) fn insert<'s>(
    text: &str,
    sites: impl Iterator<Item = (u32, &'s Site)>,
) -> (String, Vec<(u32, Range<usize>)>) {
    let mut open: Vec<(u32, &Wrap)> =
        sites.flat_map(|(number, site)| site.wraps.iter().map(move |wrap| (number, wrap))).collect();
    // At the same place: insertions, then the outer ones. Equal ranges keep their order.
    open.sort_by_key(|(_, wrap)| {
        let Range { start, end } = wrap.range;
        (start, start != end, Reverse(end))
    });
    let (mut new, mut places, mut at) = (String::new(), Vec::new(), 0);
    let mut inside: Vec<(u32, &Wrap, usize)> = Vec::new();
    let mut close =
        |inside: &mut Vec<(u32, &Wrap, usize)>, new: &mut String, at: &mut usize, until: usize| {
            while let Some((number, wrap, began)) = inside.pop_if(|(_, wrap, _)| wrap.range.end <= until) {
                new.push_str(&text[*at..wrap.range.end]);
                *at = wrap.range.end;
                new.push_str(wrap.after);
                places.push((number, began..new.len()));
            }
        };
    for (number, wrap) in open {
        close(&mut inside, &mut new, &mut at, wrap.range.start);
        new.push_str(&text[at..wrap.range.start]);
        at = wrap.range.start;
        let began = new.len();
        new.push_str(&wrap.before.replace("is(#)", &format!("is({number})")));
        inside.push((number, wrap, began));
        if wrap.range.is_empty() {
            close(&mut inside, &mut new, &mut at, wrap.range.start);
        }
    }
    close(&mut inside, &mut new, &mut at, text.len());
    new.push_str(&text[at..]);
    (new, places)
}

#[cfg(test)]
mod tests {
    use crate::test::mutants::sites;

    /// The text with every change, and what each is called.
    fn changed(text: &str) -> (String, Vec<String>) {
        let sites = sites::find(text).expect("can be parsed").sites;
        let (new, places) = super::insert(text, (0..).zip(&sites));
        syn::parse_file(&new).expect("can be parsed with all its changes");
        for (number, range) in places {
            assert!(new[range].contains(&format!("is({number})")), "{number} is not at its place");
        }
        (new, sites.into_iter().map(|site| site.what).collect())
    }

    #[test]
    fn each_change_asks_and_all_of_them_fit_into_one_file() {
        let (new, names) = changed("fn f(x: &X) {\n  a(1, x.b);\n x.c += 1; d(); }");
        let expected = [
            "fn f: leave out `a(1, x.b);`",
            "fn f: leave out `x.c += 1;`",
            "fn f: leave out `d();`",
            "fn f: exchange `a(1, x.b);` and `x.c += 1;`",
            "fn f: exchange `x.c += 1;` and `d();`",
            "fn f: exchange the arguments `1` and `x.b`",
            "fn f: 2 for `1` in `a(1, x.b);`",
            "fn f: 2 for `1` in `x.c += 1; d(); }`",
        ];
        assert_eq!(names, expected);
        assert!(
            new.contains("if ::quell_mutant::is(3) { x.c += 1; } if !::quell_mutant::is(0) { a("),
            "{new}"
        );
    }

    #[test]
    fn conditions_results_and_constants_are_changed() {
        let text =
            "const A: u8 = 1; const B: u8 = 2; fn f(x: u8) -> bool { if x < A { g(x) } else { x == 3 } }";
        let (new, names) = changed(text);
        let all = names.join("\n");
        for one in
            ["returns true", "returns false", "<= in", "not `x < A`", "B for `A`", "!= in", "4 for `3`"]
        {
            assert!(all.contains(one), "{one}: {all}");
        }
        assert!(new.starts_with("const A: u8 = 1; const B: u8 = 2; fn"), "constants stay: {new}");
    }

    #[test]
    fn what_cannot_ask_or_is_not_built_stays() {
        let text = "#[cfg(test)] fn g() { a(); } #[cfg(target_os = \"none\")] mod m { fn h() { a(); } } \
                    fn i() { #[cfg(loom)] a(); } impl Display for X { fn fmt() { a(); } } fn n() -> ! { a(); loop {} }";
        assert_eq!(changed(text), (text.to_owned(), vec![]));
        assert_eq!(
            changed("fn f() -> bool { false }").1,
            ["fn f: returns true", "fn f: true for `false` in `fn f() -> bool { false }`"]
        );
        let text = "#[cfg(not(loom))] fn f() { a(); }";
        assert_eq!(changed(text).1.len(), 1);
    }
}
