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

/// Kinds of faults as sets of statuses, a bit each. Level -1 has numbers of its own (FEAT_LPA2):
/// stage 2 does not have it here, but QEMU 7.2 names stage 1's level if stage 2 does not have the
/// page that its walk reads.
const ADDRESS_SIZE: u64 = 0xf | 1 << 0x29;
const TRANSLATION: u64 = 0xf0 | 1 << 0x2b;
const ACCESS_FLAG: u64 = 0xf00;
const PERMISSION: u64 = 0xf000;

const fn is_one_of(syndrome: u64, statuses: u64) -> bool {
    statuses >> (syndrome & STATUS) & 1 != 0
}

/// Whether the address is beyond what stage 2 translates.
pub const fn is_beyond(syndrome: u64) -> bool {
    is_one_of(syndrome, ADDRESS_SIZE)
}

/// The exception class of aborts of instruction fetches.
pub const CLASS_FETCH: u8 = 0x20;

/// Whether stage 2 caused the fault. Anything else is an external abort or similar.
pub const fn is_of_stage2(syndrome: u64) -> bool {
    is_one_of(syndrome, ADDRESS_SIZE | TRANSLATION | ACCESS_FLAG | PERMISSION)
}

/// Whether HPFAR_EL2 holds the page: for all faults of stage 2 except permission faults of the
/// access itself. For these stage 1 must be walked again.
pub const fn has_page(syndrome: u64) -> bool {
    let of_walks = if syndrome & IN_WALK == 0 { 0 } else { PERMISSION };
    is_one_of(syndrome, ADDRESS_SIZE | TRANSLATION | ACCESS_FLAG | of_walks)
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
    let is_store = syndrome & WRITE != 0;
    if syndrome & (IN_WALK | CACHE_MAINTENANCE) == 0 {
        return is_store;
    }
    is_one_of(syndrome, PERMISSION) && (is_store || syndrome & IN_WALK != 0)
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

    const NO_PAGE: u64 = 0x07;
    const NO_PERMISSION: u64 = 0x0f;

    #[test]
    fn every_status_has_its_kind() {
        for status in 0..=STATUS {
            let is_usual = status < 0x10;
            assert_eq!(is_of_stage2(status), is_usual || [0x29, 0x2b].contains(&status), "{status:#x}");
            assert_eq!(is_beyond(status), status < 4 || status == 0x29, "{status:#x}");
            let lacks_permission = is_usual && status >= 0xc;
            assert_eq!(has_page(status), is_of_stage2(status) && !lacks_permission, "{status:#x}");
            assert_eq!(needs_write(IN_WALK | status), lacks_permission, "{status:#x}");
        }
    }

    #[test]
    fn u8_an_external_abort_says_what_is_known_of_it() {
        assert_eq!(passed_on(NO_ADDRESS | EXTERNAL_ABORT, false), NO_ADDRESS | EXTERNAL_ABORT);
        let found = passed_on(NO_ADDRESS | WRITE | NO_PERMISSION, false);
        assert_eq!(found, WRITE | EXTERNAL_ABORT, "it is another bit there");
        let found = passed_on(CACHE_MAINTENANCE | WRITE | NO_PAGE, false);
        assert_eq!(found, CACHE_MAINTENANCE | WRITE | 0x10);
        assert_eq!(passed_on(WRITE | NO_PAGE, true), EXTERNAL_ABORT, "nothing is stored by a fetch");
        // A walk that fails is reported as the access that caused it.
        assert_eq!(passed_on(IN_WALK | 0x15, false), EXTERNAL_ABORT);
    }

    #[test]
    fn u8_invalidation_of_a_page_without_write_permission_gets_it() {
        let maintenance = CACHE_MAINTENANCE | WRITE;
        assert!(needs_write(maintenance | NO_PERMISSION), "or it faults for ever");
        assert!(!needs_write(maintenance | NO_PAGE), "a page that is there is enough for the others");
        assert!(needs_write(WRITE | NO_PAGE) && needs_write(WRITE | NO_PERMISSION));
        assert!(!needs_write(NO_PAGE) && !needs_write(NO_PERMISSION));
    }

    #[test]
    fn a_walk_stores_if_permission_is_what_it_lacks() {
        for access in [0, WRITE, CACHE_MAINTENANCE | WRITE] {
            assert!(has_page(access | IN_WALK | NO_PERMISSION), "the walk's");
            assert!(needs_write(access | IN_WALK | NO_PERMISSION), "or the access flag faults for ever");
            assert!(!needs_write(access | IN_WALK | NO_PAGE), "the tables may be read-only");
        }
    }
}
