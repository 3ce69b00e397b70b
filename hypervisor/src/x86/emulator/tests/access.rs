//! The accesses that an instruction makes, and instructions that make none.

use super::*;

#[test]
fn addresses_have_bases_indices_and_widths() {
    // mov ebx, [rdi + rcx * 4 - 8]
    let mut machine = TestCpu::with(OLD);
    machine.registers[RCX] = 3;
    assert_eq!(machine.run(&[0x8b, 0x5c, 0x8f, 0xf8]), Ok(EmulationOutcome::Done));
    assert_eq!(machine.world.seen, [Seen::Read(4, 4)]);
    // mov ebx, gs:[rdi]; the other segments have no base in 64-bit code.
    let mut machine = TestCpu::new();
    machine.bases = SegmentBases { legacy: [0x100; 4], extra: [0x10, 0x20] };
    assert_eq!(machine.run(&[0x65, 0x8b, 0x1f]), Ok(EmulationOutcome::Done));
    assert_eq!(machine.run(&[0x64, 0x8b, 0x1f]), Ok(EmulationOutcome::Done));
    assert_eq!(machine.run(&[0x8b, 0x1f]), Ok(EmulationOutcome::Done));
    assert_eq!(machine.world.seen, [Seen::Read(0x20, 4), Seen::Read(0x10, 4), Seen::Read(0, 4)]);
    // mov ebx, [edi]: the upper half is ignored.
    let mut machine = TestCpu::new();
    machine.registers[RDI] |= 5 << 32;
    assert_eq!(machine.run(&[0x67, 0x8b, 0x1f]), Ok(EmulationOutcome::Done));
    // mov ebx, [rip + x]: relative to the next instruction, at 0x1006.
    let displacement = ((OFFSET + DEVICE - 0x1006) as u32).to_le_bytes();
    let mut machine = TestCpu::new();
    assert_eq!(machine.run(&[&[0x8b, 0x1d][..], &displacement].concat()), Ok(EmulationOutcome::Done));
    assert_eq!(machine.world.seen, [Seen::Read(0, 4)]);
    // 32-bit code: mov eax, es:[edi] wraps at 4 GiB; mov eax, [moffs].
    let mut machine = TestCpu::new();
    machine.bits = 32;
    machine.bases.legacy[0] = 0xffff_fff0;
    machine.registers[RDI] = OFFSET + DEVICE + 0x18;
    assert_eq!(machine.run(&[0x26, 0x8b, 0x07]), Ok(EmulationOutcome::Done));
    let absolute = ((OFFSET + DEVICE) as u32).to_le_bytes();
    assert_eq!(machine.run(&[&[0xa1][..], &absolute].concat()), Ok(EmulationOutcome::Done));
    assert_eq!(machine.world.seen, [Seen::Read(8, 4), Seen::Read(0, 4)]);
}

#[test]
fn accesses_that_cross_pages_are_two() {
    let mut machine = TestCpu::new();
    machine.world.put(BEFORE + 0xffe, 2, 0x1234);
    machine.world.put(DEVICE, 8, OLD);
    machine.registers[RDI] = OFFSET + DEVICE - 2;
    assert_eq!(machine.run(&[0x48, 0x8b, 0x1f]), Ok(EmulationOutcome::Done), "mov rbx, [rdi]");
    assert_eq!(machine.registers[RBX], OLD << 16 | 0x1234);
    assert_eq!(machine.world.seen, [Seen::Read(0, 6)]);

    machine.world.seen.clear();
    machine.registers[RDI] = OFFSET + DEVICE + 0xffd;
    assert_eq!(machine.run(&[0x89, 0x1f]), Ok(EmulationOutcome::Done), "mov [rdi], ebx");
    let value = u64::from(machine.registers[RBX] as u32);
    assert_eq!(machine.world.seen, [Seen::Write(0xffd, 3, value & 0xff_ffff)]);
    assert_eq!(machine.world.get(BEHIND, 1), value >> 24);

    machine.world.seen.clear();
    for code in [&[0x01, 0x1f][..], &[0x87, 0x1f], &[0x0f, 0xb1, 0x1f]] {
        assert_eq!(machine.run(code), Err(Failure::Unsupported), "not atomic: {code:02x?}");
    }
    assert_eq!(machine.run(&[0x39, 0x1f]), Ok(EmulationOutcome::Done), "cmp [rdi], ebx needs not be");
    assert_eq!(machine.world.seen, [Seen::Read(0xffd, 3)]);
}

