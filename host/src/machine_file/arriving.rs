//! Keys of guests that are not started: they are restored, or come from another machine.

use super::fields::{At, Fields};
use super::guest::GuestPlan;
use super::machine::Machine;
use crate::migration::{Address, Snapshot};
use crate::prelude::*;
use hostlink::config::Start;

/// What the file of a saved guest says.
pub(super) const DESCRIBING: &str = "kernel initrd program exec boot cmdline vcpus memory flush reset start \
    disks virtio_disks net devices incoming secret";

/// Its file describes the guest.
pub(super) fn restore(
    guest: &mut GuestPlan,
    of: &Fields<'_>,
    key: &'static str,
    machine: &Machine,
) -> Result<()> {
    let Some(At { value: path, line }) = of.file(key)? else { return Ok(()) };
    let mut take = || {
        let snapshot = Snapshot::open(&path)?;
        guest.arrival.warning = snapshot.warning();
        let description = snapshot.description;
        let (there, here) = (&description.arch, machine.platform.arch().name());
        ensure!(there == here, "{} is a guest of {there}, and the machine is one of {here}", path.display());
        guest.restore(path.clone(), description)
    };
    take().map_err(|error| of.error(line, format!("{error:#}")))
}

pub(super) fn incoming(guest: &mut GuestPlan, of: &Fields<'_>, key: &'static str, _: &Machine) -> Result<()> {
    let Some(At { value, line }) = of.text(key)? else { return Ok(()) };
    let address = match value.strip_prefix("unix:") {
        Some(path) => format!("unix:{}", of.resolve(path).display()),
        None => value.to_owned(),
    };
    guest.arrival.incoming = Some(Address::parse(&address).map_err(|error| of.error(line, &error))?);
    if !of.has("start") {
        guest.config.start = Start::Manual;
    }
    Ok(())
}
