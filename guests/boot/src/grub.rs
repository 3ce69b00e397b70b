//! GRUB's configuration, as `grub-mkconfig` writes it: enough of the language to follow conditions
//! and variables to the default entry. Source: GNU GRUB Manual 2.06, chapters 6.1 and 17.
//!
//! Commands that are not known do nothing, and do not hold as conditions. Loops and functions are
//! left out. Nothing is written back, so an entry that is chosen for one boot only (`grub-reboot`)
//! is not taken: it would be taken for ever. `blscfg` is that of Fedora and RHEL.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::mem;

use crate::condition::{self, Kind};
use crate::entries;
use crate::find::{Choice, Place};
use crate::volume::Files;
use crate::words::{VALUE_MAX, expand, option, quoted, statement};

/// Where the configuration is.
pub const PLACES: [&str; 4] =
    ["/boot/grub/grub.cfg", "/grub/grub.cfg", "/boot/grub2/grub.cfg", "/grub2/grub.cfg"];

/// How deep files may include each other, and be conditions and menus in each other.
const DEPTH_MAX: usize = 24;
/// Statements that are read at most: files may include themselves.
const STEPS_MAX: u32 = 100_000;
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
    let root = format!("volume{volume}");
    let prefix = format!("({root}){prefix}");
    let places = [("root", root.as_str()), ("prefix", &prefix), ("config_directory", &prefix)];
    let known = KNOWN.into_iter().chain(places);
    let mut script = Script {
        files,
        variables: known.map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        root: volume,
        entries: Vec::new(),
        choice: Choice::default(),
        has_read_entries: false,
        depth: 0,
        steps: 0,
    };
    script.include(volume, path);
    let Entry { names, body } = script.entry(script.variable("default")).ok_or("it has no entry")?.clone();
    script.run(&body);
    let title = names.last().map_or("", |name| &name.title);
    if script.choice.kernel.1.is_empty() {
        return Err(format!("its default entry '{title}' starts no Linux kernel"));
    }
    Ok(Choice { said_by: format!("{path}, entry '{title}'"), ..script.choice })
}

struct Script<'f, F> {
    files: &'f F,
    variables: BTreeMap<String, String>,
    /// The filesystem of paths without one: the variable `root`.
    root: usize,
    entries: Vec<Entry>,
    choice: Choice,
    /// `blscfg` adds its entries once.
    has_read_entries: bool,
    depth: usize,
    steps: u32,
}

