mod access;
mod strings;
mod values;

use super::arithmetic::{AF, CF, OF, PF, SF, ZF};
use super::*;
use iced_x86::{Decoder, DecoderOptions};
use std::collections::BTreeMap;
use std::vec::Vec;

const RBX: usize = 3;
const ARITHMETIC: u64 = CF | PF | AF | ZF | SF | OF;

/// A page of a device whose registers have the width of each access.
const DEVICE: u64 = 0x10_0000;
/// A page of memory before it, and the first of several after it.
const BEFORE: u64 = DEVICE - 0x1000;
const BEHIND: u64 = DEVICE + 0x1000;
const ROM: u64 = 0x20_0000;
/// An address without a translation.
const ABSENT: u64 = 0x30_0000;
/// Distance of linear addresses from physical ones.
const OFFSET: u64 = 0x7000_0000;

/// Accesses that a device received, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Read(u64, usize),
    Write(u64, usize, u64),
}

/// Memory by bytes, and a device that stores what is written to it.
#[derive(Default)]
struct World {
    bytes: BTreeMap<u64, u8>,
    seen: Vec<Seen>,
    /// Translations made, as linear address and whether to write.
    translated: Vec<(u64, bool)>,
}

impl World {
    fn put(&mut self, gpa: u64, size: usize, value: u64) {
        for (at, byte) in (gpa..).zip(&value.to_le_bytes()[..size]) {
            self.bytes.insert(at, *byte);
        }
    }

    fn get(&self, gpa: u64, size: usize) -> u64 {
        (0..size).fold(0, |value, index| {
            value | u64::from(self.bytes.get(&(gpa + index as u64)).copied().unwrap_or(0)) << (8 * index)
        })
    }

    fn is_device(gpa: u64) -> bool {
        gpa & !0xfff == DEVICE
    }
}

impl Memory for World {
    type Error = u64;

    fn translate(&mut self, linear: u64, is_write: bool) -> Result<Gpa, u64> {
        self.translated.push((linear, is_write));
        let gpa = linear.wrapping_sub(OFFSET);
        if gpa & !0xfff == ABSENT { Err(linear) } else { Ok(Gpa(gpa)) }
    }

    fn is_direct(&mut self, gpa: Gpa, is_write: bool) -> bool {
        !(Self::is_device(gpa.0) || gpa.0 & !0xfff == ROM && is_write)
    }

    fn read(&mut self, gpa: Gpa, bytes: &mut [u8]) {
        assert!(gpa.0 % 4096 + bytes.len() as u64 <= 4096, "a read of two pages");
        for (at, byte) in (gpa.0..).zip(bytes.iter_mut()) {
            *byte = self.bytes.get(&at).copied().unwrap_or(0);
        }
        if Self::is_device(gpa.0) {
            self.seen.push(Seen::Read(gpa.0 - DEVICE, bytes.len()));
        }
    }

    fn write(&mut self, gpa: Gpa, bytes: &[u8]) {
        assert!(gpa.0 % 4096 + bytes.len() as u64 <= 4096, "a write of two pages");
        let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        if Self::is_device(gpa.0) {
            self.seen.push(Seen::Write(gpa.0 - DEVICE, bytes.len(), value));
        }
        if gpa.0 & !0xfff != ROM {
            self.put(gpa.0, bytes.len(), value);
        }
    }
}

struct TestCpu {
    registers: Gprs,
    flags: u64,
    bases: SegmentBases,
    bits: u32,
    world: World,
}

impl TestCpu {
    fn new() -> Self {
        // Each register's value identifies it, and RDI points to the device.
        let mut registers = core::array::from_fn(|number| 0x1111_1111_1111_1111 * number as u64);
        registers[RDI] = OFFSET + DEVICE;
        Self { registers, flags: 2, bases: SegmentBases::default(), bits: 64, world: World::default() }
    }

    /// The device holds `value` at its beginning.
    fn with(value: u64) -> Self {
        let mut machine = Self::new();
        machine.world.put(DEVICE, 8, value);
        machine
    }

    fn run(&mut self, code: &[u8]) -> Result<EmulationOutcome, Failure<u64>> {
        let instruction = Decoder::with_ip(self.bits, code, 0x1000, DecoderOptions::NONE).decode();
        assert_eq!(instruction.len(), code.len(), "{code:02x?}");
        let mut cpu = Cpu {
            registers: &mut self.registers,
            flags: &mut self.flags,
            bases: self.bases,
            is_64bit: self.bits == 64,
        };
        execute(&instruction, &mut cpu, &mut self.world)
    }

    fn device(&self) -> u64 {
        self.world.get(DEVICE, 8)
    }

    fn has(&self, flags: u64) -> bool {
        self.flags & ARITHMETIC == flags
    }
}

const OLD: u64 = 0x8877_6655_4433_2291;
