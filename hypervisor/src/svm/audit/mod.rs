//! An auditor at the entry: checks whether VMRUN may begin with the current VMCB and registers.
//!
//! A processor's hidden guest state is not visible: translations under an ASID, and the parts of
//! the VMCB that clean bits let it cache. An emulator caches neither, so a hypervisor that forgets
//! to drop them goes unnoticed there. The auditor keeps its own books of what a processor may hold,
//! independent of the code that decides, and checks before each VMRUN:
//!
//! * a group of fields whose clean bit is set is the same as when this VMCB last exited, and that
//!   was on this processor;
//! * with `TLB_CONTROL` 0, either the ASID was last used by this vCPU, or it is unused since the
//!   processor dropped all translations. In the first case the vCPU has not run elsewhere since,
//!   has the same control registers as far as translations depend on them, and has taken no flush
//!   of everything since;
//! * the ASID is one that the processor has;
//! * the VMCB names its guest's tables and the intercepts that every guest has, and the registers
//!   that VMRUN does not switch are those that the vCPU left (U61).
//!
//! Source: APM volume 2 (24593, revision 3.42), sections 15.15 and 15.16, appendix B.

pub mod auditor;

use alloc::boxed::Box;
use core::fmt;

use crate::sched::CpuIndex;
use crate::tag_users::TagUsers;

/// A VMCB, as words.
pub type Words = [u64; 512];

/// A byte range: the first byte, and the one after the last.
type Bytes = (usize, usize);

/// Clean bits and the bytes that each covers.
const GROUPS: [(u32, &str, &[Bytes]); 10] = [
    (0, "intercepts, TSC offset, pause filter", &[(0x00, 0x18), (0x3c, 0x40), (0x50, 0x58)]),
    (1, "permission maps", &[(0x40, 0x50)]),
    (2, "ASID", &[(0x58, 0x5c)]),
    (3, "virtual interrupts", &[(0x60, 0x68)]),
    (4, "nested paging", &[(0x90, 0x98), (0xb0, 0xb8), (0x668, 0x670)]),
    (5, "control registers", &[(0x4d0, 0x4d8), (0x548, 0x560)]),
    (6, "debug registers", &[(0x560, 0x570)]),
    (7, "descriptor tables", &[(0x464, 0x470), (0x484, 0x490)]),
    (8, "segments", &[(0x400, 0x440), (0x4cb, 0x4cc)]),
    (9, "CR2", &[(0x640, 0x648)]),
];
/// The compared fields are all in these ranges. With the auditor an entry must cost little more
/// than without: some guests measure time.
const LOOKED_AT: [Bytes; 2] = [(0, 0xc0), (0x400, 0x670)];
const TLB_CONTROL: usize = 0x5c;
const ASID: usize = 0x58;
const CLEAN: usize = 0xc0;
const DO_NOTHING: u8 = 0;
const FLUSH_ALL: u8 = 1;
const FLUSH_ASID: u8 = 3;

/// Registers that translations depend on: offset, relevant bits, and names.
const REGISTERS: [(usize, u64, &str); 5] = [
    (0x558, 1 << 31 | 1 << 16 | 1, "CR0"),
    (0x550, u64::MAX, "CR3"),
    (0x548, 1 << 4 | 1 << 5 | 1 << 7 | 1 << 12 | 1 << 17 | 1 << 20, "CR4"),
    (0x4d0, 1 << 10 | 1 << 11, "EFER"),
    (0x668, u64::MAX, "PAT"),
];

