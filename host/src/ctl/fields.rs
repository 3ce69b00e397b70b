//! Records of an answer: `key=value` words.

use anyhow::{Context, Result};
use hostlink::ctl::parse_number;
use serde::{Serialize, Serializer};

/// A record's fields, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn parse(record: &str) -> Result<Self> {
        let pair = |word: &str| {
            let (key, value) =
                word.split_once('=').with_context(|| format!("unexpected answer '{record}'"))?;
            Ok((key.to_owned(), value.to_owned()))
        };
        record.split_ascii_whitespace().map(pair).collect::<Result<_>>().map(Self)
    }

    /// The same with one more field, in front.
    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        self.0.insert(0, (key.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        let (_, value) = self.iter().find(|(name, _)| *name == key)?;
        parse_number(value).ok()
    }
}

/// As an object, in which numbers are numbers.
impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(key, value)| {
            let number = parse_number(value).map(serde_json::Value::from);
            (key, number.unwrap_or_else(|_| value.into()))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_numbers_and_order_stays() {
        let fields = Fields::parse("slot=3 gpa=0x1000 access=ro").expect("parses").with("machine", "12-1");
        let json = serde_json::to_string(&fields).expect("writes");
        assert_eq!(json, r#"{"machine":"12-1","slot":3,"gpa":4096,"access":"ro"}"#);
        assert_eq!(["gpa", "access", "none"].map(|key| fields.number(key)), [Some(4096), None, None]);
        assert!(Fields::parse("nothing here").is_err());
    }
}
