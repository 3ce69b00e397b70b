//! Guests of the probe, and how it runs them: by the registers and tables that it has itself.

use core::arch::x86_64::__cpuid;
use core::arch::{asm, global_asm, naked_asm};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use baremetal::encodings::gate;
use baremetal::x86_64::tables::{self, KERNEL_CODE, KERNEL_DATA};
use x86_64::instructions::tables::{sgdt, sidt};
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4};

use super::block::*;
use crate::guarded::{rdmsr, wrmsr};
use crate::paging::{self, PAGE, Page};
use crate::report::{Verdict, ensure};

pub(super) const MSR_EFER: u32 = 0xc000_0080;
pub(super) const MSR_VM_CR: u32 = 0xc001_0114;
pub(super) const MSR_HSAVE: u32 = 0xc001_0117;
pub(super) const SVME: u64 = 1 << 12;
/// EFER: an entry may forbid to execute.
pub(super) const NXE: u64 = 1 << 11;
/// RFLAGS: the bit that is always set, and that of interrupts.
pub(super) const FLAGS: u64 = 2;
pub(super) const IF: u64 = 1 << 9;

/// Attributes of segments in a block: code of 64 bits, data, code and data of ring 3.
pub(super) const CODE_64: u16 = 0xa9b;
pub(super) const DATA: u16 = 0xc93;
pub(super) const USER_CODE_64: u16 = 0xafb;
pub(super) const USER_DATA: u16 = 0xcf3;

/// Processors that run guests.
const PROCESSORS: usize = 2;

/// The pages of a processor's guest.
pub(super) struct Pages {
    block: Page,
    save: Page,
    stack: Page,
    idt: Page,
    /// The map of ports; three bits are in the third page.
    pub(super) io: [Page; 3],
    pub(super) msrs: [Page; 2],
    /// For whatever a test needs.
    pub(super) data: [Page; 4],
}

static PAGES: [Pages; PROCESSORS] = [const {
    const fn some<const N: usize>() -> [Page; N] {
        [const { Page::new() }; N]
    }
    let [block, save, stack, idt] = some();
    Pages { block, save, stack, idt, io: some(), msrs: some(), data: some() }
}; PROCESSORS];

/// What CPUID 8000_000A says.
#[derive(Clone, Copy)]
pub(super) struct Features {
    pub(super) asids: u32,
    pub(super) bits: u32,
}

pub(super) fn features() -> Features {
    let leaf = __cpuid(0x8000_000a);
    Features { asids: leaf.ebx, bits: leaf.edx }
}

impl Features {
    pub(super) const fn nested_paging(self) -> bool {
        self.bits & 1 != 0
    }

    pub(super) const fn next_rip(self) -> bool {
        self.bits & 1 << 3 != 0
    }

    pub(super) const fn flush_by_asid(self) -> bool {
        self.bits & 1 << 6 != 0
    }

    pub(super) const fn decode_assists(self) -> bool {
        self.bits & 1 << 7 != 0
    }
}

/// The first address beyond the physical width.
pub(super) fn memory_end() -> u64 {
    1 << (__cpuid(0x8000_0008).eax & 0xff)
}

/// Switches SVM on, on the calling processor.
pub(super) fn enable() -> Verdict {
    let efer = rdmsr(MSR_EFER).unwrap_or(0);
    // SAFETY: the bit affects nothing but the instructions of SVM.
    let on = unsafe { wrmsr(MSR_EFER, efer | SVME) };
    ensure!(on.is_ok(), "EFER.SVME cannot be set: {on:?}");
    // SAFETY: the page has no other purpose.
    let saved = unsafe { wrmsr(MSR_HSAVE, PAGES[tables::number()].save.address()) };
    ensure!(saved.is_ok(), "VM_HSAVE_PA: {saved:?}");
    Ok(())
}

/// Whether guests have nested paging, by the tables that the probe has itself.
pub(super) static IS_NESTED: AtomicBool = AtomicBool::new(false);

/// The last page of memory below 4 GiB, if that is known.
static LAST_PAGE: AtomicU64 = AtomicU64::new(0);