/// A stale state that the processor would use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A group has changed, and its clean bit says that it has not.
    Changed(&'static str),
    /// Clean bits are set on a processor where this VMCB did not run last.
    Moved,
    /// `TLB_CONTROL` has an undefined value.
    Control(u8),
    /// The ASID has not been flushed since this processor started.
    NeverFlushed(u32),
    /// The ASID was last used by another vCPU.
    Foreign {
        /// The ASID.
        asid: u32,
        /// The vCPU that used it.
        vcpu: u32,
    },
    /// The vCPU has run on another processor.
    Elsewhere,
    /// A flush that was taken has not been carried out.
    Owed,
    /// The hypervisor has changed a register of the guest.
    Register(&'static str),
    /// The processor has fewer ASIDs.
    NoAsid(u32),
    /// A field of the VMCB, or a register that VMRUN does not switch, is not this vCPU's.
    Value {
        /// Its name.
        name: &'static str,
        /// Its value.
        is: u64,
        /// The expected one.
        should: u64,
    },
}

/// Compares a field or register with its expected value.
///
/// # Errors
///
/// If they differ.
#[inline(always)]
pub const fn expect(name: &'static str, is: u64, should: u64) -> Result<(), Finding> {
    if is == should { Ok(()) } else { Err(Finding::Value { name, is, should }) }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed(group) => write!(f, "{group} have changed and are marked clean"),
            Self::Moved => write!(f, "clean bits are set on another CPU than the VMCB was on"),
            Self::Control(value) => write!(f, "TLB_CONTROL is {value}"),
            Self::NeverFlushed(asid) => write!(f, "ASID {asid} is used before the CPU has dropped all"),
            Self::Foreign { asid, vcpu } => write!(f, "ASID {asid} holds translations of vCPU {vcpu}"),
            Self::Elsewhere => write!(f, "the vCPU has been on another CPU, and its ASID is as it was"),
            Self::Owed => write!(f, "a flush was taken, and nothing is dropped"),
            Self::Register(name) => write!(f, "{name} was changed, and translations are kept"),
            Self::NoAsid(asid) => write!(f, "the processor has no ASID {asid}"),
            Self::Value { name, is, should } => write!(f, "{name} is {is:#x} instead of {should:#x}"),
        }
    }
}

/// The last user of a processor's ASID, and in which of its stays.
#[derive(Clone, Copy, Debug)]
struct TagUser {
    vcpu: u32,
    stay: u64,
}

/// The auditor's record of one processor.
#[derive(Debug, Default)]
pub struct CpuBooks {
    users: TagUsers<TagUser>,
    /// Whether it has dropped all translations once.
    has_dropped_all: bool,
    /// The number of ASIDs that it says it has, the host's own 0 among them; 0 before it was asked.
    pub asids: u32,
}

/// The auditor's record of one vCPU.
#[derive(Debug)]
pub struct VcpuBooks {
    index: u32,
    /// The VMCB after its last exit.
    last: Box<Words>,
    /// The processor of its last exit.
    cpu: Option<CpuIndex>,
    stays: u64,
    owes: bool,
}

fn byte(words: &Words, at: usize) -> u8 {
    (words[at / 8] >> (at % 8 * 8)) as u8
}

fn bytes_are_equal(a: &Words, b: &Words, (start, end): Bytes) -> bool {
    (start / 8..end.div_ceil(8)).all(|index| {
        let from = start.saturating_sub(8 * index) * 8;
        let to = (8 * (index + 1)).saturating_sub(end) * 8;
        let mask = u64::MAX >> to & u64::MAX << from;
        (a[index] ^ b[index]) & mask == 0
    })
}

/// The clean bits of what differs.
#[cfg(test)]
pub(super) fn changed(a: &Words, b: &Words) -> u32 {
    let differs = |ranges: &[Bytes]| !ranges.iter().all(|&bytes| bytes_are_equal(a, b, bytes));
    GROUPS.iter().fold(0, |all, (bit, _, ranges)| all | u32::from(differs(ranges)) << bit)
}

fn low_word(words: &Words, at: usize) -> u32 {
    (words[at / 8] >> (at % 8 * 8)) as u32
}

impl VcpuBooks {
    /// For a vCPU that has never run.
    pub fn new(index: u32) -> Self {
        Self { index, last: Box::new([0; 512]), cpu: None, stays: 0, owes: false }
    }

    /// Notes that all translations of this vCPU must be dropped.
    pub fn take_flush(&mut self) {
        self.owes = true;
    }

    /// Notes registers that were not the hypervisor's to change.
    pub fn begin(&mut self, vmcb: &Words) {
        REGISTERS.into_iter().for_each(|(at, ..)| self.last[at / 8] = vmcb[at / 8]);
    }

