//! String instructions.

use super::*;

#[test]
fn strings_move_up_and_down() {
    let mut machine = TestCpu::with(OLD);
    machine.registers[RSI] = OFFSET + DEVICE;
    machine.registers[RDI] = OFFSET + BEHIND + 0x10;
    machine.registers[RCX] = 5;
    assert_eq!(machine.run(&[0xa5]), Ok(EmulationOutcome::Done), "movsd");
    assert_eq!(machine.world.get(BEHIND + 0x10, 4), OLD & 0xffff_ffff);
    assert_eq!(machine.registers[RSI], OFFSET + DEVICE + 4);
    assert_eq!(machine.registers[RDI], OFFSET + BEHIND + 0x14);
    assert_eq!(machine.registers[RCX], 5, "not repeated");

    machine.flags |= DF;
    machine.registers[RDI] = OFFSET + DEVICE + 6;
    machine.registers[RAX] = 0xaabb;
    let found = machine.run(&[0xf3, 0x66, 0xab]);
    assert_eq!(found, Ok(EmulationOutcome::Unfinished), "rep stosw, down to another page");
    let words = [6, 4, 2, 0].map(|at| Seen::Write(at, 2, 0xaabb));
    assert_eq!(machine.world.seen[1..], words);
    assert_eq!((machine.registers[RDI], machine.registers[RCX]), (OFFSET + DEVICE - 2, 1));

    machine.registers[RSI] = OFFSET + DEVICE + 1;
    assert_eq!(machine.run(&[0xac]), Ok(EmulationOutcome::Done), "lodsb");
    assert_eq!((machine.registers[RAX], machine.registers[RSI]), (0xaaaa, OFFSET + DEVICE));
}

#[test]
fn repetition_is_bounded_and_goes_on() {
    let mut machine = TestCpu::new();
    machine.registers[RCX] = 150;
    let mut rounds = 1;
    while machine.run(&[0xf3, 0x48, 0xab]) == Ok(EmulationOutcome::Unfinished) {
        rounds += 1;
        assert!(rounds < 10);
    }
    assert_eq!((rounds, machine.world.seen.len(), machine.registers[RCX]), (3, 150, 0));
    assert_eq!(machine.registers[RDI], OFFSET + DEVICE + 1200);

    // Both prefixes repeat, and a trap follows each element.
    let mut machine = TestCpu::new();
    machine.registers[RCX] = 2;
    machine.flags |= TF;
    assert_eq!(machine.run(&[0xf2, 0xaa]), Ok(EmulationOutcome::Unfinished));
    assert_eq!(machine.run(&[0xf2, 0xaa]), Ok(EmulationOutcome::Done));
    assert_eq!(machine.world.seen.len(), 2);
    assert_eq!(machine.run(&[0xf2, 0xaa]), Ok(EmulationOutcome::Done), "none left");
    assert_eq!(machine.world.seen.len(), 2);
}

#[test]
fn repetition_stops_at_faults_and_at_memory() {
    let mut machine = TestCpu::new();
    machine.registers[RSI] = OFFSET + DEVICE;
    machine.registers[RDI] = OFFSET + ABSENT - 8;
    machine.registers[RCX] = 5;
    assert_eq!(machine.run(&[0xf3, 0xa5]), Ok(EmulationOutcome::Unfinished), "the page is over");
    assert_eq!(machine.run(&[0xf3, 0xa5]), Err(Failure::Memory(OFFSET + ABSENT)), "rep movsd");
    assert_eq!(machine.registers[RSI], OFFSET + DEVICE + 8);
    assert_eq!((machine.registers[RDI], machine.registers[RCX]), (OFFSET + ABSENT, 3));

    let mut machine = TestCpu::new();
    machine.registers[RDI] = OFFSET + DEVICE + 0xffc;
    machine.registers[RCX] = 4;
    assert_eq!(machine.run(&[0xf3, 0xab]), Ok(EmulationOutcome::Unfinished));
    assert_eq!((machine.registers[RDI], machine.registers[RCX]), (OFFSET + BEHIND, 3));
    assert_eq!(machine.run(&[0xf3, 0xab]), Ok(EmulationOutcome::Retry), "the rest is the processor's");
}

#[test]
fn narrow_string_addresses_clear_or_keep_the_rest() {
    let mut machine = TestCpu::new();
    machine.registers[RDI] |= 7 << 32;
    machine.registers[RCX] = 7 << 32 | 2;
    let found = machine.run(&[0xf3, 0x67, 0xaa]);
    assert_eq!(found, Ok(EmulationOutcome::Done), "rep stosb with 32-bit addresses");
    assert_eq!((machine.registers[RDI], machine.registers[RCX]), (OFFSET + DEVICE + 2, 0));

    let mut machine = TestCpu::new();
    machine.bits = 16;
    machine.bases.legacy[0] = OFFSET + DEVICE - 0xff00;
    machine.registers[RDI] = 0x5_ffff;
    machine.registers[RCX] = 0x5_0001;
    assert_eq!(machine.run(&[0xf3, 0xaa]), Ok(EmulationOutcome::Done), "rep stosb with 16-bit addresses");
    assert_eq!((machine.registers[RDI], machine.registers[RCX]), (0x5_0000, 0x5_0000));
    assert_eq!(machine.world.seen.len(), 1);
    assert!(matches!(machine.world.seen[0], Seen::Write(0xff, 1, _)));
}
