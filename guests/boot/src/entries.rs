//! Boot Loader Specification entries: text files of one kernel each. Source: the UAPI group's "Boot
//! Loader Specification", type 1.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::find::Choice;
use crate::version::compare;
use crate::volume::Files;

/// Where entries are, and what may be before the paths that they name: a filesystem is the whole
/// system's, or only `/boot`'s.
pub const PLACES: [(&str, &str); 2] = [("/loader/entries", ""), ("/boot/loader/entries", "/boot")];

#[derive(Default)]
struct Entry {
    /// The file's name, without its end and the number of tries.
    name: String,
    sort_key: String,
    version: String,
    linux: String,
    initrds: Vec<String>,
    options: Vec<String>,
}

impl Entry {
    fn parse(name: &str, text: &str) -> Option<Self> {
        let name = name.strip_suffix(".conf")?;
        let is_tries = |end: &str| !end.is_empty() && end.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        let name = name.rsplit_once('+').filter(|(_, end)| is_tries(end)).map_or(name, |(name, _)| name);
        let mut entry = Self { name: name.to_string(), ..Self::default() };
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let value = value.trim();
            match key {
                "sort-key" => entry.sort_key = value.to_string(),
                "version" => entry.version = value.to_string(),
                "linux" => entry.linux = value.to_string(),
                "initrd" => entry.initrds.extend(value.split_whitespace().map(ToString::to_string)),
                // Variables are those of GRUB, which are not known here.
                "options" => entry.options.extend(
                    value.split_whitespace().filter(|word| !word.starts_with('$')).map(ToString::to_string),
                ),
                _ => {}
            }
        }
        (!entry.linux.is_empty()).then_some(entry)
    }

    /// The first one is the default: those with a key, by it; then the newest version.
    fn order(&self, other: &Self) -> Ordering {
        let by_key = self.sort_key.is_empty().cmp(&other.sort_key.is_empty());
        by_key
            .then_with(|| self.sort_key.cmp(&other.sort_key))
            .then_with(|| compare(&other.version, &self.version))
            .then_with(|| compare(&other.name, &self.name))
    }
}

/// The default of a filesystem's entries.
pub fn default(files: &impl Files, volume: usize) -> Option<Choice> {
    PLACES.iter().find_map(|(place, before)| {
        let names = files.names(volume, place);
        let parse = |name: &String| Entry::parse(name, &files.text(volume, &format!("{place}/{name}"))?);
        let entry = names.iter().filter_map(parse).min_by(Entry::order)?;
        let found = |path: &String| {
            let below = format!("{before}{path}");
            let is_there = files.size(volume, path).is_none() && files.size(volume, &below).is_some();
            (volume, if is_there { below } else { path.clone() })
        };
        Some(Choice {
            kernel: found(&entry.linux),
            initrds: entry.initrds.iter().map(found).collect(),
            words: entry.options.join(" "),
            said_by: format!("{place}/{}.conf", entry.name),
        })
    })
}
