//! The machine-independent parts of the image: the command line, the report, the platform's name,
//! the forms of the flush hypercalls, the lists to try, statistics.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod arm64;
pub mod command_line;
pub mod form;
pub mod history;
pub mod platform;
pub mod report;
pub mod spans;
pub mod statistics;
