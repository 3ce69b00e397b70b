//! Guests that are saved and moved between machines on the hypervisor's mock board.

mod cuts;
mod files;
mod machines;
mod way;
mod wire;
mod world;
