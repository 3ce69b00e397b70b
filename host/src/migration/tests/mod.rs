//! Guests that are saved and moved between machines on the hypervisor's mock board.

mod cuts;
mod files;
pub(super) mod machines;
pub(super) mod port;
mod way;
mod wire;
pub(super) mod world;
