//! A tiny bare guest: instruction counts of exits, and the wrong things a guest can do.
fn main() {}
