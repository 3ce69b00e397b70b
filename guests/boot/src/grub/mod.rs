//! GRUB's configuration, as `grub-mkconfig` writes it: enough of the language to follow conditions
//! and variables to the default entry. Source: GNU GRUB Manual 2.06, chapters 6.1 and 17.
//!
//! Nothing is written back, so an entry that is chosen for one boot only (`grub-reboot`) is not
//! taken: it would be taken for ever.

use alloc::format;
use alloc::string::{String, ToString};

use crate::find::Choice;
use crate::volume::Files;
use script::Script;

mod commands;
mod script;
mod tokens;

/// Where the configuration is.
pub const PLACES: [&str; 4] =
    ["/boot/grub/grub.cfg", "/grub/grub.cfg", "/boot/grub2/grub.cfg", "/grub2/grub.cfg"];

/// The default entry of the configuration at a path.
///
/// # Errors
///
/// There is none that starts a Linux kernel.
pub fn default(files: &impl Files, volume: usize, path: &str) -> Result<Choice, String> {
    let mut script = Script::new(files, volume, path.rsplit_once('/').map_or("", |(prefix, _)| prefix));
    script.include(volume, path);
    let default = script.variable("default").to_string();
    script.choose(&default).map_err(ToString::to_string)?;
    let choice = script.into_choice();
    if choice.kernel.1.is_empty() {
        return Err("its default entry starts no Linux kernel".to_string());
    }
    Ok(Choice { said_by: format!("{path}, entry '{default}'"), ..choice })
}
