//! The effects of instructions on values.

use super::*;
use proptest::prelude::*;

#[test]
fn loads_of_every_size_and_extension() {
    let before = 0x1111_1111_1111_1111 * 3;
    for (code, expected) in [
        (&[0x8a, 0x1f][..], before & !0xff | 0x91),       // mov bl, [rdi]
        (&[0x8a, 0x3f], before & !0xff00 | 0x9100),       // mov bh, [rdi]
        (&[0x66, 0x8b, 0x1f], before & !0xffff | 0x2291), // mov bx, [rdi]
        (&[0x8b, 0x1f], 0x4433_2291),                     // mov ebx, [rdi]
        (&[0x48, 0x8b, 0x1f], OLD),                       // mov rbx, [rdi]
        (&[0x0f, 0xb6, 0x1f], 0x91),                      // movzx ebx, byte [rdi]
        (&[0x48, 0x0f, 0xb7, 0x1f], 0x2291),              // movzx rbx, word [rdi]
        (&[0x66, 0x0f, 0xbe, 0x1f], before & !0xffff | 0xff91), // movsx bx, byte [rdi]
        (&[0x48, 0x0f, 0xbe, 0x1f], 0xffff_ffff_ffff_ff91), // movsx rbx, byte [rdi]
        (&[0x0f, 0xbf, 0x1f], 0x2291),                    // movsx ebx, word [rdi]
        (&[0x48, 0x63, 0x1f], 0x4433_2291),               // movsxd rbx, dword [rdi]
        (&[0x66, 0x0f, 0x38, 0xf0, 0x1f], before & !0xffff | 0x9122), // movbe bx, [rdi]
        (&[0x0f, 0x38, 0xf0, 0x1f], 0x9122_3344),         // movbe ebx, [rdi]
        (&[0x48, 0x0f, 0x38, 0xf0, 0x1f], OLD.swap_bytes()), // movbe rbx, [rdi]
    ] {
        let mut machine = TestCpu::with(OLD);
        assert_eq!(machine.run(code), Ok(EmulationOutcome::Done), "{code:02x?}");
        assert_eq!(machine.registers[RBX], expected, "{code:02x?}");
        assert_eq!((machine.device(), machine.flags, machine.world.seen.len()), (OLD, 2, 1));
    }
}

#[test]
fn stores_of_every_size() {
    let value = 0x1111_1111_1111_1111 * 3;
    for (code, size, expected) in [
        (&[0x88, 0x1f][..], 1, 0x33),                                   // mov [rdi], bl
        (&[0x88, 0x3f], 1, 0x33),                                       // mov [rdi], bh
        (&[0x66, 0x89, 0x1f], 2, 0x3333),                               // mov [rdi], bx
        (&[0x89, 0x1f], 4, 0x3333_3333),                                // mov [rdi], ebx
        (&[0x48, 0x89, 0x1f], 8, value),                                // mov [rdi], rbx
        (&[0xc6, 0x07, 0x9a], 1, 0x9a),                                 // mov byte [rdi], 0x9a
        (&[0x66, 0xc7, 0x07, 0x9a, 0x12], 2, 0x129a),                   // mov word [rdi], 0x129a
        (&[0xc7, 0x07, 0x78, 0x56, 0x34, 0x92], 4, 0x9234_5678),        // mov dword [rdi], 0x92345678
        (&[0x48, 0xc7, 0x07, 0xfe, 0xff, 0xff, 0xff], 8, u64::MAX - 1), // mov qword [rdi], -2
        (&[0x0f, 0x38, 0xf1, 0x07], 4, 0x2233_4455),                    // movbe [rdi], eax
    ] {
        let mut machine = TestCpu::with(OLD);
        machine.registers[RAX] = 0x5544_3322;
        assert_eq!(machine.run(code), Ok(EmulationOutcome::Done), "{code:02x?}");
        assert_eq!(machine.world.seen, [Seen::Write(0, size, expected)], "{code:02x?}");
        assert_eq!(machine.device(), OLD & !mask(size as u32) | expected);
    }
}

