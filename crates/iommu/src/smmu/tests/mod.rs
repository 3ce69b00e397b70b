//! Encodings, read back field by field after the manual's tables; plans; changes of live entries.

mod change;
mod command;
mod decode;
mod event;
mod event_queue;
mod features;
mod range;
mod start;
mod stream;
