//! One `[[shared]]` of a machine file: memory that guests share.

use super::fields::{At, Fields, Key, Source};
use super::guest::GuestPlan;
use crate::prelude::*;
use hostlink::config::{MAX_REGIONS, REGION_BYTES, Share};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const KEYS: &[Key] =
    &[("name", r#"name = "ring""#), ("size", r#"size = "1M""#), ("guests", r#"guests = ["web", "db"]"#)];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedPlan {
    pub(crate) line: usize,
    pub(crate) name: Name,
    pub(crate) size: u64,
    /// Its guests. Each one's number in the region is its index here.
    pub(crate) guests: Vec<Name>,
}

impl SharedPlan {
    fn read(source: &Source, table: &DeTable<'_>, line: usize, guests: &[GuestPlan]) -> Result<Self> {
        let fields = Fields::new(source, table, "a [[shared]]", KEYS.to_vec(), (&[], ""))?;
        let missing = |key: &str| {
            let example = fields.example(key);
            source.error(line, format!("this shared memory has no {key}; write for example {example}"))
        };
        let name = fields.word("name", Name::EXPECTED, Name::parse)?.ok_or_else(|| missing("name"))?;
        let At { value: size, line: at } = fields.size("size")?.ok_or_else(|| missing("size"))?;
        if !size.is_power_of_two() || !REGION_BYTES.contains(&size) {
            let (least, most) = (size::display(*REGION_BYTES.start()), size::display(*REGION_BYTES.end()));
            let what = format!("has to be a power of two from {least} to {most}");
            return Err(fields.wrong("size", at, what));
        }
        let At { value: named, line: at } = fields.texts("guests")?.ok_or_else(|| missing("guests"))?;
        let mut found = Vec::<Name>::new();
        for name in &named {
            let guest = guests.iter().find(|guest| guest.name().as_str() == name);
            let guest = guest.ok_or_else(|| {
                source.error(at, format!("guests names '{name}', but there is no such guest"))
            })?;
            if found.contains(&guest.name()) {
                return Err(source.error(at, format!("guests names '{name}' twice; name each guest once")));
            }
            found.push(guest.name());
        }
        if found.len() < 2 {
            return Err(fields.wrong("guests", at, "has to name two guests or more"));
        }
        Ok(Self { line, name: name.value, size, guests: found })
    }

    /// The region as a guest sees it, if the guest shares it.
    fn of(&self, guest: Name) -> Option<Share> {
        let id = self.guests.iter().position(|name| *name == guest)?;
        Some(Share { name: self.name, size: self.size, id: u16::try_from(id).ok()? })
    }
}

pub(super) fn read(
    source: &Source,
    value: Option<&Spanned<DeValue<'_>>>,
    guests: &[GuestPlan],
) -> Result<Vec<SharedPlan>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let brackets = |span| {
        let message = "shared memory is written with two brackets on each side: [[shared]]";
        Err(source.error(source.line(&span), message))
    };
    let DeValue::Array(tables) = value.get_ref() else { return brackets(value.span()) };
    let mut regions = Vec::<SharedPlan>::new();
    for table in tables.iter() {
        let DeValue::Table(fields) = table.get_ref() else { return brackets(table.span()) };
        let region = SharedPlan::read(source, fields, source.line(&table.span()), guests)?;
        if let Some(first) = regions.iter().find(|first| first.name == region.name) {
            let message = format!(
                "the shared memory in line {} is called '{}' as well; give this one another name",
                first.line, region.name
            );
            return Err(source.error(region.line, message));
        }
        regions.push(region);
        for guest in guests {
            if regions.iter().filter(|region| region.guests.contains(&guest.name())).count() > MAX_REGIONS {
                let message = format!("{} would share more than {MAX_REGIONS} regions", guest.name());
                return Err(source.error(source.line(&table.span()), message));
            }
        }
    }
    Ok(regions)
}

