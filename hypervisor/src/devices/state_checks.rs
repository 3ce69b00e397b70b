//! State that is written, read and reset, for tests: no field of it is forgotten.
//!
//! What there is of a state is what `Debug` shows: a derive, or a pattern without `..`, has every
//! field. So a field that a description or a reset leaves out is found without a list of fields.

use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use baremetal::random::Random;
use core::fmt::Debug;
use migration::{Archive, Described, Flaw};

/// The state as bytes.
pub(crate) fn written<T: Described>(device: &mut T) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let mut archive = Archive::writer(&mut bytes);
    device.describe(&mut archive).expect("it is written");
    let len = archive.finish().expect("has an end");
    bytes.truncate(len);
    bytes
}

/// Reads a state.
pub(crate) fn read<T: Described>(device: &mut T, bytes: &[u8]) -> Result<(), Flaw> {
    let mut archive = Archive::reader(bytes);
    device.describe(&mut archive)?;
    archive.finish().map(|_| ())
}

/// Fields as `Debug` lists them.
pub(crate) fn listed(fields: Vec<(&str, String)>) -> String {
    fields.into_iter().map(|(name, value)| format!("{name}: {value}, ")).collect()
}

/// The fields with these names, as `Debug` shows each.
macro_rules! named {
    ($($field:ident)*) => { alloc::vec![$((stringify!($field), alloc::format!("{:x?}", $field)),)*] };
}

pub(crate) use named;

/// Values by their paths, such as `timer.state`.
type Fields = BTreeMap<String, String>;

/// A longer list is one value.
const LIST_MAX: usize = 16;

fn fields(state: &impl Debug) -> Fields {
    let mut fields = Fields::new();
    take_apart("", &format!("{state:x?}"), &mut fields);
    fields.remove("");
    fields
}

/// A value as `Debug` shows it, by its parts. A variant is the value of the path of its own.
fn take_apart(path: &str, shown: &str, fields: &mut Fields) {
    let shown = shown.trim();
    let open = shown.find(['{', '(', '[']).filter(|_| shown.ends_with(['}', ')', ']']));
    let (variant, inner) = open.map_or((shown, ""), |at| (&shown[..at], &shown[at + 1..shown.len() - 1]));
    let is_struct = shown[variant.len()..].starts_with('{');
    let name = |(index, part)| match is_struct {
        true => str::split_once(part, ": ").map(|(name, value)| (name.trim().to_owned(), value)),
        false => Some((usize::to_string(&index), part)),
    };
    let parts: Option<Vec<_>> = parts(inner).into_iter().enumerate().map(name).collect();
    let most = if is_struct { usize::MAX } else { LIST_MAX };
    let Some(parts) = parts.filter(|parts| (1..=most).contains(&parts.len())) else {
        fields.insert(path.to_owned(), shown.to_owned());
        return;
    };
    fields.insert(path.to_owned(), variant.trim().to_owned());
    for (name, value) in parts {
        take_apart(&format!("{path}{}{name}", if path.is_empty() { "" } else { "." }), value, fields);
    }
}

/// What is between commas that are in no brackets.
fn parts(shown: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, letter) in shown.char_indices().chain([(shown.len(), ',')]) {
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&shown[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// The paths at which two states differ, and their values there.
fn differing(one: &Fields, other: &Fields) -> BTreeMap<String, [Option<String>; 2]> {
    let paths = one.keys().chain(other.keys()).filter(|path| one.get(*path) != other.get(*path));
    paths.map(|path| (path.clone(), [one, other].map(|fields| fields.get(path).cloned()))).collect()
}

/// Why there are exceptions, and their paths: each with all below it, or with all that begin as
/// before a `*`.
pub(crate) type Reasons = &'static [(&'static str, &'static str)];

fn exceptions<'a>(lists: &'a [Reasons]) -> impl Iterator<Item = &'static str> + 'a {
    lists.iter().copied().flatten().flat_map(|(_, paths)| paths.split_ascii_whitespace())
}

fn is_below(path: &str, of: &str) -> bool {
    match of.strip_suffix('*') {
        Some(begin) => path.starts_with(begin),
        None => path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
    }
}

fn has(lists: &[Reasons], path: &str) -> bool {
    exceptions(lists).any(|of| is_below(path, of))
}

/// The exceptions that are none.
fn idle<'a>(lists: &'a [Reasons], paths: &'a BTreeSet<String>) -> impl Iterator<Item = &'static str> + 'a {
    exceptions(lists).filter(|of| !paths.iter().any(|path| is_below(path, of)))
}

