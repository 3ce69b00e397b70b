//! GRUB's configuration, as `grub-mkconfig` writes it: enough of the language to follow conditions
//! and variables to the default entry. Source: GNU GRUB Manual 2.06, chapters 6.1 and 17.
//!
//! Commands that are not known do nothing, conditions that are not known do not hold, and loops are
//! left out. Nothing is written back, so an entry that is chosen for one boot only (`grub-reboot`)
//! is not taken: it would be taken for ever.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::str::Chars;

use crate::find::{Choice, Place};
use crate::volume::Files;

/// Where the configuration is.
pub const PLACES: [&str; 4] =
    ["/boot/grub/grub.cfg", "/grub/grub.cfg", "/boot/grub2/grub.cfg", "/grub2/grub.cfg"];

/// How deep files may include each other, and be conditions and menus in each other.
const DEPTH_MAX: usize = 24;
/// Statements that are read at most: files may include themselves.
const STEPS_MAX: u32 = 100_000;
/// The longest value of a variable: it could be made longer and longer.
const VALUE_MAX: usize = 4096;
/// What scripts know from the beginning, besides where they are.
const KNOWN: [(&str, &str); 6] = [
    ("grub_platform", "pc"),
    ("grub_cpu", "i386"),
    ("feature_menuentry_id", "y"),
    ("feature_all_video_module", "y"),
    ("feature_timeout_style", "y"),
    ("feature_platform_search_hint", "y"),
];

/// The default entry of the configuration at a path.
///
/// # Errors
///
/// There is none that starts a Linux kernel.
pub fn default(files: &impl Files, volume: usize, path: &str) -> Result<Choice, String> {
    let prefix = path.rsplit_once('/').map_or("", |(prefix, _)| prefix);
    let known = KNOWN.into_iter().chain([("prefix", prefix), ("config_directory", prefix)]);
    let mut script = Script {
        files,
        variables: known.map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        root: volume,
        entries: Vec::new(),
        choice: Choice::default(),
        depth: 0,
        steps: 0,
    };
    script.include(volume, path);
    let default = script.variable("default").to_string();
    let body = script.entry(&default).ok_or("it has no entry")?.body.clone();
    script.run(&body);
    if script.choice.kernel.1.is_empty() {
        return Err("its default entry starts no Linux kernel".to_string());
    }
    Ok(Choice { said_by: format!("{path}, entry '{default}'"), ..script.choice })
}

struct Script<'f, F> {
    files: &'f F,
    variables: BTreeMap<String, String>,
    /// The filesystem of paths without one: the variable `root`.
    root: usize,
    entries: Vec<Entry>,
    choice: Choice,
    depth: usize,
    steps: u32,
}

/// An entry of the menu, or a menu in it.
struct Entry {
    /// The menus around it, and its own.
    names: Vec<Name>,
    /// The text of its statements; nothing for a menu.
    body: String,
}

#[derive(Clone, PartialEq, Eq)]
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

/// A block around a statement: a branch of a condition, a menu, or something that is passed by.
#[derive(Default)]
struct Block<'t> {
    is_live: bool,
    /// Of a condition: one of its branches has been live.
    was_live: bool,
    menu: Option<Name>,
    /// Of an entry: its index, and the text from its body on.
    entry: Option<(usize, &'t str)>,
}

