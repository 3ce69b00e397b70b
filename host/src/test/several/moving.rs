//! Guests that are saved, restored, and moved between machines.

use super::*;
use crate::moving::{self, Address, Destination, Manner, Moved, Secret, Wanted};
use std::os::unix::fs::PermissionsExt;

const TIMEOUT: Duration = Duration::from_secs(240);
/// An emulated machine is slow, and its rounds are long.
const WANTED: Wanted =
    Wanted { downtime: Duration::from_secs(2), rounds: 30, throttle: false, at_any_cost: false };

fn manner(room: &Room<'_>, wanted: Wanted) -> Manner {
    Manner { wanted, bandwidth: None, shows: false, signals: room.signals.clone() }
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
            let moved = moving::save(&stage.origin("subject")?, &file, true, &manner(room, kept))?;
            ensure!(!moved.away, "it was to run on: {moved:?}");
            Ok(())
        };
        // By the first one it is known how its memory is logged.
        save(stage)?;
        let before = stage.memory()?;
        save(stage)?;
        parts.check(stage, "subject")?;
        stage.has_memory(&before)?;
        let moved = moving::save(&stage.origin("subject")?, &file, false, &manner(room, Wanted::STILL))?;
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

pub(super) fn moves(room: &Room<'_>) -> Result<()> {
    let parts = Parts::of(room);
    let secret = room.directory.join("secret");
    fs::write(&secret, "only these machines know this")?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    let to = |name: &str| -> Result<Destination> {
        let address = format!("unix:{}", room.directory.join(name).display());
        let address = Address::parse(&address).map_err(anyhow::Error::msg)?;
        Ok(Destination { address, secret: Secret::read(&secret)? })
    };
    let comes = |name: &str| -> Result<String> {
        let keys = format!("incoming = \"{}\"\nsecret = {secret:?}", to(name)?.address);
        Ok(bare(name, 2, "128M", &keys))
    };
    let text = [bare("subject", 2, "128M", ""), comes("back")?, bare("beside", 1, "32M", "")].concat();
    let mut here = room.play(&text, TIMEOUT, |stage| parts.begin(stage, "subject"))?;
    let text = [comes("there")?, bare("beside", 1, "32M", "")].concat();
    let go = |stage: &Stage<'_>, from: &str, name: &str, wanted: Wanted| -> Result<Moved> {
        moving::migrate(&stage.origin(from)?, &to(name)?, &manner(room, wanted))
    };
    beside(room, "other", |room| {
        room.play(&text, TIMEOUT, |there| {
            there.until_shown("beside", READY, 0)?;
            here.until_shown("beside", READY, 0)?;
            let never = Wanted { downtime: Duration::from_nanos(1), rounds: 2, ..WANTED };
            let mut before = [here.memory()?, there.memory()?];
            for _ in 0..2 {
                // The first time, it becomes known how its memory is logged.
                before[0] = here.memory()?;
                let error =
                    go(&here, "subject", "there", never).err().context("it fits into a nanosecond")?;
                ensure!(format!("{error:#}").contains("given up"), error);
                parts.check(&mut here, "subject")?;
                there.until("what was made for it is gone", |there| {
                    let is_gone = there.guest("there")?.is_none();
                    Ok((is_gone && there.memory()?.free == before[1].free).then_some(()))
                })?;
            }
            here.has_memory(&before[0])?;

            let moved = go(&here, "subject", "there", WANTED)?;
            ensure!(moved.away && here.guest("subject")?.is_none(), "it is still here: {moved:?}");
            parts.check(there, "there")?;
            let moved = go(there, "there", "back", WANTED)?;
            ensure!(moved.away && there.guest("there")?.is_none(), "it is still there: {moved:?}");
            parts.check(&mut here, "back")
        })
        .map(drop)
    })
}
