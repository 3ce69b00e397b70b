//! Commands, each a word: of the command line, or of a line from the serial port.

/// Size in bytes of the words that are stored and read.
const WORD: u64 = 8;
pub use baremetal::pages::PAGE;
/// Hints without an architectural meaning, which instruction counters use as marks.
const HINTS: core::ops::RangeInclusive<u64> = 0x60..=0x7f;
const SPIN_MAX_MS: u64 = 3_600_000;
/// The error of `Walk` and `Dirty` for invalid numbers.
const NOT_NUMBERS: &str = "a number is missing, or is none";

/// A sequence of words in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Guest physical address of the first word; a multiple of 8.
    pub start: u64,
    /// Number of bytes from there on in which the words begin.
    pub bytes: u64,
    /// Distance between words in bytes; a multiple of 8 and not 0.
    pub stride: u64,
}

impl Walk {
    fn new(start: u64, bytes: u64, stride: u64) -> Result<Self, &'static str> {
        let is_aligned =
            start.is_multiple_of(WORD) && stride.is_multiple_of(WORD) && bytes.is_multiple_of(WORD);
        match start.checked_add(bytes) {
            None => Err("the range goes over the end of the address space"),
            Some(_) if !is_aligned => Err("numbers have to be multiples of 8"),
            Some(_) if stride == 0 || bytes == 0 => Err("nothing to do: a number is 0"),
            Some(_) => Ok(Self { start, bytes, stride }),
        }
    }

    /// Number of words.
    pub const fn count(&self) -> u64 {
        self.bytes.div_ceil(self.stride)
    }

    /// The address after its last byte.
    pub const fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// Whether any of its bytes is in the range from `start` up to but not including `end`.
    pub const fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end()
    }
}

/// What is done to devices that must disturb nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// Writes to configuration space.
    Config,
    /// Moves of BARs.
    Bars,
    /// Messages of MSI-X.
    Messages,
    /// Accesses to registers.
    Registers,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `touch=START,BYTES,STRIDE`: store to each word once, in order.
    Touch(Walk),
    /// `read=START,BYTES,STRIDE`: read each word once, in order.
    Read(Walk),
    /// `zero=START,BYTES`: check that each word is zero.
    Zero(Walk),
    /// `clear=START,BYTES`: make each word zero.
    Clear(Walk),
    /// `dirty=START,BYTES,RATE[,SECONDS]`: keep storing to each page in turn.
    Dirty {
        /// A word in each page.
        walk: Walk,
        /// 10^6 bytes per second, where each store counts as a whole page; 0 means unlimited.
        rate: u64,
        /// Duration; 0 means until the serial port receives a `q`.
        seconds: u64,
    },
    /// `watch=ADDRESS,SECONDS`: all processors keep reading a word, and changes in what they find
    /// are reported; until the time is over, at most an hour, or the serial port receives a `q`.
    Watch {
        /// Guest physical address of the word; a multiple of 8.
        address: u64,
        /// Duration.
        seconds: u64,
    },
    /// `identify=ADDRESS`: have an NVMe device write its description, 4096 bytes, to an address, by
    /// DMA. A device that may not write there may report success.
    Identify(u64),
    /// `fly=ADDRESS,COUNT[,1]`: have a disk read its beginning, so often to an address and those
    /// after it: a virtio disk a page each time, or else an NVMe device two pages. The command does
    /// not wait for the disk; with a 1 it resets it.
    Fly {
        /// Where the first pages come to.
        address: u64,
        /// How many commands, 63 at most.
        count: u64,
        /// Whether the device is reset at once.
        then_reset: bool,
    },
    /// `config=SEED,COUNT`, `bars=…`, `messages=…`, `registers=…`: misuse an NVMe device and a
    /// network card. The guest has to be reset before it uses them.
    Misuse {
        /// In which way.
        what: Misuse,
        /// What determines everything random.
        seed: u64,
        /// How often.
        count: u64,
    },
    /// `hog`: unmask every message of every function, so that each wants an interrupt vector.
    Hog,
    /// `spin=MS`: do nothing, awake; for at most an hour.
    Spin(u64),
    /// `hint=N`: execute that HINT instruction.
    Hint(u8),
    /// `halt`: sleep for good.
    Halt,
    /// `reset`: reset the machine. `triple-fault`: by a fault without handlers.
    Reset {
        /// By the fault.
        by_fault: bool,
    },
    /// `poweroff`: switch the machine off.
    PowerOff,
}

/// A number: decimal, or hexadecimal after `0x`, with a suffix K, M or G for powers of 1024.
fn number(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let value = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    value.ok()?.checked_mul(unit)
}

