//! Runs a script: conditions, entries, variables. Unknown commands do nothing, and loops are left
//! out.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use super::tokens::{Piece, Token, tokens};
use crate::find::{Choice, Place};
use crate::volume::Files;

/// How deep conditions, menus and included files may be in each other.
const DEPTH_MAX: u32 = 24;
/// Statements that are executed at most: files may include themselves.
const STEPS_MAX: u32 = 100_000;

pub(super) struct Script<'f, F> {
    pub(super) files: &'f F,
    pub(super) variables: BTreeMap<String, String>,
    /// The filesystem of paths without one: the variable `root`.
    pub(super) root: usize,
    entries: Vec<Entry>,
    pub(super) choice: Choice,
    depth: u32,
    steps: u32,
}

/// An entry of the menu.
struct Entry {
    /// Titles and identifiers of the menus around it, and its own.
    names: Vec<Name>,
    body: Option<(Rc<[Token]>, Range<usize>)>,
}

#[derive(Clone)]
struct Name {
    title: String,
    id: String,
    /// Its number in its menu.
    number: usize,
}

impl Name {
    fn is(&self, wanted: &str) -> bool {
        wanted == self.title || wanted == self.id || wanted.parse() == Ok(self.number)
    }
}

/// A place in a script.
struct Cursor {
    tokens: Rc<[Token]>,
    at: usize,
    /// The menus around it.
    menus: Vec<Name>,
}

impl Cursor {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    /// To the next token, if there is one.
    fn pass(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len());
    }

    /// The words up to the end of the statement.
    fn statement(&mut self) -> Range<usize> {
        let start = self.at;
        while matches!(self.peek(), Some(Token::Word(_))) {
            self.at += 1;
        }
        start..self.at
    }
}

/// What ends a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The script, or a brace.
    Here,
    Else,
    ElseIf,
    Fi,
}

impl<'f, F: Files> Script<'f, F> {
    pub(super) fn new(files: &'f F, root: usize, prefix: &str) -> Self {
        let known =
            [("prefix", prefix), ("config_directory", prefix), ("grub_platform", "pc"), ("grub_cpu", "i386")];
        let features = ["menuentry_id", "all_video_module", "timeout_style", "platform_search_hint"];
        let features = features.iter().map(|name| ("feature_".to_string() + name, "y".to_string()));
        let known = known.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        Self {
            files,
            variables: known.chain(features).collect(),
            root,
            entries: Vec::new(),
            choice: Choice::default(),
            depth: 0,
            steps: 0,
        }
    }

    pub(super) fn variable(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    pub(super) fn into_choice(self) -> Choice {
        self.choice
    }

    /// Runs a file.
    pub(super) fn include(&mut self, volume: usize, path: &str) {
        if self.depth >= DEPTH_MAX {
            return;
        }
        if let Some(text) = self.files.text(volume, path) {
            let mut cursor = Cursor { tokens: tokens(&text).into(), at: 0, menus: Vec::new() };
            self.depth += 1;
            while cursor.peek().is_some() {
                self.block(&mut cursor, true);
            }
            self.depth -= 1;
        }
    }

    /// Runs the entry that the variable `default` names, the first one if it is not there.
    pub(super) fn choose(&mut self, default: &str) -> Result<(), &'static str> {
        let is_it = |entry: &&Entry| {
            let mut wanted = default.split('>').map(str::trim);
            let named = entry.names.iter().all(|name| wanted.next().is_some_and(|wanted| name.is(wanted)));
            entry.body.is_some() && named && wanted.next().is_none()
        };
        let by_id = |entry: &&Entry| {
            entry.body.is_some()
                && entry.names.last().is_some_and(|name| !default.is_empty() && name.id == default)
        };
        let found = self.entries.iter().find(is_it).or_else(|| self.entries.iter().find(by_id));
        let found = found.or_else(|| self.entries.iter().find(|entry| entry.body.is_some()));
        let body = found.and_then(|entry| entry.body.clone()).ok_or("it has no entry")?;
        let mut cursor = Cursor { tokens: body.0[body.1].into(), at: 0, menus: Vec::new() };
        self.block(&mut cursor, true);
        Ok(())
    }

    /// Runs statements up to the end of a block, or passes them by.
    fn block(&mut self, cursor: &mut Cursor, is_live: bool) -> Ended {
        self.depth += 1;
        let ended = self.statements(cursor, is_live);
        self.depth -= 1;
        ended
    }

    fn statements(&mut self, cursor: &mut Cursor, is_live: bool) -> Ended {
        loop {
            let Some(token) = cursor.peek() else { return Ended::Here };
            self.steps += 1;
            if self.depth > DEPTH_MAX || self.steps > STEPS_MAX {
                cursor.at = cursor.tokens.len();
                return Ended::Here;
            }
            let word = token.plain().unwrap_or("");
            let ended = match word {
                "fi" | "done" => Some(Ended::Fi),
                "else" => Some(Ended::Else),
                "elif" => Some(Ended::ElseIf),
                _ if *token == Token::Close => Some(Ended::Here),
                _ => None,
            };
            if let Some(ended) = ended {
                cursor.pass();
                return ended;
            }
            match word {
                "then" | "do" => cursor.pass(),
                "if" => self.condition(cursor, is_live),
                "while" | "until" | "for" => {
                    self.block(cursor_behind(cursor), false);
                }
                "function" => self.braces(cursor, None),
                "menuentry" => self.braces(cursor, is_live.then_some(false)),
                "submenu" => self.braces(cursor, is_live.then_some(true)),
                _ => self.simple(cursor, is_live),
            }
        }
    }