/// Sets where memory ends.
pub(crate) fn set_ram(ends: impl Iterator<Item = u64>) {
    let end = ends.filter(|end| *end <= 1 << 32).max().unwrap_or(0);
    LAST_PAGE.store(end.saturating_sub(PAGE) & !(PAGE - 1), Ordering::Relaxed);
}

/// A page that is memory and has no other purpose.
pub(super) fn last_page() -> Option<&'static Page> {
    // SAFETY: the image lies below it, and what the loader has left there is not read again.
    unsafe { (LAST_PAGE.load(Ordering::Relaxed) as *const Page).as_ref() }
}

/// Switches EFER.NXE of the probe.
pub(super) fn set_nxe(on: bool) {
    let efer = rdmsr(MSR_EFER).unwrap_or(0);
    // SAFETY: none of the probe's entries forbids to execute.
    let _ = unsafe { wrmsr(MSR_EFER, efer & !NXE | if on { NXE } else { 0 }) };
}

/// Switches CR0.WP of the probe.
pub(super) fn protect_writes(on: bool) {
    // SAFETY: the probe has no pages that it cannot write to.
    unsafe { Cr0::update(|flags| flags.set(Cr0Flags::WRITE_PROTECT, on)) };
}

/// Code of a guest: where it begins, and the address behind its first instruction. It ends with
/// VMMCALL.
#[derive(Clone, Copy)]
pub(super) struct Code {
    pub(super) at: u64,
    pub(super) next: u64,
}

macro_rules! code {
    ($($first:literal)? $(; $more:literal)* $(;)?) => {{
        let (at, next): (u64, u64);
        // SAFETY: the code is not executed here.
        unsafe {
            core::arch::asm!(
                "lea {}, [rip + 2f]", "lea {}, [rip + 3f]", "jmp 4f",
                "2:", $($first,)? "3:", $($more,)* "vmmcall", "4:",
                out(reg) at, out(reg) next, options(nomem, nostack, preserves_flags),
            );
        }
        $crate::svm::l2::Code { at, next }
    }};
}
pub(super) use code;

// A guest's handlers: the vector's number is pushed, then VMMCALL. Behind it the guest goes on.
global_asm!(
    ".section .text",
    ".balign 16",
    "l2_handlers:",
    ".set vector, 0",
    ".rept 256",
    ".balign 16",
    "push vector",
    "vmmcall",
    "lea rsp, [rsp + 8]",
    "iretq",
    ".set vector, vector + 1",
    ".endr",
);

unsafe extern "C" {
    static l2_handlers: [[u8; 16]; 256];
}

/// The general registers of a guest but RAX and RSP, by their numbers; and what is found after an
/// exit in those of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Registers {
    pub(super) general: [u64; 16],
    rax: u64,
    rflags: u64,
    stack: [u64; 2],
}

pub(super) const RCX: usize = 1;
pub(super) const RDX: usize = 2;
pub(super) const RBX: usize = 3;
pub(super) const RSI: usize = 6;
pub(super) const RDI: usize = 7;

/// Runs a guest until it exits, with `flags` as the host's RFLAGS at VMRUN. GIF is 0 afterwards.
///
/// # Safety
///
/// `block` is the address of a control block whose guest does no harm.
#[unsafe(naked)]
unsafe extern "C" fn enter(block: u64, registers: *mut Registers, flags: u64) {
    naked_asm!(
        "push rbx; push rbp; push r12; push r13; push r14; push r15; push rsi",
        "mov [rsi + 0x90], rsp",
        "clgi",
        "push rdx; popfq",
        "mov rax, rdi",
        "mov rcx, [rsi + 0x08]; mov rdx, [rsi + 0x10]; mov rbx, [rsi + 0x18]; mov rbp, [rsi + 0x28]",
        "mov rdi, [rsi + 0x38]; mov r8, [rsi + 0x40]; mov r9, [rsi + 0x48]; mov r10, [rsi + 0x50]",
        "mov r11, [rsi + 0x58]; mov r12, [rsi + 0x60]; mov r13, [rsi + 0x68]; mov r14, [rsi + 0x70]",
        "mov r15, [rsi + 0x78]; mov rsi, [rsi + 0x30]",
        "vmrun rax",
        "xchg rax, [rsp]",
        "mov [rax + 0x98], rsp",
        "pushfq; pop qword ptr [rax + 0x88]",
        "pop qword ptr [rax + 0x80]",
        "push 2; popfq",
        "mov [rax + 0x08], rcx; mov [rax + 0x10], rdx; mov [rax + 0x18], rbx; mov [rax + 0x28], rbp",
        "mov [rax + 0x30], rsi; mov [rax + 0x38], rdi; mov [rax + 0x40], r8; mov [rax + 0x48], r9",
        "mov [rax + 0x50], r10; mov [rax + 0x58], r11; mov [rax + 0x60], r12; mov [rax + 0x68], r13",
        "mov [rax + 0x70], r14; mov [rax + 0x78], r15",
        "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
        "ret",
    )
}

