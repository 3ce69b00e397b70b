//! A guest is reset in all ways while its disk reads into its memory.

use super::misuse::command;
use super::stage::{Room, Stage, named};
use super::{MANUAL, READY, bare};
use anyhow::{Context, Result};
use hostlink::ctl::Request;
use hostlink::exit::ExitCode;
use hostlink::guests::GuestState;
use std::fs;
use std::time::Duration;

const ROUNDS: usize = 20;
const TIMEOUT: Duration = Duration::from_secs(300);
/// The disk serves so many commands a second, so that a reset finds most of them not done.
const COMMANDS_PER_SECOND: u32 = 60;
/// Commands in flight, each of two pages.
const COMMANDS: u64 = 63;
const BYTES: u64 = COMMANDS << 13;
/// Where those read to that a reset meets, and those afterwards.
const BEFORE: u64 = 24 << 20;
const AFTER: u64 = 28 << 20;
const DISK: usize = 1 << 20;
/// A word of the disk.
const FILLED: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// How a guest is reset.
#[derive(Clone, Copy, Debug)]
enum Way {
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

const WAYS: [Way; 5] = [Way::Itself, Way::Fault, Way::Off, Way::Request, Way::Destroyed];

/// After each reset the memory that the disk was reading to is zero, and stays it, and the disk
/// works. What is read then is served after what was asked for before: when it is there, nothing
/// can come any more.
pub(super) fn reset_amid_dma(room: &Room<'_>) -> Result<()> {
    fs::write(room.directory.join("disk.img"), vec![0xa5; DISK]).context("cannot write a disk")?;
    let keys = format!("{MANUAL}\nreset = \"reboot\"\ndisks = [\"disk.img\"]");
    let beside = bare("beside", 1, "32M", "");
    let text = format!("[machine]\ncpus = 2\n{}{beside}", bare("reader", 1, "32M", &keys));
    let file = room.write(&text)?;
    let slow = format!("drive.disk8.throttling.iops-total={COMMANDS_PER_SECOND}");
    let mut stage = room.play_with(&file, TIMEOUT, &["-set", &slow], |stage| {
        stage.start("reader")?;
        let mut from = stage.until_shown("reader", READY, 0)?;
        for round in 0..ROUNDS {
            let way = WAYS[round % WAYS.len()];
            from = one(stage, way, from).with_context(|| format!("round {round}: {way:?}"))?;
        }
        // The controller alone, by its own register.
        let mut type_in = |words: &str| -> Result<()> {
            from = command(stage, "reader", words, from)?;
            Ok(())
        };
        type_in(&format!("fly={BEFORE:#x},{COMMANDS},1"))?;
        type_in(&format!("clear={BEFORE:#x},{BYTES}"))?;
        type_in(&format!("clear={AFTER:#x},{BYTES}"))?;
        from = reads(stage, from)?;
        command(stage, "reader", &format!("zero={BEFORE:#x},{BYTES}"), from)?;
        Ok(())
    })?;
    stage.ask(&Request::Destroy { guest: named("reader")? })?;
    stage.type_end("beside", "poweroff\n")?;
    stage.finish()?.ended_by(ExitCode::GuestPowerOff)
}

/// The guest is reset amid DMA, and looks what its memory has.
fn one(stage: &mut Stage<'_>, way: Way, from: usize) -> Result<usize> {
    let from = command(stage, "reader", &format!("fly={BEFORE:#x},{COMMANDS}"), from)?;
    let guest = named("reader")?;
    let from = match way {
        Way::Itself => {
            stage.type_text("reader", "reset\n")?;
            from
        }
        Way::Fault => {
            stage.type_text("reader", "triple-fault\n")?;
            from
        }
        Way::Off => {
            stage.type_text("reader", "poweroff\n")?;
            stage.until_it_is("reader", GuestState::Off)?;
            stage.ask(&Request::Start { guest })?;
            from
        }
        Way::Request => {
            stage.ask(&Request::Reset { guest })?;
            from
        }
        Way::Destroyed => {
            stage.ask(&Request::Destroy { guest })?;
            stage.start("reader")?;
            0
        }
    };
    let from = stage.until_shown("reader", READY, from)?;
    let zero = format!("zero={BEFORE:#x},{BYTES}");
    let from = command(stage, "reader", &zero, from)?;
    let from = reads(stage, from)?;
    command(stage, "reader", &zero, from)
}

/// The disk reads elsewhere, and all of that comes.
fn reads(stage: &mut Stage<'_>, from: usize) -> Result<usize> {
    let mut from = command(stage, "reader", &format!("fly={AFTER:#x},{COMMANDS}"), from)?;
    let last = AFTER + BYTES - 8;
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