/// An entry of the menu, or a menu in it.
#[derive(Clone)]
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
        let is_named = wanted == self.title || wanted == self.id || wanted.parse() == Ok(self.number);
        is_named && !wanted.is_empty()
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
        while let Some(words) = statement(&mut rest, |name| self.variable(name)) {
            self.steps += 1;
            if self.steps > STEPS_MAX || around.len() > DEPTH_MAX {
                return;
            }
            let Some((command, words)) = words.split_first() else { continue };
            let is_live = around.iter().all(|block| block.is_live);
            match command.as_str() {
                "if" => {
                    let holds = is_live && self.run_words(words);
                    around.push(Block { is_live: holds, was_live: holds, ..Block::default() });
                }
                "elif" | "else" => {
                    if let Some((block, outer)) = around.split_last_mut() {
                        let may_be = !block.was_live && outer.iter().all(|block| block.is_live);
                        block.is_live = may_be && (command == "else" || self.run_words(words));
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
                _ if is_live => _ = self.command(command, words),
                _ => {}
            }
        }
    }

    /// Adds an entry or a menu with these words to the innermost of the menus.
    fn add_entry(&mut self, menus: Vec<Name>, words: &[String]) -> Name {
        let id = option(words, "--id", "--id").unwrap_or_default().to_string();
        self.add(menus, words.first().cloned().unwrap_or_default(), id, String::new())
    }

    fn add(&mut self, menus: Vec<Name>, title: String, id: String, body: String) -> Name {
        let is_beside = |entry: &&Entry| entry.names.split_last().is_some_and(|(_, around)| around == menus);
        let number = self.entries.iter().filter(is_beside).count();
        let name = Name { title, id, number };
        let names = menus.into_iter().chain([name.clone()]).collect();
        self.entries.push(Entry { names, body });
        name
    }

    /// `blscfg`: adds the entries of the filesystem that the variable `boot` names, or `root`.
    fn add_entries(&mut self) {
        if mem::replace(&mut self.has_read_entries, true) {
            return;
        }
        let volume = self.device(self.variable("boot")).unwrap_or(self.root);
        let mut entries = entries::all(self.files, volume).map_or_else(Vec::new, |(_, entries)| entries);
        entries.sort_by(entries::Entry::name_order);
        for entry in entries {
            let options = if entry.options.is_empty() { "$default_kernelopts" } else { &entry.options };
            // Quotes in variables count as if they were the entry's.
            let options = expand(options, |name| self.variable(name));
            let mut body = format!("linux (volume{volume}){} {options}\ninitrd", entry.linux);
            for path in &entry.initrds {
                let device = if path.starts_with('$') { String::new() } else { format!("(volume{volume})") };
                body += &format!(" {device}{path}");
            }
            let title = if entry.title.is_empty() { entry.linux } else { entry.title };
            self.add(Vec::new(), title, entry.name, body);
        }
    }

    fn run_words(&mut self, words: &[String]) -> bool {
        words.split_first().is_some_and(|(command, words)| self.command(command, words))
    }

    /// Runs a command. Says if it succeeds, as a condition does that holds.
    fn command(&mut self, command: &str, words: &[String]) -> bool {
        match command {
            // Once: the next one is a command that is not known.
            "!" => return words.first().is_some_and(|word| word != "!") && !self.run_words(words),
            "[" | "test" => return self.holds(words),
            "true" => {}
            "set" => words.iter().for_each(|word| _ = self.assign(word)),
            "unset" => words.iter().for_each(|name| drop(self.variables.remove(name))),
            "load_env" => self.load_environment(option(words, "-f", "--file")),
            "search" => return self.search(words),
            "blscfg" => self.add_entries(),
            "source" | "." | "configfile" => {
                let Some((volume, path)) = words.first().and_then(|path| self.place(path)) else {
                    return false;
                };
                self.include(volume, &path);
            }
            "linux" | "linux16" | "linuxefi" => {
                let Some(kernel) = words.first().and_then(|path| self.place(path)) else { return false };
                self.choice.kernel = kernel;
                self.choice.initrds.clear();
                self.choice.words = words[1..].iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
            }
            "initrd" | "initrd16" | "initrdefi" => {
                self.choice.initrds = words.iter().filter_map(|path| self.place(path)).collect();
            }
            _ => return self.assign(command),
        }
        true
    }

    /// `name=value`, or something else.
    fn assign(&mut self, word: &str) -> bool {
        let Some((name, value)) = word.split_once('=').filter(|(_, value)| value.len() <= VALUE_MAX) else {
            return false;
        };
        if name == "root" {
            self.root = self.device(value.trim_matches(['(', ')'])).unwrap_or(self.root);
        }
        self.variables.insert(name.to_string(), value.to_string());
        true
    }

    /// The variables that GRUB keeps, but for those of one boot only.
    fn load_environment(&mut self, path: Option<&str>) {
        let path = path.map_or_else(|| format!("{}/grubenv", self.variable("prefix")), ToString::to_string);
        let text = self.place(&path).and_then(|(volume, path)| self.files.text(volume, &path));
        let is_of_one_boot =
            |line: &&str| line.starts_with("next_entry=") || line.starts_with("prev_saved_entry=");
        for line in text.unwrap_or_default().lines().filter(|line| !is_of_one_boot(line)) {
            self.assign(line);
        }
    }

    /// `search [--fs-uuid | --label | --file] [--set[=NAME]] WHAT`: sets `root`, or another
    /// variable.
    fn search(&mut self, words: &[String]) -> bool {
        let Some((what, options)) = words.split_last() else { return false };
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
        found.is_some_and(|(volume, _)| self.assign(&format!("{variable}=volume{volume}")))
    }

    fn holds(&self, words: &[String]) -> bool {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let words = words.strip_suffix(&["]"]).unwrap_or(&words);
        condition::holds(words, |path| {
            let Some((volume, path)) = self.place(path) else { return Kind::Nothing };
            match self.files.size(volume, &path) {
                Some(size) => Kind::File(size),
                None if self.files.names(volume, &path).is_empty() => Kind::Nothing,
                None => Kind::Directory,
            }
        })
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
