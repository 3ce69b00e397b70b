//! What a guest and its guest do in a stay.

use super::super::*;
use super::model::{Tlb, Whose, check_block, whose};
use crate::svm::tests::processor::{CODE, MEMORY, MockSvm};
use crate::svm::tests::random::number;
use crate::vm::Vm;
use crate::x86::RFLAGS_VM;
use crate::x86::vcpu::registers::Registers;

/// L1's nested tables: pages whose entries lead to each other, or anywhere.
const NESTED: u64 = DATA + 0x6_0000;
const TABLES_MAX: u64 = 6;
const PAE_TABLE: u64 = 5;
/// L1's own tables in 32-bit modes.
pub(super) const PAE_ROOT: u64 = 0x5000;
pub(super) const LEGACY_ROOT: u64 = 0x6000;
/// SVM's instructions, which are at CODE, 16 bytes apart, and WRMSR.
const INSTRUCTIONS: [(u64, [u8; 3]); 7] = [
    (VMRUN, [0x0f, 0x01, 0xd8]),
    (0x82, [0x0f, 0x01, 0xda]),
    (0x83, [0x0f, 0x01, 0xdb]),
    (0x84, [0x0f, 0x01, 0xdc]),
    (0x85, [0x0f, 0x01, 0xdd]),
    (0x7a, [0x0f, 0x01, 0xdf]),
    (0x7c, [0x0f, 0x30, 0x90]),
];

/// What the last stay was.
pub(super) enum Did {
    /// L1's instruction.
    Outer { code: u64, rax: u64, asid: u32 },
    /// L2's exit.
    Inner { whose: Whose, left: Box<Vmcb>, kept: Option<u64> },
}

pub(super) struct Storm {
    pub(super) random: Random,
    pub(super) vm: &'static Vm<MockSvm>,
    pub(super) tags: u32,
    pub(super) tlb: Tlb,
    pub(super) did: Option<Did>,
    /// L2 was there before the stay.
    pub(super) was_inside: bool,
    /// The block by which L2 runs, as VMRUN has read it, and where it is.
    pub(super) block: Box<Vmcb>,
    pub(super) at: u64,
    /// L1's block at VMRUN.
    pub(super) own: Box<Vmcb>,
    pub(super) is_fresh: bool,
    /// L2 is at an IRET that ends an NMI, and may be stepped over it.
    pub(super) is_stepped: bool,
}

fn copied(from: &Vmcb) -> Box<Vmcb> {
    let mut to = Vmcb::boxed();
    to.bytes_mut().copy_from_slice(from.bytes());
    to
}

pub(super) fn read(vm: &'static Vm<MockSvm>, at: u64) -> Option<u64> {
    vm.space.slots().memory().read_u64(Gpa(at)).ok()
}

impl Storm {
    /// The root and mode of L1's nested tables, if L2 runs by some.
    pub(super) fn tables(&self) -> Option<[u64; 4]> {
        let own = &self.own;
        (self.block.nested_control & 1 != 0).then_some([own.cr0, self.block.nested_cr3, own.cr4, own.efer])
    }

    pub(super) fn page(&mut self) -> u64 {
        self.random.one_of([0x5000, 0x6000, 0x7000, 0x20_0000])
    }

    /// One of a few addresses that all levels of tables may have.
    fn inner_address(&mut self) -> u64 {
        let random = &mut self.random;
        if random.one_in(8) {
            return number(random);
        }
        let index = |random: &mut Random| random.one_of([0, 0, 0, 1, 2, 511]);
        let [a, b, c, d] = [(); 4].map(|()| index(random));
        let address = a << 39 | b << 30 | c << 21 | d << 12;
        let mask = random.one_of([u64::MAX, 0xffff_ffff, 0xffff_ffff, 0x3fff_ffff]);
        address & mask | random.below(0x1000)
    }

    /// Changes an entry of L1's nested tables: most lead on to the next table, and then to a page.
    pub(super) fn change_tables(&mut self) {
        let random = &mut self.random;
        let (table, place) = (random.below(TABLES_MAX), random.one_of([0, 0, 1, 2, 3, 511]));
        let flags = random.one_of([7, 7, 7, 7, 0x27, 0x67, 5, 3, 1, 6, 0x87, 0xe7, 7 | 1 << 63, 7 | 1 << 45]);
        let entry = match random.below(16) {
            // By PAE, the entries of the root have few bits.
            0..14 if table == PAE_TABLE => NESTED + 0x1001,
            0..12 if table < 3 => (NESTED + (table + 1) * 0x1000) | 0x67,
            0..8 => (DATA + random.below(8) * 0x1000) | flags,
            8..12 => random.below(8) << 21 | flags | 0x80,
            12 => random.one_of([0xfee0_0000, HOLE, 0xfec0_0000, MEMORY, MEMORY - 0x1000]) | flags,
            13 | 14 => (NESTED + random.below(TABLES_MAX) * 0x1000) | flags,
            _ => random.word(),
        };
        let at = NESTED + table * 0x1000 + place * 8;
        self.vm.space.slots().memory().write(Gpa(at), &entry.to_le_bytes()).expect("is memory");
    }

