//! Consoles of several guests, which the hypervisor keeps as rings in the machine's memory: shown
//! and logged while this process runs the machine, or attached to from another process.

mod attach;
mod keyboard;
mod lines;
pub(crate) mod logs;
mod screen;
mod typing;
mod viewer;

pub(crate) use attach::console;
pub(crate) use logs::Logs;
pub(crate) use typing::Typing;
pub(crate) use viewer::{Last, Look, Seen, Viewer};