pub(super) fn stgi() {
    // SAFETY: SVM is on; what was held is taken as usual.
    unsafe { asm!("stgi") };
}

pub(super) fn clgi() {
    // SAFETY: SVM is on; nothing here waits for an interrupt until STGI.
    unsafe { asm!("clgi") };
}

/// Drops the translations of an address under an ASID.
pub(super) fn invlpga(address: u64, asid: u32) {
    // SAFETY: SVM is on; dropping translations is always allowed.
    unsafe { asm!("invlpga rax, ecx", in("rax") address, in("ecx") asid) };
}

/// The block of the first processor's guest.
pub(super) fn block_of_first() -> Block {
    Block(&PAGES[0].block)
}

/// A guest, its registers, and those of the probe when it runs it.
pub(super) struct L2 {
    pub(super) block: Block,
    pub(super) pages: &'static Pages,
    pub(super) registers: Registers,
    /// The probe's RFLAGS at VMRUN.
    pub(super) flags: u64,
}

impl L2 {
    /// The calling processor's guest, with a state like the probe's own and handlers for all
    /// vectors. It exits by VMMCALL and shutdown; all ports and MSRs are its own.
    pub(super) fn new(code: Code) -> Self {
        Self::with_pages(tables::number(), code)
    }

    /// The same for this processor, which cannot find its number itself.
    pub(super) fn with_pages(processor: usize, code: Code) -> Self {
        let pages = &PAGES[processor];
        for page in [&pages.block].into_iter().chain(&pages.io).chain(&pages.msrs) {
            page.write(&[0; 512]);
        }
        let block = Block(&pages.block);
        for number in 0..256usize {
            // SAFETY: the address of our own text is taken, nothing is read.
            let handler = unsafe { &raw const l2_handlers[number] }.addr() as u64;
            pages.idt.write_at(2 * number, &gate(handler, KERNEL_CODE, 0));
        }
        for code in [exit::SHUTDOWN, exit::VMRUN, exit::VMMCALL] {
            block.intercept(code);
        }
        block.set(IO_MAP, pages.io[0].address());
        block.set(MSR_MAP, pages.msrs[0].address());
        block.set_field(ASID, 32, 1);
        block.set_field(TLB_CONTROL, 8, 1);
        block.set_segment(CS, KERNEL_CODE, CODE_64, u32::MAX, 0);
        for offset in [ES, SS, DS] {
            block.set_segment(offset, KERNEL_DATA, DATA, u32::MAX, 0);
        }
        block.set_segment(GDTR, 0, 0, sgdt().limit.into(), sgdt().base.as_u64());
        block.set_segment(IDTR, 0, 0, PAGE as u32 - 1, pages.idt.address());
        let values = [
            (EFER, rdmsr(MSR_EFER).unwrap_or(0)),
            (CR0, Cr0::read_raw()),
            (CR3, paging::space()),
            (CR4, Cr4::read_raw()),
            (DR6, 0xffff_0ff0),
            (DR7, 0x400),
            (RFLAGS, FLAGS),
            (RIP, code.at),
            (RSP, pages.stack.address() + PAGE),
            (PAT, 0x0007_0406_0007_0406),
        ];
        values.into_iter().for_each(|(offset, value)| block.set(offset, value));
        block.set(NESTED, IS_NESTED.load(Ordering::Relaxed).into());
        block.set(NESTED_CR3, tables::root().address());
        let mut registers = Registers::default();
        (0..16u64).for_each(|number| registers.general[number as usize] = 0x1111_1111_1111_1111 * number);
        Self { block, pages, registers, flags: FLAGS }
    }

