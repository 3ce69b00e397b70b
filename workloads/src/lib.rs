//! The common parts of the programs that run inside Linux guests: their command lines, the kernel's
//! interrupt counts, the process's times, and the report channel to the host tool.

pub mod interrupts;
pub mod options;
pub mod report;
pub mod times;
