//! Control registers of a guest whose CR0 and CR4 are partly the hypervisor's.

use super::processor::{DATA, Guest, HOLE, TABLES, Tested, with_guest, written};
use super::refusal::wrong_field;
use super::rows::GP;
use crate::vm::Next;
use crate::vmx::fields;
use crate::x86::cpuid;
use crate::x86::vcpu::block::Field::{Cr0, Cr3, Cr4, Efer, Pat};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::msr;
use crate::x86::vcpu::registers::RBX;
use crate::x86::{CR0_PE, CR0_PG, CR4_PAE, CR4_PCIDE, EFER_LMA, EFER_LME};

const CD: u64 = 1 << 30;
const NW: u64 = 1 << 29;
const ET: u64 = 1 << 4;
const NE: u64 = 1 << 5;
const MCE: u64 = 1 << 6;
const PGE: u64 = 1 << 7;

/// A move of RBX to CR0; what it raises.
fn set_cr0(guest: &mut Guest<'_, '_>, value: u64) -> Option<u64> {
    guest.0.state.exception = None;
    guest.set(RBX, value);
    assert_eq!(guest.leave(28, 3, (RBX as u64) << 8), Next::Resume);
    guest.raised()
}

#[test]
fn i16_cr0_reads_as_it_was_written() {
    with_guest(&[], |guest| {
        let base = CR0_PG | CR0_PE | ET;
        for value in [base, base | NE, base | CD, base | CD | NW, base | 0x5_002e, base | 1 << 8] {
            assert_eq!(set_cr0(guest, value), None, "{value:#x}");
            assert_eq!(guest.field(Cr0), value & !(1 << 8), "{value:#x}");
        }
        for value in [base | NW, CR0_PG | ET, base | 1 << 32, CR0_PE | ET] {
            let before = guest.field(Cr0);
            assert_eq!((set_cr0(guest, value), guest.field(Cr0)), (GP, before), "{value:#x}");
        }
    });
}

#[test]
fn i16_what_vmx_fixes_is_set_and_not_shown() {
    with_guest(&[], |guest| {
        let (cr0, cr4) = (guest.field(Cr0), guest.field(Cr4));
        assert!(guest.enter(|stay, _| {
            // The guest sets TS, and PGE, which are its own.
            stay.write(fields::GUEST_CR0, stay.read(fields::GUEST_CR0) | 1 << 3);
            stay.write(fields::GUEST_CR4, stay.read(fields::GUEST_CR4) | 1 << 7);
        }));
        let real = [fields::GUEST_CR0, fields::GUEST_CR4].map(|field| written(field.raw()));
        assert_eq!((real[0] ^ cr0, real[1] ^ cr4), (NE, 1 << 13 | 1 << 6), "NE; VMXE and MCE");
        assert_eq!((guest.field(Cr0), guest.field(Cr4)), (cr0 | 1 << 3, cr4 | 1 << 7));
    });
}

#[test]
fn long_mode_comes_and_goes_with_paging() {
    with_guest(&[], |guest| {
        guest.legacy_mode(Segment::DEFAULT_32);
        guest.set_field(Efer, EFER_LME);
        guest.set_field(Cr4, CR4_PAE);
        assert_eq!(set_cr0(guest, CR0_PG | CR0_PE), None);
        assert_eq!(guest.field(Efer), EFER_LME | EFER_LMA);
        assert_eq!(set_cr0(guest, CR0_PE), None);
        assert_eq!(guest.field(Efer), EFER_LME, "as the entry's control");
    });
}

#[test]
fn paging_that_is_switched_drops_what_was_cached() {
    with_guest(&[], |guest| {
        guest.legacy_mode(Segment::DEFAULT_32);
        guest.set_field(Cr3, TABLES);
        assert!(guest.enter(|_, _| {}));
        super::INVALIDATED.take();
        assert_eq!(set_cr0(guest, CR0_PE | CD), None);
        assert!(guest.enter(|_, _| {}));
        assert_eq!(super::INVALIDATED.take(), []);
        assert_eq!(set_cr0(guest, CR0_PE | CR0_PG), None);
        assert!(guest.enter(|_, _| {}));
        assert!(!super::INVALIDATED.take().is_empty());
    });
}

