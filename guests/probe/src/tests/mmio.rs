//! Instructions on device registers and on unused addresses have the same effects as on memory.

use core::arch::asm;

use super::io::HOLE;
use super::prelude::*;
use crate::paging::{ACCESSED, DIRTY};

/// The I/O APIC's window on the selected register.
const IOWIN: u64 = IOAPIC + 0x10;
/// The low half of the entry of an unconnected pin, and its writable bits.
const ENTRY: u32 = 0x10 + 2 * 9;
const WRITABLE: u64 = 0x0001_afff;

/// Arithmetic flags; logical operations leave one undefined.
const FLAGS: u64 = 0x8d5;
const AUXILIARY: u64 = 1 << 4;

/// The state that an instruction uses besides its memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    rax: u64,
    rdx: u64,
    flags: u64,
}

/// An instruction whose memory operand is at RDI.
struct Case {
    name: &'static str,
    run: fn(u64, &mut State) -> Result<(), Fault>,
}

macro_rules! case {
    ($instruction:literal) => {
        Case {
            name: $instruction,
            run: |address, state| {
                let (fault, error): (u64, u64);
                // SAFETY: the tests pass addresses for their exclusive use; a fault is guarded.
                unsafe {
                    asm!(
                        "push {flags}", "popfq", guarded!($instruction), "pushfq", "pop {flags}",
                        flags = inout(reg) state.flags,
                        inout("rax") state.rax, inout("rdx") state.rdx, in("rdi") address,
                        inout("r11") 0u64 => fault, inout("r10") 0u64 => error,
                    );
                }
                state.flags &= FLAGS;
                Fault::check(fault, error)
            },
        }
    };
}

macro_rules! cases {
    ($($instruction:literal)*) => { [$(case!($instruction)),*] };
}

/// On 32 bits, the width of the I/O APIC's registers.
const CASES_32: [Case; 22] = cases! {
    "mov edx, [rdi]" "movsxd rdx, dword ptr [rdi]" "mov [rdi], edx" "mov dword ptr [rdi], 0x12345678"
    "add [rdi], edx" "lock sub [rdi], edx" "sub dword ptr [rdi], 0x7f" "and [rdi], edx"
    "or dword ptr [rdi], 0x800" "lock xor [rdi], edx" "add edx, [rdi]" "sub edx, [rdi]"
    "and edx, [rdi]" "or edx, [rdi]" "xor edx, [rdi]" "cmp [rdi], edx" "cmp edx, [rdi]"
    "test [rdi], edx" "test dword ptr [rdi], 0x8000" "bt dword ptr [rdi], 11" "xchg [rdi], edx"
    "lock cmpxchg [rdi], edx"
};

/// On other sizes, for which there is no device.
const CASES_OTHER: [Case; 22] = cases! {
    "mov dh, [rdi]" "mov dx, [rdi]" "mov rdx, [rdi]" "movzx edx, byte ptr [rdi]"
    "movsx rdx, word ptr [rdi]" "mov [rdi], dh" "mov [rdi], dx" "mov qword ptr [rdi], -5"
    "add [rdi], dl" "sub [rdi], dx" "sub [rdi], rdx" "and dx, [rdi]" "or qword ptr [rdi], 1"
    "lock xor byte ptr [rdi], 0x55" "add rdx, [rdi]" "cmp dl, [rdi]" "cmp [rdi], dh" "cmp [rdi], rdx"
    "test [rdi], dx" "bt qword ptr [rdi], 62" "xchg [rdi], dx" "lock cmpxchg [rdi], dl"
};

/// Interesting values of both operands.
const VALUES: [u64; 9] =
    [0, 1, 0x7f, 0x80, 0xa55a, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x8001_2345_6789_abcd];

static MEMORY: Page = Page::new();

fn memory() -> u64 {
    MEMORY.words()[0].load(Ordering::SeqCst)
}

/// A register of the I/O APIC, which is selected for that.
pub(super) fn register(index: u32) -> u32 {
    write(IOAPIC, index);
    read(IOWIN)
}