/// A reset: its name, and what it leaves as it is.
pub(crate) type Reset<'a, T> = (&'static str, fn(&mut T), &'a [Reasons]);

/// A kind of state, and what holds for it.
pub(crate) struct Kept<'a, T> {
    /// As it begins.
    pub(crate) new: &'a dyn Fn() -> T,
    /// Goes on with any state that can be read.
    pub(crate) play: &'a dyn Fn(&mut T, &mut Random),
    /// What the receiver has of its own: no description gives it a value.
    pub(crate) own: &'a [Reasons],
    /// Gives values to that, too.
    pub(crate) spoil: &'a dyn Fn(&mut T, &mut Random),
    pub(crate) resets: &'a [Reset<'a, T>],
    pub(crate) seeds: u64,
}

impl<'a, T: Described + Debug> Kept<'a, T> {
    /// One without exceptions.
    pub(crate) fn of(new: &'a dyn Fn() -> T, play: &'a dyn Fn(&mut T, &mut Random)) -> Self {
        Self { new, play, own: &[], spoil: play, resets: &[], seeds: 100 }
    }

    /// Random states arrive in a new one, in all of their fields, and a reset leaves nothing of
    /// them. What is cut off, or changed, is a flaw or a state that goes on.
    ///
    /// # Panics
    ///
    /// With the paths of the fields that are forgotten.
    pub(crate) fn holds(&self) {
        let new = fields(&(self.new)());
        let (mut described, mut faults) = (BTreeSet::new(), BTreeMap::new());
        let mut left = vec![BTreeSet::new(); self.resets.len()];
        for seed in 0..self.seeds {
            let mut random = Random::new(seed + 1);
            let mut there = (self.new)();
            let begun = fields(&there);
            there.describe(&mut Archive::random(seed)).expect("has values");
            described.extend(differing(&begun, &fields(&there)).into_keys());
            if seed % 2 != 0 {
                (self.play)(&mut there, &mut random);
            }
            let bytes = written(&mut there);
            let there = fields(&there);
            let mut here = (self.new)();
            read(&mut here, &bytes).expect("is read");
            let lost = differing(&there, &fields(&here));
            let lost = lost.into_iter().filter(|(path, _)| !has(self.own, path));
            faults.extend(lost.map(|(path, values)| (format!("{path} does not arrive"), values)));
            assert!(written(&mut here) == bytes, "seed {seed}");
            (self.play)(&mut here, &mut random);
            for ((name, reset, keeps), left) in self.resets.iter().zip(&mut left) {
                let mut state = (self.new)();
                let begun = fields(&state);
                read(&mut state, &bytes).expect("is read");
                (self.spoil)(&mut state, &mut random);
                reset(&mut state);
                for (path, values) in differing(&begun, &fields(&state)) {
                    if !has(keeps, &path) {
                        faults.insert(format!("{path} is left by {name}"), values);
                    }
                    left.insert(path);
                }
            }
            self.bears_changes(&bytes, seed, &mut random);
        }
        // Reserved bits have no state.
        let is_leaf = |path: &&String| {
            !path.contains(".reserved_") && !new.keys().any(|other| other != *path && is_below(other, path))
        };
        let forgotten = new.keys().filter(is_leaf).filter(|path| !described.contains(*path));
        let unknown = forgotten.filter(|path| !has(self.own, path));
        let unknown = unknown.map(|path| format!("{path} is left out of the description"));
        let there_are = new.keys().cloned().collect();
        let lists = self.resets.iter().zip(&left).map(|((_, _, keeps), left)| (*keeps, left));
        let lists = [(self.own, &there_are)].into_iter().chain(lists);
        let idle = lists.flat_map(|(lists, paths)| idle(lists, paths));
        let all = faults.into_iter().map(|(fault, values)| format!("{fault}: {values:?}"));
        let all: Vec<_> =
            all.chain(unknown).chain(idle.map(|path| format!("{path} is no exception"))).collect();
        assert!(all.is_empty(), "{}", all.join("\n"));
    }

    fn bears_changes(&self, bytes: &[u8], seed: u64, random: &mut Random) {
        for _ in 0..20 * self.seeds / 100 {
            let mut changed = bytes.to_owned();
            changed[random.below(bytes.len() as u64) as usize] ^= 1 << random.below(8);
            let mut here = (self.new)();
            if read(&mut here, &changed).is_ok() {
                (self.play)(&mut here, random);
            }
        }
        let end = random.below(bytes.len() as u64) as usize;
        assert_eq!(read(&mut (self.new)(), &bytes[..end]), Err(Flaw::Short), "seed {seed}, cut at {end}");
    }
}
