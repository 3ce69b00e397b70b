//! The memory of a guest that was destroyed, and is another one's now.

use super::READY;
use super::stage::{Room, named};
use anyhow::{Result, ensure};
use hostlink::ctl::Request;
use hostlink::exit::ExitCode;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);

/// The memory that is written and looked at, in a guest of 64 MiB: all above its program.
const OFFSET: u64 = 32 << 20;
const LENGTH: &str = "32M";

/// A guest to come after the other; the machine has memory for both, and takes the first that is
/// free.
const GUESTS: &str = r#"
[[guest]]
name = "former"
program = "load"
vcpus = 1
memory = "64M"
start = "manual"

[[guest]]
name = "next"
program = "load"
vcpus = 1
memory = "64M"
start = "manual"

[[guest]]
name = "beside"
program = "load"
vcpus = 1
memory = "32M"
"#;

/// The next guest finds zeros only.
pub(super) fn is_not_handed_on(room: &Room<'_>) -> Result<()> {
    ensure!(finds_zeros(room)?, "the memory of a destroyed guest was handed on");
    Ok(())
}

/// The same of a hypervisor that hands memory on: the next guest finds something else.
pub(super) fn is_seen_to_be_handed_on(room: &Room<'_>) -> Result<()> {
    ensure!(!finds_zeros(room)?, "the next guest did not look at the former one's memory");
    Ok(())
}

/// Whether memory is zero for a guest that is created after another one wrote to all of its memory
/// and was destroyed.
fn finds_zeros(room: &Room<'_>) -> Result<bool> {
    let file = room.write(GUESTS)?;
    let start = room.platform.arch().ram_base() + OFFSET;
    let (zero, touch) = (format!("zero={start:#x},{LENGTH}"), format!("touch={start:#x},{LENGTH},4K"));
    let mut found = None;
    let mut stage = room.play(&file, TIMEOUT, |stage| {
        stage.until_shown("beside", READY, 0)?;
        for name in ["former", "next"] {
            let guest = named(name)?;
            stage.ask(&Request::Create { guest })?;
            stage.ask(&Request::Start { guest })?;
            let mut from = stage.until_shown(name, READY, 0)?;
            if name == "former" {
                stage.type_text(name, &format!("{touch}\n"))?;
                from = stage.until_shown(name, &format!("done: {touch} "), from)?;
            }
            stage.type_text(name, &format!("{zero}\n"))?;
            // Both ends of a command name it.
            let (done, error) = (format!("done: {zero} "), format!("error: '{zero}': "));
            found = Some(stage.until("it has looked at its memory", |stage| {
                let (done, error) =
                    (stage.has_shown(name, &done, from)?, stage.has_shown(name, &error, from)?);
                Ok((done || error).then_some(done))
            })?);
            ensure!(name == "next" || found == Some(false), "a guest does not see what it wrote");
            stage.ask(&Request::Destroy { guest })?;
        }
        Ok(())
    })?;
    stage.type_end("beside", "poweroff\n")?;
    stage.finish()?.ended_by(ExitCode::GuestPowerOff)?;
    Ok(found == Some(true))
}
