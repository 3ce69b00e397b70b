//! Words of GRUB's language.

use alloc::string::String;
use alloc::vec::Vec;
use core::iter::Peekable;
use core::str::Chars;

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    /// A variable; in quotes its value is not divided into words.
    Variable {
        name: String,
        is_quoted: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word(Vec<Piece>),
    /// A line's end, or a semicolon.
    End,
    Open,
    Close,
}

impl Token {
    /// The word, if it is written as it is meant.
    pub(super) fn plain(&self) -> Option<&str> {
        match self {
            Self::Word(pieces) => match &pieces[..] {
                [Piece::Text(text)] => Some(text),
                _ => None,
            },
            Self::End | Self::Open | Self::Close => None,
        }
    }
}

pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut chars = text.chars().peekable();
    let mut found = Vec::new();
    while let Some(&first) = chars.peek() {
        match first {
            '\n' | ';' => {
                chars.next();
                found.push(Token::End);
            }
            '#' => while chars.next_if(|c| *c != '\n').is_some() {},
            c if c.is_whitespace() => {
                chars.next();
            }
            _ => {
                let pieces = word(&mut chars);
                // Braces are words of their own.
                let token = Token::Word(pieces);
                found.push(match token.plain() {
                    Some("{") => Token::Open,
                    Some("}") => Token::Close,
                    _ => token,
                });
            }
        }
    }
    found
}

fn word(chars: &mut Peekable<Chars<'_>>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    // An empty word in quotes is one.
    let mut has_quotes = false;
    while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != ';') {
        match c {
            '\'' => {
                has_quotes = true;
                text.extend(core::iter::from_fn(|| chars.next().filter(|c| *c != '\'')));
            }
            '"' => {
                has_quotes = true;
                in_quotes(chars, &mut pieces, &mut text);
            }
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(c) => text.push(c),
            },
            '$' => variable(chars, &mut pieces, &mut text, false),
            c => text.push(c),
        }
    }
    if !text.is_empty() || has_quotes {
        pieces.push(Piece::Text(text));
    }
    pieces
}

fn in_quotes(chars: &mut Peekable<Chars<'_>>, pieces: &mut Vec<Piece>, text: &mut String) {
    while let Some(c) = chars.next().filter(|c| *c != '"') {
        match c {
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(c @ ('$' | '"' | '\\')) => text.push(c),
                Some(c) => text.extend(['\\', c]),
            },
            '$' => variable(chars, pieces, text, true),
            c => text.push(c),
        }
    }
}

/// A variable's name behind `$`: in braces, or as many characters as may be in one.
fn variable(chars: &mut Peekable<Chars<'_>>, pieces: &mut Vec<Piece>, text: &mut String, is_quoted: bool) {
    let mut name = String::new();
    if chars.next_if_eq(&'{').is_some() {
        name.extend(core::iter::from_fn(|| chars.next().filter(|c| *c != '}')));
    } else if let Some(special) = chars.next_if(|c| "?@*#".contains(*c)) {
        name.push(special);
    } else {
        while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
        }
    }
    if name.is_empty() {
        text.push('$');
        return;
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(core::mem::take(text)));
    }
    pieces.push(Piece::Variable { name, is_quoted });
}
