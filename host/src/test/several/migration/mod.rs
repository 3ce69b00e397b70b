//! Guests that are saved, restored, and moved between machines.

mod often;

pub(in crate::test) use often::moves_often;
pub(super) use often::{is_saved_often, is_saved_with_its_guest};

use super::*;
use crate::guest::cache;
use crate::migration::{self, Address, Destination, Manner, Moved, Secret, Wanted};
use std::os::unix::fs::PermissionsExt;
use std::thread;

const TIMEOUT: Duration = Duration::from_secs(240);
/// An emulated machine is slow, and its rounds are long.
const WANTED: Wanted =
    Wanted { downtime: Duration::from_secs(2), rounds: 30, throttle: false, at_any_cost: false };

fn manner(room: &Room<'_>, wanted: Wanted) -> Manner {
    Manner::new(wanted, room.signals.clone())
}

/// The parts of a guest's memory that it stores to for ever, has stored to, and never stores to.
struct Parts {
    hot: String,
    written: String,
    zero: String,
}

impl Parts {
    fn of(room: &Room<'_>) -> Self {
        let at = |mib: u64| room.platform.arch().ram_base() + mib * (1 << 20);
        Self {
            hot: format!("dirty={:#x},4M,0\n", at(32)),
            written: format!("{:#x},8M", at(48)),
            zero: format!("zero={:#x},64M", at(64)),
        }
    }

    fn begin(&self, stage: &mut Stage<'_>, name: &str) -> Result<()> {
        let from = stage.until_shown(name, READY, 0)?;
        stage.command(name, &format!("touch={},4K", self.written), from)?;
        stage.type_text(name, &self.hot)?;
        stage.until_shown(name, DIRTY, from).map(drop)
    }

    /// It still stores, and its memory is what it was.
    fn check(&self, stage: &mut Stage<'_>, name: &str) -> Result<()> {
        stage.goes_on(name, DIRTY, 2)?;
        let from = stage.length(name)?;
        stage.type_text(name, "q")?;
        let from = stage.until_shown(name, "load: done: dirty", from)?;
        let from = stage.command(name, &self.zero, from)?;
        stage.type_text(name, &format!("zero={}\n", self.written))?;
        let from = stage.until_shown(name, "load: error: 'zero=", from)?;
        stage.type_text(name, &self.hot)?;
        stage.until_shown(name, DIRTY, from).map(drop)
    }
}

/// Machines that are described in directories of their own.
fn beside<T>(room: &Room<'_>, name: &str, act: impl FnOnce(&Room<'_>) -> Result<T>) -> Result<T> {
    let directory = room.directory.join(name);
    fs::create_dir(&directory)?;
    act(&Room { directory: &directory, ..*room })
}

pub(super) fn is_saved(room: &Room<'_>) -> Result<()> {
    let (parts, file) = (Parts::of(room), room.directory.join("subject.snapshot"));
    let text = [bare("subject", 2, "128M", ""), bare("beside", 1, "32M", "")].concat();
    room.play(&text, TIMEOUT, |stage| {
        parts.begin(stage, "subject")?;
        let kept = Wanted { at_any_cost: true, ..WANTED };
        let save = |stage: &Stage<'_>| {
            let moved = migration::save(&stage.origin("subject")?, &file, true, &manner(room, kept))?;
            ensure!(!moved.away, "it was to run on: {moved:?}");
            Ok(())
        };
        // By the first one it is known how its memory is logged.
        save(stage)?;
        let before = stage.memory()?;
        save(stage)?;
        parts.check(stage, "subject")?;
        stage.has_memory(&before)?;
        let moved = migration::save(&stage.origin("subject")?, &file, false, &manner(room, Wanted::STILL))?;
        ensure!(moved.away && stage.guest("subject")?.is_none(), "it is still there: {moved:?}");
        Ok(())
    })?;
    let text = format!("[[guest]]\nname = \"again\"\nrestore = {file:?}\n");
    beside(room, "restored", |room| {
        let stage = room.play(&text, TIMEOUT, |stage| {
            stage.until_it_is("again", GuestState::Running)?;
            parts.check(stage, "again")?;
            stage.type_text("again", "q")
        })?;
        stage.end("again", "\npoweroff\n").map(drop)
    })
}