    /// Whether VMRUN may begin on `cpu`, whose record is `books`.
    ///
    /// # Errors
    ///
    /// The stale state that the processor would use.
    pub fn check(&self, books: &CpuBooks, cpu: CpuIndex, vmcb: &Words) -> Result<(), Finding> {
        let clean = low_word(vmcb, CLEAN);
        if clean != 0 && self.cpu != Some(cpu) {
            return Err(Finding::Moved);
        }
        for (bit, name, ranges) in GROUPS {
            if clean >> bit & 1 == 0 {
                continue;
            }
            if !ranges.iter().all(|&bytes| bytes_are_equal(vmcb, &self.last, bytes)) {
                return Err(Finding::Changed(name));
            }
        }
        let asid = low_word(vmcb, ASID);
        if asid == 0 || asid >= books.asids {
            return Err(Finding::NoAsid(asid));
        }
        match byte(vmcb, TLB_CONTROL) {
            DO_NOTHING => self.check_tenant(books, asid, vmcb),
            FLUSH_ALL => Ok(()),
            FLUSH_ASID if books.has_dropped_all => Ok(()),
            FLUSH_ASID => Err(Finding::NeverFlushed(asid)),
            other => Err(Finding::Control(other)),
        }
    }

    fn check_tenant(&self, books: &CpuBooks, asid: u32, vmcb: &Words) -> Result<(), Finding> {
        if !books.has_dropped_all {
            return Err(Finding::NeverFlushed(asid));
        }
        // It is unused since all translations were dropped.
        let Some(user) = books.users.get(asid) else { return Ok(()) };
        if user.vcpu != self.index {
            return Err(Finding::Foreign { asid, vcpu: user.vcpu });
        }
        if user.stay != self.stays {
            return Err(Finding::Elsewhere);
        }
        if self.owes {
            return Err(Finding::Owed);
        }
        for (at, bits, name) in REGISTERS {
            if (vmcb[at / 8] ^ self.last[at / 8]) & bits != 0 {
                return Err(Finding::Register(name));
            }
        }
        Ok(())
    }

