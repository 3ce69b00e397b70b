//! Machine files: TOML that describes a machine with several guests. `docs/machine-file.md`
//! describes the keys.
//!
//! Everything is checked before anything is started. The first mistake is reported in one message,
//! with its line and what to write instead.

mod arriving;
mod checks;
mod fields;
mod guest;
mod keys;
mod machine;
mod plan;

pub(crate) use fields::Source;
pub(crate) use guest::{Boot, GuestPlan, Software};
pub(crate) use keys::{KEYS, Key};
pub(crate) use machine::Machine;

use crate::cli::Overrides;
use crate::prelude::*;
use fields::{first_unknown, nearest, refuse};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

#[derive(Clone, Debug)]
pub(crate) struct MachineFile {
    pub(crate) source: Source,
    pub(crate) machine: Machine,
    pub(crate) guests: Vec<GuestPlan>,
}

impl MachineFile {
    /// Reads the file. Options that were given take the place of its keys.
    pub(crate) fn read(path: &Path, given: Overrides) -> Result<Self> {
        Self::of(Source::read(path)?, given)
    }

    /// A machine with one guest that has these keys. Options about the machine say the rest.
    pub(crate) fn of_options(keys: &[(&str, String)], given: Overrides) -> Result<Self> {
        let line = |(key, value): &(&str, String)| format!("{key} = {value}\n");
        let lines: String = keys.iter().map(line).collect();
        Self::of(Source::of_options(format!("[[guest]]\nname = \"guest\"\n{lines}")), given)
    }

    fn of(source: Source, given: Overrides) -> Result<Self> {
        let text = source.text().to_owned();
        let root = DeTable::parse(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| source.line(&span));
            source.error(line, format!("this is not TOML: {}", error.message().replace('\n', ", ")))
        })?;
        let root = root.get_ref();
        refuse_unknown(&source, root)?;
        let get = |key: &str| root.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value);
        let empty = DeTable::new();
        let machine = match get("machine") {
            Some(value) => match value.get_ref() {
                DeValue::Table(table) => Machine::read(&source, table, given)?,
                _ => {
                    let line = source.line(&value.span());
                    refuse!(source, line, "machine is a table; write [machine] in a line of its own")
                }
            },
            None => Machine::read(&source, &empty, given)?,
        };
        let guests = guests(&source, get("guest"), &machine)?;
        let file = Self { source, machine, guests };
        file.check()?;
        Ok(file)
    }
}

fn refuse_unknown(source: &Source, root: &DeTable<'_>) -> Result<()> {
    const TABLES: [&str; 2] = ["machine", "guest"];
    let Some((key, span)) = first_unknown(root, |key| TABLES.contains(&key)) else { return Ok(()) };
    let message = match nearest(key, TABLES.into_iter()) {
        _ if KEYS.iter().any(|guests| guests.name == key) => {
            format!("'{key}' belongs to a guest; write it below a line [[guest]]")
        }
        _ if machine::KEYS.iter().any(|(name, _)| *name == key) => {
            format!("'{key}' belongs to the machine; write it below a line [machine]")
        }
        Some("guest") => format!("there is no '{key}'; write [[guest]] for each guest"),
        Some(near) => format!("there is no '{key}'; write [{near}]"),
        None => format!("there is no '{key}'; a machine file has [machine] and a [[guest]] for each guest"),
    };
    Err(source.error(source.line(&span), message))
}

fn guests(
    source: &Source,
    value: Option<&Spanned<DeValue<'_>>>,
    machine: &Machine,
) -> Result<Vec<GuestPlan>> {
    let Some(value) = value else {
        refuse!(source, 1, "there is no guest; write a line [[guest]] and below it name = \"web\"")
    };
    let brackets = |span| {
        let message = "a guest is written with two brackets on each side: [[guest]]";
        Err(source.error(source.line(&span), message))
    };
    let DeValue::Array(tables) = value.get_ref() else { return brackets(value.span()) };
    let mut guests = Vec::new();
    for table in tables.iter() {
        let DeValue::Table(fields) = table.get_ref() else { return brackets(table.span()) };
        guests.push(GuestPlan::read(source, fields, source.line(&table.span()), machine)?);
    }
    if guests.is_empty() {
        return brackets(value.span());
    }
    Ok(guests)
}

#[cfg(test)]
mod tests;