/// Exactly as many numbers as there are places; `None` for optional ones that are missing.
fn numbers<const N: usize>(text: &str) -> Result<[Option<u64>; N], &'static str> {
    let mut numbers = [None; N];
    let mut parts = text.split(',');
    for (place, part) in numbers.iter_mut().zip(&mut parts) {
        *place = Some(number(part).ok_or(NOT_NUMBERS)?);
    }
    if parts.next().is_some() { Err("there are too many numbers") } else { Ok(numbers) }
}

impl Command {
    /// Parses a word.
    ///
    /// # Errors
    ///
    /// Why it is no command; `None` for another program's: loaders add `console=`, `BOOT_IMAGE=`.
    pub fn parse(word: &str) -> Result<Self, Option<&'static str>> {
        let (name, rest) = word.split_once('=').unwrap_or((word, ""));
        let walk = || match numbers(rest)? {
            [Some(start), Some(bytes), Some(stride)] => Walk::new(start, bytes, stride),
            _ => Err(NOT_NUMBERS),
        };
        let one = || number(rest).ok_or(NOT_NUMBERS);
        let command = match (name, rest) {
            ("touch", _) => walk().map(Self::Touch),
            ("read", _) => walk().map(Self::Read),
            ("zero", _) => words(rest).map(Self::Zero),
            ("clear", _) => words(rest).map(Self::Clear),
            ("dirty", _) => dirty(rest),
            ("watch", _) => watch(rest),
            ("identify", _) => one().map(Self::Identify),
            ("fly", _) => fly(rest),
            ("config", _) => misuse(Misuse::Config, rest),
            ("bars", _) => misuse(Misuse::Bars, rest),
            ("messages", _) => misuse(Misuse::Messages, rest),
            ("registers", _) => misuse(Misuse::Registers, rest),
            ("hog", "") => Ok(Self::Hog),
            ("spin", _) => one().and_then(|ms| match ms <= SPIN_MAX_MS {
                true => Ok(Self::Spin(ms)),
                false => Err("that is more than an hour"),
            }),
            ("hint", _) => one().and_then(|number| match HINTS.contains(&number) {
                true => Ok(Self::Hint(number as u8)),
                false => Err("hints are 0x60 to 0x7f"),
            }),
            ("halt", "") => Ok(Self::Halt),
            ("reset", "") => Ok(Self::Reset { by_fault: false }),
            ("triple-fault", "") => Ok(Self::Reset { by_fault: true }),
            ("poweroff", "") => Ok(Self::PowerOff),
            ("console" | "BOOT_IMAGE", _) => return Err(None),
            _ => Err("no command"),
        };
        command.map_err(Some)
    }
}

fn dirty(text: &str) -> Result<Command, &'static str> {
    let (start, bytes, rate, seconds) = match numbers(text)? {
        [Some(start), Some(bytes), Some(rate), seconds] => (start, bytes, rate, seconds.unwrap_or(0)),
        _ => return Err(NOT_NUMBERS),
    };
    Walk::new(start, bytes, PAGE).map(|walk| Command::Dirty { walk, rate, seconds })
}

fn words(text: &str) -> Result<Walk, &'static str> {
    let [Some(start), Some(bytes)] = numbers(text)? else { return Err(NOT_NUMBERS) };
    Walk::new(start, bytes, WORD)
}

fn fly(text: &str) -> Result<Command, &'static str> {
    let (address, count, reset) = match numbers(text)? {
        [Some(address), Some(count), reset] => (address, count, reset.unwrap_or(0)),
        _ => return Err(NOT_NUMBERS),
    };
    Ok(Command::Fly { address, count, then_reset: reset != 0 })
}

fn misuse(what: Misuse, text: &str) -> Result<Command, &'static str> {
    let [Some(seed), Some(count)] = numbers(text)? else { return Err(NOT_NUMBERS) };
    Ok(Command::Misuse { what, seed, count })
}

