//! The control word alone: an accepted word keeps every rule.
#![no_main]

use guest::{ControlWord, Offers};
use libfuzzer_sys::fuzz_target;
use quell_tlfs::{Control, MAX_BANKS, Status};

fuzz_target!(|input: (ControlWord, Offers)| {
    let (control, profile) = (Control::from_bits(input.0.bits()), input.1.profile());
    match control.check(&profile) {
        Ok(shape) => {
            assert_eq!(profile.shape(control.code()), Some(shape));
            assert_eq!(control.into_bits() & 0xf000_f000_f800_0000, 0);
            assert_eq!(shape.rep, control.rep_count() != 0);
            assert!(control.rep_start() < control.rep_count() || !shape.rep && control.rep_start() == 0);
            assert!(usize::from(control.variable_header_words()) <= MAX_BANKS);
            assert!(shape.variable_header || control.variable_header_words() == 0);
        }
        Err(Status::INVALID_HYPERCALL_CODE) => assert!(profile.shape(control.code()).is_none()),
        Err(status) => assert_eq!(status, Status::INVALID_HYPERCALL_INPUT),
    }
});
