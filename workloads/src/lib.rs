//! The common parts of the programs that run inside Linux guests: their command lines, memory
//! mappings, phases for instruction counters, the kernel's interrupt counts, the process's times,
//! and the report channel to the host tool.

pub mod mapping;
pub mod options;
pub mod phase;
pub mod times;