#[test]
fn the_entries_of_pae_paging_are_loaded_and_checked() {
    with_guest(&[], |guest| {
        guest.legacy_mode(Segment::DEFAULT_32);
        let at = DATA + 0x20;
        for index in 0..4 {
            guest.write(at + 8 * index, &(TABLES + index * 0x1000 + 1).to_le_bytes());
        }
        guest.set_field(Cr4, CR4_PAE);
        guest.set_field(Cr3, at);
        assert_eq!(set_cr0(guest, CR0_PG | CR0_PE), None);
        assert!(guest.enter(|_, _| {}));
        let pointers = fields::POINTERS.map(|field| written(field.raw()));
        assert_eq!(pointers, [0, 1, 2, 3].map(|index| TABLES + index * 0x1000 + 1));
        // Reserved bits; one in an entry that is not present; tables where no memory is.
        let beyond = 1 << cpuid::physical_address_bits::<Tested>();
        for (entry, cr3, fault) in
            [(TABLES | 3, at, GP), (beyond | 1, at, GP), (TABLES | 2, at, None), (0, HOLE, GP)]
        {
            guest.write(at + 8, &entry.to_le_bytes());
            guest.set_field(Cr3, cr3);
            guest.set_field(Cr0, CR0_PE | ET);
            assert_eq!(set_cr0(guest, CR0_PG | CR0_PE), fault, "{entry:#x}");
            assert_eq!(guest.field(Cr0) & CR0_PG != 0, fault.is_none());
        }
        // A move to CR4 loads them, too, if it changes a bit that says so; and stays away if not.
        guest.set_field(Cr3, at);
        guest.set_field(Cr0, CR0_PG | CR0_PE);
        let first = guest.vmcs().pointers[0];
        for (cr4, entry, expected) in [
            (CR4_PAE | MCE, 0, (None, first)),
            (CR4_PAE | MCE | PGE, 3, (GP, first)),
            (CR4_PAE | MCE | PGE, 0, (None, 0)),
        ] {
            guest.write(at, &u64::to_le_bytes(entry));
            let before = guest.field(Cr4);
            guest.0.state.exception = None;
            guest.set(RBX, cr4);
            guest.leave(28, 3, 4 | (RBX as u64) << 8);
            assert_eq!((guest.raised(), guest.vmcs().pointers[0]), expected, "{cr4:#x}");
            assert_eq!(guest.field(Cr4), if expected.0.is_none() { cr4 } else { before });
        }
    });
}