fn read(address: u64) -> u32 {
    // SAFETY: the address has been mapped from the beginning, and reading it changes nothing.
    unsafe { (address as *const u32).read_volatile() }
}

fn write(address: u64, value: u32) {
    // SAFETY: the pin that the tests select is unconnected.
    unsafe { (address as *mut u32).write_volatile(value) };
}

/// Where a case is run in addition to memory.
struct Device {
    address: u64,
    /// Stores a value in it; a device that stores nothing shows all ones.
    fill: fn(u64),
}

const REGISTER: Device = Device { address: IOWIN, fill: |value| write(IOWIN, value as u32) };
const NOTHING: Device = Device { address: HOLE, fill: |_| {} };
/// The register as accesses of other sizes see it.
const NO_REGISTER: Device = Device { address: IOWIN, fill: |_| {} };

impl Device {
    /// Runs a case on memory and on the device, both of which hold `value`, and checks that it has
    /// the same effect on the registers. Returns the resulting value in memory.
    fn compare(&self, case: &Case, value: u64, rax: u64, rdx: u64) -> Result<u64, Failure> {
        let Case { name, run } = case;
        let is_logical = name.split(' ').any(|word| matches!(word, "and" | "or" | "xor" | "test"));
        // Each flag set and cleared.
        for flags in [0, FLAGS] {
            let before = State { rax, rdx, flags: flags | 2 };
            let (mut here, mut there) = (before, before);
            MEMORY.write(&[value]);
            (self.fill)(value);
            let results = (run(MEMORY.address(), &mut here), run(self.address, &mut there));
            ensure!(results == (Ok(()), Ok(())), "{name}: {results:x?}");
            if is_logical {
                here.flags |= AUXILIARY;
                there.flags |= AUXILIARY;
            }
            ensure!(here == there, "{name}, {value:#x}: {there:x?} instead of {here:x?} after {before:x?}");
        }
        Ok(memory())
    }
}

/// Registers and flags are as on memory, and so is the device's register, in its writable bits.
pub(super) fn mmio_arithmetic() -> Verdict {
    write(IOAPIC, ENTRY);
    for case in &CASES_32 {
        for value in VALUES {
            for rdx in VALUES {
                write(IOWIN, value as u32);
                let value = u64::from(read(IOWIN));
                // CMPXCHG uses the accumulator, which is equal half of the time.
                let rax = if rdx & 1 == 0 { value | 5 << 32 } else { rdx };
                let left = REGISTER.compare(case, value, rax, rdx)?;
                let (expected, now) = (value & !WRITABLE | left & WRITABLE, u64::from(read(IOWIN)));
                ensure!(now == expected, "{}, {value:#x}, {rdx:#x}: {now:#x}, not {expected:#x}", case.name);
            }
        }
    }
    for case in CASES_32.iter().chain(&CASES_OTHER) {
        for rdx in VALUES {
            NOTHING.compare(case, u64::MAX, rdx | 0xff, rdx)?;
        }
    }
    // Other sizes find no device on the I/O APIC either.
    write(IOWIN, 0x2234);
    for case in &CASES_OTHER {
        NO_REGISTER.compare(case, u64::MAX, 0, 0x3b)?;
        ensure!(read(IOWIN) == 0x2234, "{} changes the I/O APIC", case.name);
    }
    Ok(())
}

/// The registers after a string instruction.
pub(super) struct Strung {
    pub(super) source: u64,
    pub(super) destination: u64,
    pub(super) left: u64,
    pub(super) rax: u64,
    pub(super) fault: Result<(), Fault>,
}

/// One string instruction with RSI, RDI, RCX and RAX, and with DX if there is a port.
macro_rules! string {
    ($instruction:expr, $source:expr, $destination:expr, $count:expr, $rax:expr) => {
        string!($instruction, 0u16, $source, $destination, $count, $rax)
    };
    ($instruction:expr, $port:expr, $source:expr, $destination:expr, $count:expr, $rax:expr) => {{
        let (source, destination, left, rax, fault, error): (u64, u64, u64, u64, u64, u64);
        // SAFETY: the tests pass addresses for their exclusive use; a fault is guarded.
        unsafe {
            asm!(
                guarded!($instruction), "cld",
                in("dx") $port, inout("rsi") $source => source, inout("rdi") $destination => destination,
                inout("rcx") $count => left, inout("rax") $rax => rax,
                inout("r11") 0u64 => fault, inout("r10") 0u64 => error,
            );
        }
        Strung { source, destination, left, rax, fault: Fault::check(fault, error) }
    }};
}
pub(super) use string;

