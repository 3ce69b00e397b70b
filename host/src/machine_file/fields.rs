//! The text of a machine file, messages about it, and the keys of one of its tables.

use super::{GuestPlan, keys};
use crate::prelude::*;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub(super) type Key = (&'static str, &'static str);

/// Returns an error about a line of a machine file.
macro_rules! refuse {
    ($source:expr, $line:expr, $($message:tt)*) => {
        return Err($source.error($line, format!($($message)*)))
    };
}
pub(super) use refuse;

pub(super) struct Fields<'f> {
    source: &'f Source,
    table: &'f DeTable<'f>,
    keys: Vec<Key>,
}

/// How alike two words have to be for one to be suggested instead of the other.
const LIKENESS_MIN: f64 = 0.75;

/// The word that was probably meant.
pub(super) fn nearest<'w>(wrong: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let likeness = |word: &str| strsim::jaro_winkler(&wrong.to_lowercase(), word);
    let likely = words.map(|word| (likeness(word), word)).filter(|(likeness, _)| *likeness >= LIKENESS_MIN);
    likely.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, word)| word)
}

pub(super) fn first_unknown<'f>(
    table: &'f DeTable<'_>,
    is_known: impl Fn(&str) -> bool,
) -> Option<(&'f str, Range<usize>)> {
    let unknown = table.keys().filter(|key| !is_known(key.get_ref()));
    unknown.min_by_key(|key| key.span().start).map(|key| (&**key.get_ref(), key.span()))
}

impl<'f> Fields<'f> {
    /// `others` are keys of another table, and the message about one of them that is here.
    pub(super) fn new(
        source: &'f Source,
        table: &'f DeTable<'f>,
        whose: &str,
        keys: Vec<Key>,
        (others, instead): (&[Key], &str),
    ) -> Result<Self> {
        let has = |keys: &[Key], key: &str| keys.iter().any(|(name, _)| *name == key);
        if let Some((key, span)) = first_unknown(table, |key| has(&keys, key)) {
            let line = source.line(&span);
            let names = || keys.iter().map(|(name, _)| *name);
            let message = match nearest(key, names()) {
                _ if has(others, key) => format!("'{key}' {instead}"),
                Some(near) => format!("{whose} has no key '{key}'; did you mean '{near}'?"),
                None => {
                    let all = names().collect::<Vec<_>>().join(", ");
                    format!("{whose} has no key '{key}'; write one of {all}")
                }
            };
            return Err(source.error(line, message));
        }
        Ok(Self { source, table, keys })
    }

    fn get(&self, key: &str) -> Option<&'f Spanned<DeValue<'f>>> {
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn line(&self, key: &str) -> Option<usize> {
        self.get(key).map(|value| self.source.line(&value.span()))
    }

    /// A message about a value, which ends with a line that would be right.
    pub(super) fn wrong(&self, key: &str, line: usize, what: impl std::fmt::Display) -> Error {
        if self.source.is_of_options() {
            return anyhow!("--{} {what}", keys::option_of(key));
        }
        self.source.error(line, format!("{key} {what}; write for example {}", self.example(key)))
    }

    pub(super) fn example(&self, key: &str) -> &'static str {
        self.keys.iter().find(|(name, _)| *name == key).map_or("", |(_, example)| example)
    }

    fn wrong_type(&self, key: &str, line: usize, value: &DeValue<'_>, expected: &str) -> Error {
        let written = match value {
            DeValue::String(text) => format!("\"{text}\""),
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Boolean(value) => value.to_string(),
            other => format!("a value of type {}", other.type_str()),
        };
        self.wrong(key, line, format!("is {written}, which is not {expected}"))
    }

