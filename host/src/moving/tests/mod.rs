//! Guests that are saved and moved between made-up hypervisors.

mod cuts;
mod files;
mod hypervisor;
mod wire;
mod world;
