//! `quell console` on the command line.

use clap::Args;

/// Attach to the console of a guest of a running machine
///
/// Start `./quell run examples/two.toml` in one terminal and `./quell console web` in another. What
/// the console has shown so far comes first, as far as it is kept; then it is followed, and what is
/// typed goes to the guest.
///
/// Ctrl-A d leaves; the guest goes on. Ctrl-A a sends Ctrl-A. All other keys are for the guest,
/// Ctrl-C included. Several terminals may be attached to one console.
///
/// A machine that was started without a machine file has one guest, whose console is where it was
/// started.
#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// The guest [default: the only one]
    #[arg(value_name = "NAME")]
    pub(crate) guest: Option<String>,
    /// The machine, by its name in `./quell ctl vms` [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// The guest's serial port: 0 is its console
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1))]
    pub(crate) port: u16,
    /// Print what the console has shown so far, and exit
    #[arg(long)]
    pub(crate) once: bool,
}