/// A mode, and a value that a move to a control register, or WRMSR, refuses there. Checks of
/// entries that are not here concern what the hypervisor alone writes (DEBUGCTL, activity), what it
/// leaves to the processor (CR3, DR7, descriptor tables, segments; SYSENTER's MSRs), or features
/// that no guest is shown (BNDCFGS, PERF_GLOBAL_CTRL, CET, PKRS).
type Refused = (&'static str, fn(&mut Guest<'_, '_>), u32, u64);

const LONG: fn(&mut Guest<'_, '_>) = |_| {};
/// Paging is off, and long mode waits for it.
const SOON_LONG: fn(&mut Guest<'_, '_>) = |guest| {
    guest.legacy_mode(Segment::DEFAULT_32);
    guest.set_field(Efer, EFER_LME);
    guest.set_field(Cr4, CR4_PAE);
};

const REFUSED: [Refused; 29] = [
    ("PG without PE", LONG, 0, CR0_PG),
    ("the upper half of CR0", LONG, 0, CR0_PG | CR0_PE | 1 << 32),
    ("NW without CD", LONG, 0, CR0_PG | CR0_PE | NW),
    ("no paging in code of 64 bits", LONG, 0, CR0_PE),
    ("no paging with PCIDs", |guest| guest.set_field(Cr4, CR4_PAE | CR4_PCIDE), 0, CR0_PE),
    (
        "long mode without PAE",
        |guest| {
            SOON_LONG(guest);
            guest.set_field(Cr4, 0);
        },
        0,
        CR0_PG | CR0_PE,
    ),
    (
        "long mode into code of 64 bits",
        |guest| {
            guest.legacy_mode(Segment::LONG);
            guest.set_field(Efer, EFER_LME);
            guest.set_field(Cr4, CR4_PAE);
        },
        0,
        CR0_PG | CR0_PE,
    ),
    ("long mode with a task of 16 bits", |guest| soon_long_with(guest, 0x83), 0, CR0_PG | CR0_PE),
    ("long mode without a task", |guest| soon_long_with(guest, 0), 0, CR0_PG | CR0_PE),
    ("long mode without PAE, by CR4", LONG, 4, 0),
    ("PCIDs without long mode", SOON_LONG, 4, CR4_PAE | CR4_PCIDE),
    ("PCIDs with a PCID", |guest| guest.set_field(Cr3, TABLES | 1), 4, CR4_PAE | CR4_PCIDE),
    ("VMXE", LONG, 4, CR4_PAE | 1 << 13),
    ("FRED, and what comes", LONG, 4, CR4_PAE | 1 << 32),
    ("CET", LONG, 4, CR4_PAE | 1 << 23),
    ("a reserved bit of CR4", LONG, 4, CR4_PAE | 1 << 15),
    ("a reserved bit of EFER", LONG, 0xc000_0080, EFER_LME | 1 << 1),
    ("SVME", LONG, 0xc000_0080, EFER_LME | 1 << 12),
    ("no LME with paging", LONG, 0xc000_0080, 0),
    ("no type of memory", LONG, 0x277, 2),
    ("another one, in the last place", LONG, 0x277, 8 << 56),
    ("FS beyond", LONG, 0xc000_0100, 1 << 47),
    ("GS beyond", LONG, 0xc000_0101, 1 << 63),
    ("GS of the kernel beyond", LONG, 0xc000_0102, 1 << 47),
    ("SYSCALL beyond", LONG, 0xc000_0082, 1 << 47),
    ("BNDCFGS", LONG, 0xd90, 0),
    ("PERF_GLOBAL_CTRL", LONG, 0x38f, 0),
    ("CET of the kernel", LONG, 0x6a2, 0),
    ("PKRS", LONG, 0x6e1, 0),
];

fn soon_long_with(guest: &mut Guest<'_, '_>, attributes: u16) {
    SOON_LONG(guest);
    let task = Segment { selector: 0x20, attributes, limit: 0x67, base: 0 };
    guest.vmcs().set_segment(SegmentName::Tr, task);
}

#[test]
fn i16_what_an_entry_refuses_is_refused_where_the_guest_sets_it() {
    for (about, begin, register, value) in REFUSED {
        with_guest(&[0x0f, 0x30], |guest| {
            begin(guest);
            let state = |guest: &Guest<'_, '_>| [Cr0, Cr3, Cr4, Efer, Pat].map(|field| guest.field(field));
            let before = state(guest);
            if register > 8 {
                guest.write_msr(register, value);
            } else {
                guest.set(RBX, value);
                guest.leave(28, 3, u64::from(register) | (RBX as u64) << 8);
            }
            assert_eq!((guest.raised(), state(guest)), (GP, before), "{about}");
        });
    }
    with_guest(&[], |guest| {
        SOON_LONG(guest);
        assert_eq!((set_cr0(guest, CR0_PG | CR0_PE), wrong_field(guest.vmcs())), (None, None));
    });
}

#[test]
fn clts_and_lmsw_change_their_bits_alone() {
    with_guest(&[], |guest| {
        let base = CR0_PG | CR0_PE | ET | 1 << 16;
        guest.set_field(Cr0, base | 1 << 3);
        guest.leave(28, 2, 2 << 4);
        assert_eq!((guest.field(Cr0), guest.advanced()), (base, 2));
        guest.leave(28, 3, 3 << 4 | 0xfffe << 16);
        assert_eq!((guest.field(Cr0), guest.advanced()), (base | 0xe, 5), "PE stays");
    });
}

fn read(guest: &mut Guest<'_, '_>, number: u32) -> Option<u64> {
    let value = guest.read_msr(number);
    guest.raised().is_none().then_some(value)
}

#[test]
fn guests_find_no_vmx() {
    with_guest(&[], |guest| {
        assert_eq!(read(guest, 0x3a), Some(1), "locked, and off");
        guest.write_msr(0x3a, 5);
        assert_eq!(guest.raised(), GP);
        for number in 0x480..0x500 {
            assert_eq!(read(guest, number), None, "{number:#x}");
            guest.write_msr(number, 0);
            assert_eq!(guest.raised(), GP, "{number:#x}");
            assert!(!msr::passes_through::<Tested>(number));
        }
        assert_eq!(read(guest, 0x1a0), Some(0x1801), "fast strings");
        for number in [0xc001_0010, 0xc001_0015, 0xc001_1029] {
            assert_eq!(read(guest, number), None, "{number:#x} is AMD's");
        }
    });
}
