//! The host tool: build, run, demo, bench, test.
fn main() {}
