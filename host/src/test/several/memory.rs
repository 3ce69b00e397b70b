//! The memory of a guest that was destroyed, and is another one's now.

use super::*;

const TIMEOUT: Duration = Duration::from_secs(120);

/// The memory that is written and looked at, in a guest of 64 MiB: all above its program.
const OFFSET: u64 = 32 << 20;
const LENGTH: &str = "32M";

/// A guest that is created after another one, which filled its memory, finds zeros only. Of a
/// hypervisor that hands memory on it finds something else.
pub(super) fn is_handed_on(room: &Room<'_>, is_expected: bool) -> Result<()> {
    // The machine has memory for both, and the second one takes the first that is free.
    let [former, next] = ["former", "next"].map(|name| bare(name, 1, "64M", MANUAL));
    let text = [former, next, bare("beside", 1, "32M", "")].concat();
    let start = room.platform.arch().ram_base() + OFFSET;
    let (zero, touch) = (format!("zero={start:#x},{LENGTH}"), format!("touch={start:#x},{LENGTH},4K"));
    let mut found = None;
    let stage = room.play(&text, TIMEOUT, |stage| {
        stage.until_shown("beside", READY, 0)?;
        for name in ["former", "next"] {
            stage.start(name)?;
            let mut from = stage.until_shown(name, READY, 0)?;
            if name == "former" {
                from = stage.command(name, &touch, from)?;
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
            stage.destroy(name)?;
        }
        Ok(())
    })?;
    stage.end("beside", "poweroff\n")?;
    let is_handed_on = found != Some(true);
    ensure!(
        is_handed_on == is_expected,
        match is_expected {
            true => "the next guest did not look at the former one's memory",
            false => "the memory of a destroyed guest was handed on",
        }
    );
    Ok(())
}
