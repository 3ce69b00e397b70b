//! A guest in which all processors perform random operations, while random requests arrive from
//! outside; afterwards everything has to be as before.

use crate::machine::control::{Control, Refused};
use crate::migration::{Origin, in_vain};
use crate::test::prelude::*;
use baremetal::random::Random;
use hostlink::ctl::Access;
use hostlink::ctl::record::Slot;
use std::sync::atomic::{AtomicBool, Ordering};

/// A machine that has not answered for this long never will: a request takes tenths of a second, or
/// a thousand times as long if the emulator gets next to no processor time.
const PATIENCE: Duration = Duration::from_secs(600);
/// The seed of the first storm's requests; each further storm uses the next number.
pub(super) const SEED: u64 = 0x5eed;
/// More than exists: the refusal names the largest free piece.
const TOO_MUCH: u64 = 1 << 38;
/// Numbers of slots that are tried.
const SLOTS: u64 = 12;
/// Bytes of a line that is not a request.
const NOISE: u64 = 300;

/// Whether a guest's command line requests a storm.
pub(super) fn is_one(cmdline: &str) -> bool {
    cmdline.contains("test=storm")
}

/// When a storm's machine is ended: a minute's work, or an hour's, on a machine that others use.
pub(super) const fn timeout(is_long: bool) -> Duration {
    Duration::from_secs(if is_long { 4 * 3600 } else { 600 })
}

/// The state that the storm must leave unchanged.
#[derive(Debug, PartialEq, Eq)]
struct State {
    slots: Vec<Slot>,
    /// The hypervisor's report of its free memory.
    free: String,
}

impl State {
    fn of(control: &mut Control) -> Result<Self> {
        let slots = control.ask_for(&Request::Slots)?;
        let much = Request::Add { gpa: 4 * GIB, size: TOO_MUCH, access: Access::ReadWrite };
        match control.ask(&much).map_err(|error| error.downcast::<Refused>()) {
            Ok(_) => Err(anyhow!("'{much}' is not refused")),
            Err(Ok(Refused(free))) => Ok(Self { slots, free }),
            Err(Err(error)) => Err(error),
        }
    }
}

pub(super) struct Requests {
    before: State,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<u32>>,
}

impl Requests {
    /// Starts the requests. They follow from the seed, and their number from the storm's length.
    pub(super) fn begin(machine: &Machine, seed: u64) -> Result<Self> {
        let mut control = machine.control()?.with_patience(PATIENCE);
        let before = State::of(&mut control)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let is_over = is_over.clone();
            let found = machine.found().context("the machine has no hypervisor")?;
            move || send(&mut control, &Origin::find(&found, Name::GUEST)?, seed, &is_over)
        });
        Ok(Self { before, is_over, thread })
    }

    /// Ends them, undoes their effects, and compares. Returns their number.
    pub(super) fn end(self, machine: &Machine) -> Result<u32> {
        self.is_over.store(true, Ordering::Release);
        let sent = self.thread.join().map_err(|_| anyhow!("the sender of requests panicked"))??;
        let mut control = machine.control()?.with_patience(PATIENCE);
        for Slot { slot, .. } in control.ask_for(&Request::Slots)? {
            asked(&mut control, &Request::LogStop { slot })?;
            asked(&mut control, &Request::Delete { slot })?;
        }
        let after = State::of(&mut control)?;
        ensure!(after == self.before, "after {sent} requests {after:?} instead of {:?}", self.before);
        Ok(sent)
    }
}

/// Whether the request was granted. Only a missing answer is an error.
fn asked(control: &mut Control, request: &Request) -> Result<bool> {
    match control.ask(request) {
        Ok(_) => Ok(true),
        Err(error) if error.is::<Refused>() => Ok(false),
        Err(error) => Err(error.context(format!("'{request}'"))),
    }
}

fn send(control: &mut Control, guest: &Origin, seed: u64, is_over: &AtomicBool) -> Result<u32> {
    let mut random = Random::new(seed);
    let (mut sent, mut has_migrated) = (0, false);
    // At least some, however short the storm is.
    while sent < 8 || !is_over.load(Ordering::Acquire) {
        if random.one_in(8) {
            let noise: Vec<u8> = (0..random.below(NOISE)).map(|_| random.word() as u8).collect();
            control.noise(&noise)?;
        }
        let context = || format!("request {sent} of seed {seed:#x}");
        match request(&mut random) {
            Some(request) => _ = asked(control, &request).with_context(context)?,
            // One in a storm, in which nobody else is heard meanwhile.
            None if has_migrated => {}
            None => match in_vain(guest, random.below(3) as u32, random.below(2) == 0, |_| Ok(())) {
                // While there is a log, or memory that is read-only.
                Err(error) if error.is::<Refused>() => {}
                result => has_migrated = result.map(|_| true).with_context(context)?,
            },
        }
        sent += 1;
    }
    Ok(sent)
}

/// A request, or a migration in vain.
fn request(random: &mut Random) -> Option<Request> {
    let slot = random.below(SLOTS) as u16;
    let way = if random.one_in(2) { LogWay::DirtyBits } else { LogWay::WriteProtection };
    Some(match random.below(12) {
        0 => Request::Vms,
        1 => Request::Slots,
        2 => Request::Stats,
        3..=5 => {
            // Next to the guest's memory, over its devices, and where the storm makes accesses.
            let base = random.one_of([0, GIB, 3 * GIB, 3 * GIB + 256 * MIB, 4 * GIB, 1 << 51]);
            let gpa = match random.below(8) {
                0 => random.word(),
                _ => base + random.below(1 << 16) * PAGE,
            };
            let power = random.below(11);
            let size = match random.below(8) {
                0 => random.word(),
                1 => random.below(3),
                _ => (1 + random.below(1 << power)) * PAGE,
            };
            Request::Add { gpa, size, access: Access::read_only(random.one_in(4)) }
        }
        6 | 7 => Request::Delete { slot },
        8 => Request::LogStart { slot, way },
        9 => Request::LogFetch { slot },
        10 => Request::LogStop { slot },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_request_is_sent_and_the_same_ones_for_a_seed() {
        let of = |seed| {
            let mut random = Random::new(seed);
            (0..400).filter_map(|_| Some(request(&mut random)?.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let words: BTreeSet<_> =
            of(1).iter().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect();
        assert_eq!(words.len(), 8, "{words:?}");
    }
}
