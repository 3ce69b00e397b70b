//! Fields are where the TLFS has them.

use super::*;

#[test]
fn the_page_is_there_if_bit_0_says_so() {
    let rows = [
        (0, None),
        (0x7_1234_5000, None),
        (0x7_1234_5001, Some(0x7_1234_5000)),
        (0x7_1234_5ffd, Some(0x7_1234_5000)),
        (0x7_1234_5ffe, None),
        (1, Some(0)),
        (u64::MAX, Some(0xffff_ffff_ffff_f000)),
    ];
    for (word, page) in rows {
        assert_eq!(HypercallMsr::from_bits(word).gpa(), page, "{word:#x}");
        assert_eq!(PageMsr::from_bits(word).gpa(), page, "{word:#x}");
    }
    assert!(HypercallMsr::from_bits(2).locked());
    assert!(!HypercallMsr::from_bits(!2).locked());
}

#[test]
fn golden_timer_configuration() {
    let fields = StimerConfig::new().with_enable(true).with_auto_enable(true).with_apic_vector(0xec);
    assert_eq!(fields.with_direct_mode(true).into_bits(), 0x1ec9, "what Linux writes in direct mode");
    assert_eq!(StimerConfig::new().with_periodic(true).into_bits(), 2);
    assert_eq!(StimerConfig::new().with_lazy(true).into_bits(), 4);
    assert_eq!(StimerConfig::new().with_sint(0xf).into_bits(), 0xf_0000);
}

#[test]
fn reserved_bits_of_a_timer_configuration_are_13_to_15_and_20_to_63() {
    for bit in 0..64 {
        let is_reserved = matches!(bit, 13..=15 | 20..);
        assert_eq!(StimerConfig::from_bits(1 << bit).has_reserved(), is_reserved, "bit {bit}");
    }
    assert!(!StimerConfig::from_bits(0xf_1fff).has_reserved());
    assert!(StimerConfig::from_bits(u64::MAX).has_reserved());
}

#[test]
fn crash_control_has_its_two_bits_on_top() {
    assert_eq!(CrashControl::new().with_notify(true).into_bits(), 1 << 63);
    assert_eq!(CrashControl::new().with_message(true).into_bits(), 1 << 62);
}
