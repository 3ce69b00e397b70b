//! Guests that look for errors of all kinds, and are moved or saved many times.

use super::*;
use crate::guest::peer::Flushes;

/// For a guest that boots, and for its way to another machine and back.
const TIMEOUT_BOOT: Duration = Duration::from_secs(90);
const TIMEOUT_TRIP: Duration = Duration::from_secs(60);
/// How often a guest goes to another machine and back: on one that remembers, by default, `--long`.
const TRIPS: [u32; 3] = [1, 5, 50];
/// How often one is saved and restored, and one with a guest of its own.
const TURNS: u32 = 10;
const TURNS_WITH_GUEST: u32 = 2;
/// For one of these, of a machine with two processors under it.
const TIMEOUT_TURN: Duration = Duration::from_secs(300);
const FRESH: &str = "all is fresh";
const IS_WRONG: &str = "this is wrong";
/// Looks for clocks that go back, and for sums of the floating-point unit that change.
const SUMS: &str = "awk 'BEGIN { while (1) { \
    file = \"/proc/uptime\"; getline text < file; close(file); split(text, now); \
    sum = 0; for (i = 1; i < 5000; i++) sum += 1 / i; \
    if (now[1] < last || (former && sum != former)) exit; \
    last = now[1]; former = sum } }'";

/// A machine with a guest whose readers look for what is stale, and for other errors. It runs lines
/// that are typed, until one is empty.
fn reading(name: &str, keys: &str) -> String {
    let reads = "stale --threads 4 --seconds 1 --report /dev/null";
    let wrong = format!("echo {IS_WRONG}");
    let exec = format!(
        "(while {reads}; do echo {FRESH}; done; {wrong}) & reads=$!; ({SUMS}; {wrong}) & sums=$!; \
         while read line && test -n \"$line\"; do eval \"$line\"; done; echo good bye"
    );
    let size = "vcpus = 4\nmemory = \"128M\"\ncmdline = \"quiet\"\nreset = \"reboot\"";
    format!("[machine]\ncpus = 2\n[[guest]]\nname = \"{name}\"\n{size}\nexec = '''{exec}'''\n{keys}\n")
}

/// Its readers have looked once more, and find nothing.
fn reads_on(stage: &mut Stage<'_>, name: &str) -> Result<()> {
    let from = stage.length(name)?;
    stage.until(&format!("{name} shows '{FRESH}'"), |stage| {
        ensure!(!stage.has_shown(name, IS_WRONG, 0)?, "{name} finds what is wrong");
        stage.find(name, FRESH, from)
    })?;
    Ok(())
}

/// It runs a line, which succeeds, and then something that may take as long as it likes.
fn runs(stage: &mut Stage<'_>, name: &str, line: &str, then: &str) -> Result<()> {
    let from = stage.length(name)?;
    // The line itself is shown, too.
    stage.type_text(name, &format!("{line} && echo d''one; {then}\n"))?;
    stage.until_shown(name, "done", from).map(drop)
}

/// What a guest is about when it goes to another machine.
#[derive(Clone, Copy)]
enum About {
    Reading,
    /// One of its processors is offline.
    Offline,
    /// All that it runs is stopped.
    Asleep,
    /// It restarts.
    Reboot,
}

impl About {
    /// That of a trip, of so many.
    fn of(trip: u32, trips: u32) -> Self {
        match trip {
            0 => Self::Offline,
            1 => Self::Asleep,
            _ if trip + 1 == trips => Self::Reboot,
            _ => Self::Reading,
        }
    }

    fn begin(self, stage: &mut Stage<'_>, name: &str) -> Result<()> {
        match self {
            Self::Reading => Ok(()),
            Self::Offline => runs(stage, name, "echo 0 > /sys/devices/system/cpu/cpu3/online", ""),
            Self::Asleep => {
                // There is no such program while the loop that runs it is between two.
                let stop = "kill -STOP $reads $sums && { killall -q -STOP stale awk; true; }";
                runs(stage, name, stop, "read line; killall -CONT stale awk; kill -CONT $reads $sums")
            }
            Self::Reboot => runs(stage, name, "before=yes", "reboot -f"),
        }
    }

    /// It has come.
    fn check(self, stage: &mut Stage<'_>, name: &str) -> Result<()> {
        if matches!(self, Self::Asleep) {
            stage.type_text(name, "wake up\n")?;
        }
        reads_on(stage, name)?;
        match self {
            Self::Reading | Self::Asleep => Ok(()),
            Self::Offline => {
                runs(stage, name, "test $(nproc) = 3 && echo 1 > /sys/devices/system/cpu/cpu3/online", "")?;
                runs(stage, name, "test $(nproc) = 4", "")
            }
            Self::Reboot => runs(stage, name, "test -z \"$before\"", ""),
        }
    }
}