pub(crate) fn config(regions: &[SharedPlan], guest: Name) -> String {
    let shares = regions.iter().filter_map(|region| region.of(guest));
    shares.map(|share| share.to_string()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine_file::tests::{read, refused};

    const THREE: &str = "[[guest]]\nname = \"web\"\n[[guest]]\nname = \"db\"\n[[guest]]\nname = \"log\"\n";

    #[test]
    fn guests_share_memory_under_the_numbers_of_their_places() {
        let text = format!(
            "{THREE}[[shared]]\nname = \"ring\"\nsize = \"64M\"\nguests = [\"web\", \"db\"]\n\
             [[shared]]\nname = \"all\"\nsize = \"4K\"\nguests = [\"log\", \"web\", \"db\"]\n"
        );
        let file = read(&text).expect("is right");
        let of = |guest: usize| config(&file.shared, file.guests[guest].name());
        assert_eq!(of(0), "ring:67108864:0 all:4096:1");
        assert_eq!(of(1), "ring:67108864:1 all:4096:2");
        assert_eq!(of(2), "all:4096:0");
        let without = read(THREE).expect("is right");
        assert_eq!(config(&without.shared, file.guests[0].name()), "");
        assert!(file.memory_needed(0) > without.memory_needed(0) + MIB);
        assert!(file.table().contains("web, db share 64 MiB of memory, 'ring'"), "{}", file.table());
        let expected = serde_json::json!({ "name": "ring", "size_bytes": 64 * MIB, "guests": ["web", "db"] });
        assert_eq!(file.json()["shared"][0], expected);
    }

    #[test]
    fn wrong_shared_memory_is_refused() {
        let shared = |lines: &str| refused(&format!("{THREE}[[shared]]\n{lines}\n"));
        let size = "size has to be a power of two from 4 KiB to 64 MiB; write for example size = \"1M\"";
        let fine = "name = \"a\"\nsize = \"4K\"\nguests = [\"web\", \"db\"]\n";
        for (lines, expected) in [
            ("", "7: this shared memory has no name; write for example name = \"ring\"".to_owned()),
            ("name = \"a\"", "7: this shared memory has no size; write for example size = \"1M\"".to_owned()),
            ("size = \"2K\"\nname = \"a\"", format!("8: {size}")),
            ("size = \"12K\"\nname = \"a\"", format!("8: {size}")),
            ("size = \"128M\"\nname = \"a\"", format!("8: {size}")),
            (
                "name = \"a\"\nsize = \"4K\"",
                "7: this shared memory has no guests; write for example guests = [\"web\", \"db\"]"
                    .to_owned(),
            ),
            (
                "name = \"a\"\nsize = \"4K\"\nguests = [\"web\"]",
                "10: guests has to name two guests or more; write for example guests = [\"web\", \"db\"]"
                    .to_owned(),
            ),
            (
                "name = \"a\"\nsize = \"4K\"\nguests = [\"web\", \"www\"]",
                "10: guests names 'www', but there is no such guest".to_owned(),
            ),
            (
                "name = \"a\"\nsize = \"4K\"\nguests = [\"web\", \"web\"]",
                "10: guests names 'web' twice; name each guest once".to_owned(),
            ),
            ("nam = \"a\"", "8: a [[shared]] has no key 'nam'; did you mean 'name'?".to_owned()),
            (
                &format!("{fine}[[shared]]\n{fine}"),
                "11: the shared memory in line 7 is called 'a' as well; give this one another name"
                    .to_owned(),
            ),
        ] {
            assert_eq!(shared(lines), expected, "{lines}");
        }
        let many: String = ('a'..='e')
            .map(|name| format!("[[shared]]\n{}", fine.replace("\"a\"", &format!("\"{name}\""))))
            .collect();
        assert_eq!(refused(&format!("{THREE}{many}")), "23: web would share more than 4 regions");
        assert_eq!(
            refused(&format!("{THREE}[shared]\nname = \"a\"\n")),
            "7: shared memory is written with two brackets on each side: [[shared]]"
        );
        assert_eq!(
            refused("[[share]]\n"),
            "1: there is no 'share'; write [[shared]] for memory that guests share"
        );
    }
}