/// A guest whose generator is ready when it is saved. It draws again when its kernel has heard that
/// it is not the only one.
const DRAWS: &str = "head -c 16 /dev/random > /dev/null; echo it may be saved; read line; \
    until dmesg | grep -q 'virtual machine fork'; do sleep 1; done; \
    echo drawn: $(cat /proc/sys/kernel/random/uuid) $(head -c 16 /dev/urandom | od -An -tx4) end; read line";

/// What a guest that was restored from this file draws, and whether the tool warned before.
fn drawn(room: &Room<'_>, name: &str, file: &Path) -> Result<(String, bool)> {
    let text = format!("[[guest]]\nname = \"{name}\"\nrestore = {file:?}\n");
    beside(room, name, |room| {
        let warns = room.read(&room.write(&text)?)?.table().contains("was restored before, on ");
        let stage = room.play(&text, TIMEOUT, |stage| {
            stage.until_it_is(name, GuestState::Running)?;
            stage.type_text(name, "go\n")?;
            let from = stage.until_shown(name, "drawn: ", 0)?;
            stage.until_shown(name, " end", from).map(drop)
        })?;
        let shown = stage.end(name, "\n")?.shown(name);
        let drawn = shown.split_once("drawn: ").and_then(|(_, rest)| rest.split_once(" end"));
        Ok((drawn.context("it has drawn nothing")?.0.to_owned(), warns))
    })
}

pub(super) fn draws_others(room: &Room<'_>) -> Result<()> {
    let arch = room.platform.arch();
    // Debian 12's kernel for clouds does not know the id, and on Arm none of its kernels does.
    let kernel = if arch == Arch::X86_64 { cache::owning_kernel()? } else { cache::newer_kernel(arch)? };
    let file = room.directory.join("subject.snapshot");
    let guest = room.lab.stock_guest(room.platform, Some(DRAWS))?;
    let initrd = room.directory.join("initrd");
    fs::write(&initrd, guest.initrd.unwrap_or_default())?;
    let (kernel, words) = (kernel.kernel, format!("{} quiet", guest.cmdline));
    let text = format!(
        "[[guest]]\nname = \"subject\"\nvcpus = 2\nmemory = \"256M\"\nkernel = {kernel:?}\n\
         initrd = {initrd:?}\ncmdline = {words:?}\n"
    );
    room.play(&text, TIMEOUT, |stage| {
        stage.until_shown("subject", "it may be saved", 0)?;
        migration::save(&stage.origin("subject")?, &file, false, &manner(room, Wanted::STILL)).map(drop)
    })?;
    let ((first, warned_first), (second, warned)) =
        (drawn(room, "first", &file)?, drawn(room, "second", &file)?);
    ensure!(first.len() > 60 && second.len() > 60, "they draw '{first}' and '{second}'");
    let (first, second): (Vec<_>, Vec<_>) = (first.split(' ').collect(), second.split(' ').collect());
    let same = first.iter().any(|word| second.contains(word));
    ensure!(!same, "they draw the same: {first:?} and {second:?}");
    ensure!(!warned_first && warned, "--check warns at first: {warned_first}, and then: {warned}");
    Ok(())
}

/// Machines that send guests to each other.
struct Ways<'a> {
    room: &'a Room<'a>,
    secret: PathBuf,
}

impl<'a> Ways<'a> {
    fn of(room: &'a Room<'_>) -> Result<Self> {
        let secret = room.directory.join("secret");
        fs::write(&secret, "only these machines know this")?;
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
        Ok(Self { room, secret })
    }

    fn to(&self, name: &str) -> Result<Destination> {
        let address = format!("unix:{}", self.room.directory.join(name).display());
        let address = Address::parse(&address).map_err(anyhow::Error::msg)?;
        Ok(Destination { address, secret: Secret::read(&self.secret)? })
    }

    /// The keys of a guest that comes from elsewhere.
    fn comes(&self, name: &str) -> Result<String> {
        Ok(format!("incoming = \"{}\"\nsecret = {:?}", self.to(name)?.address, self.secret))
    }