pub(in crate::test) fn moves_often(room: &Room<'_>) -> Result<()> {
    let ways = Ways::of(room)?;
    let [few, usual, long] = TRIPS;
    let trips = match room.platform {
        Platform::Bochs(_) => few,
        _ if room.is_long => long,
        _ => usual,
    };
    let limit = TIMEOUT_BOOT + TIMEOUT_TRIP * trips;
    // A guest that boots may store to more than can be sent meanwhile.
    let how = manner(room, Wanted { at_any_cost: true, ..WANTED });
    // Neither machine ends while its guest is elsewhere: it may come.
    let [here, there] = ["here", "there"].map(|name| ways.comes(name));
    let text = reading("here", &format!("start = \"auto\"\n{}", here?));
    let mut here = room.play(&text, limit, |stage| {
        stage.until_it_is("here", GuestState::Running)?;
        reads_on(stage, "here")
    })?;
    beside(room, "other", |room| {
        room.play(&reading("there", &there?), limit, |there| {
            for number in 0..trips {
                let about = About::of(number, trips);
                let mut trip = || {
                    about.begin(&mut here, "here")?;
                    ways.go((&here, "here"), (there, "there"), &how)?;
                    about.check(there, "there")?;
                    ways.go((there, "there"), (&mut here, "here"), &how)?;
                    reads_on(&mut here, "here")
                };
                let moved = trip().with_context(|| format!("trip {number}"));
                moved.map_err(|error| here.explain(error))?;
            }
            Ok(())
        })
        .map(drop)
    })?;
    says_good_bye(here, "here")
}

fn says_good_bye(stage: Stage<'_>, name: &str) -> Result<()> {
    let ended = stage.end(name, "\n")?;
    ensure!(ended.shown(name).contains("good bye"), "it does not say good bye");
    Ok(())
}

pub(in crate::test) fn is_saved_often(room: &Room<'_>) -> Result<()> {
    in_turns(room, reading("subject", ""), TURNS, |stage| says_good_bye(stage, "subject"))
}

/// What a guest's guest runs, which hears nothing.
const INNER: &str = "while stale --threads 2 --seconds 1 --report /dev/null; do echo all is fresh; done; \
    echo this is wrong";

/// A guest is saved while its own guest runs.
pub(in crate::test) fn is_saved_with_its_guest(room: &Room<'_>) -> Result<()> {
    let guest = room.lab.stock_guest(room.platform, Some(INNER))?;
    let guest = Guest { memory: 128 * MIB, ..guest };
    let inner = guest.under_kvm(Flushes::Paravirtual, false);
    let stock = room.lab.stock_files(room.platform.arch())?;
    let Guest { kernel, initrd, cmdline, memory, .. } = stock.kvm_as_guest(room.platform, &inner, 2)?;
    let file = room.directory.join("initrd");
    fs::write(&file, initrd.unwrap_or_default())?;
    let text = format!(
        "[machine]\ncpus = 2\n[[guest]]\nname = \"subject\"\nvcpus = 2\nmemory = \"{}M\"\n\
         nested = true\nkernel = {kernel:?}\ninitrd = {file:?}\ncmdline = {cmdline:?}\n",
        memory / MIB
    );
    in_turns(room, text, TURNS_WITH_GUEST, |_| Ok(()))
}

fn reads_again(stage: &mut Stage<'_>) -> Result<()> {
    stage.until_it_is("subject", GuestState::Running)?;
    reads_on(stage, "subject")
}

/// A guest is saved and restored so many times: while it runs, and standing still.
fn in_turns(
    room: &Room<'_>,
    mut text: String,
    turns: u32,
    end: impl FnOnce(Stage<'_>) -> Result<()>,
) -> Result<()> {
    let save = |stage: &mut Stage<'_>, turn: u32| {
        let keeps = turn % 2 == 1;
        let wanted = if keeps { Wanted { at_any_cost: true, ..WANTED } } else { Wanted::STILL };
        let file = room.directory.join(format!("{turn}.snapshot"));
        migration::save(&stage.origin("subject")?, &file, keeps, &manner(room, wanted))?;
        Ok(format!("[machine]\ncpus = 2\n[[guest]]\nname = \"subject\"\nrestore = {file:?}\n"))
    };
    for turn in 0..turns {
        text = beside(room, &format!("turn {turn}"), |room| {
            let mut stage = room.play(&text, TIMEOUT_TURN, reads_again)?;
            save(&mut stage, turn).map_err(|error| stage.explain(error))
        })?;
    }
    beside(room, "last", |room| end(room.play(&text, TIMEOUT_TURN, reads_again)?))
}
