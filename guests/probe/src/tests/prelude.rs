//! What most tests use.

pub(super) use crate::apic::{LVT_MASKED, LVT_TSC_DEADLINE};
pub(super) use crate::guarded::{Fault, guarded, load, rdmsr, write_cr4, wrmsr};
pub(super) use crate::hypercall::{call, call_with, enable};
pub(super) use crate::interrupts::{VECTOR_TEST, count, nmi_count};
pub(super) use crate::paging::{PAGE, Page, RIGHTS, WINDOW};
pub(super) use crate::processors::{PATIENCE_MS, SECOND};
pub(super) use crate::report::{Failure, Verdict, ensure, failure};
pub(super) use crate::tests::hypercalls::second_vp;
pub(super) use crate::tests::io::IOAPIC;
pub(super) use crate::{apic, clock, hypercall, paging, processors};
pub(super) use baremetal::random::Random;
pub(super) use core::arch::global_asm;
pub(super) use core::arch::x86_64::__cpuid;
pub(super) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(super) use tlfs::{CallCode, Control, HvResult, Status, msr};
pub(super) use x86_64::instructions::interrupts;
pub(super) use x86_64::instructions::port::Port;
pub(super) use x86_64::registers::control::Cr4;