/// Moves four bytes of ones, the value of unused addresses, to `address`, if a page is there.
pub(super) fn move_ones(address: u64) -> Result<(), Fault> {
    string!("movsd", HOLE, address, 0u64, 0u64).fault
}

impl Strung {
    pub(super) fn expect(&self, name: &str, source: u64, destination: u64, left: u64) -> Verdict {
        ensure!(self.fault.is_ok(), "{name}: {:x?}", self.fault);
        let now = (self.source, self.destination, self.left);
        ensure!(now == (source, destination, left), "{name}: RSI, RDI, RCX are {now:x?}");
        Ok(())
    }
}

fn fill(value: u64) {
    MEMORY.write(&[value; 512]);
}

fn count_of(value: u64) -> usize {
    MEMORY.words().iter().take_while(|word| word.load(Ordering::SeqCst) == value).count()
}

/// MOVS, STOS and LODS from and to devices, with more elements than a hypervisor processes at once.
pub(super) fn mmio_strings() -> Verdict {
    let here = MEMORY.address();
    fill(0);
    string!("rep movsq", HOLE, here, 300u64, 0u64).expect("rep movsq", HOLE + 2400, here + 2400, 0)?;
    ensure!(count_of(u64::MAX) == 300, "rep movsq moved {} words of ones", count_of(u64::MAX));
    string!("rep movsb", here, HOLE + 0xffe, 7u64, 0u64).expect("rep movsb", here + 7, HOLE + 0x1005, 0)?;
    string!("rep stosd", 0u64, HOLE, 1000u64, 7u64).expect("rep stosd", 0, HOLE + 4000, 0)?;
    let down = string!("std\nrep lodsw\ncld", HOLE + 200, 0u64, 100u64, 0u64);
    down.expect("rep lodsw down", HOLE, 0, 0)?;
    ensure!(down.rax == 0xffff, "lodsw: RAX is {:#x}", down.rax);
    string!("rep movsd", HOLE, here, 0u64, 0u64).expect("rep movsd of nothing", HOLE, here, 0)?;

    // The same register repeatedly, and from a device into memory.
    write(IOAPIC, ENTRY);
    write(IOWIN, 0);
    string!("stosd", 0u64, IOWIN, 0u64, 0x8123u64).expect("stosd", 0, IOWIN + 4, 0)?;
    fill(0);
    string!("movsd", IOWIN, here, 0u64, 0u64).expect("movsd", IOWIN + 4, here + 4, 0)?;
    ensure!(memory() == 0x8123, "STOSD and MOVSD by the I/O APIC: {:#x}", memory());
    write(IOWIN, 0);
    string_edges()
}

