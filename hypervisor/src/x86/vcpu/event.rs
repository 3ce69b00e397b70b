//! Events in the format of EVENTINJ and EXITINTINFO in the VMCB (sections 15.20 and 15.7.2), which
//! is also that of VM-entry interruption information and its error code, side by side; and the
//! handling of an event that cannot be delivered (sections 8.2.9 "#DF" and 8.5 "Priorities").

/// An external interrupt.
pub const TYPE_INTERRUPT: u64 = 0;
/// A non-maskable interrupt.
pub const TYPE_NMI: u64 = 2 << 8;
/// An exception.
pub const TYPE_EXCEPTION: u64 = 3 << 8;
/// A software interrupt: INT n.
pub const TYPE_SOFTWARE: u64 = 4 << 8;
/// The bits of the type.
pub const TYPE_MASK: u64 = 7 << 8;
/// The event has an error code, in the upper half.
pub const ERROR_VALID: u64 = 1 << 11;
/// The event is valid.
pub const VALID: u64 = 1 << 31;

/// #DB.
pub const VECTOR_DB: u64 = 1;
/// #BP.
pub const VECTOR_BP: u64 = 3;
/// #OF.
pub const VECTOR_OF: u64 = 4;
/// #UD.
pub const VECTOR_UD: u64 = 6;
/// #DF.
pub const VECTOR_DF: u64 = 8;
/// #GP.
pub const VECTOR_GP: u64 = 13;
/// #PF.
pub const VECTOR_PF: u64 = 14;
const VECTOR_MC: u64 = 18;

/// Exceptions that a guest always exits on: #DB, #AC and #MC. Delivering #DB or #AC may raise the
/// same exception again, where a breakpoint is on the handler's stack or that stack is misaligned
/// and used at ring 3. The processor then loops forever and takes no interrupt, unless each of them
/// is an exit (CVE-2015-8104, CVE-2015-5307). The hypervisor injects them into the guest. #MC
/// belongs to the machine.
pub const INTERCEPTED: u32 = 1 << VECTOR_DB | 1 << 17 | 1 << VECTOR_MC;

/// #DE, #TS, #NP, #SS, #GP.
const CONTRIBUTORY: [u64; 5] = [0, 10, 11, 12, VECTOR_GP];

/// An exception without error code.
pub const fn exception(vector: u64) -> u64 {
    VALID | TYPE_EXCEPTION | vector
}

const fn vector(event: u64) -> u64 {
    event & 0xff
}

const fn is_exception(event: u64) -> bool {
    event & TYPE_MASK == TYPE_EXCEPTION
}

/// #DF. Its error code is 0; in real mode, as for all exceptions there, none is pushed.
pub const fn double_fault(protected_mode: bool) -> u64 {
    exception(VECTOR_DF) | if protected_mode { ERROR_VALID } else { 0 }
}

/// The event itself if it is one that waits for delivery between two stays: none, an NMI, or an
/// exception. Otherwise the closest that is. An entry refuses an error code where there is none.
pub const fn kept(event: u64, protected_mode: bool) -> u64 {
    match event & TYPE_MASK {
        _ if event & VALID == 0 => 0,
        TYPE_NMI => VALID | TYPE_NMI | 2,
        _ => match event & 0x1f {
            vector @ (8 | 10..=14 | 17) if protected_mode => {
                exception(vector) | ERROR_VALID | event >> 32 << 32
            }
            vector => exception(vector),
        },
    }
}

/// Whether RFLAGS are pushed with RF set. They are for faults, whose instruction is executed again,
/// except #DB, which is a fault at instruction breakpoints only and pushes 0 for those as well (SDM
/// volume 3, section 18.3.1.1; APM section 13.1.1.3).
pub const fn pushes_resume_flag(event: u64) -> bool {
    let is_fault = !matches!(vector(event), VECTOR_DB | VECTOR_BP | VECTOR_OF | VECTOR_DF | VECTOR_MC);
    event & VALID != 0 && is_exception(event) && is_fault
}

/// The guest's event when an exception is raised during the delivery of another event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combined {
    /// The exception. The interrupted event is raised again, or not, as if its delivery had not
    /// begun.
    Second,
    /// A double fault that replaces both.
    DoubleFault,
    /// None: the processor shuts down.
    Shutdown,
}

/// Combines an exception `second` with `first`, during whose delivery it was raised (table 8-3).
pub fn combine(first: u64, second: u64) -> Combined {
    if first & VALID == 0 || !is_exception(first) {
        return Combined::Second;
    }
    let is_contributory = |event| CONTRIBUTORY.contains(&vector(event));
    let is_page_fault = |event| vector(event) == VECTOR_PF;
    match vector(first) {
        // An exception that cannot be delivered causes a second one, whatever it is.
        VECTOR_DF if is_contributory(second) || is_page_fault(second) || vector(second) == VECTOR_DF => {
            Combined::Shutdown
        }
        VECTOR_PF if is_contributory(second) || is_page_fault(second) => Combined::DoubleFault,
        _ if is_contributory(first) && is_contributory(second) => Combined::DoubleFault,
        _ => Combined::Second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u13_exceptions_combine_as_in_the_manuals_table() {
        let class = |vector: u64| match vector {
            0 | 10..=13 => 1,
            14 => 2,
            8 => 3,
            _ => 0,
        };
        for first in 0..32 {
            for second in 0..32 {
                let wanted = match (class(first), class(second)) {
                    (1, 1) | (2, 1 | 2) => Combined::DoubleFault,
                    (3, 1..=3) => Combined::Shutdown,
                    _ => Combined::Second,
                };
                assert_eq!(combine(exception(first), exception(second)), wanted, "{second} in {first}");
            }
        }
    }

    #[test]
    fn u13_what_is_no_exception_combines_with_nothing() {
        for first in [TYPE_INTERRUPT | 14, TYPE_NMI | 2, TYPE_SOFTWARE | 13].map(|event| VALID | event) {
            assert_eq!(combine(first, exception(VECTOR_PF)), Combined::Second, "{first:#x}");
        }
        assert_eq!(combine(exception(VECTOR_PF) & !VALID, exception(VECTOR_PF)), Combined::Second);
    }

    #[test]
    fn u13_a_double_fault_has_an_error_code_but_in_real_mode() {
        assert_eq!((double_fault(true), double_fault(false)), (0x8000_0b08, 0x8000_0308));
    }

    #[test]
    fn u23_faults_push_the_resume_flag_and_nothing_else_does() {
        for vector in [0, 5, 6, 7, 10, 11, 12, 13, 14, 16, 17, 19] {
            assert!(pushes_resume_flag(exception(vector)), "{vector} is a fault");
            assert!(pushes_resume_flag(exception(vector) | ERROR_VALID | 5 << 32), "{vector}");
            assert!(!pushes_resume_flag(VALID | TYPE_INTERRUPT | vector), "an interrupt");
            assert!(!pushes_resume_flag(VALID | TYPE_SOFTWARE | vector), "INT n");
            assert!(!pushes_resume_flag(exception(vector) & !VALID), "nothing");
        }
        for vector in [1, 3, 4, 8, 18] {
            assert!(!pushes_resume_flag(exception(vector)), "{vector} is none");
        }
        assert!(!pushes_resume_flag(VALID | TYPE_NMI | 2));
    }
}
