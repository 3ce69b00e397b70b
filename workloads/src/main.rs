//! Programs that run inside Linux guests.
fn main() {}
