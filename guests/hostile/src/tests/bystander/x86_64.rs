//! AMD64: the registers, and the flush by hypercall.

use baremetal::x86_64::clock;
use baremetal::x86_64::guarded::{rdmsr, wrmsr};

use crate::tests::attack;
use crate::tests::prelude::*;

/// HvCallFlushVirtualAddressList with one address; its result says that one was flushed.
const FLUSH_ONE: u64 = 3 | 1 << 32;
const DONE_ONE: u64 = 1 << 32;
/// All address spaces, all VPs.
const ALL: u64 = 3;
/// The Hyper-V interface's MSR with the ticks of the TSC per second.
const TSC_FREQUENCY: u32 = 0x4000_0022;
/// XMM0 to XMM15.
const VECTORS: usize = 16;
/// Registers that a kernel sets once: FS.base, KERNEL_GS.base, STAR, LSTAR, CSTAR, SFMASK,
/// SYSENTER_CS, SYSENTER_ESP, SYSENTER_EIP, PAT; and what changes nothing here.
const MSRS: [(u32, u64); 9] = [
    (0xc000_0100, 0x0000_1234_5678_9000),
    (0xc000_0102, 0x0000_7654_3210_f000),
    (0xc000_0081, 0x0013_0008_0000_0000),
    (0xc000_0082, 0xffff_8000_1234_5678),
    (0xc000_0083, 0xffff_8000_8765_4321),
    (0xc000_0084, 0x0004_7700),
    (0x174, 0x8),
    (0x175, 0xffff_8000_0000_1000),
    (0x176, 0xffff_8000_0000_2000),
];
/// What is different on each processor.
const EACH: u64 = 1 << 12;

static INPUT: Page = Page::new();

pub(super) fn prepare() -> Verdict {
    attack::enable_calls()?;
    let hz = rdmsr(TSC_FREQUENCY);
    ensure!(hz.is_ok(), "nothing says how fast the clock is: {hz:?}");
    clock::set_hz(hz.unwrap_or(0));
    Ok(())
}

/// Drops translations of the page at `address` on all processors.
pub(super) fn flush(address: u64) -> Result<(), Failure> {
    INPUT.write(&[0, ALL, u64::MAX, address]);
    match attack::hypercall(FLUSH_ONE, INPUT.address(), 0) {
        Some(DONE_ONE) => Ok(()),
        other => Err(failure(format_args!("the flush returns {other:x?}"))),
    }
}

pub(super) struct Registers {
    msrs: [u64; MSRS.len()],
    debug: [u64; 4],
    vectors: [[u64; 2]; VECTORS],
    general: u64,
}

impl Registers {
    pub(super) fn load(number: usize) -> Self {
        let each = EACH * number as u64;
        let msrs = MSRS.map(|(msr, value)| {
            let value = if msr == 0x174 { value } else { value + each };
            // SAFETY: the program uses none of these registers.
            let _ = unsafe { wrmsr(msr, value) };
            rdmsr(msr).unwrap_or(0)
        });
        let debug = [1, 2, 3, 4].map(|part| 0x1000 * part + each + 0x1_0000_0000);
        let vectors =
            core::array::from_fn(|index| [index as u64 * 0x0101_0101 + each, !(index as u64) - each]);
        // SAFETY: no breakpoint is enabled; the program is built without vector registers.
        unsafe {
            asm!("mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}",
                in(reg) debug[0], in(reg) debug[1], in(reg) debug[2], in(reg) debug[3], options(nostack));
        }
        load_vectors(&vectors);
        Self { msrs, debug, vectors, general: 0x0123_4567_89ab_cdef ^ each }
    }

    /// How many have changed.
    pub(super) fn check(&mut self) -> u64 {
        let mut wrong = 0;
        for ((msr, _), expected) in MSRS.iter().zip(&self.msrs) {
            wrong += u64::from(rdmsr(*msr).unwrap_or(0) != *expected);
        }
        let debug: [u64; 4];
        // SAFETY: reading has no effect.
        unsafe {
            let (zero, one, two, three);
            asm!("mov {}, dr0", "mov {}, dr1", "mov {}, dr2", "mov {}, dr3",
                out(reg) zero, out(reg) one, out(reg) two, out(reg) three, options(nostack, nomem));
            debug = [zero, one, two, three];
        }
        wrong += debug.iter().zip(&self.debug).filter(|(found, expected)| found != expected).count() as u64;
        let vectors = store_vectors();
        wrong +=
            vectors.iter().zip(&self.vectors).filter(|(found, expected)| found != expected).count() as u64;
        self.general = self.general.rotate_left(1);
        wrong + general(self.general)
    }
}

macro_rules! vectors {
    ($text:literal, $array:expr) => {
        // SAFETY: SSE is enabled; the array has the size of the registers, which are not used
        // otherwise.
        unsafe {
            asm!(
                ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
                $text,
                ".endr",
                place = in(reg) $array, options(nostack, preserves_flags),
            );
        }
    };
}

fn load_vectors(vectors: &[[u64; 2]; VECTORS]) {
    vectors!("movups xmm\\n, [{place} + 16 * \\n]", vectors.as_ptr());
}

fn store_vectors() -> [[u64; 2]; VECTORS] {
    let mut vectors = [[0; 2]; VECTORS];
    vectors!("movups [{place} + 16 * \\n], xmm\\n", vectors.as_mut_ptr());
    vectors
}

/// Keeps patterns in the general registers for a while; returns how many of them have changed.
fn general(pattern: u64) -> u64 {
    let wrong: u64;
    // SAFETY: only the named registers are used; RBX is restored.
    unsafe {
        asm!(
            "push rbx",
            "mov rbx, rax", "lea rdx, [rax + 1]", "lea rsi, [rax + 2]", "lea rdi, [rax + 3]", "lea r8, [rax + 4]",
            "lea r9, [rax + 5]", "lea r10, [rax + 6]", "lea r11, [rax + 7]", "lea r12, [rax + 8]",
            "lea r13, [rax + 9]", "lea r14, [rax + 10]",
            "2:", "dec rcx", "jnz 2b",
            "sub rdx, 1", "sub rsi, 2", "sub rdi, 3", "sub r8, 4", "sub r9, 5", "sub r10, 6", "sub r11, 7",
            "sub r12, 8", "sub r13, 9", "sub r14, 10",
            "xor rdx, rax", "xor rsi, rax", "xor rdi, rax", "xor r8, rax", "xor r9, rax", "xor r10, rax",
            "xor r11, rax", "xor r12, rax", "xor r13, rax", "xor r14, rax", "xor rbx, rax",
            "or r15, rdx", "or r15, rsi", "or r15, rdi", "or r15, r8", "or r15, r9", "or r15, r10", "or r15, r11",
            "or r15, r12", "or r15, r13", "or r15, r14", "or r15, rbx",
            "pop rbx",
            in("rax") pattern, inout("rcx") 200u64 => _, inout("r15") 0u64 => wrong,
            out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("r12") _, out("r13") _, out("r14") _,
        );
    }
    u64::from(wrong != 0)
}
