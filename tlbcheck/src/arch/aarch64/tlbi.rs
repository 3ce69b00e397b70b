//! TLBI in all its forms, with its barriers. DDI 0487 M.b, D8.17 "TLB maintenance" and C5.5.
//!
//! A DSB orders the stores that change tables before the invalidation. The invalidation is complete
//! at the next DSB of the same domain or a larger one, and the ISB makes the processor itself see
//! it. The command line may omit one of these: then rows must fail.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

use tlbcheck::arm64::{Range, page};
use tlbcheck::command_line::Omission;

/// The affected TLBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The processor's own.
    Local,
    /// All of the inner shareable domain.
    Inner,
    /// All of the outer shareable domain; needs FEAT_TLBIOS.
    Outer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The address in the ASID, and tables on the way to it.
    Va,
    /// The address in the ASID, the last level alone.
    VaLast,
    /// The address in all ASIDs, and tables on the way to it.
    VaAll,
    /// The address in all ASIDs, the last level alone.
    VaAllLast,
    /// The ASID.
    Asid,
    /// Everything.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form(pub(super) Scope, pub(super) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TlbiOperand {
    /// An address of the page or block, or the first of the range.
    pub(super) address: u64,
    /// The ASID.
    pub(super) asid: u16,
    /// The level of the last entry, if the operand should name it; needs FEAT_TTL.
    pub(super) level: Option<u8>,
    /// Number of pages, for the range forms; needs FEAT_TLBIRANGE, and a kind by address.
    pub(super) range: Option<Range>,
}

impl TlbiOperand {
    pub(super) const fn page(address: u64, asid: u16) -> Self {
        Self { address, asid, level: None, range: None }
    }
}

/// What is omitted, if anything is.
static OMITTED: AtomicU8 = AtomicU8::new(u8::MAX);

/// Sets the omission that applies from now on.
pub(super) fn omit(what: Option<Omission>) {
    OMITTED.store(what.map_or(u8::MAX, |what| what as u8), Ordering::Relaxed);
}

fn omits(what: Omission) -> bool {
    OMITTED.load(Ordering::Relaxed) == what as u8
}

/// TLBI is SYS with op1 0 and CRn 8; the parameters are its CRm and op2.
///
/// # Safety
///
/// They name a form that the processor has.
#[inline(always)]
unsafe fn sys<const CRM: u8, const OP2: u8>(operand: u64) {
    // SAFETY: it drops translations, which are reloaded from the tables.
    unsafe {
        asm!("sys #0, c8, c{crm}, #{op2}, {operand}", crm = const CRM, op2 = const OP2,
            operand = in(reg) operand, options(nostack, preserves_flags));
    }
}

/// Selects the instruction by op2.
macro_rules! by_kind {
    ($crm:literal, $op2:expr, $operand:expr) => {
        match $op2 {
            0 => sys::<$crm, 0>($operand),
            1 => sys::<$crm, 1>($operand),
            2 => sys::<$crm, 2>($operand),
            3 => sys::<$crm, 3>($operand),
            5 => sys::<$crm, 5>($operand),
            _ => sys::<$crm, 7>($operand),
        }
    };
}

/// Only the instruction.
#[inline(always)]
pub(super) fn issue(Form(scope, kind): Form, target: TlbiOperand) {
    let TlbiOperand { address, asid, level, range } = target;
    if omits(Omission::Tlbi) || (kind == Kind::All && omits(Omission::Vmalle1)) {
        return;
    }
    let scope = if omits(Omission::Broadcast) { Scope::Local } else { scope };
    let op2 = match kind {
        Kind::All => 0,
        Kind::Va => 1,
        Kind::Asid => 2,
        Kind::VaAll => 3,
        Kind::VaLast => 5,
        Kind::VaAllLast => 7,
    };
    let asid = if matches!(kind, Kind::VaAll | Kind::VaAllLast | Kind::All) { 0 } else { asid };
    // SAFETY: the caller has checked for the form's feature; ranges are of kinds by address.
    unsafe {
        match (range, scope) {
            (None, Scope::Local) => by_kind!(7, op2, page(address, asid, level)),
            (None, Scope::Inner) => by_kind!(3, op2, page(address, asid, level)),
            (None, Scope::Outer) => by_kind!(1, op2, page(address, asid, level)),
            (Some(range), Scope::Local) => by_kind!(6, op2, range.operand(address, asid)),
            (Some(range), Scope::Inner) => by_kind!(2, op2, range.operand(address, asid)),
            (Some(range), Scope::Outer) => by_kind!(5, op2, range.operand(address, asid)),
        }
    }
}

/// Orders earlier stores to tables before a TLBI, and before walks of the domain's processors.
#[inline(always)]
pub(super) fn order(scope: Scope) {
    // SAFETY: barriers change nothing.
    unsafe {
        match scope {
            Scope::Local => asm!("dsb nshst", options(nostack, preserves_flags)),
            Scope::Inner => asm!("dsb ishst", options(nostack, preserves_flags)),
            Scope::Outer => asm!("dsb oshst", options(nostack, preserves_flags)),
        }
    }
}

/// Waits until earlier TLBIs of the scope are complete, and makes the processor see them.
#[inline(always)]
pub(super) fn complete(scope: Scope) {
    if !omits(Omission::Dsb) {
        // SAFETY: barriers change nothing.
        unsafe {
            match scope {
                Scope::Local => asm!("dsb nsh", options(nostack, preserves_flags)),
                Scope::Inner => asm!("dsb ish", options(nostack, preserves_flags)),
                Scope::Outer => asm!("dsb osh", options(nostack, preserves_flags)),
            }
        }
    }
    synchronise();
}

/// Discards instructions that the processor has fetched and translated in advance.
#[inline(always)]
pub(super) fn synchronise() {
    // SAFETY: barriers change nothing.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

/// The whole sequence, after the stores that change tables.
#[inline(always)]
pub(super) fn flush(form: Form, target: TlbiOperand) {
    order(form.0);
    issue(form, target);
    complete(form.0);
}

/// Drops everything from the TLBs, whatever is omitted: between rows, and after rounds without a
/// flush.
pub(super) fn settle() {
    // SAFETY: it drops translations, which are reloaded from the tables.
    unsafe { asm!("dsb ishst", "tlbi vmalle1is", "dsb ish", "isb", options(nostack, preserves_flags)) };
}
