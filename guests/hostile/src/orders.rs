//! The command line.

/// The requested actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders<'a> {
    /// The test's name.
    pub test: &'a str,
    /// The attack, if the test is one; otherwise empty.
    pub attack: &'a str,
    /// The seed of everything random; not 0.
    pub seed: u64,
    /// The amount of work, if it is given.
    pub count: Option<u64>,
    /// The number of repetitions, each with the next seed.
    pub rounds: u64,
    /// Whether to wait for a byte from the serial port before it begins, and at its end.
    pub rests: bool,
}

/// The default seed.
pub const SEED: u64 = 0x5eed;

/// A number: decimal, or hexadecimal after `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl<'a> Orders<'a> {
    /// Parses a command line. Words of loaders, `console=` and `BOOT_IMAGE=`, are ignored.
    ///
    /// # Errors
    ///
    /// Why it is invalid.
    pub fn parse(line: &'a str) -> Result<Self, &'static str> {
        let mut orders = Self { test: "", attack: "", seed: SEED, count: None, rounds: 1, rests: false };
        for word in line.split_whitespace() {
            match word.split_once('=').unwrap_or((word, "")) {
                ("test", name) => orders.test = name,
                ("attack", name) => orders.attack = name,
                ("seed", text) => {
                    orders.seed =
                        number(text).filter(|seed| *seed != 0).ok_or("seed= takes a number but 0")?;
                }
                ("count", text) => orders.count = Some(number(text).ok_or("count= takes a number")?),
                ("rounds", text) => orders.rounds = number(text).ok_or("rounds= takes a number")?,
                ("rest", "") => orders.rests = true,
                ("console" | "BOOT_IMAGE", _) => {}
                _ => return Err("a word that has no meaning"),
            }
        }
        if orders.test.is_empty() { Err("nothing to do: test= is missing") } else { Ok(orders) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_order_says_why() {
        for (line, why) in [
            ("", "nothing to do: test= is missing"),
            ("test=", "nothing to do: test= is missing"),
            ("test=a seed=", "seed= takes a number but 0"),
            ("test=a seed=0", "seed= takes a number but 0"),
            ("test=a count=x", "count= takes a number"),
            ("test=a rounds=", "rounds= takes a number"),
            ("test=a rest=1", "a word that has no meaning"),
            ("test=a quiet", "a word that has no meaning"),
        ] {
            assert_eq!(Orders::parse(line), Err(why), "{line}");
        }
    }

    #[test]
    fn orders_are_read() {
        let usual = Orders { test: "a", attack: "", seed: SEED, count: None, rounds: 1, rests: false };
        assert_eq!(Orders::parse("console=ttyS0 test=a"), Ok(usual));
        let all = Orders { seed: 0x1f, count: Some(7), rounds: 3, rests: true, ..usual };
        assert_eq!(Orders::parse("seed=0x1f count=7 rounds=3 rest test=a"), Ok(all));
        let attack = Orders { attack: "ipis", ..usual };
        assert_eq!(Orders::parse("test=a attack=ipis"), Ok(attack));
    }
}