    /// A block for VMRUN: nearly one that it takes, or any bytes.
    fn compose(&mut self) -> Box<Vmcb> {
        let mut b = plain();
        let random = &mut self.random;
        (b.asid, b.tlb_control) =
            (1 + random.below(5) as u32, random.one_of([0, 0, 0, 0, 1, 3, 3, 7, 2, 0xff]) as u8);
        for word in [
            &mut b.intercept_cr,
            &mut b.intercept_dr,
            &mut b.intercept_exceptions,
            &mut b.intercept_misc1,
            &mut b.intercept_misc2,
            &mut b.intercept_misc3,
        ] {
            *word |= (random.word() & random.word() & random.word() & random.word()) as u32;
        }
        if random.one_in(2) {
            b.interrupt_control |= vintr::MASKING;
        }
        if random.one_in(4) {
            b.interrupt_control |= vintr::IRQ | random.word() & 0xff_001f_000f;
        }
        if random.one_in(4) {
            b.event_injection =
                event::VALID | random.one_of([0, 2 << 8, 3 << 8, 4 << 8]) | 0x30 >> random.below(2);
        }
        b.interrupt_shadow = random.below(2);
        b.tsc_offset = number(random);
        b.rflags |= random.word() & RFLAGS_IF;
        let maps = [MAPS, MSR_MAP, MEMORY - 0x1000, MEMORY - 0x3000, HOLE, MAPS + 0x123, (1 << 40) - 0x3000];
        (b.iopm_base, b.msrpm_base) = (random.one_of(maps), random.one_of(maps));
        if random.one_in(2) {
            b.nested_control = 1;
            b.nested_cr3 = NESTED + random.one_of([0, 0, 1, 2, PAE_TABLE]) * 0x1000;
            b.pat = 0x0007_0406_0007_0406;
        }
        let ranges = match random.below(8) {
            0 => Some(0..0x400),
            1 => Some(0..0x670),
            2 => Some(0x400..0x670),
            _ => None,
        };
        if random.one_in(3) {
            b.inner[0] = 4; // L1 tells of its nested tables.
        }
        let all = random.one_in(4);
        for at in ranges.into_iter().flatten() {
            if all {
                b.bytes_mut()[at] = random.word() as u8;
            } else if random.one_in(128) {
                b.bytes_mut()[at] ^= 1 << random.below(8);
            }
        }
        b.inner[0] &= !2; // It does not promise that the map of MSRs is the same.
        b
    }

    pub(super) fn stay(&mut self, vmcb: &mut Vmcb, registers: &mut Registers) {
        self.take_dropped();
        let is_inner = vmcb.msrpm_base != self.vm.guest.permissions().msr;
        if is_inner {
            self.stay_inside(vmcb, registers);
        } else {
            self.stay_outside(vmcb, registers);
        }
    }

    /// Before an entry.
    pub(super) fn prepare(&mut self, nmi: Nmi) {
        self.did = None;
        self.is_stepped = nmi.contains(Nmi::AT_IRET);
    }

    pub(super) fn take_dropped(&mut self) {
        let dropped = processor(|processor| core::mem::take(&mut processor.dropped));
        dropped.into_iter().for_each(|(page, tag)| self.tlb.invalidate(page, tag));
    }

    fn stay_outside(&mut self, vmcb: &mut Vmcb, registers: &mut Registers) {
        let page = self.page();
        self.tlb.run(vmcb.asid, vmcb.tlb_control, self.tags, 0, page);
        if self.was_inside {
            // It has just got an exit, which is looked at first.
            self.did = Some(Did::Outer { code: 0x60, rax: 0, asid: 0 });
            return;
        }
        let random = &mut self.random;
        let index = if !random.one_in(4) { 0 } else { random.below(INSTRUCTIONS.len() as u64) as usize };
        let (code, bytes) = INSTRUCTIONS[index];
        let asid = random.one_of([0, 1, 2, 3, 4, 5, 6, 0x8000, u32::MAX.into()]) as u32;
        let last = MEMORY - 0x1000;
        let mut at = random.one_of([
            VMCB12,
            VMCB12,
            VMCB12,
            VMCB12 + 0x1000,
            NESTED,
            MAPS,
            last,
            HOLE,
            VMCB12 + 8,
            1 << 40,
        ]);
        if !vmcb.is_64bit() {
            at &= 0xffff_ffff;
        }
        vmcb.cpl = 0;
        vmcb.rflags = 2 | random.word() & RFLAGS_IF;
        (vmcb.rip, vmcb.next_rip) = (CODE + 16 * index as u64, CODE + 16 * index as u64 + 3);
        // L2 may have stored there.
        self.vm.space.slots().memory().write(Gpa(vmcb.rip), &bytes).expect("is memory");
        registers.0[RCX] = asid.into();
        match code {
            VMRUN => {
                let block = self.compose();
                let _is_memory = self.vm.space.slots().memory().write(Gpa(at), block.bytes());
                (self.own, self.at) = (copied(vmcb), at);
                let _is_memory = self.vm.space.slots().memory().read(Gpa(at), self.block.bytes_mut());
            }
            0x7a => at = self.page(),
            0x7c => {
                registers.0[RCX] = EFER.into();
                // Most turn it on.
                let svme = if random.one_in(4) { 0 } else { EFER_SVME };
                (at, registers.0[RDX]) = (vmcb.efer & !(EFER_SVME | EFER_LMA) | svme, 0);
            }
            _ => {}
        }
        vmcb.rax = at;
        (vmcb.exit_code, vmcb.exit_info_1) = (code, u64::from(code == 0x7c));
        self.did = Some(Did::Outer { code, rax: at, asid });
    }

