//! Invalidating stage 2 on Arm64: operands, the choice of instructions, and the sequences.
//!
//! A change of stage-2 tables leaves a list of [`Stale`] ranges. [`plan()`] chooses between range
//! instructions, one instruction per page and the whole VMID. [`invalidate`] emits the instructions
//! with their barriers, through the trait [`Stage2Tlb`], and returns [`Invalidated`], the proof
//! that every processor has done them. Nothing else in a hypervisor issues a TLBI for a guest.
//!
//! ```text
//! Setup { granule, features, errata, limits }      once per machine, from ID registers
//!   plan(&setup, ranges)                           which instructions
//!   Context::enter(&tlb, vttbr, errata)            TLBI acts on the VMID in VTTBR_EL2 (A20)
//!   invalidate(&context, &setup, plan)             DSB ISHST, TLBI by IPA, DSB ISH, VMALLE1IS, DSB ISH, ISB
//!   clean(&context, &invalidated, frames, ...)     without FWB: data cache after the TLBI (P20)
//! ```
//!
//! Everything here assumes VTCR_EL2.DS = 0: output addresses of 48 bits with granules of 4 and 16
//! KiB, of 52 bits with 64 KiB. With DS = 1 the base of a range is in units of 64 KiB whatever the
//! granule, and level 0 has leaves.
//!
//! Source: Arm Architecture Reference Manual for A-profile (DDI 0487 M.b), C5.5 "A64 System
//! instructions for TLB maintenance" (IPAS2E1IS, RIPAS2E1IS, VMALLE1IS, VMALLS12E1IS), D8.17 "TLB
//! maintenance", D8.17.1 "Using break-before-make when updating translation table entries".

mod context;
mod cover;
mod errata;
mod operand;
mod plan;
mod sequence;

#[cfg(all(test, not(loom)))]
mod tests;

pub use context::{Context, Stage2Tlb, Vttbr};
pub use cover::{PIECE_BYTES_MAX, Pages, Ranges, base_alignment};
pub use errata::Errata;
pub use operand::{Granule, LeafLevel, level_hint, page, range};
pub use plan::{Features, Limits, Plan, Setup, Stale, plan};
pub use sequence::{
    Instructions, Invalidated, break_before_make, clean, enter_vm, invalidate, invalidate_all_vms, leave_vm,
};