    /// Notes that VMRUN has been executed, and the guest has run and exited.
    pub fn note(&mut self, books: &mut CpuBooks, cpu: CpuIndex, vmcb: &Words) {
        if byte(vmcb, TLB_CONTROL) == FLUSH_ALL {
            books.users.clear();
            books.has_dropped_all = true;
        }
        self.stays += 1;
        self.owes = false;
        self.cpu = Some(cpu);
        for (start, end) in LOOKED_AT {
            self.last[start / 8..end / 8].copy_from_slice(&vmcb[start / 8..end / 8]);
        }
        books.users.set(low_word(vmcb, ASID), TagUser { vcpu: self.index, stay: self.stays });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmcb(asid: u32, control: u8, clean: u32) -> Box<Words> {
        let mut words = Box::new([0; 512]);
        words[ASID / 8] = u64::from(asid) | u64::from(control) << 32;
        words[CLEAN / 8] = clean.into();
        words
    }

    struct Books {
        vcpus: [VcpuBooks; 2],
        cpus: [CpuBooks; 2],
    }

    impl Books {
        fn new() -> Self {
            let cpu = || CpuBooks { asids: 4, ..CpuBooks::default() };
            Self { vcpus: [VcpuBooks::new(0), VcpuBooks::new(1)], cpus: [cpu(), cpu()] }
        }

        fn enter(&mut self, vcpu: usize, cpu: usize, vmcb: &Words) -> Result<(), Finding> {
            self.vcpus[vcpu].check(&self.cpus[cpu], CpuIndex(cpu as u32), vmcb)?;
            self.vcpus[vcpu].note(&mut self.cpus[cpu], CpuIndex(cpu as u32), vmcb);
            Ok(())
        }
    }

    #[test]
    fn a_life_without_mistakes_is_not_complained_about() {
        let mut machine = Books::new();
        assert_eq!(machine.enter(0, 0, &vmcb(1, FLUSH_ALL, 0)), Ok(()));
        assert_eq!(machine.enter(0, 0, &vmcb(1, DO_NOTHING, !0)), Ok(()));
        assert_eq!(machine.enter(1, 0, &vmcb(2, DO_NOTHING, 0)), Ok(()), "nobody has used it");
        assert_eq!(machine.enter(0, 0, &vmcb(1, DO_NOTHING, !0)), Ok(()));
        machine.vcpus[0].take_flush();
        assert_eq!(machine.enter(0, 0, &vmcb(1, FLUSH_ASID, !0)), Ok(()));
        assert_eq!(machine.enter(0, 0, &vmcb(1, DO_NOTHING, !0)), Ok(()));
        machine.vcpus[0].take_flush();
        assert_eq!(machine.enter(0, 0, &vmcb(3, DO_NOTHING, !4)), Ok(()), "a new one");
        assert_eq!(machine.enter(0, 1, &vmcb(1, FLUSH_ALL, 0)), Ok(()));
    }

    #[test]
    fn a1_a4_an_asid_of_somebody_else_is_found() {
        let mut machine = Books::new();
        assert_eq!(machine.enter(0, 0, &vmcb(1, DO_NOTHING, 0)), Err(Finding::NeverFlushed(1)));
        assert_eq!(machine.enter(0, 0, &vmcb(1, FLUSH_ASID, 0)), Err(Finding::NeverFlushed(1)));
        assert_eq!(machine.enter(0, 0, &vmcb(1, FLUSH_ALL, 0)), Ok(()));
        assert_eq!(machine.enter(1, 0, &vmcb(1, DO_NOTHING, 0)), Err(Finding::Foreign { asid: 1, vcpu: 0 }));
        assert_eq!(machine.enter(0, 0, &vmcb(1, 2, 0)), Err(Finding::Control(2)));
    }

    #[test]
    fn u63_the_hosts_asid_and_those_that_there_are_not_are_found() {
        for (asid, is_there) in [(0, false), (1, true), (3, true), (4, false), (5, false)] {
            let expected = if is_there { Ok(()) } else { Err(Finding::NoAsid(asid)) };
            assert_eq!(Books::new().enter(0, 0, &vmcb(asid, FLUSH_ALL, 0)), expected);
        }
    }

    #[test]
    fn a2_a_vcpu_that_was_elsewhere_is_found() {
        let mut machine = Books::new();
        assert_eq!(machine.enter(0, 0, &vmcb(1, FLUSH_ALL, 0)), Ok(()));
        assert_eq!(machine.enter(0, 1, &vmcb(1, FLUSH_ALL, 0)), Ok(()));
        assert_eq!(machine.enter(0, 0, &vmcb(1, DO_NOTHING, 0)), Err(Finding::Elsewhere));
        assert_eq!(machine.enter(0, 0, &vmcb(1, FLUSH_ASID, 0)), Ok(()));
    }

    #[test]
    fn a13_a_register_that_owes_nothing_is_found() {
        for (at, bits, name) in REGISTERS {
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                let mut machine = Books::new();
                assert_eq!(machine.enter(0, 0, &vmcb(1, FLUSH_ALL, 0)), Ok(()));
                let mut changed = vmcb(1, DO_NOTHING, 0);
                changed[at / 8] ^= 1 << bit;
                assert_eq!(machine.enter(0, 0, &changed), Err(Finding::Register(name)), "bit {bit}");
            }
        }
    }

    #[test]
    fn a6_what_is_marked_clean_has_not_changed_and_is_here() {
        for (bit, name, ranges) in GROUPS {
            // What is beside a range, in the same words, is not of its group.
            for at in ranges.iter().flat_map(|&(start, end)| start & !7..end.next_multiple_of(8)) {
                if at == TLB_CONTROL {
                    continue;
                }
                let is_its = ranges.iter().any(|&(start, end)| (start..end).contains(&at));
                let mut machine = Books::new();
                machine.cpus.iter_mut().for_each(|cpu| cpu.asids = u32::MAX);
                assert_eq!(machine.enter(0, 0, &vmcb(2, FLUSH_ALL, 0)), Ok(()));
                let mut changed = vmcb(2, FLUSH_ALL, 1 << bit);
                // The lowest bit of a range, or the highest.
                let place = if ranges.iter().any(|&(_, end)| end == at + 1) { 7 } else { 0 };
                changed[at / 8] ^= 1 << (at % 8 * 8 + place);
                let expected = if is_its { Err(Finding::Changed(name)) } else { Ok(()) };
                assert_eq!(machine.enter(0, 0, &changed), expected, "{at:#x}");
                changed[CLEAN / 8] = !(1u64 << bit) & 0x3ff;
                assert_eq!(machine.enter(0, 0, &changed), Ok(()), "{at:#x}");
                assert_eq!(machine.enter(0, 1, &changed), Err(Finding::Moved));
                changed[CLEAN / 8] = 1 << bit;
                assert_eq!(machine.enter(0, 0, &changed), Ok(()), "{at:#x} is remembered");
            }
        }
    }
}
