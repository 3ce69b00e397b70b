//! Each bit is where the TLFS has it.

/// Each of `bits` is the one at its place in `expected`.
fn assert_places<const N: usize>(bits: [u32; N], expected: [u32; N]) {
    let words = expected.map(|place| 2_u32.pow(place));
    assert_eq!(bits, words, "bits {expected:?}");
}

#[test]
fn privileges() {
    use super::privilege::*;
    assert_places([VP_RUNTIME, REFERENCE_COUNTER, SYNIC, SYNTHETIC_TIMERS], [0, 1, 2, 3]);
    assert_places([INTERRUPT_CONTROL, HYPERCALL, VP_INDEX, RESET], [4, 5, 6, 7]);
    assert_places([REFERENCE_TSC, GUEST_IDLE, FREQUENCIES, TSC_INVARIANT], [9, 10, 11, 15]);
}

#[test]
fn features() {
    use super::feature::*;
    assert_places([XMM_INPUT, FREQUENCIES, CRASH, EXTENDED_GVA_RANGES], [4, 8, 10, 14]);
    assert_places([XMM_OUTPUT, HYPERCALL_LOCK, DIRECT_TIMERS], [15, 18, 19]);
}

#[test]
fn hints() {
    use super::hint::*;
    assert_places([ADDRESS_SPACE_SWITCH, LOCAL_FLUSH, REMOTE_FLUSH], [0, 1, 2]);
    assert_places([APIC_REGISTERS, RESET_REGISTER, RELAXED_TIMING], [3, 4, 5]);
    assert_places([NO_AUTO_EOI, CLUSTER_IPI, EX_PROCESSOR_MASKS], [9, 10, 11]);
}

#[test]
fn hardware() {
    use super::hardware::*;
    assert_places([MSR_BITMAPS, NESTED_PAGING], [1, 3]);
}

#[test]
fn nested() {
    use super::nested::*;
    assert_places([DIRECT_FLUSH, FLUSH, MSR_MAP, ENLIGHTENED_TLB], [17, 18, 19, 22]);
}

#[test]
fn names_are_the_bytes_that_guests_compare() {
    let bytes = super::VENDOR.map(u32::to_le_bytes);
    assert_eq!(bytes.as_flattened(), b"Microsoft Hv");
    assert_eq!(super::INTERFACE, 0x3123_7648);
}
