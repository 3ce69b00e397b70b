//! Boot Loader Specification entries: text files of one kernel each. Source: the UAPI group's "Boot
//! Loader Specification", type 1, and systemd's loader.conf(5).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Ordering;

use crate::find::Choice;
use crate::version::compare;
use crate::volume::Files;

/// Where entries are, and what may be before the paths that they name: a filesystem is the whole
/// system's, or only `/boot`'s.
pub const PLACES: [(&str, &str); 2] = [("/loader", ""), ("/boot/loader", "/boot")];

/// An entry for this machine.
#[derive(Default)]
pub(crate) struct Entry {
    /// The file's name, without its end.
    pub(crate) name: String,
    /// The same without the number of tries.
    id: String,
    /// No tries are left.
    is_bad: bool,
    pub(crate) title: String,
    sort_key: String,
    machine_id: String,
    version: String,
    /// The kernel's path, and those of its initial RAM disks; or GRUB's variables, with `$`.
    pub(crate) linux: String,
    pub(crate) initrds: Vec<String>,
    /// What the kernel is told, with quotes and GRUB's variables.
    pub(crate) options: String,
}

impl Entry {
    fn parse(name: &str, text: &str) -> Option<Self> {
        let name = name.strip_suffix(".conf").filter(|name| !name.starts_with('.'))?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let counted = name.rsplit_once('+').and_then(|(id, end)| {
            let (left, done) = end.split_once('-').unwrap_or((end, "0"));
            (is_number(left) && is_number(done)).then_some((id, left))
        });
        let (id, left) = counted.unwrap_or((name, "1"));
        let is_bad = left.bytes().all(|digit| digit == b'0');
        let mut entry = Self { name: name.to_string(), id: id.to_string(), is_bad, ..Self::default() };
        for (key, value) in pairs(text) {
            match key {
                "title" => entry.title = value.to_string(),
                "sort-key" => entry.sort_key = value.to_string(),
                "machine-id" => entry.machine_id = value.to_string(),
                "version" => entry.version = value.to_string(),
                "architecture" if !value.eq_ignore_ascii_case("x64") => return None,
                "linux" => entry.linux = value.to_string(),
                "initrd" => entry.initrds.extend(value.split_whitespace().map(ToString::to_string)),
                "options" if entry.options.is_empty() => entry.options = value.to_string(),
                "options" => entry.options = format!("{} {value}", entry.options),
                _ => {}
            }
        }
        (!entry.linux.is_empty()).then_some(entry)
    }

    /// The first one is the default.
    fn order(&self, other: &Self) -> Ordering {
        let bad = self.is_bad.cmp(&other.is_bad);
        let keys = match (self.sort_key.as_str(), other.sort_key.as_str()) {
            ("", "") => Ordering::Equal,
            ("", _) => Ordering::Greater,
            (_, "") => Ordering::Less,
            (key, others) => (key.cmp(others))
                .then_with(|| self.machine_id.cmp(&other.machine_id))
                .then_with(|| compare(&other.version, &self.version)),
        };
        bad.then(keys).then_with(|| self.name_order(other))
    }

    /// The newest one is the first, by their files' names alone: so GRUB has them.
    pub(crate) fn name_order(&self, other: &Self) -> Ordering {
        compare(&other.name, &self.name)
    }
}

/// Keys and their values. Lines of comments have none.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(char::is_whitespace)).map(|(key, value)| (key, value.trim()))
}

/// A filesystem's entries, in no order, and which of the places they are in.
pub(crate) fn all(files: &impl Files, volume: usize) -> Option<(&'static str, Vec<Entry>)> {
    PLACES.iter().find_map(|(place, before)| {
        let place_of = |path: &mut String| {
            if !path.starts_with(['/', '$']) {
                path.insert(0, '/');
            }
            let below = format!("{before}{path}");
            if files.size(volume, path).is_none() && files.size(volume, &below).is_some() {
                *path = below;
            }
        };
        let read = |name: &String| {
            let mut entry = Entry::parse(name, &files.text(volume, &format!("{place}/entries/{name}"))?)?;
            [&mut entry.linux].into_iter().chain(&mut entry.initrds).for_each(place_of);
            Some(entry)
        };
        let names = files.names(volume, &format!("{place}/entries"));
        let entries: Vec<Entry> = names.iter().filter_map(read).collect();
        (!entries.is_empty()).then_some((*place, entries))
    })
}

/// The entry that `loader.conf` names, or else the first one.
pub fn default(files: &impl Files, volume: usize) -> Option<Choice> {
    let (place, mut entries) = all(files, volume)?;
    entries.sort_by(Entry::order);
    let settings = files.text(volume, &format!("{place}/loader.conf")).unwrap_or_default().to_lowercase();
    let wanted = pairs(&settings).filter(|(key, _)| *key == "default").last().map(|(_, glob)| glob);
    let is_wanted = |entry: &&Entry| {
        let name = format!("{}.conf", entry.id).to_lowercase();
        wanted.is_some_and(|glob| matches(glob.as_bytes(), name.as_bytes()))
    };
    let entry = entries.iter().find(is_wanted).or_else(|| entries.first())?;
    // Variables are those of GRUB, which nobody sets here.
    let is_known = |word: &&str| !word.starts_with('$');
    let initrds = entry.initrds.iter().filter(|path| is_known(&path.as_str()));
    Some(Choice {
        kernel: (volume, entry.linux.clone()),
        initrds: initrds.map(|path| (volume, path.clone())).collect(),
        words: entry.options.split(' ').filter(is_known).collect::<Vec<_>>().join(" "),
        said_by: format!("{place}/entries/{}.conf", entry.name),
    })
}

/// If a name is one of a pattern's, which has `*`, `?`, `[a-z]` and `\`.
fn matches(mut pattern: &[u8], mut name: &[u8]) -> bool {
    // Behind the last `*`: the pattern, and what of the name is not its yet.
    let mut star = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            (pattern, star) = (rest, Some((rest, name)));
        } else if let [first, rest @ ..] = name
            && let Some(behind) = one(pattern, *first)
        {
            (pattern, name) = (behind, rest);
        } else if name.is_empty() && pattern.is_empty() {
            return true;
        } else if let Some((behind, [_, rest @ ..])) = star {
            (pattern, name, star) = (behind, rest, Some((behind, rest)));
        } else {
            return false;
        }
    }
}

/// What of a pattern is behind its first character, if that may be this one.
fn one(pattern: &[u8], character: u8) -> Option<&[u8]> {
    match pattern {
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => {
            let end = rest.iter().skip(1).position(|byte| *byte == b']')? + 1;
            let mut set = &rest[..end];
            while let [first, others @ ..] = set {
                let (last, others) =
                    if let [b'-', last, others @ ..] = others { (last, others) } else { (first, others) };
                if (*first..=*last).contains(&character) {
                    return Some(&rest[end + 1..]);
                }
                set = others;
            }
            None
        }
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] => (*byte == character).then_some(rest),
        [] => None,
    }
}