    fn simple(&mut self, cursor: &mut Cursor, is_live: bool) {
        let words = cursor.statement();
        if words.is_empty() {
            cursor.pass();
        } else if is_live {
            let words = self.expand(&cursor.tokens[words]);
            self.command(&words);
        }
    }

    fn condition(&mut self, cursor: &mut Cursor, is_live: bool) {
        let mut is_open = is_live;
        let mut ended = Ended::ElseIf;
        while ended == Ended::ElseIf || ended == Ended::Else {
            let mut is_true = true;
            if ended == Ended::ElseIf {
                if cursor.peek().and_then(Token::plain) == Some("if") {
                    cursor.pass();
                }
                let words = cursor.statement();
                let words = self.expand(&cursor.tokens[words]);
                is_true = is_open && self.is_true(&words);
            }
            let runs = is_open && is_true;
            is_open &= !runs;
            ended = self.block(cursor, runs);
        }
    }

    /// A function, which is passed by, or an entry or a menu.
    fn braces(&mut self, cursor: &mut Cursor, is_menu: Option<bool>) {
        let words = cursor.statement();
        let words = self.expand(&cursor.tokens[words]);
        if cursor.peek() != Some(&Token::Open) {
            cursor.pass();
            return;
        }
        cursor.pass();
        let Some(is_menu) = is_menu else {
            self.block(cursor, false);
            return;
        };
        let id = words.iter().position(|word| word == "--id").and_then(|at| words.get(at + 1));
        let id = id.or_else(|| words.iter().find_map(|word| word.strip_prefix("--id=").map(|_| word)));
        let id = id.map_or("", |id| id.trim_start_matches("--id="));
        let depth = cursor.menus.len() + 1;
        let is_beside = |entry: &&Entry| {
            let around = entry.names.iter().zip(&cursor.menus).filter(|(a, b)| a.number == b.number).count();
            entry.names.len() == depth && around == depth - 1
        };
        let number = self.entries.iter().filter(is_beside).count();
        let name = Name { title: words.get(1).cloned().unwrap_or_default(), id: id.to_string(), number };
        let names = [&cursor.menus[..], core::slice::from_ref(&name)].concat();
        let index = self.entries.len();
        self.entries.push(Entry { names, body: None });
        let start = cursor.at;
        if is_menu {
            cursor.menus.push(name);
            self.block(cursor, true);
            cursor.menus.pop();
        } else {
            self.block(cursor, false);
            self.entries[index].body = Some((cursor.tokens.clone(), start..cursor.at));
        }
    }

    /// The words, with the values of variables.
    fn expand(&self, tokens: &[Token]) -> Vec<String> {
        let mut words = Vec::new();
        for token in tokens {
            let Token::Word(pieces) = token else { continue };
            let mut word = None::<String>;
            for piece in pieces {
                match piece {
                    Piece::Text(text) => word.get_or_insert_default().push_str(text),
                    Piece::Variable { name, is_quoted: true } => {
                        word.get_or_insert_default().push_str(self.variable(name));
                    }
                    Piece::Variable { name, is_quoted: false } => {
                        for (index, part) in self.variable(name).split_whitespace().enumerate() {
                            if index > 0 {
                                words.extend(word.take());
                            }
                            word.get_or_insert_default().push_str(part);
                        }
                    }
                }
            }
            words.extend(word);
        }
        words
    }

    /// The file that a path names: `(hd0,gpt1)/x`, `($root)/x`, or `/x`.
    pub(super) fn place(&self, path: &str) -> Option<Place> {
        match path.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((device, path)) => Some((self.device(device)?, path.to_string())),
            None => Some((self.root, path.to_string())),
        }
    }

    /// The filesystem that a device has: `hd0,gpt1`, or what `root` was set to by a search.
    pub(super) fn device(&self, name: &str) -> Option<usize> {
        if let Some(number) = name.strip_prefix("volume") {
            return number.parse().ok().filter(|number| *number < self.files.count());
        }
        let (disk, partition) = name.split_once(',').unwrap_or((name, ""));
        let disk = disk.strip_prefix("hd")?.parse().ok()?;
        let partition = partition.trim_start_matches(|c: char| !c.is_ascii_digit());
        self.files.at(disk, if partition.is_empty() { 0 } else { partition.parse().ok()? })
    }
}

/// Behind a loop's words.
fn cursor_behind(cursor: &mut Cursor) -> &mut Cursor {
    cursor.statement();
    cursor
}
