//! The implementation of each command.

use core::fmt::{self, Write};
use core::panic::PanicInfo;

use baremetal::arch::info::BootInfo;
use baremetal::arch::serial::CONSOLE;
use baremetal::arch::{clock, guarded};
use load::command::{Command, Walk};
use load::line::Line;
use load::pace::Pace;

use crate::{machine, nvme, virtio, watching};

baremetal::entry!(main);

/// The byte that ends `dirty` and `watch`.
pub(crate) const QUIT: u8 = b'q';
/// Clock readings between two checks of the serial port, so that its register takes little time.
pub(crate) const LOOKS: u32 = 1024;

pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = write!({ CONSOLE }, "load: {text}\r\n");
}

fn main(info: BootInfo) -> ! {
    CONSOLE.set_up();
    machine::prepare(&info);
    run(&info.command_line);
    say(format_args!("ready"));
    let mut line = Line::new();
    loop {
        match CONSOLE.receive().map(|byte| line.take(byte)) {
            None => machine::idle(),
            Some(Ok(None)) => {}
            Some(Ok(Some(commands))) => run(&commands),
            Some(Err(why)) => say(format_args!("error: {why}")),
        }
    }
}

fn run(line: &str) {
    for word in line.split_whitespace() {
        match Command::parse(word) {
            Ok(command) => execute(word, command),
            Err(Some(why)) => say(format_args!("error: '{word}': {why}")),
            Err(None) => {}
        }
    }
}

fn execute(word: &str, command: Command) {
    let begin = clock::now();
    let done = match command {
        Command::Touch(walk) => store(walk, |count| count),
        Command::Clear(walk) => store(walk, |_| 0),
        Command::Read(walk) => read(walk),
        Command::Zero(walk) => zero(walk),
        Command::Dirty { walk, rate, seconds } => dirty(walk, rate, seconds),
        Command::Watch { address, seconds } => watching::watch(address, seconds),
        Command::Identify(address) => nvme::identify(address),
        Command::Fly { address, count, then_reset } if virtio::is_there() => {
            virtio::fly(address, count, then_reset)
        }
        Command::Fly { address, count, then_reset } => nvme::fly(address, count, then_reset),
        Command::Hog => machine::hog(),
        Command::Misuse { what, seed, count } => machine::misuse(what, seed, count),
        Command::Reset { by_fault } => machine::reset(by_fault),
        Command::Spin(ms) => {
            clock::delay(ms.saturating_mul(1000));
            Ok(0)
        }
        Command::Hint(number) => machine::hint(number),
        Command::Halt => {
            say(format_args!("done: halt"));
            machine::halt()
        }
        Command::PowerOff => {
            say(format_args!("done: poweroff"));
            machine::off()
        }
    };
    let ns = clock::nanoseconds(clock::now() - begin);
    match done {
        Ok(count) => say(format_args!("done: {word} count={count} ns={ns}")),
        Err(why) => say(format_args!("error: '{word}': {why}")),
    }
}

/// Why a command could not be carried out.
pub(crate) enum Failure {
    /// It would overwrite the program itself.
    Image,
    /// There is no memory at this address, or it is not mapped.
    Fault(u64),
    /// This word should be zero.
    NotZero { address: u64, word: u64 },
    /// The machine lacks this feature.
    Absent,
    /// Another processor did not finish.
    Lost,
    /// The device does not answer.
    Silent,
    /// Something is not as it has to be, and in which turn or how often.
    Misused { what: &'static str, number: u64 },
    /// The device reports this status.
    Refused(u32),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image => f.write_str("the program itself is there"),
            Self::Fault(address) => write!(f, "fault at {address:#x}"),
            Self::NotZero { address, word } => write!(f, "at {address:#x} is {word:#x}"),
            Self::Absent => f.write_str("this machine has no such thing"),
            Self::Silent => f.write_str("the device does not answer"),
            Self::Misused { what, number } => write!(f, "{what}: {number}"),
            Self::Refused(status) => write!(f, "the device reports status {status:#x}"),
            Self::Lost => f.write_str("another processor does not come back"),
        }
    }
}

/// Checks that the range does not overlap the program.
fn is_free(walk: &Walk) -> Result<(), Failure> {
    let taken = machine::taken();
    if taken.iter().any(|(start, end)| walk.overlaps(*start, *end)) { Err(Failure::Image) } else { Ok(()) }
}

/// Writes to a device's register of 4 bytes.
pub(crate) fn write(register: u64, value: u32) {
    // SAFETY: the caller's device is there; the program can cope with what it does.
    unsafe { (register as *mut u32).write_volatile(value) };
}

/// Does something at each word; `act` is given its address and its number.
fn each(walk: Walk, mut act: impl FnMut(u64, u64) -> Result<(), Failure>) -> Result<u64, Failure> {
    let mut address = walk.start;
    for number in 0..walk.count() {
        act(address, number)?;
        // The last step may wrap around the end of the address space.
        address = address.wrapping_add(walk.stride);
    }
    Ok(walk.count())
}

/// Stores to each word what belongs to its number.
fn store(walk: Walk, value: impl Fn(u64) -> u64) -> Result<u64, Failure> {
    is_free(&walk)?;
    each(walk, |address, number| {
        // SAFETY: the program uses no memory there, and a fault is guarded.
        unsafe { guarded::store(address, value(number)) }.map_err(|_| Failure::Fault(address))
    })
}

fn read(walk: Walk) -> Result<u64, Failure> {
    each(walk, |address, _| guarded::load(address).map(drop).map_err(|_| Failure::Fault(address)))
}

fn zero(walk: Walk) -> Result<u64, Failure> {
    each(walk, |address, _| match guarded::load(address) {
        Ok(0) => Ok(()),
        Ok(word) => Err(Failure::NotZero { address, word }),
        Err(_) => Err(Failure::Fault(address)),
    })
}

/// Keeps storing to each page in turn. Each second, and at each byte from the serial port, it
/// reports the number of stores, and the longest time in which it did not run.
fn dirty(walk: Walk, rate: u64, seconds: u64) -> Result<u64, Failure> {
    is_free(&walk)?;
    let (begin, hz) = (clock::now(), clock::hz());
    let mut pace = Pace::new(begin, hz, rate);
    let (mut stores, mut page, mut told) = (0u64, 0, begin);
    loop {
        for _ in 0..LOOKS {
            if pace.look(clock::now()) {
                let address = walk.start + page * walk.stride;
                // SAFETY: the program uses no memory there, and a fault is guarded.
                unsafe { guarded::store(address, stores) }.map_err(|_| Failure::Fault(address))?;
                stores += 1;
                page = if page + 1 == walk.count() { 0 } else { page + 1 };
            }
        }
        let (now, byte) = (clock::now(), CONSOLE.receive());
        let is_over = byte == Some(QUIT) || (seconds != 0 && now - begin >= seconds.saturating_mul(hz));
        if byte.is_some() || is_over || now - told >= hz {
            let longest = clock::nanoseconds(pace.take_longest());
            let ms = clock::nanoseconds(now - begin) / 1_000_000;
            say(format_args!("dirty: ms={ms} stores={stores} longest_ns={longest}"));
            told = now;
            // The time for the line is not a stop of the machine.
            pace.resume(clock::now());
        }
        if is_over {
            return Ok(stores);
        }
    }
}

#[panic_handler]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    say(format_args!("panic: {info}"));
    machine::off()
}
