//! A guest is reset in all ways while its disk reads into its memory, or beyond it.

use super::stage::Ended;
use super::*;
use std::ops::Range;

const ROUNDS: usize = 20;
const TIMEOUT: Duration = Duration::from_secs(300);
/// The disk serves so many commands a second, so that a reset finds most of them not done.
const COMMANDS_PER_SECOND: u32 = 60;
/// Commands in flight, and of those of a virtio disk the ones that read to the end of memory.
const COMMANDS: u64 = 63;
const GOOD: u64 = 31;
const PAGE: u64 = 4096;
const MEMORY: u64 = 32 << 20;
/// Where commands read to that a reset meets, from the beginning of memory, and those afterwards.
const BEFORE: u64 = 24 << 20;
const AFTER: u64 = 28 << 20;
const DISK: usize = 1 << 20;
/// A word of the disk.
const FILLED: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// What QEMU says when a virtio disk reads to a second address without a translation meanwhile.
const REFUSED: &str = "virtio: bogus descriptor or out of resources";

#[derive(Clone, Copy, Debug)]
enum ResetWay {
    /// By its reset register.
    Itself,
    /// By a triple fault.
    Fault,
    /// It switches itself off, and is started again.
    Off,
    /// By a request.
    Request,
    /// It is destroyed, created and started.
    Destroyed,
}

/// Ways of all guests, and those of guests on AMD64.
const WAYS: [ResetWay; 5] =
    [ResetWay::Off, ResetWay::Request, ResetWay::Destroyed, ResetWay::Itself, ResetWay::Fault];
const ANYWHERE: usize = 3;

/// What a disk reads.
struct Reads {
    /// Where to, before a reset; all of that memory is zero after it.
    before: Range<u64>,
    /// And afterwards.
    after: Range<u64>,
}

/// After each reset the memory that the disk was reading to is zero, and stays it, and the disk
/// works. What is read then comes after what was asked for before.
pub(super) fn reset_amid_dma(room: &Room<'_>) -> Result<()> {
    let bytes = COMMANDS * 2 * PAGE;
    let reads = Reads { before: BEFORE..BEFORE + bytes, after: AFTER..AFTER + bytes };
    play(room, "disks", &reads).map(drop)
}

/// The same amid reads of which the last ones have addresses without a translation. The disk is a
/// virtio disk: QEMU's NVMe does not survive this (`docs/qemu.md`).
pub(super) fn reset_amid_failing_dma(room: &Room<'_>) -> Result<()> {
    let base = room.platform.arch().ram_base();
    let (end, after) = (base + MEMORY, base + AFTER);
    let reads = Reads { before: end - GOOD * PAGE..end, after: after..after + COMMANDS * PAGE };
    let ended = play(room, "virtio_disks", &reads)?;
    let is_refused = ended.outcome.qemu_messages.contains(REFUSED);
    ensure!(is_refused, "QEMU has not refused an address without a translation");
    Ok(())
}

fn play(room: &Room<'_>, kind: &str, reads: &Reads) -> Result<Ended> {
    room.disk("disk.img", &[0xa5; DISK])?;
    let keys = format!("{MANUAL}\nreset = \"reboot\"\n{kind} = [\"disk.img\"]");
    let beside = bare("beside", 1, "32M", "");
    let text = format!("[machine]\ncpus = 2\n{}{beside}", bare("reader", 1, "32M", &keys));
    let file = room.write(&text)?;
    let slow = format!("drive.disk8.throttling.iops-total={COMMANDS_PER_SECOND}");
    let mut stage = room.play_file(&file, TIMEOUT, &["-set", &slow], |stage| {
        stage.start("reader")?;
        let mut from = stage.until_shown("reader", READY, 0)?;
        let ways = if room.platform.arch() == Arch::X86_64 { &WAYS[..] } else { &WAYS[..ANYWHERE] };
        for round in 0..ROUNDS {
            let way = ways[round % ways.len()];
            from = one(stage, way, reads, from).with_context(|| format!("round {round}: {way:?}"))?;
        }
        // The controller alone, by its own register.
        from = stage.command("reader", &format!("{},1", Reads::fly(&reads.before)), from)?;
        from = stage.command("reader", &on("clear", &reads.before), from)?;
        from = stage.command("reader", &on("clear", &reads.after), from)?;
        from = reads.wait(stage, from)?;
        stage.command("reader", &on("zero", &reads.before), from)?;
        Ok(())
    })?;
    stage.destroy("reader")?;
    stage.end("beside", "poweroff\n")
}

/// A command about a range.
fn on(what: &str, range: &Range<u64>) -> String {
    format!("{what}={:#x},{}", range.start, range.end - range.start)
}

/// The guest is reset amid DMA, and looks what its memory has.
fn one(stage: &mut Stage<'_>, way: ResetWay, reads: &Reads, from: usize) -> Result<usize> {
    let from = stage.command("reader", &Reads::fly(&reads.before), from)?;
    let guest = named("reader")?;
    let from = match way {
        ResetWay::Itself => {
            stage.type_text("reader", "reset\n")?;
            from
        }
        ResetWay::Fault => {
            stage.type_text("reader", "triple-fault\n")?;
            from
        }
        ResetWay::Off => {
            stage.type_text("reader", "poweroff\n")?;
            stage.until_it_is("reader", GuestState::Off)?;
            stage.ask(&Request::Start { guest })?;
            from
        }
        ResetWay::Request => {
            stage.ask(&Request::Reset { guest })?;
            from
        }
        ResetWay::Destroyed => {
            stage.ask(&Request::Destroy { guest })?;
            stage.start("reader")?;
            0
        }
    };
    let from = stage.until_shown("reader", READY, from)?;
    let zero = on("zero", &reads.before);
    let from = stage.command("reader", &zero, from)?;
    let from = reads.wait(stage, from)?;
    stage.command("reader", &zero, from)
}

impl Reads {
    fn fly(range: &Range<u64>) -> String {
        format!("fly={:#x},{COMMANDS}", range.start)
    }

    /// The disk reads elsewhere, and all of that comes.
    fn wait(&self, stage: &mut Stage<'_>, from: usize) -> Result<usize> {
        let mut from = stage.command("reader", &Self::fly(&self.after), from)?;
        let last = self.after.end - 8;
        let look = format!("zero={last:#x},8");
        let is_zero = format!("load: done: {look} ");
        let is_there = format!("load: error: '{look}': at {last:#x} is {FILLED:#x}");
        loop {
            stage.type_text("reader", &format!("{look}\n"))?;
            let found = stage.until("the reader looks at its memory", |stage| {
                let (zero, other) =
                    (stage.find("reader", &is_zero, from)?, stage.find("reader", &is_there, from)?);
                Ok(zero.map(|at| (false, at)).or(other.map(|at| (true, at))))
            })?;
            from = found.1;
            if found.0 {
                return Ok(from);
            }
        }
    }
}