fn watch(text: &str) -> Result<Command, &'static str> {
    let [Some(address), Some(seconds)] = numbers(text)? else { return Err(NOT_NUMBERS) };
    if seconds > SPIN_MAX_MS / 1000 {
        return Err("that is more than an hour");
    }
    Walk::new(address, WORD, WORD).map(|walk| Command::Watch { address: walk.start, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn what_is_no_command_says_why() {
        for (word, why) in [
            ("", "no command"),
            ("touch", NOT_NUMBERS),
            ("touch=", NOT_NUMBERS),
            ("touch=1,2", NOT_NUMBERS),
            ("touch=0x40000000,8,x", NOT_NUMBERS),
            ("touch=0x40000000,8,-8", NOT_NUMBERS),
            ("touch=8,8,8,8", "there are too many numbers"),
            ("read=0xfffffffffffffff8,16,8", "the range goes over the end of the address space"),
            ("read=4,16,8", "numbers have to be multiples of 8"),
            ("read=8,15,8", "numbers have to be multiples of 8"),
            ("read=8,16,0", "nothing to do: a number is 0"),
            ("read=8,0,8", "nothing to do: a number is 0"),
            ("dirty=8,4096", NOT_NUMBERS),
            ("dirty=8,4096,1,1,1", "there are too many numbers"),
            ("touch=0,99999999999G,8", NOT_NUMBERS),
            ("clear=8,8,8", "there are too many numbers"),
            ("zero=8", NOT_NUMBERS),
            ("zero=8,8,8", "there are too many numbers"),
            ("zero=8,4", "numbers have to be multiples of 8"),
            ("watch=8", NOT_NUMBERS),
            ("watch=8,1,1", "there are too many numbers"),
            ("watch=12,1", "numbers have to be multiples of 8"),
            ("watch=0xfffffffffffffff8,1", "the range goes over the end of the address space"),
            ("watch=8,3601", "that is more than an hour"),
            ("identify=x", NOT_NUMBERS),
            ("fly=1M", NOT_NUMBERS),
            ("fly=1M,1,1,1", "there are too many numbers"),
            ("config=1", NOT_NUMBERS),
            ("bars=1,x", NOT_NUMBERS),
            ("messages=1,2,3", "there are too many numbers"),
            ("registers=", NOT_NUMBERS),
            ("reset=1", "no command"),
            ("spin=3600001", "that is more than an hour"),
            ("hint=2", "hints are 0x60 to 0x7f"),
            ("hint=0x80", "hints are 0x60 to 0x7f"),
            ("hog=1", "no command"),
            ("halt=1", "no command"),
            ("Halt", "no command"),
        ] {
            assert_eq!(Command::parse(word), Err(Some(why)), "{word}");
        }
        assert_eq!(Command::parse("console=ttyAMA0"), Err(None));
    }

    #[test]
    fn commands_are_read() {
        let walk = Walk { start: 1 << 30, bytes: 2 << 30, stride: 4096 };
        assert_eq!(Command::parse("touch=0x40000000,2G,4K"), Ok(Command::Touch(walk)));
        assert_eq!(Command::parse("read=1G,2048M,4096"), Ok(Command::Read(walk)));
        let words = Walk { start: 1 << 30, bytes: 4096, stride: 8 };
        assert_eq!(Command::parse("zero=1G,4K"), Ok(Command::Zero(words)));
        assert_eq!(Command::parse("clear=1G,4K"), Ok(Command::Clear(words)));
        let dirty = |seconds| Ok(Command::Dirty { walk, rate: 100, seconds });
        assert_eq!(Command::parse("dirty=1G,2G,100"), dirty(0));
        assert_eq!(Command::parse("dirty=1G,2G,100,5"), dirty(5));
        assert_eq!(Command::parse("watch=4G,60"), Ok(Command::Watch { address: 4 << 30, seconds: 60 }));
        assert_eq!(Command::parse("identify=2G"), Ok(Command::Identify(2 << 30)));
        let fly = |then_reset| Ok(Command::Fly { address: 2 << 20, count: 63, then_reset });
        assert_eq!((Command::parse("fly=2M,63"), Command::parse("fly=2M,63,1")), (fly(false), fly(true)));
        for (name, what) in [
            ("config", Misuse::Config),
            ("bars", Misuse::Bars),
            ("messages", Misuse::Messages),
            ("registers", Misuse::Registers),
        ] {
            let expected = Command::Misuse { what, seed: 7, count: 1024 };
            assert_eq!(Command::parse(&format!("{name}=7,1K")), Ok(expected));
        }
        assert_eq!(Command::parse("hog"), Ok(Command::Hog));
        assert_eq!(Command::parse("reset"), Ok(Command::Reset { by_fault: false }));
        assert_eq!(Command::parse("triple-fault"), Ok(Command::Reset { by_fault: true }));
        assert_eq!(Command::parse("hint=0x61"), Ok(Command::Hint(0x61)));
        assert_eq!(Command::parse("spin=5"), Ok(Command::Spin(5)));
        assert_eq!(Command::parse("halt"), Ok(Command::Halt));
        assert_eq!(Command::parse("poweroff"), Ok(Command::PowerOff));
    }

    #[test]
    fn a_walk_has_a_word_in_each_step_that_begins_in_it() {
        let count = |bytes, stride| Walk { start: 0, bytes, stride }.count();
        assert_eq!((count(8, 4096), count(4096, 4096), count(4104, 4096), count(64, 8)), (1, 1, 2, 8));
    }

    #[test]
    fn what_is_next_to_a_walk_does_not_overlap_it() {
        let walk = Walk { start: 0x1000, bytes: 0x1000, stride: 8 };
        assert!(!walk.overlaps(0, 0x1000) && !walk.overlaps(0x2000, 0x3000));
        assert!(walk.overlaps(0, 0x1001) && walk.overlaps(0x1fff, 0x3000) && walk.overlaps(0x1800, 0x1801));
    }
}
