//! Decodes the syndrome of a stage-2 fault.
//!
//! Source: Arm DDI 0487, ESR_EL2 "ISS encoding for an exception from a Data Abort".

/// Cache maintenance or address translation, for which WRITE is always set (CM).
pub const CACHE_MAINTENANCE: u64 = 1 << 8;
/// On a walk of stage 1 (S1PTW).
pub const IN_WALK: u64 = 1 << 7;
/// A store (WnR).
pub const WRITE: u64 = 1 << 6;
/// FAR_ELx is not valid (FnV), for external aborts.
pub const NO_ADDRESS: u64 = 1 << 10;
/// The fault status.
pub const STATUS: u64 = 0x3f;

/// Kinds of faults by the upper bits of the status.
#[allow(missing_docs, reason = "the architecture's names")]
pub mod kind {
    pub const ADDRESS_SIZE: u64 = 0;
    pub const TRANSLATION: u64 = 1;
    pub const ACCESS_FLAG: u64 = 2;
    pub const PERMISSION: u64 = 3;
}

/// The kind of fault. Level -1 has numbers of its own (FEAT_LPA2): stage 2 does not have it here,
/// but QEMU 7.2 names stage 1's level if stage 2 does not have the page that its walk reads.
pub const fn kind_of(syndrome: u64) -> u64 {
    match syndrome & STATUS {
        0x29 => kind::ADDRESS_SIZE,
        0x2b => kind::TRANSLATION,
        status => status >> 2,
    }
}

/// The exception class of aborts of instruction fetches.
pub const CLASS_FETCH: u8 = 0x20;

/// Whether stage 2 caused the fault. Anything else is an external abort or similar.
pub const fn is_of_stage2(syndrome: u64) -> bool {
    matches!(kind_of(syndrome), kind::ADDRESS_SIZE | kind::TRANSLATION | kind::ACCESS_FLAG | kind::PERMISSION)
}

/// Whether HPFAR_EL2 holds the page: for all faults of stage 2 except permission faults of the
/// access itself. For these stage 1 must be walked again.
pub const fn has_page(syndrome: u64) -> bool {
    is_of_stage2(syndrome) && (kind_of(syndrome) != kind::PERMISSION || syndrome & IN_WALK != 0)
}

/// Whether the access needs a writable page to continue.
///
/// Cache maintenance is reported as a store, but most of it needs only a page that is present. DC
/// IVAC needs a writable one (D7.5.9.5). It is recognised by the kind of fault: maintenance that
/// needs less has no permission fault on a readable page.
///
/// In a walk WnR says nothing: a fetch has no such bit, and a load may set the access flag in
/// stage 1's tables. Every page of stage 2 can be read, so a walk that has a permission fault is
/// about to store. One that finds no page has only read so far: the tables may be in read-only
/// memory.
pub const fn needs_write(syndrome: u64) -> bool {
    let lacks_permission = kind_of(syndrome) == kind::PERMISSION;
    match () {
        () if syndrome & IN_WALK != 0 => lacks_permission,
        () if syndrome & CACHE_MAINTENANCE != 0 => syndrome & WRITE != 0 && lacks_permission,
        () => syndrome & WRITE != 0,
    }
}

/// Fault status: synchronous external abort, not on a walk.
const EXTERNAL_ABORT: u64 = 0x10;

/// The guest's syndrome, except for its class, of the external abort that it gets for a fault with
/// `syndrome`: whether it was a store, and whether the address is valid, which the processor
/// reports for external aborts only.
pub const fn passed_on(syndrome: u64, is_fetch: bool) -> u64 {
    let write = if is_fetch { 0 } else { syndrome & (WRITE | CACHE_MAINTENANCE) };
    let address = if syndrome & STATUS == EXTERNAL_ABORT { syndrome & NO_ADDRESS } else { 0 };
    write | address | EXTERNAL_ABORT
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSLATION: u64 = 0x07;
    const PERMISSION: u64 = 0x0f;

    #[test]
    fn u8_an_external_abort_says_what_is_known_of_it() {
        assert_eq!(passed_on(NO_ADDRESS | EXTERNAL_ABORT, false), NO_ADDRESS | EXTERNAL_ABORT);
        let found = passed_on(NO_ADDRESS | WRITE | PERMISSION, false);
        assert_eq!(found, WRITE | EXTERNAL_ABORT, "it is another bit there");
        let found = passed_on(CACHE_MAINTENANCE | WRITE | TRANSLATION, false);
        assert_eq!(found, CACHE_MAINTENANCE | WRITE | 0x10);
        assert_eq!(passed_on(WRITE | TRANSLATION, true), EXTERNAL_ABORT, "nothing is stored by a fetch");
        // A walk that fails is reported as the access that caused it.
        assert_eq!(passed_on(IN_WALK | 0x15, false), EXTERNAL_ABORT);
    }

    #[test]
    fn u8_invalidation_of_a_page_without_write_permission_gets_it() {
        let maintenance = CACHE_MAINTENANCE | WRITE;
        assert!(needs_write(maintenance | PERMISSION), "or it faults for ever");
        assert!(!needs_write(maintenance | TRANSLATION), "a page that is there is enough for the others");
        assert!(needs_write(WRITE | TRANSLATION) && needs_write(WRITE | PERMISSION));
        assert!(!needs_write(TRANSLATION) && !needs_write(PERMISSION));
    }

    #[test]
    fn a_guest_with_five_levels_has_faults_of_stage_2() {
        for (status, expected) in [(0x29, kind::ADDRESS_SIZE), (0x2b, kind::TRANSLATION)] {
            assert!(is_of_stage2(IN_WALK | status) && has_page(IN_WALK | status));
            assert_eq!(kind_of(IN_WALK | status), expected);
        }
        // External aborts and parity errors at level -1, reserved values, TLB conflicts.
        for status in [0x13, 0x1b, 0x28, 0x2a, 0x2c, 0x30] {
            assert!(!is_of_stage2(status), "{status:#x}");
        }
    }

    #[test]
    fn a_walk_stores_if_permission_is_what_it_lacks() {
        for access in [0, WRITE, CACHE_MAINTENANCE | WRITE] {
            assert!(needs_write(access | IN_WALK | PERMISSION), "or the access flag faults for ever");
            assert!(!needs_write(access | IN_WALK | TRANSLATION), "the tables may be read-only");
        }
    }
}