#[test]
fn faults_leave_nothing_half_done() {
    let mut machine = TestCpu::new();
    machine.registers[RDI] = OFFSET + ABSENT - 2;
    for code in [&[0x89, 0x1f][..], &[0x8b, 0x1f], &[0x01, 0x1f], &[0x87, 0x1f]] {
        assert_eq!(machine.run(code), Err(Failure::Memory(OFFSET + ABSENT)), "{code:02x?}");
    }
    machine.registers[RSI] = OFFSET + DEVICE;
    assert_eq!(machine.run(&[0xa5]), Err(Failure::Memory(OFFSET + ABSENT)), "movsd");
    assert_eq!(machine.registers[RSI], OFFSET + DEVICE);
    assert!(machine.world.seen.is_empty() && machine.world.bytes.is_empty());
    assert!(machine.world.translated.contains(&(OFFSET + ABSENT, true)), "asked for as a store");
}

#[test]
fn what_the_processor_can_do_it_does() {
    let mut machine = TestCpu::new();
    machine.registers[RDI] = OFFSET + BEHIND;
    machine.registers[RSI] = OFFSET + ROM;
    for code in [&[0x89, 0x1f][..], &[0x8b, 0x1f], &[0x01, 0x1f], &[0xa5], &[0xab], &[0xf3, 0xab]] {
        machine.registers[RCX] = 7;
        assert_eq!(machine.run(code), Ok(EmulationOutcome::Retry), "{code:02x?}");
    }
    machine.registers[RDI] = OFFSET + ROM;
    assert_eq!(machine.run(&[0x8b, 0x1f]), Ok(EmulationOutcome::Retry), "a load from ROM");
    assert!(machine.world.bytes.is_empty());
    machine.world.put(ROM, 4, 0x0102_0304);
    assert_eq!(machine.run(&[0x89, 0x1f]), Ok(EmulationOutcome::Done), "a store to ROM");
    let found = machine.run(&[0x29, 0x1f]);
    assert_eq!(found, Ok(EmulationOutcome::Done), "a store of what comes of what was read there");
    assert_eq!(machine.world.get(ROM, 4), 0x0102_0304);
    assert!(!machine.has(0), "its flags are set");
}

#[test]
fn everything_else_is_refused() {
    for code in [
        &[0xff, 0x37][..],      // push [rdi]
        &[0xff, 0x17],          // call [rdi]
        &[0xff, 0x07],          // inc dword [rdi]
        &[0x11, 0x1f],          // adc [rdi], ebx
        &[0x0f, 0xc1, 0x1f],    // xadd [rdi], ebx
        &[0x0f, 0xab, 0x1f],    // bts [rdi], ebx
        &[0x8e, 0x07],          // mov es, [rdi]
        &[0x8c, 0x07],          // mov [rdi], es
        &[0x0f, 0x10, 0x07],    // movups xmm0, [rdi]
        &[0xf2, 0x0f, 0x10, 7], // movsd xmm0, [rdi]
        &[0x66, 0x0f, 0x6e, 7], // movd xmm0, [rdi]
        &[0xd9, 0x07],          // fld dword [rdi]
        &[0x0f, 0xc7, 0x0f],    // cmpxchg8b [rdi]
        &[0x0f, 0xaf, 0x1f],    // imul ebx, [rdi]
        &[0x6b, 0x1f, 3],       // imul ebx, [rdi], 3
        &[0xa6],                // cmpsb
        &[0xae],                // scasb
        &[0x8d, 0x1f],          // lea ebx, [rdi]
        &[0x0f, 0x01, 0x17],    // lgdt [rdi]
        &[0x90],                // nop
    ] {
        let mut machine = TestCpu::with(OLD);
        let registers = machine.registers;
        assert_eq!(machine.run(code), Err(Failure::Unsupported), "{code:02x?}");
        assert_eq!((machine.registers, machine.flags, machine.device()), (registers, 2, OLD));
        assert!(machine.world.seen.is_empty());
    }
}