impl<F: Files> Script<'_, F> {
    fn variable(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    /// Runs a file.
    fn include(&mut self, volume: usize, path: &str) {
        if self.depth < DEPTH_MAX {
            self.depth += 1;
            let text = self.files.text(volume, path);
            self.run(&text.unwrap_or_default());
            self.depth -= 1;
        }
    }

    /// The entry with a name, as the variable `default` has it; the first one if there is none.
    fn entry(&self, wanted: &str) -> Option<&Entry> {
        let entries = || self.entries.iter().filter(|entry| !entry.body.is_empty());
        let by_path = |entry: &&Entry| {
            let parts = wanted.split('>').map(str::trim);
            parts.clone().count() == entry.names.len() && entry.names.iter().zip(parts).all(|(a, b)| a.is(b))
        };
        let by_id =
            |entry: &&Entry| entry.names.last().is_some_and(|name| !wanted.is_empty() && name.id == wanted);
        entries().find(by_path).or_else(|| entries().find(by_id)).or_else(|| entries().next())
    }

    fn run(&mut self, text: &str) {
        let mut rest = text.chars();
        let mut around: Vec<Block<'_>> = Vec::new();
        while let Some(words) = self.statement(&mut rest) {
            self.steps += 1;
            if self.steps > STEPS_MAX || around.len() > DEPTH_MAX {
                return;
            }
            let Some((command, words)) = words.split_first() else { continue };
            let is_live = around.iter().all(|block| block.is_live);
            match command.as_str() {
                "if" => {
                    let holds = is_live && self.is_true(words);
                    around.push(Block { is_live: holds, was_live: holds, ..Block::default() });
                }
                "elif" | "else" => {
                    if let Some(block) = around.last_mut() {
                        block.is_live = !block.was_live && (command == "else" || self.is_true(words));
                        block.was_live |= block.is_live;
                    }
                }
                "while" | "until" | "for" | "function" => around.push(Block::default()),
                "menuentry" | "submenu" if is_live => {
                    let is_menu = command == "submenu";
                    let menus = around.iter().filter_map(|block| block.menu.clone()).collect();
                    let name = self.add_entry(menus, words);
                    let entry = (!is_menu).then(|| (self.entries.len() - 1, rest.as_str()));
                    let menu = is_menu.then_some(name);
                    around.push(Block { is_live: is_menu, menu, entry, ..Block::default() });
                }
                "menuentry" | "submenu" => around.push(Block::default()),
                "fi" | "done" | "}" => {
                    if let Some((index, body)) = around.pop().and_then(|block| block.entry) {
                        self.entries[index].body = body[..body.len() - rest.as_str().len()].to_string();
                    }
                }
                _ if is_live => self.command(command, words),
                _ => {}
            }
        }
    }

    /// Adds an entry or a menu with these words to the innermost of the menus.
    fn add_entry(&mut self, menus: Vec<Name>, words: &[String]) -> Name {
        let is_beside = |entry: &&Entry| entry.names.split_last().is_some_and(|(_, around)| around == menus);
        let number = self.entries.iter().filter(is_beside).count();
        let behind = words.iter().skip_while(|word| *word != "--id").nth(1);
        let id = words.iter().find_map(|word| word.strip_prefix("--id=")).or(behind.map(String::as_str));
        let title = words.first().cloned().unwrap_or_default();
        let name = Name { title, id: id.unwrap_or_default().to_string(), number };
        let names = menus.into_iter().chain([name.clone()]).collect();
        self.entries.push(Entry { names, body: String::new() });
        name
    }

    /// The next statement, with the values of variables: up to a line's end, a semicolon, a brace,
    /// or a word behind which another one begins. `None` at the end.
    fn statement(&self, rest: &mut Chars<'_>) -> Option<Vec<String>> {
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
                (None | Some('"'), Some('$')) => {
                    let value = self.variable(variable_name(rest));
                    // An empty word is one in quotes only.
                    if !value.is_empty() {
                        word.get_or_insert_default().push_str(value);
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

    fn command(&mut self, command: &str, words: &[String]) {
        match command {
            "set" => words.iter().for_each(|word| self.assign(word)),
            "unset" => words.iter().for_each(|name| drop(self.variables.remove(name))),
            "load_env" => self.load_environment(),
            "search" => self.search(words),
            "source" | "." | "configfile" => {
                if let Some((volume, path)) = words.first().and_then(|path| self.place(path)) {
                    self.include(volume, &path);
                }
            }
            "linux" | "linux16" | "linuxefi" => {
                if let Some(kernel) = words.first().and_then(|path| self.place(path)) {
                    self.choice.kernel = kernel;
                    self.choice.words = words[1..].join(" ");
                }
            }
            "initrd" | "initrd16" | "initrdefi" => {
                self.choice.initrds = words.iter().filter_map(|path| self.place(path)).collect();
            }
            _ => self.assign(command),
        }
    }

    /// `name=value`, or something else.
    fn assign(&mut self, word: &str) {
        let Some((name, value)) = word.split_once('=').filter(|(_, value)| value.len() <= VALUE_MAX) else {
            return;
        };
        if name == "root" {
            self.root = self.device(value.trim_matches(['(', ')'])).unwrap_or(self.root);
        }
        self.variables.insert(name.to_string(), value.to_string());
    }

    /// The variables that GRUB keeps, but for those of one boot only.
    fn load_environment(&mut self) {
        let place = self.place(&format!("{}/grubenv", self.variable("prefix")));
        let text = place.and_then(|(volume, path)| self.files.text(volume, &path)).unwrap_or_default();
        let is_of_one_boot =
            |line: &&str| line.starts_with("next_entry=") || line.starts_with("prev_saved_entry=");
        text.lines().filter(|line| !is_of_one_boot(line)).for_each(|line| self.assign(line));
    }

    /// `search [--fs-uuid | --label | --file] [--set[=NAME]] WHAT`: sets `root`, or another
    /// variable.
    fn search(&mut self, words: &[String]) {
        let Some((what, options)) = words.split_last() else { return };
        let has = |names: [&str; 2]| options.iter().any(|word| names.contains(&word.as_str()));
        let mut volumes = self.files.volumes().iter().enumerate();
        let found = if has(["--fs-uuid", "-u"]) {
            volumes.find(|(_, volume)| volume.uuid.eq_ignore_ascii_case(what))
        } else if has(["--label", "-l"]) {
            volumes.find(|(_, volume)| volume.label == *what)
        } else {
            volumes.find(|(volume, _)| self.files.size(*volume, what).is_some())
        };
        let variable = options.iter().find_map(|word| word.strip_prefix("--set=")).unwrap_or("root");
        if let Some((volume, _)) = found {
            self.assign(&format!("{variable}=volume{volume}"));
        }
    }

    /// A command as a condition: `[ … ]`, `test …`, `true`.
    fn is_true(&self, words: &[String]) -> bool {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let words = match &words[..] {
            ["[", words @ .., "]"] | ["test", words @ ..] => words,
            words => return words == ["true"],
        };
        words
            .split(|word| *word == "-o")
            .any(|all| all.split(|word| *word == "-a").all(|one| self.holds(one)))
    }

    fn holds(&self, words: &[&str]) -> bool {
        let size = |path: &str| self.place(path).and_then(|(volume, path)| self.files.size(volume, &path));
        match words {
            ["!", words @ ..] => !self.holds(words),
            ["-n", what] | [what] => !what.is_empty(),
            ["-z", what] => what.is_empty(),
            ["-s", path] => size(path).is_some_and(|size| size > 0),
            ["-f" | "-e", path] => size(path).is_some(),
            [a, "=" | "==", b] => a == b,
            [a, "!=", b] => a != b,
            _ => false,
        }
    }

    /// The file that a path names: `(hd0,gpt1)/x`, `($root)/x`, or `/x`.
    fn place(&self, path: &str) -> Option<Place> {
        match path.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((device, path)) => Some((self.device(device)?, path.to_string())),
            None => Some((self.root, path.to_string())),
        }
    }

    /// The filesystem that a device has: `hd0,gpt1`, or what `root` was set to by a search.
    fn device(&self, name: &str) -> Option<usize> {
        let volumes = self.files.volumes();
        if let Some(number) = name.strip_prefix("volume") {
            return number.parse().ok().filter(|number| *number < volumes.len());
        }
        let (disk, partition) = name.split_once(',').unwrap_or((name, "0"));
        let partition = partition.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
        let place = (disk.strip_prefix("hd")?.parse().ok()?, partition);
        volumes.iter().position(|volume| volume.place == place)
    }
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