    /// A guest goes, is here no more, and runs there.
    fn go(
        &self,
        (here, from): (&Stage<'_>, &str),
        (there, to): (&mut Stage<'_>, &str),
        how: &Manner,
    ) -> Result<Moved> {
        let moved = migration::migrate(&here.origin(from)?, &self.to(to)?, how)?;
        ensure!(moved.away && here.guest(from)?.is_none(), "it is still here: {moved:?}");
        there.until_it_is(to, GuestState::Running)?;
        Ok(moved)
    }
}

/// Bytes per second, of which some seconds are needed.
const SLOWLY: u64 = 4 * MIB;

/// Ways to be moved that end here, and what is said of each. The last one is ended by Ctrl-C.
fn in_vain(room: &Room<'_>) -> [(Manner, &'static str); 3] {
    let never = Wanted { downtime: Duration::from_nanos(1), rounds: 2, ..WANTED };
    let slowed = Wanted { throttle: true, ..never };
    let by_hand = Manner { signals: Signals::default(), bandwidth: Some(SLOWLY), ..manner(room, WANTED) };
    [(manner(room, never), "given up"), (manner(room, slowed), "given up"), (by_hand, "cancelled")]
}

pub(super) fn moves(room: &Room<'_>) -> Result<()> {
    let (parts, ways) = (Parts::of(room), Ways::of(room)?);
    let subject = |name, keys: &str| bare(name, 2, "128M", keys);
    let other = bare("beside", 1, "32M", "");
    let text = [subject("subject", ""), subject("back", &ways.comes("back")?), other.clone()].concat();
    let mut here = room.play(&text, TIMEOUT, |stage| parts.begin(stage, "subject"))?;
    let text = [subject("there", &ways.comes("there")?), other].concat();
    beside(room, "other", |room| {
        room.play(&text, TIMEOUT, |there| {
            there.until_shown("beside", READY, 0)?;
            here.until_shown("beside", READY, 0)?;
            let mut before = [here.memory()?, there.memory()?];
            for (how, why) in in_vain(room) {
                // The first time, it becomes known how its memory is logged.
                before[0] = here.memory()?;
                let (from, to, signals) = (here.origin("subject")?, ways.to("there")?, how.signals.clone());
                let error = thread::scope(|scope| {
                    // Whenever that is, it does not arrive.
                    if why == "cancelled" {
                        scope.spawn(|| {
                            thread::sleep(Duration::from_millis(500));
                            signals.catch(2);
                        });
                    }
                    migration::migrate(&from, &to, &how).err()
                });
                let error = error.with_context(|| format!("it is not {why}"))?;
                ensure!(format!("{error:#}").contains(why), error);
                parts.check(&mut here, "subject")?;
                there.until("what was made for it is gone", |there| {
                    let is_gone = there.guest("there")?.is_none();
                    Ok((is_gone && there.memory()?.free == before[1].free).then_some(()))
                })?;
            }
            here.has_memory(&before[0])?;

            ways.go((&here, "subject"), (there, "there"), &manner(room, WANTED))?;
            parts.check(there, "there")?;
            let slowly = Manner { bandwidth: Some(SLOWLY), ..manner(room, WANTED) };
            let moved = ways.go((there, "there"), (&mut here, "back"), &slowly)?;
            let seconds = moved.seconds.ceil() as u64 + 1;
            ensure!(moved.bytes <= seconds * SLOWLY, "it was sent faster than it may be: {moved:?}");
            parts.check(&mut here, "back")
        })
        .map(drop)
    })
}

pub(super) fn a_large_one_moves(room: &Room<'_>) -> Result<()> {
    let (parts, ways) = (Parts::of(room), Ways::of(room)?);
    let large = |name, keys: &str| bare(name, 64, "4G", keys);
    let here = room.play(&large("subject", ""), TIMEOUT, |stage| parts.begin(stage, "subject"))?;
    beside(room, "other", |room| {
        let there = room.play(&large("there", &ways.comes("there")?), TIMEOUT, |there| {
            ways.go((&here, "subject"), (there, "there"), &manner(room, WANTED))?;
            parts.check(there, "there")?;
            there.type_text("there", "q")
        })?;
        there.end("there", "\npoweroff\n").map(drop)
    })
}