#[test]
fn arithmetic_on_memory_and_from_it() {
    // The device holds 0x4433_2291, EBX 0x3333_3333.
    for (opcode, expected) in [
        (0x01, 0x7766_55c4),
        (0x29, 0x10ff_ef5e),
        (0x21, 0x0033_2211),
        (0x09, 0x7733_33b3),
        (0x31, 0x7700_11a2_u64),
    ] {
        let mut machine = TestCpu::with(OLD);
        assert_eq!(machine.run(&[0xf0, opcode, 0x1f]), Ok(EmulationOutcome::Done), "lock op [rdi], ebx");
        assert_eq!(machine.world.seen, [Seen::Read(0, 4), Seen::Write(0, 4, expected)], "{opcode:#x}");

        let mut machine = TestCpu::with(OLD);
        assert_eq!(machine.run(&[opcode + 2, 0x1f]), Ok(EmulationOutcome::Done), "op ebx, [rdi]");
        let difference = if opcode == 0x29 { 0xef00_10a2 } else { expected };
        assert_eq!(machine.registers[RBX], difference, "{opcode:#x}");
        assert_eq!(machine.world.seen, [Seen::Read(0, 4)]);
    }
    let mut machine = TestCpu::with(OLD);
    assert_eq!(machine.run(&[0x83, 0x27, 0xf0]), Ok(EmulationOutcome::Done), "and dword [rdi], -16");
    assert_eq!(machine.device() as u32, 0x4433_2290);
    assert_eq!(machine.run(&[0x80, 0x0f, 0x0f]), Ok(EmulationOutcome::Done), "or byte [rdi], 15");
    assert_eq!(machine.device() as u32, 0x4433_229f);
}

#[test]
fn comparisons_write_nothing_but_flags() {
    let run = |code: &[u8], accumulator| {
        let mut machine = TestCpu::with(OLD);
        machine.flags = 2 | ARITHMETIC | TF;
        machine.registers[RAX] = accumulator;
        assert_eq!(machine.run(code), Ok(EmulationOutcome::Done), "{code:02x?}");
        assert_eq!(machine.world.seen.len(), 1);
        assert!(matches!(machine.world.seen[0], Seen::Read(0, _)));
        assert_eq!(machine.flags & !ARITHMETIC, 2 | TF, "the other flags stay");
        assert_eq!(machine.registers[RAX], accumulator);
        machine
    };
    assert!(run(&[0x39, 0x07], 0x4433_2291).has(ZF | PF), "cmp [rdi], eax: equal");
    assert!(run(&[0x39, 0x07], 0x4433_2292).has(CF | SF | AF | PF), "memory first: below");
    assert!(run(&[0x3b, 0x07], 0x4433_2292).has(0), "cmp eax, [rdi]: above");
    assert!(run(&[0x80, 0x3f, 0x91], 0).has(ZF | PF), "cmp byte [rdi], 0x91");
    assert!(run(&[0x48, 0x85, 0x07], 1 << 63).has(SF | PF), "test [rdi], rax");
    assert!(run(&[0xf7, 0x07, 0x00, 0x00, 0x00, 0x88], 0).has(ZF | PF), "test dword [rdi], 0x88000000");
}

#[test]
fn bit_tests_find_their_bit() {
    for (code, rbx, read, carry) in [
        (&[0x0f, 0xba, 0x27, 7][..], 0, Seen::Read(0, 4), true), // bt dword [rdi], 7
        (&[0x0f, 0xba, 0x27, 39], 0, Seen::Read(0, 4), true),    // 39 modulo 32
        (&[0x0f, 0xba, 0x27, 9], 0, Seen::Read(0, 4), true),
        (&[0x0f, 0xba, 0x27, 8], 0, Seen::Read(0, 4), false),
        (&[0x0f, 0xba, 0x27, 10], 0, Seen::Read(0, 4), false),
        (&[0x0f, 0xa3, 0x1f], 63, Seen::Read(4, 4), true), // bt [rdi], ebx: bit 31 of the next
        (&[0x0f, 0xa3, 0x1f], 62, Seen::Read(4, 4), false),
        (&[0x48, 0x0f, 0xa3, 0x1f], 127, Seen::Read(8, 8), false), // bt [rdi], rbx
        (&[0x66, 0x0f, 0xa3, 0x1f], 0x0001_0010, Seen::Read(2, 2), true), // bt [rdi], bx: bit 0 of the second word
    ] {
        let mut machine = TestCpu::with(OLD);
        machine.registers[RBX] = rbx;
        machine.flags = 2 | ZF | if carry { 0 } else { CF };
        assert_eq!(machine.run(code), Ok(EmulationOutcome::Done), "{code:02x?}");
        assert_eq!(machine.world.seen, [read], "{code:02x?}");
        assert!(machine.has(ZF | if carry { CF } else { 0 }), "{code:02x?}: CF alone changes");
    }
    let mut machine = TestCpu::with(OLD);
    machine.registers[RDI] += 8;
    machine.registers[RBX] = u64::MAX;
    assert_eq!(machine.run(&[0x0f, 0xa3, 0x1f]), Ok(EmulationOutcome::Done));
    assert_eq!(machine.world.seen, [Seen::Read(4, 4)], "bit -1 is the last one before");
    assert!(machine.has(CF));
}