/// Strings that cross from memory to devices, from devices to memory, and into unused addresses.
fn string_edges() -> Verdict {
    let edge = WINDOW + PAGE;
    fill(0x0101_0101_0101_0101);
    paging::map(0, Some(&MEMORY));
    map_device(1, HOLE);
    let over = string!("rep stosb", 0u64, edge - 5, 80u64, 0x77u64);
    over.expect("rep stosb across an edge", 0, edge + 75, 0)?;
    let last = MEMORY.words()[511].load(Ordering::SeqCst);
    ensure!(last == 0x7777_7777_7701_0101, "rep stosb across an edge left {last:#x}");
    let back = string!("std\nrep lodsb\ncld", edge + 3, 0u64, 5u64, 0u64);
    back.expect("rep lodsb down across an edge", edge - 2, 0, 0)?;
    ensure!(back.rax as u8 == 0x77, "rep lodsb down across an edge: {:#x}", back.rax);

    paging::map(1, None);
    let absent = string!("rep movsd", HOLE, edge - 8, 5u64, 0u64);
    ensure!(absent.fault == Err(Fault::page(2)), "rep movsd to nothing: {:x?}", absent.fault);
    let now = (absent.source, absent.destination, absent.left);
    ensure!(now == (HOLE + 8, edge, 3), "rep movsd to nothing: RSI, RDI, RCX are {now:x?}");
    let cr2 = x86_64::registers::control::Cr2::read_raw();
    ensure!(cr2 == edge, "rep movsd to nothing: CR2 is {cr2:#x}");

    // The processor has not reached the destination.
    paging::entry(0).store(MEMORY.address() | RIGHTS, Ordering::SeqCst);
    x86_64::instructions::tlb::flush(x86_64::VirtAddr::new(WINDOW));
    string!("movsd", HOLE, WINDOW, 0u64, 0u64).expect("movsd", HOLE + 4, WINDOW + 4, 0)?;
    let bits = paging::entry(0).load(Ordering::SeqCst) & (ACCESSED | DIRTY);
    ensure!(bits == ACCESSED | DIRTY, "a page that was written to has bits {bits:#x}");
    paging::map(0, None);
    Ok(())
}

fn map_device(index: usize, address: u64) {
    paging::entry(index).store(address | RIGHTS, Ordering::SeqCst);
    x86_64::instructions::tlb::flush(x86_64::VirtAddr::new(WINDOW + index as u64 * PAGE));
}

/// Accesses to two pages, one of which is a device's, and accesses that are not emulated.
pub(super) fn mmio_edges() -> Verdict {
    const REFUSED: [Case; 5] = cases! {
        "inc dword ptr [rdi]" "adc [rdi], edx" "lock xadd [rdi], edx"
        "push qword ptr [rdi]\nadd rsp, 8" "movups xmm0, [rdi]"
    };
    const LOAD: Case = case!("mov rdx, [rdi]");
    const STORE: Case = case!("mov [rdi], rdx");
    const ADD: Case = case!("lock add [rdi], rdx");
    let state = State { rax: 1, rdx: 0x1122_3344_5566_7788, flags: 2 };
    for address in [HOLE, IOWIN] {
        for case in &REFUSED {
            let mut after = state;
            let result = (case.run)(address, &mut after);
            ensure!(result == Err(Fault::UNDEFINED), "{} at {address:#x}: {result:x?}", case.name);
            ensure!((after.rax, after.rdx) == (1, state.rdx), "{} faults and changes registers", case.name);
        }
    }
    fill(0x0707_0707_0707_0707);
    write(IOAPIC, ENTRY);
    paging::map(0, Some(&MEMORY));
    map_device(1, IOAPIC);
    let edge = WINDOW + PAGE;
    let mut after = state;
    // The upper half is the I/O APIC's first register, in its width.
    let result = (LOAD.run)(edge - 4, &mut after);
    ensure!(result.is_ok() && after.rdx == 0x22_0707_0707, "a load across the edge: {:#x}", after.rdx);
    let result = (LOAD.run)(edge - 3, &mut after);
    ensure!(result.is_ok() && after.rdx == !0 << 24 | 0x07_0707, "a load of 3 bytes and 5: {:#x}", after.rdx);
    let result = (STORE.run)(edge - 4, &mut state.clone());
    let (selected, last) = (read(IOAPIC), MEMORY.words()[511].load(Ordering::SeqCst));
    ensure!(result.is_ok() && selected == 0x44, "a store across the edge selects {selected:#x}");
    ensure!(last == 0x5566_7788_0707_0707, "a store across the edge left {last:#x}");
    let result = (ADD.run)(edge - 4, &mut state.clone());
    ensure!(result == Err(Fault::UNDEFINED), "an atomic addition across the edge: {result:x?}");
    paging::map(1, None);
    let result = (STORE.run)(edge - 4, &mut state.clone());
    ensure!(result == Err(Fault::page(2)), "a store across the edge to nothing: {result:x?}");
    paging::map(0, None);
    Ok(())
}
