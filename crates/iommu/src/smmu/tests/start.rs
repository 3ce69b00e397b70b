use std::collections::BTreeMap;
use std::vec::Vec;

use crate::smmu::features::Features;
use crate::smmu::registers::*;
use crate::smmu::start::*;
use crate::smmu::stream::Split;

/// As an emulated one, with EL2, ATS and broadcasts.
fn features() -> Features {
    Features::read(|register| match register {
        IDR0 => 0x0d40_101a | 1 << 5 | 1 << 9 | 1 << 10,
        IDR1 => 0x0273_0010,
        IDR5 => 0x74,
        _ => 0,
    })
}

const PLACES: Places = Places {
    streams: StreamTable { address: 0x4010_0000, order: 8, split: None },
    commands: Ring { address: 0x4020_0000, order: 8 },
    events: Ring { address: 0x4030_0000, order: 7 },
};

/// An SMMU that is on, as firmware left it, with an error that nobody has acknowledged. It
/// acknowledges a change when it is asked the third time, and refuses what the manual forbids.
struct Smmu {
    registers: BTreeMap<u32, u64>,
    asked: u32,
    log: Vec<&'static str>,
}

impl Smmu {
    fn new() -> Self {
        let registers = [(CR0, 0xd), (CR0ACK, 0xd), (GERROR, 1), (GERRORN, 0)];
        let registers = registers.into_iter().map(|(register, value)| (register.offset, value)).collect();
        Self { registers, asked: 0, log: Vec::new() }
    }

    fn get(&self, register: Register) -> u64 {
        self.registers.get(&register.offset).copied().unwrap_or(0)
    }

    fn set(&mut self, register: Register, value: u64) {
        self.registers.insert(register.offset, value);
    }

    /// Whether a bit of CR0 is set, or is not known to be clear.
    fn has(&self, bit: u32) -> bool {
        (self.get(CR0) | self.get(CR0ACK)) & u64::from(bit) != 0
    }

    fn write(&mut self, register: Register, value: u64) {
        assert!(register.is_wide || value >> 32 == 0);
        let guards = match register {
            STRTAB_BASE | STRTAB_BASE_CFG | CR2 => SMMUEN,
            CMDQ_BASE | CMDQ_PROD | CMDQ_CONS => CMDQEN,
            EVENTQ_BASE | EVENTQ_PROD | EVENTQ_CONS => EVENTQEN,
            CR1 => SMMUEN | CMDQEN | EVENTQEN | PRIQEN,
            _ => 0,
        };
        assert!(!self.has(guards), "{register:x?} is written while {guards:#x} may be enabled");
        if register == CR0 {
            assert_eq!(self.get(CR0), self.get(CR0ACK), "a change before the last one is acknowledged");
            assert!(self.log.contains(&"abort"), "accesses would pass");
            assert!(value & 1 == 0 || self.log.contains(&"forget"), "it has kept something");
        }
        assert!(register != GBPA || self.get(GBPA) >> 31 == 0, "a change is under way");
        self.set(register, value);
        self.asked = 0;
    }

    fn read(&mut self, register: Register) -> u64 {
        self.asked += 1;
        if self.asked == 3 {
            self.set(CR0ACK, self.get(CR0));
            self.set(IRQ_CTRL_ACK, self.get(IRQ_CTRL));
            self.set(GBPA, self.get(GBPA) & !(1 << 31));
            if self.get(GBPA) >> 20 & 1 != 0 {
                self.log.push("abort");
            }
        }
        self.get(register)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(register, value) => self.write(register, value),
            Step::Await { register, mask, value } => {
                let mut reads = (0..4).map(|_| self.read(register) as u32);
                assert!(reads.any(|is| is & mask == value), "{register:x?} never has {value:#x}");
            }
            Step::AcknowledgeErrors => self.set(GERRORN, self.get(GERROR)),
            Step::Forget => {
                assert!(self.get(CR0ACK) as u32 & CMDQEN != 0 && self.get(GERROR) == self.get(GERRORN));
                self.log.push("forget");
            }
        }
    }
}