    /// Runs it with `flags` until it exits, and leaves GIF at 0; returns the exit's code.
    pub(super) fn run_held(&mut self) -> u32 {
        // SAFETY: the tests' guests touch their own memory only; the block is ours.
        unsafe { enter(self.block.0.address(), &raw mut self.registers, self.flags) };
        self.block.exit_code()
    }

    /// The same, and then takes what has been held.
    pub(super) fn run(&mut self) -> u32 {
        let code = self.run_held();
        stgi();
        code
    }

    /// Begins anew at `code`, with an empty stack.
    pub(super) fn run_at(&mut self, code: Code) -> u32 {
        self.block.set(RIP, code.at);
        self.block.set(RSP, self.stack_top());
        self.run()
    }

    pub(super) fn stack_top(&self) -> u64 {
        self.pages.stack.address() + PAGE
    }

    /// Copies the probe's descriptors into a page of the guest's.
    pub(super) fn own_gdt(&self, page: usize) -> &'static Page {
        for word in 0..7 {
            // SAFETY: the probe's table has seven words: five descriptors, and one of two words.
            let descriptor = unsafe { sgdt().base.as_ptr::<u64>().add(word).read() };
            self.pages.data[page].write_at(word, &[descriptor]);
        }
        &self.pages.data[page]
    }

    /// The words at the guest's stack pointer.
    pub(super) fn stack<const N: usize>(&self) -> [u64; N] {
        let first = (self.block.get(RSP).wrapping_sub(self.pages.stack.address()) / 8) as usize;
        let words = self.pages.stack.words();
        core::array::from_fn(|n| words.get(first + n).map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    /// Puts words into the stack's page, at the word `first`.
    pub(super) fn pages_stack(&self, first: usize, words: &[u64]) {
        self.pages.stack.write_at(first, words);
    }

    /// The vector of the handler that the guest is in, if it has just exited from one.
    pub(super) fn vector(&self) -> Option<u64> {
        // SAFETY: the address of our own text is taken, nothing is read.
        let handlers = (&raw const l2_handlers).addr() as u64;
        let number = self.block.get(RIP).wrapping_sub(handlers) / 16;
        (self.block.exit_code() == exit::VMMCALL && number < 256).then_some(number)
    }

    /// Lets it go on behind the VMMCALL that it has exited by.
    pub(super) fn go_on(&mut self) -> u32 {
        self.block.set(RIP, self.block.get(RIP).wrapping_add(3));
        self.run()
    }

    /// Whether the host's RAX, RSP and RFLAGS came back.
    pub(super) fn host_is_whole(&self) -> bool {
        let Registers { rax, rflags, stack, .. } = self.registers;
        rax == self.block.0.address() && rflags == self.flags && stack[0] == stack[1]
    }
}

/// What VMRUN saves of the host and #VMEXIT loads, but what [`L2::host_is_whole`] looks at; and
/// what neither touches.
pub(super) fn host_state() -> [u64; 16] {
    let mut state = [0u64; 16];
    // SAFETY: reading changes nothing; the last element stays.
    unsafe {
        asm!(
            "mov {t}, cr0", "mov [{s}], {t}", "mov {t}, cr3", "mov [{s} + 8], {t}",
            "mov {t}, cr4", "mov [{s} + 16], {t}", "mov {t}, cr8", "mov [{s} + 24], {t}",
            "mov {t}, cs", "mov [{s} + 32], {t}", "mov {t}, ss", "mov [{s} + 40], {t}",
            "mov {t}, ds", "mov [{s} + 48], {t}", "mov {t}, es", "mov [{s} + 56], {t}",
            "str {t}", "mov [{s} + 64], {t}", "mov {t}, dr7", "mov [{s} + 72], {t}",
            t = out(reg) _, s = in(reg) state.as_mut_ptr(),
        );
    }
    let [gdtr, idtr] = [sgdt(), sidt()];
    state[10] = rdmsr(MSR_EFER).unwrap_or(0);
    (state[11], state[12]) = (gdtr.base.as_u64(), gdtr.limit.into());
    (state[13], state[14]) = (idtr.base.as_u64(), idtr.limit.into());
    state
}
