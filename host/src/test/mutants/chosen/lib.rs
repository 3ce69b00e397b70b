//! Which mutant runs: what each place of a mutated tree asks. It is built into the copy only.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Nothing has been asked yet.
const UNKNOWN: u32 = u32::MAX;
/// No mutant runs: what is reached is noted.
const NONE: u32 = u32::MAX - 1;

static CHOSEN: AtomicU32 = AtomicU32::new(UNKNOWN);

/// A bit for each number that was reached.
static SEEN: [AtomicU32; 1 << 12] = [const { AtomicU32::new(0) }; _];

/// The file that they are written to, one in four bytes.
static REACHED: LazyLock<Option<Mutex<File>>> = LazyLock::new(|| {
    let path = env::var_os("QUELL_MUTANTS_REACHED")?;
    let file = OpenOptions::new().create(true).append(true).open(path).expect("can be opened");
    Some(Mutex::new(file))
});

/// Whether mutant `number` runs.
#[inline]
pub fn is(number: u32) -> bool {
    let chosen = CHOSEN.load(Ordering::Relaxed);
    if chosen < NONE {
        return chosen == number;
    }
    let (word, bit) = (&SEEN[number as usize / 32], 1 << (number % 32));
    word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0 && ask(number)
}

#[cold]
fn ask(number: u32) -> bool {
    let chosen = env::var("QUELL_MUTANT").map_or(NONE, |text| text.parse().expect("a number"));
    CHOSEN.store(chosen, Ordering::Relaxed);
    if let (NONE, Some(reached)) = (chosen, &*REACHED) {
        let mut file = reached.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&number.to_le_bytes()).expect("can be written");
    }
    chosen == number
}
