//! GRUB's command `test`, or `[`. Source: GNU GRUB Manual 2.06, chapter 16.3 (test).

use crate::version::compare;

/// What a condition knows of a path.
pub(crate) enum Kind {
    /// Nothing is there.
    Nothing,
    Directory,
    /// A file of so many bytes.
    File(u64),
}

/// If words hold: tests, of which `!` turns the next one round, and `-o` binds less than `-a`.
/// Parentheses are not known. No words hold, as with GRUB.
pub(crate) fn holds(mut words: &[&str], kind: impl Fn(&str) -> Kind) -> bool {
    let (mut any, mut all, mut is_turned) = (false, true, false);
    while !words.is_empty() {
        let found = match words {
            [a, operator, b, ..] => of_two(a, operator, b).map(|value| (value, 3)),
            _ => None,
        };
        let found = found.or_else(|| match words {
            [operator, what, ..] => of_one(operator, what, &kind).map(|value| (value, 2)),
            _ => None,
        });
        let (value, count) = match (found, words[0]) {
            (Some(found), _) => found,
            (None, "!") => {
                is_turned = !is_turned;
                words = &words[1..];
                continue;
            }
            (None, "-a" | "-o") => {
                (any, all) = if words[0] == "-o" { (any || all, true) } else { (any, all) };
                words = &words[1..];
                continue;
            }
            (None, word) => (!word.is_empty(), 1),
        };
        all &= value != is_turned;
        is_turned = false;
        words = &words[count..];
    }
    any || all
}

fn of_one(operator: &str, what: &str, kind: impl Fn(&str) -> Kind) -> Option<bool> {
    Some(match operator {
        "-n" => !what.is_empty(),
        "-z" => what.is_empty(),
        "-d" => matches!(kind(what), Kind::Directory),
        "-e" => !matches!(kind(what), Kind::Nothing),
        "-f" => matches!(kind(what), Kind::File(_)),
        "-s" => matches!(kind(what), Kind::File(1..)),
        _ => return None,
    })
}

fn of_two(a: &str, operator: &str, b: &str) -> Option<bool> {
    let numbers = || number(a).cmp(&number(b));
    Some(match operator {
        "=" | "==" => a == b,
        "!=" => a != b,
        "<" => a < b,
        "<=" => a <= b,
        ">" => a > b,
        ">=" => a >= b,
        "-eq" => numbers().is_eq(),
        "-ne" => numbers().is_ne(),
        "-lt" => numbers().is_lt(),
        "-le" => numbers().is_le(),
        "-gt" => numbers().is_gt(),
        "-ge" => numbers().is_ge(),
        "-plt" => compare(a, b).is_lt(),
        "-pgt" => compare(a, b).is_gt(),
        // The times of files are not known here.
        "-nt" | "-ot" => false,
        _ => return None,
    })
}

/// The number that a text begins with, or 0.
fn number(text: &str) -> i64 {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number = digits[..end].parse().unwrap_or(0);
    if digits.len() < text.len() { -number } else { number }
}