    /// What `read` makes of a value, if there is one; `None` of it if the value has another type.
    fn of_type<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'f DeValue<'f>) -> Option<T>,
    ) -> Result<Option<At<T>>> {
        let Some(spanned) = self.get(key) else { return Ok(None) };
        let line = self.source.line(&spanned.span());
        let value = spanned.get_ref();
        match read(value) {
            Some(value) => Ok(Some(At { value, line })),
            None => Err(self.wrong_type(key, line, value, expected)),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<At<&'f str>>> {
        let found = self.of_type(key, "text in quotes", DeValue::as_str)?;
        if let Some(At { value, line }) = found {
            let is_good =
                !value.is_empty() && (self.source.is_of_options() || !value.contains(['\n', '\r', '\0']));
            if !is_good {
                return Err(self.wrong(key, line, "has to be one line of text"));
            }
        }
        Ok(found)
    }

    pub(super) fn number(&self, key: &str, min: u32, max: u32) -> Result<Option<At<u32>>> {
        let expected = format!("a whole number from {min} to {max}");
        self.of_type(key, &expected, |value| integer(value).filter(|number| (min..=max).contains(number)))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<At<bool>>> {
        self.of_type(key, "true or false", DeValue::as_bool)
    }

    /// A word that `read` knows; `expected` says which.
    pub(super) fn word<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<At<T>>> {
        self.of_type(key, expected, |value| read(value.as_str()?))
    }

    /// Text, or a list of numbers, which `read` gets as text with commas between them.
    pub(super) fn list<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<At<T>>> {
        self.of_type(key, expected, |value| {
            let Some(numbers) = value.as_array() else { return read(value.as_str()?) };
            let numbers = numbers.iter().map(|number| Some(integer(number.get_ref())?.to_string()));
            read(&numbers.collect::<Option<Vec<_>>>()?.join(","))
        })
    }

    /// A text, or a list of texts, each on one line.
    pub(super) fn texts(&self, key: &str) -> Result<Option<At<Vec<String>>>> {
        let is_line = |text: &&str| !text.is_empty() && !text.contains(['\n', '\r', '\0']);
        let text = |value: &DeValue<'_>| value.as_str().filter(is_line).map(str::to_owned);
        self.of_type(key, "text in quotes, or a list of such texts", |value| match value {
            DeValue::Array(values) => values.iter().map(|value| text(value.get_ref())).collect(),
            value => text(value).map(|text| vec![text]),
        })
    }

    pub(super) fn owned(&self, key: &str) -> Result<Option<At<String>>> {
        Ok(self.text(key)?.map(|At { value, line }| At { value: value.to_owned(), line }))
    }

    pub(super) fn files(&self, key: &str) -> Result<Option<At<Vec<PathBuf>>>> {
        let resolved = |names: Vec<String>| names.iter().map(|name| self.resolve(name)).collect();
        Ok(self.texts(key)?.map(|At { value, line }| At { value: resolved(value), line }))
    }

    /// A file that has to exist. What an option names is looked at where it is read.
    pub(super) fn file(&self, key: &str) -> Result<Option<At<PathBuf>>> {
        let Some(At { value, line }) = self.text(key)? else { return Ok(None) };
        let path = self.resolve(value);
        if !path.is_file() && !self.source.is_of_options() {
            refuse!(
                self,
                line,
                "there is no file {} for {key}; write its path relative to this file's directory, \
                 or leave {key} out for the stock one",
                path.display()
            );
        }
        Ok(Some(At { value: path, line }))
    }

    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        self.source.resolve(path)
    }

    pub(super) fn error(&self, line: usize, message: impl std::fmt::Display) -> Error {
        self.source.error(line, message)
    }

    /// A size in bytes: text such as `256M`.
    pub(super) fn size(&self, key: &str) -> Result<Option<At<u64>>> {
        self.of_type(key, "a size with its unit", |value| {
            let text =
                value.as_str().filter(|text| text.ends_with(|last: char| last.is_ascii_alphabetic()))?;
            crate::size::parse(text).ok()
        })
    }
}

fn integer(value: &DeValue<'_>) -> Option<u32> {
    let number = value.as_integer()?;
    u32::from_str_radix(number.as_str(), number.radix()).ok()
}

const BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Source {
    path: PathBuf,
    text: String,
}

/// A value, and the line of the file that gives it, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) line: usize,
}

impl Source {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let data = fs::metadata(path).with_context(|| format!("there is no machine file {shown}"))?;
        ensure!(data.is_file(), "{shown} is not a file: name a machine file, such as examples/two.toml");
        ensure!(data.len() <= BYTES_MAX, "{shown} is no machine file: it has {} bytes", data.len());
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        Ok(Self { path: path.to_owned(), text })
    }

    /// What options say, as the text of a machine file with a key in each line.
    pub(super) fn of_options(text: String) -> Self {
        Self { path: PathBuf::new(), text }
    }

    /// Whether options say it: messages are about them, not about lines.
    pub(super) fn is_of_options(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    #[cfg(test)]
    pub(super) fn made_up(path: &Path, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// A path in the file, which is relative to the file's directory.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    pub(crate) fn error(&self, line: usize, message: impl std::fmt::Display) -> Error {
        if self.is_of_options() {
            return anyhow!("{message}");
        }
        anyhow!("{}:{line}: {message}", self.path.display())
    }

    /// What is wrong with a guest, with its line and name.
    pub(crate) fn about(&self, guest: &GuestPlan, error: Error) -> Error {
        if self.is_of_options() {
            return error;
        }
        self.error(guest.line, format!("{}: {error:#}", guest.name()))
    }
}
