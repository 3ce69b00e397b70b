//! The architectures. Each one is a module of the same shape, which implements the
//! [traits](crate::vm::arch) that the core is generic over; the one for the target is used.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{Local, console, cpu};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Local, console, cpu};

use crate::vm::{self, space};

/// What the core is made of, for the architecture of this image.
pub(crate) type Context<'a> = vm::Context<'a, Local>;
pub(crate) type Machine = vm::Machine<Local>;
pub(crate) type PerCpu = vm::PerCpu<Local>;
pub(crate) type Space = space::Space<Local>;
