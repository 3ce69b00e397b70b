use super::*;

fn call(id: u32, arguments: [u64; 3]) -> Call {
    decode([u64::from(id), arguments[0], arguments[1], arguments[2]], 20)
}

const NOT_SUPPORTED: Call = Call::Return(u64::MAX);
const INVALID: Call = Call::Return(u64::MAX - 1);

#[test]
fn what_there_is_not_is_not_supported() {
    // MIGRATE, MIGRATE_INFO_UP_CPU, CPU_FREEZE, SYSTEM_SUSPEND, MEM_PROTECT, 64-bit forms of
    // functions that have none, others.
    for id in [
        0x8400_0005,
        0xc400_0005,
        0x8400_0007,
        0x8400_000b,
        0x8400_000e,
        0x8400_0013,
        0xc400_0000,
        0xc400_0002,
        0xc400_0008,
        0x8000_3fff,
        0x8000_8000,
        0x8600_ff01,
        0x0400_0003,
        0,
        u32::MAX,
    ] {
        assert_eq!(call(id, [0; 3]), NOT_SUPPORTED, "{id:#x}");
        assert_eq!(call(function::FEATURES, [u64::from(id), 0, 0]), NOT_SUPPORTED, "{id:#x}");
        assert_eq!(call(function::SMCCC_ARCH_FEATURES, [u64::from(id), 0, 0]), NOT_SUPPORTED, "{id:#x}");
    }
}

#[test]
fn targets_that_nobody_is_are_invalid() {
    for target in [20, 0x10f, 0x200, 1 << 16, 1 << 31, 1 << 32, 1 << 24, 1 << 63, u64::MAX, 0x104] {
        assert_eq!(call(function::CPU_ON_64, [target, 0, 0]), INVALID, "{target:#x}");
        assert_eq!(call(function::AFFINITY_INFO_64, [target, 0, 0]), INVALID, "{target:#x}");
    }
    assert_eq!(call(function::AFFINITY_INFO_64, [0, 1, 0]), INVALID, "a level above CPUs");
    assert_eq!(call(function::CPU_SUSPEND_64, [1 << 16, 0, 0]), INVALID, "power-down");
    assert_eq!(call(function::SYSTEM_RESET2_64, [1, 0, 0]), INVALID);
    assert_eq!(call(function::SYSTEM_RESET2_32, [1 << 31, 0, 0]), NOT_SUPPORTED);
}

#[test]
fn offered_functions_are_features_and_decode() {
    for id in [
        0x8400_0000_u32,
        0x8400_0001,
        0xc400_0001,
        0x8400_0002,
        0x8400_0003,
        0xc400_0003,
        0x8400_0004,
        0xc400_0004,
        0x8400_0006,
        0x8400_0008,
        0x8400_0009,
        0x8400_000a,
        0x8400_0012,
        0xc400_0012,
        0x8000_0000,
    ] {
        assert_eq!(call(0x8400_000a, [u64::from(id), 0, 0]), Call::Return(0), "{id:#x}");
        let argument = if id == function::FEATURES { 0x8400_0000 } else { 0 };
        assert_ne!(call(id, [argument, 0, 0]), NOT_SUPPORTED, "{id:#x}");
    }
    assert_eq!(call(0x8400_0000, [0; 3]), Call::Return(0x1_0001));
    assert_eq!(call(0x8000_0000, [0; 3]), Call::Return(0x1_0001));
    assert_eq!(call(0x8000_0001, [0x8000_0001, 0, 0]), Call::Return(0));
    assert_eq!((call(0x8400_0006, [0; 3]), call(0x8400_0002, [0; 3])), (Call::Return(2), Call::CpuOff));
    assert_eq!((call(0xc400_0001, [0, 7, 8]), call(0x8400_0008, [0; 3])), (Call::Standby, Call::SystemOff));
    assert_eq!(call(0x8400_0009, [0; 3]), Call::SystemReset);
    assert_eq!(call(0xc400_0012, [0; 3]), Call::SystemReset);
    assert_eq!(call(0xc400_0004, [0x103, 0, 9]), Call::AffinityInfo { vcpu: 19 });
}

#[test]
fn arguments_are_as_wide_as_the_call() {
    let wide = [0xdead_0000_0000_0001, 0xdead_0000_8008_0000, 0xdead_0000_0000_0007];
    let narrow = Start { entry: 0x8008_0000, context: 7 };
    assert_eq!(call(0x8400_0003, wide), Call::CpuOn { vcpu: 1, start: narrow });
    let start = Start { entry: wide[1], context: wide[2] };
    assert_eq!(call(0xc400_0003, [1, wide[1], wide[2]]), Call::CpuOn { vcpu: 1, start });
    let start = Start { entry: 0, context: 0 };
    assert_eq!(decode([0xffff_ffff_c400_0003, 0, 0, 0], 1), Call::CpuOn { vcpu: 0, start }, "W0 names it");
}

#[test]
fn a_vcpu_starts_once() {
    let power = Power::off();
    let start = Start { entry: 0x4020_0000, context: 5 };
    assert_eq!(power.take_start(), None);
    assert_eq!(power.affinity(), AffinityState::Off);
    assert!(power.turn_on(start).is_ok());
    assert_eq!(power.turn_on(Start { entry: 1, context: 1 }), Err(CpuOnError::OnPending));
    assert_eq!(power.affinity(), AffinityState::OnPending);
    assert!(!power.is_on());
    assert_eq!(power.take_start(), Some(start), "the first caller's");
    assert_eq!(power.take_start(), None);
    assert!(power.is_on());
    assert_eq!(power.turn_on(start).map_err(Status::from), Err(Status::AlreadyOn));
    assert_eq!(power.affinity(), AffinityState::On);
    power.turn_off();
    assert_eq!(power.affinity(), AffinityState::Off);
    assert!(power.turn_on(start).is_ok());
    power.reset();
    assert_eq!(power.take_start(), None);
    assert_eq!(Status::OnPending.to_x0(), -5_i64 as u64);
}