#[test]
fn an_smmu_that_firmware_left_on_is_brought_up() {
    let mut smmu = Smmu::new();
    let mut awaited = Vec::new();
    for step in steps(&features(), &PLACES).expect("they fit") {
        if let Step::Await { register, mask, value } = step {
            awaited.push((register, mask, value));
        }
        smmu.step(step);
    }
    let off = [(GBPA, 1 << 31, 0), (GBPA, 1 << 31, 0), (CR0ACK, 0xf, 0), (IRQ_CTRL_ACK, 7, 0)];
    assert_eq!(awaited[..4], off);
    assert_eq!(awaited[4..], [0b1000, 0b1100, 0b1101].map(|enabled| (CR0ACK, 0xf, enabled)));
    let hint = 1 << 62;
    for (register, value) in [
        (CR0, 0b1_1101),
        (CR0ACK, 0b1_1101),
        (CR1, 0b11_01_01_11_01_01),
        (CR2, 0b110),
        (STRTAB_BASE, 0x4010_0000 | hint),
        (STRTAB_BASE_CFG, 8),
        (CMDQ_BASE, 0x4020_0008 | hint),
        (EVENTQ_BASE, 0x4030_0007 | hint),
        (CMDQ_PROD, 0),
        (CMDQ_CONS, 0),
        (EVENTQ_PROD, 0),
        (EVENTQ_CONS, 0),
        (GERRORN, 1),
        (GBPA, 1 << 20),
    ] {
        assert_eq!(smmu.get(register), value, "{register:x?}");
    }
}

#[test]
fn settings_follow_what_there_is() {
    let plain = Features { is_coherent: false, has_ats: false, hears_broadcasts: false, ..features() };
    let streams = StreamTable { address: 0x40, order: 7, split: Some(Split::Bits6) };
    let mut smmu = Smmu::new();
    steps(&plain, &Places { streams, ..PLACES }).expect("it fits").for_each(|step| smmu.step(step));
    for (register, value) in [
        (CR0, 0b1101),
        (CR1, 0b10_00_00_10_00_00),
        (CR2, 0b010),
        (STRTAB_BASE, 0x40),
        (STRTAB_BASE_CFG, 1 << 16 | 6 << 6 | 7),
        (EVENTQ_BASE, 0x4030_0007),
    ] {
        assert_eq!(smmu.get(register), value, "{register:x?}");
    }
}

#[test]
fn places_that_do_not_fit_are_refused() {
    let result = |features: &Features, places: &Places| steps(features, places).map(|_| ()).err();
    let streams = |streams| result(&features(), &Places { streams, ..PLACES });
    let table = PLACES.streams;
    assert_eq!(streams(StreamTable { order: 17, ..table }), Some(Refusal::Streams));
    assert_eq!(streams(StreamTable { address: 0x4010_2000, ..table }), Some(Refusal::Address), "16 KiB");
    assert_eq!(streams(StreamTable { address: 1 << 44, ..table }), Some(Refusal::Address), "44 bits");
    assert_eq!(streams(StreamTable { address: (1 << 44) - (1 << 14), ..table }), None);
    let two = StreamTable { order: 16, split: Some(Split::Bits8), ..table };
    assert_eq!(streams(StreamTable { address: 0x4010_0800, ..two }), None, "2 KiB");
    assert_eq!(streams(StreamTable { address: 0x4010_0400, ..two }), Some(Refusal::Address));
    assert_eq!(streams(StreamTable { address: 0x20, order: 3, ..two }), Some(Refusal::Address), "64 bytes");
    let ring = |order, address| Ring { address, order };
    let commands = |commands| result(&features(), &Places { commands, ..PLACES });
    assert_eq!(commands(ring(20, 0)), Some(Refusal::Length));
    assert_eq!(commands(ring(8, 0x4020_0800)), Some(Refusal::Address), "4 KiB");
    assert_eq!(commands(ring(1, 0x20)), None);
    let events = |events| result(&features(), &Places { events, ..PLACES });
    assert_eq!(events(ring(7, 0x4030_0800)), Some(Refusal::Address), "4 KiB");
    assert_eq!(events(ring(20, 0)), Some(Refusal::Length));
    assert_eq!([commands(ring(19, 0)), events(ring(19, 0)), events(ring(7, 0x4030_1000))], [None; 3]);
    let with = |features| result(&features, &PLACES);
    assert_eq!(with(Features { has_64_bit_tables: false, ..features() }), Some(Refusal::Tables));
    assert_eq!(with(Features { output: None, ..features() }), Some(Refusal::Tables));
    assert_eq!(with(Features { has_preset_places: true, ..features() }), Some(Refusal::Preset));
    let one_level = Features { has_two_levels: false, ..features() };
    assert_eq!(result(&one_level, &Places { streams: two, ..PLACES }), Some(Refusal::Streams));
}
