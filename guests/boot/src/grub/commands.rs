//! The commands that matter, and conditions.

use alloc::format;
use alloc::string::{String, ToString};

use super::script::Script;
use crate::volume::Files;

/// The longest value of a variable: loops could make it longer and longer.
const VALUE_MAX: usize = 4096;

impl<F: Files> Script<'_, F> {
    pub(super) fn command(&mut self, words: &[String]) {
        let Some((command, rest)) = words.split_first() else { return };
        match command.as_str() {
            "set" => rest.iter().for_each(|word| self.assign(word)),
            "unset" => rest.iter().for_each(|name| drop(self.variables.remove(name))),
            "load_env" => self.load_environment(),
            "search" => self.search(rest),
            "source" | "." | "configfile" => {
                if let Some((volume, path)) = rest.first().and_then(|path| self.place(path)) {
                    self.include(volume, &path);
                }
            }
            "linux" | "linux16" | "linuxefi" => {
                if let Some(kernel) = rest.first().and_then(|path| self.place(path)) {
                    self.choice.kernel = kernel;
                    self.choice.words = rest[1..].join(" ");
                }
            }
            "initrd" | "initrd16" | "initrdefi" => {
                self.choice.initrds = rest.iter().filter_map(|path| self.place(path)).collect();
            }
            _ => self.assign(command),
        }
    }

    /// `name=value`, or something else.
    fn assign(&mut self, word: &str) {
        let Some((name, value)) = word.split_once('=') else { return };
        if value.len() > VALUE_MAX {
            return;
        }
        if name == "root" {
            self.root = self.device(value.trim_matches(['(', ')'])).unwrap_or(self.root);
        }
        self.variables.insert(name.to_string(), value.to_string());
    }

    /// The variables that GRUB keeps, but for those of one boot only.
    fn load_environment(&mut self) {
        let Some((volume, path)) = self.place(&format!("{}/grubenv", self.variable("prefix"))) else {
            return;
        };
        let text = self.files.text(volume, &path).unwrap_or_default();
        for line in text.lines().filter(|line| !line.starts_with(['#', '\n'])) {
            if !line.starts_with("next_entry=") && !line.starts_with("prev_saved_entry=") {
                self.assign(line);
            }
        }
    }

    /// `search [--fs-uuid | --label | --file] [--set[=NAME]] WHAT`: sets `root`, or another
    /// variable.
    fn search(&mut self, words: &[String]) {
        let Some((what, options)) = words.split_last() else { return };
        let has = |names: [&str; 2]| options.iter().any(|word| names.contains(&word.as_str()));
        let found = if has(["--fs-uuid", "-u"]) {
            self.files.with_uuid(what)
        } else if has(["--label", "-l"]) {
            self.files.with_label(what)
        } else {
            (0..self.files.count()).find(|volume| self.files.size(*volume, what).is_some())
        };
        let variable = options.iter().find_map(|word| word.strip_prefix("--set=")).unwrap_or("root");
        if let Some(found) = found {
            self.assign(&format!("{variable}=volume{found}"));
        }
    }

    /// A command as a condition: `[ … ]`, `test …`, `true`.
    pub(super) fn is_true(&self, words: &[String]) -> bool {
        let words = match words {
            [first, rest @ .., last] if first == "[" && last == "]" => rest,
            [first, rest @ ..] if first == "test" => rest,
            [first] => return first == "true",
            _ => return false,
        };
        words.split(|word| word == "-o").any(|all| all.split(|word| word == "-a").all(|one| self.holds(one)))
    }

    fn holds(&self, words: &[String]) -> bool {
        let size = |path: &str| self.place(path).and_then(|(volume, path)| self.files.size(volume, &path));
        match words {
            [not, rest @ ..] if not == "!" => !self.holds(rest),
            [text] => !text.is_empty(),
            [how, what] => match how.as_str() {
                "-n" => !what.is_empty(),
                "-z" => what.is_empty(),
                "-s" => size(what).is_some_and(|size| size > 0),
                "-f" | "-e" => size(what).is_some(),
                "-d" => self.place(what).is_some_and(|(at, path)| !self.files.names(at, &path).is_empty()),
                _ => false,
            },
            [a, how, b] => {
                let numbers = || Some((a.parse::<i64>().ok()?, b.parse::<i64>().ok()?));
                match how.as_str() {
                    "=" | "==" => a == b,
                    "!=" => a != b,
                    "-eq" => numbers().is_some_and(|(a, b)| a == b),
                    "-ne" => numbers().is_some_and(|(a, b)| a != b),
                    "-lt" => numbers().is_some_and(|(a, b)| a < b),
                    "-le" => numbers().is_some_and(|(a, b)| a <= b),
                    "-gt" => numbers().is_some_and(|(a, b)| a > b),
                    "-ge" => numbers().is_some_and(|(a, b)| a >= b),
                    _ => false,
                }
            }
            _ => false,
        }
    }
}
