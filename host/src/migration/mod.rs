//! Guests that are saved, restored and moved: the tool's side. `docs/migration.md` describes it.
//!
//! | module | contents |
//! |---|---|
//! | [`port`] | the channel in a machine's memory, and the request that it belongs to |
//! | [`seal`] | blocks that are noticed if they are altered |
//! | [`place`], [`wire`] | where guests arrive; connections between two tools |
//! | [`greeting`] | connections that have not shown that they know the secret |
//! | [`snapshot`] | a guest in a file |
//! | [`restored`] | a note beside that file that a guest was restored from it |
//! | [`manifest`] | what a guest is besides its state |
//! | [`outflow`], [`policy`] | what leaves, how fast, and when the guest is stopped for it |
//! | [`vain`] | what leaves for nowhere, and stays |
//! | [`time`] | counters beside the time of day |
//! | [`arrivals`] | the guests of a run that are restored, or come from elsewhere |
//! | [`source`], [`target`] | the two machines; which one runs the guest says `migration::handover` |
//! | [`sending`], [`serve`] | the connection between them, at both ends |

mod arrivals;
mod greeting;
mod manifest;
mod outflow;
mod place;
mod policy;
mod port;
mod restored;
mod seal;
mod sending;
mod serve;
mod snapshot;
mod source;
mod target;
#[cfg(test)]
mod tests;
mod time;
mod vain;
mod wire;

pub(crate) use arrivals::{Arrival, Arrivals};
pub(crate) use manifest::Description;
pub(crate) use outflow::Manner;
pub(crate) use place::{Address, Listener};
pub(crate) use policy::Wanted;
pub(crate) use snapshot::Snapshot;
pub(crate) use source::{Destination, InDoubt, Moved, Origin, migrate, save, target_is_gone};
pub(crate) use vain::in_vain;
pub(crate) use wire::Secret;
