//! What differs per architecture. Each one is a module of the same shape; the one for the target is used.

#[cfg(target_arch = "x86_64")]
mod x86_64;