    /// An exit that the processor may report of L2 by this block.
    fn inner_exit(&mut self, vmcb: &Vmcb) -> [u64; 3] {
        let address = self.inner_address();
        let random = &mut self.random;
        match random.below(16) {
            0..6 if self.block.nested_control & 1 != 0 => {
                let in_walk = random.one_in(3);
                let kind = if in_walk { 7 | 1 << 33 } else { random.one_of([4, 6, 0x14, 5, 7]) | 1 << 32 };
                [0x400, kind, address]
            }
            6 => [0x400, random.one_of([4, 6, 0x14, 7]) | 1 << 32, number(random)],
            7 => [0x60, 0, 0],
            8 if random.one_in(8) => [INVALID, 0, 0],
            9 | 10 => [0x7b, random.word() & 0xffff_0d05 | 1 << random.below(3) << 4, INNER_CODE],
            11 | 12 => [0x7c, random.below(2), 0],
            _ => loop {
                let code = random.below(192);
                let word = [0, 4, 8, 12, 16, 20][code as usize / 32];
                let bits = u32::from_le_bytes(vmcb.bytes()[word..word + 4].try_into().expect("four"));
                // A broken machine ends all.
                if bits >> (code % 32) & 1 != 0 && code != 0x52 {
                    break [code, number(random), number(random)];
                }
            },
        }
    }

    fn stay_inside(&mut self, vmcb: &mut Vmcb, registers: &mut Registers) {
        check_block(vmcb, &self.block, self.block.nested_control & 1 != 0, self.vm.space.root().0);
        if core::mem::take(&mut self.is_fresh) {
            assert_eq!(vmcb.tsc_offset, self.own.tsc_offset.wrapping_add(self.block.tsc_offset));
        }
        let [code, info_1, info_2] = self.inner_exit(vmcb);
        let page = self.page();
        if code != INVALID {
            self.tlb.run(vmcb.asid, vmcb.tlb_control, self.tags, self.block.asid, page);
        }
        let random = &mut self.random;
        let vector = 0x20 + random.below(0xe0);
        let cut = match random.below(8) {
            0 => event::VALID | event::TYPE_SOFTWARE | vector,
            1 => event::VALID | event::TYPE_EXCEPTION | event::ERROR_VALID | 13,
            2 => event::VALID | event::TYPE_NMI | 2,
            _ => 0,
        };
        let event = if matches!(code, 0x40..=0x5f | 0x400) { cut } else { 0 };
        [vmcb.exit_code, vmcb.exit_info_1, vmcb.exit_info_2, vmcb.exit_interrupt_info] =
            [code, info_1, info_2, event];
        vmcb.rip = INNER_CODE + 16 * random.below(16);
        vmcb.next_rip = vmcb.rip + random.below(16);
        vmcb.rflags = 2 | random.word() & 0x3_7ed5 & !RFLAGS_VM;
        (vmcb.cr2, vmcb.rsp, vmcb.rax) = (number(random), number(random), number(random));
        (vmcb.interrupt_shadow, vmcb.cpl) = (random.below(2), if random.one_in(4) { 3 } else { 0 });
        let msr =
            random.one_of([0x174, 0xc000_0080, 0xc000_0082, 0xc001_0015, 0x1b, 0x277, 0x4000_0000, 0x1fff]);
        if msr == 0x277 {
            // One that is valid.
            (vmcb.rax, registers.0[RDX]) = (0x0007_0400 | random.below(2), 0x0007_0406);
        }
        registers.0[RCX] = msr;
        let vm = self.vm;
        let (whose, walked) =
            whose(&self.block, self.tables(), &|at| read(vm, at), [code, info_1, info_2, event], msr as u32);
        let whose = if self.is_stepped && code == 0x41 { Whose::Either } else { whose };
        if let Some(walked) = walked {
            self.tlb.has_walked(walked);
        }
        self.did = Some(Did::Inner { whose, left: copied(vmcb), kept: read(vm, self.at + 0x58) });
    }
}