#[test]
fn exchanges() {
    let mut machine = TestCpu::with(OLD);
    assert_eq!(machine.run(&[0x87, 0x1f]), Ok(EmulationOutcome::Done), "xchg [rdi], ebx");
    assert_eq!(machine.world.seen, [Seen::Read(0, 4), Seen::Write(0, 4, 0x3333_3333)]);
    assert_eq!((machine.registers[RBX], machine.flags), (0x4433_2291, 2));

    let mut machine = TestCpu::with(OLD);
    machine.registers[RAX] = 0xdead_0000_4433_2291;
    assert_eq!(machine.run(&[0xf0, 0x0f, 0xb1, 0x1f]), Ok(EmulationOutcome::Done), "lock cmpxchg [rdi], ebx");
    assert_eq!(machine.world.seen, [Seen::Read(0, 4), Seen::Write(0, 4, 0x3333_3333)]);
    assert_eq!(machine.registers[RAX], 0xdead_0000_4433_2291, "equal: the accumulator stays");
    assert!(machine.has(ZF | PF));

    let mut machine = TestCpu::with(OLD);
    machine.registers[RAX] = 0xdead_0000_4433_2290;
    assert_eq!(machine.run(&[0x0f, 0xb1, 0x1f]), Ok(EmulationOutcome::Done));
    let found = &machine.world.seen;
    assert_eq!(*found, [Seen::Read(0, 4), Seen::Write(0, 4, 0x4433_2291)], "written all the same");
    assert_eq!(machine.registers[RAX], 0x4433_2291);
    assert!(machine.has(CF | SF | AF | PF), "as CMP of accumulator and memory");
}

/// Flags by their definitions, in wide arithmetic.
fn reference(opcode: u8, first: u64, second: u64, bits: u32) -> (u64, u64) {
    let (a, b) = (i128::from(first), i128::from(second));
    let signed = |value: i128| value << (128 - bits) >> (128 - bits);
    let (full, exact, half) = match opcode {
        0x01 => (a + b, signed(a) + signed(b), (a & 15) + (b & 15) > 15),
        0x29 => (a - b, signed(a) - signed(b), (a & 15) < (b & 15)),
        0x21 => (a & b, signed(a & b), false),
        0x09 => (a | b, signed(a | b), false),
        _ => (a ^ b, signed(a ^ b), false),
    };
    let result = (full as u64) & mask(bits / 8);
    let flags = [
        (CF, full < 0 || full >> bits != 0),
        (PF, (result & 0xff).count_ones().is_multiple_of(2)),
        (AF, half),
        (ZF, result == 0),
        (SF, signed(i128::from(result)) < 0),
        (OF, exact != signed(i128::from(result))),
    ];
    (result, flags.iter().map(|(flag, is_set)| if *is_set { *flag } else { 0 }).sum())
}

proptest! {
    #[test]
    fn results_and_flags_are_those_of_the_definitions(
        operation in 0_usize..5, size in 0_usize..4, first: u64, second: u64, near in any::<bool>(),
    ) {
        let opcode = [0x01_u8, 0x29, 0x21, 0x09, 0x31][operation];
        let (prefix, opcode_of_size, bits): (&[u8], u8, u32) =
            [(&[][..], opcode - 1, 8), (&[0x66], opcode, 16), (&[], opcode, 32), (&[0x48], opcode, 64)][size];
        let second = if near { first.wrapping_add(second % 3) } else { second };
        let mut machine = TestCpu::with(first);
        machine.registers[RBX] = second;
        prop_assert_eq!(machine.run(&[prefix, &[opcode_of_size, 0x1f]].concat()), Ok(EmulationOutcome::Done));
        let mask = mask(bits / 8);
        let (result, flags) = reference(opcode, first & mask, second & mask, bits);
        prop_assert_eq!(machine.device(), first & !mask | result);
        prop_assert_eq!(machine.flags & ARITHMETIC, flags);
    }
}
