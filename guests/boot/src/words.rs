//! The words of GRUB's scripts, and of a kernel's command line. Source: GNU GRUB Manual 2.06,
//! chapter 6.2.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::str::Chars;

/// The longest value of a variable: it could be made longer and longer.
pub(crate) const VALUE_MAX: usize = 4096;

/// The next statement, with the values of variables: up to a line's end, a semicolon, a brace, or a
/// word behind which another one begins. `None` at the end.
pub(crate) fn statement<'v>(rest: &mut Chars<'_>, value: impl Fn(&str) -> &'v str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    if rest.as_str().is_empty() {
        return None;
    }
    loop {
        let next = rest.next();
        match (quote, next) {
            (None, None | Some('\n' | ';' | ' ' | '\t' | '\r')) => {
                words.extend(word.take());
                let last = words.last().map_or("", String::as_str);
                let is_over = words.len() == 1 && ["then", "else", "do", "}"].contains(&last);
                if is_over || last == "{" || matches!(next, None | Some('\n' | ';')) {
                    return Some(words);
                }
            }
            (None, Some('#')) if word.is_none() => {
                let text = rest.as_str();
                *rest = text[text.find('\n').unwrap_or(text.len())..].chars();
            }
            (None, Some('\'' | '"')) => {
                quote = next;
                word.get_or_insert_default();
            }
            (Some(_), None) => quote = None,
            (Some(quotes), Some(c)) if quotes == c => quote = None,
            (Some('"'), Some('$')) => word.get_or_insert_default().push_str(value(variable_name(rest))),
            // Without quotes a value is as many words as it has, also none.
            (None, Some('$')) => {
                for (index, piece) in value(variable_name(rest)).split(char::is_whitespace).enumerate() {
                    words.extend(word.take_if(|_| index > 0));
                    if !piece.is_empty() {
                        word.get_or_insert_default().push_str(piece);
                    }
                }
            }
            (None | Some('"'), Some('\\')) => match rest.next() {
                None | Some('\n') => {}
                Some(c) if quote.is_none() || "$\"\\".contains(c) => word.get_or_insert_default().push(c),
                Some(c) => word.get_or_insert_default().extend(['\\', c]),
            },
            (_, Some(c)) => word.get_or_insert_default().push(c),
        }
    }
}

/// A text with the values of variables.
pub(crate) fn expand<'v>(text: &str, value: impl Fn(&str) -> &'v str) -> String {
    let (mut rest, mut expanded) = (text.chars(), String::new());
    while let Some(next) = rest.next().filter(|_| expanded.len() <= VALUE_MAX) {
        match next {
            '$' => expanded.push_str(value(variable_name(&mut rest))),
            _ => expanded.push(next),
        }
    }
    expanded
}

/// A variable's name behind `$`: in braces, or as many characters as may be in one.
fn variable_name<'t>(rest: &mut Chars<'t>) -> &'t str {
    let text = rest.as_str();
    let (name, after) = match text.strip_prefix('{') {
        Some(braced) => braced.split_once('}').unwrap_or((braced, "")),
        None => {
            text.split_at(text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len()))
        }
    };
    *rest = after.chars();
    name
}

/// What is behind an option, in the same word or in the next.
pub(crate) fn option<'w>(words: &'w [String], short: &str, long: &str) -> Option<&'w str> {
    let same = words.iter().find_map(|word| word.strip_prefix(long)?.strip_prefix('='));
    let next = words.iter().skip_while(|word| *word != short && *word != long).nth(1);
    same.or(next.map(String::as_str))
}

/// A word of a kernel's command line, as GRUB writes it.
pub(crate) fn quoted(word: &str) -> String {
    let mut escaped = String::new();
    for character in word.chars() {
        escaped.extend(['\\', '"', '\''].contains(&character).then_some('\\'));
        escaped.push(character);
    }
    if word.contains(' ') { format!("\"{escaped}\"") } else { escaped }
}
