//! Registers: which VMRUN loads, #VMEXIT saves, and VMLOAD and VMSAVE switch.

use core::arch::asm;
use core::sync::atomic::Ordering;

use super::block::*;
use super::clauses::clause;
use super::l2::{CODE_64, DATA, FLAGS, L2, RDI, USER_CODE_64, USER_DATA, clgi, code, host_state, stgi};
use crate::guarded::rdmsr;
use crate::paging::Page;
use crate::report::Verdict;
use crate::tables;

const NE: u64 = 1 << 5;
const TS: u64 = 1 << 3;
const DE: u64 = 1 << 3;
const SCE: u64 = 1;

fn word(page: &Page, index: usize) -> u64 {
    page.words()[index].load(Ordering::Relaxed)
}

/// The guest finds each register as the block has it.
pub(super) fn loaded() -> Verdict {
    // Each is stored at RDI; the last ones are 10 bytes.
    let mut l2 = L2::new(code!(
        "mov [rdi], rax"; "mov [rdi + 8], rsp"; "pushfq"; "pop rax"; "mov [rdi + 16], rax";
        "mov rax, cr0"; "mov [rdi + 24], rax"; "mov rax, cr2"; "mov [rdi + 32], rax";
        "mov rax, cr3"; "mov [rdi + 40], rax"; "mov rax, cr4"; "mov [rdi + 48], rax";
        "mov rax, dr6"; "mov [rdi + 56], rax"; "mov rax, dr7"; "mov [rdi + 64], rax";
        "mov ecx, 0xc0000080"; "rdmsr"; "mov [rdi + 72], eax"; "mov [rdi + 76], edx";
        "mov eax, es"; "mov [rdi + 80], rax"; "mov eax, cs"; "mov [rdi + 88], rax";
        "mov eax, ss"; "mov [rdi + 96], rax"; "mov eax, ds"; "mov [rdi + 104], rax";
        "sgdt [rdi + 112]"; "sidt [rdi + 128]"; "lea rax, [rip + 2b]"; "mov [rdi + 144], rax"
    ));
    let page = &l2.pages.data[0];
    page.write(&[0; 64]);
    l2.registers.general[RDI] = page.address();
    let gdt = l2.own_gdt(1);
    l2.block.set_segment(GDTR, 0, 0, 0x37, gdt.address());
    l2.block.set_segment(IDTR, 0, 0, 0x7ff, l2.block.get(IDTR + 8));
    l2.block.set_segment(ES, 0x18 | 3, USER_DATA, u32::MAX, 0);
    l2.block.set_segment(DS, 0, 0, 0, 0);
    let stack = l2.stack_top() - 0x48;
    let flags = FLAGS | 0x8d5 | 1 << 21;
    let values = [
        (RAX, 0x0123_4567_89ab_cdef),
        (RSP, stack),
        (RFLAGS, flags),
        (CR0, l2.block.get(CR0) ^ NE ^ TS),
        (CR2, 0xffff_8123_4567_89ab),
        (CR3, crate::paging::other_space()),
        (CR4, l2.block.get(CR4) ^ DE),
        (DR6, 0xffff_0ff5),
        (DR7, 0x0455),
        (EFER, l2.block.get(EFER) ^ SCE),
    ];
    // DR7 enables breakpoints: none may be at an address that is used.
    set_breakpoints(0x7000_0000_0000);
    values.iter().for_each(|&(offset, value)| l2.block.set(offset, value));
    let at = l2.block.get(RIP);
    let before = host_state();
    let code = l2.run();
    clause!("loads", code == exit::VMMCALL, "exit {code:#x} at {:#x}", l2.block.get(RIP));
    for (index, (offset, value)) in values.into_iter().enumerate() {
        let found = word(page, index);
        clause!("loads", found == value, "block + {offset:#x} is {value:#x}, and the guest finds {found:#x}");
    }
    let selectors = [80, 88, 96, 104].map(|at| word(page, at / 8) & 0xffff);
    clause!("loads-segments", selectors == [0x1b, 8, 0x10, 0], "selectors {selectors:x?}");
    let tables =
        [14, 16].map(|at| (word(page, at) & 0xffff, word(page, at) >> 16 | word(page, at + 1) << 48));
    let wanted = [(0x37, gdt.address()), (0x7ff, l2.block.get(IDTR + 8))];
    clause!("loads-tables", tables == wanted, "GDTR, IDTR: {tables:x?}, not {wanted:x?}");
    clause!("loads-rip", word(page, 18) == at, "RIP {:#x}, not {at:#x}", word(page, 18));
    let after = host_state();
    clause!("restores-host", before == after && l2.host_is_whole(), "{after:x?}, not {before:x?}");
    let dr7: u64;
    // SAFETY: reading changes nothing.
    unsafe { asm!("mov {}, dr7", out(reg) dr7) };
    clause!("breakpoints-off", dr7 == 0x400, "DR7 is {dr7:#x} behind #VMEXIT");
    set_breakpoints(0);
    Ok(())
}

fn set_breakpoints(address: u64) {
    // SAFETY: no breakpoint is enabled in the probe.
    unsafe { asm!("mov dr0, {0}", "mov dr1, {0}", "mov dr2, {0}", "mov dr3, {0}", in(reg) address) };
}

/// What the guest changes is in the block afterwards, and what it cannot change is as it was.
pub(super) fn saved() -> Verdict {
    let mut l2 = L2::new(code!(
        "mov rax, cr0"; "xor eax, 0x28"; "mov cr0, rax"; "mov rax, cr4"; "xor eax, 0xc"; "mov cr4, rax";
        "mov cr2, rbx"; "mov cr3, rdx"; "mov eax, 0xffff0ff3"; "mov dr6, rax"; "mov eax, 0x4aa";
        "mov dr7, rax"; "mov ecx, 0xc0000080"; "mov r8, rdx"; "rdmsr"; "xor eax, 1"; "wrmsr";
        "lgdt [rdi]"; "lidt [rdi + 16]"; "mov eax, 0x1b"; "mov es, eax"; "xor eax, eax"; "mov ds, eax";
        "mov ss, eax"; "lea rsp, [rsp - 0x30]"; "mov rax, 0x8d7"; "push rax"; "popfq";
        "mov rax, 0xfedcba9876543210"
    ));
    let pages = l2.pages;
    l2.own_gdt(1);
    let pseudo = |limit: u64, base: u64| [limit | base << 16, base >> 48];
    pages.data[0].write(&pseudo(0x37, pages.data[1].address()));
    pages.data[0].write_at(2, &pseudo(0x6ff, pages.data[2].address()));
    l2.registers.general[RDI] = pages.data[0].address();
    l2.registers.general[3] = 0xffff_8fed_cba9_8765;
    l2.registers.general[2] = crate::paging::other_space();
    set_breakpoints(0x7000_0000_0000);
    let constant =
        [INTERCEPT_CR, EVENT, IO_MAP, MSR_MAP, TSC_OFFSET, ASID, NESTED, NESTED_CR3, INTERCEPT_MISC + 4];
    let wanted = [
        (CR0, l2.block.get(CR0) ^ 0x28),
        (CR4, l2.block.get(CR4) ^ 0xc),
        (CR2, 0xffff_8fed_cba9_8765),
        (CR3, crate::paging::other_space()),
        (DR6, 0xffff_0ff3),
        (DR7, 0x4aa),
        (EFER, l2.block.get(EFER) ^ SCE),
        (RSP, l2.block.get(RSP) - 0x30),
        (RFLAGS, 0x8d7),
        (RAX, 0xfedc_ba98_7654_3210),
        (GDTR + 8, pages.data[1].address()),
        (IDTR + 8, pages.data[2].address()),
    ];
    if l2.block.get(NESTED) == 0 {
        l2.block.set(NESTED_CR3, 0x1234_5000);
    }
    let before = constant.map(|offset| l2.block.get(offset));
    let host = host_state();
    let code = l2.run();
    clause!("saves", code == exit::VMMCALL, "exit {code:#x} at {:#x}", l2.block.get(RIP));
    for (offset, value) in wanted {
        let found = l2.block.get(offset);
        clause!("saves", found == value, "block + {offset:#x} is {found:#x}, not {value:#x}");
    }
    let limits = [GDTR, IDTR].map(|offset| l2.block.field(offset + 4, 32));
    clause!("saves-tables", limits == [0x37, 0x6ff], "limits {limits:x?}");
    let selectors = [ES, CS, SS, DS].map(|offset| l2.block.field(offset, 16));
    clause!("saves-segments", selectors == [0x1b, 8, 0, 0], "selectors {selectors:x?}");
    let attributes = l2.block.field(CS + 2, 16);
    clause!("saves-segments", attributes == u64::from(CODE_64), "CS has attributes {attributes:#x}");
    let after = constant.map(|offset| l2.block.get(offset));
    clause!("keeps-controls", before == after, "{after:x?}, not {before:x?}");
    clause!("restores-host", host == host_state() && l2.host_is_whole(), "{:x?}", host_state());
    let cr2 = x86_64::registers::control::Cr2::read_raw();
    clause!(
        "shares-cr2",
        cr2 == 0xffff_8fed_cba9_8765,
        "the host's CR2 is {cr2:#x}: #VMEXIT leaves the guest's"
    );
    set_breakpoints(0);
    privilege();
    Ok(())
}

/// The guest's ring is loaded from the block and saved there.
fn privilege() {
    let mut l2 = L2::new(code!("nop"));
    l2.block.set_segment(CS, tables::USER_CODE, USER_CODE_64, u32::MAX, 0);
    l2.block.set_segment(SS, tables::USER_DATA, USER_DATA, u32::MAX, 0);
    l2.block.set_field(CPL, 8, 3);
    let code = l2.run();
    let cpl = l2.block.field(CPL, 8);
    clause!("ring-3", code == exit::VMMCALL && cpl == 3, "exit {code:#x}, CPL {cpl}");
    let mut l2 = L2::new(code!("cli"));
    l2.block.set_segment(CS, tables::USER_CODE, USER_CODE_64, u32::MAX, 0);
    l2.block.set_segment(SS, tables::USER_DATA, USER_DATA, u32::MAX, 0);
    l2.block.set_field(CPL, 8, 3);
    l2.block.intercept(exit::EXCEPTION + 13);
    let code = l2.run();
    clause!("ring-3", code == exit::EXCEPTION + 13, "CLI in ring 3: exit {code:#x}");
    // By IRET into ring 3.
    let mut l2 = L2::new(code!("iretq"));
    let words = [l2.block.get(RIP) + 2, tables::USER_CODE.into(), FLAGS, 0, tables::USER_DATA.into()];
    l2.block.set(RSP, l2.stack_top() - 40);
    l2.pages_stack(512 - 5, &words);
    let code = l2.run();
    let cpl = l2.block.field(CPL, 8);
    clause!("saves-ring", code == exit::VMMCALL && cpl == 3, "exit {code:#x}, CPL {cpl}");
}

const MSRS: [(u64, u32); 10] = [
    (FS + 8, 0xc000_0100),
    (GS + 8, 0xc000_0101),
    (KERNEL_GS_BASE, 0xc000_0102),
    (STAR, 0xc000_0081),
    (LSTAR, 0xc000_0082),
    (CSTAR, 0xc000_0083),
    (SFMASK, 0xc000_0084),
    (SYSENTER_CS, 0x174),
    (SYSENTER_ESP, 0x175),
    (SYSENTER_EIP, 0x176),
];

/// The registers as the processor has them: MSRs, then selectors of FS, GS, LDTR and TR.
fn extra_state() -> [u64; 14] {
    let mut state = [0; 14];
    for (slot, (_, msr)) in state.iter_mut().zip(MSRS) {
        *slot = rdmsr(msr).unwrap_or(u64::MAX);
    }
    // SAFETY: reading changes nothing.
    unsafe {
        asm!(
            "mov {:e}, fs", "mov {:e}, gs", "sldt {:e}", "str {:e}",
            out(reg) state[10], out(reg) state[11], out(reg) state[12], out(reg) state[13],
        );
    }
    state
}

fn in_block(block: Block) -> [u64; 14] {
    let mut state = [0; 14];
    for (slot, (offset, _)) in state.iter_mut().zip(MSRS) {
        *slot = block.get(offset);
    }
    [FS, GS, LDTR, TR].into_iter().zip(10..).for_each(|(offset, slot)| state[slot] = block.field(offset, 16));
    state
}

fn vmsave(block: Block) {
    // SAFETY: the block is a page of ours.
    unsafe { asm!("vmsave rax", in("rax") block.0.address()) };
}

/// # Safety
///
/// What is loaded is loaded with the probe's own values before it is used.
unsafe fn vmload(block: Block) {
    // SAFETY: the caller's promise.
    unsafe { asm!("vmload rax", in("rax") block.0.address()) };
}

static BLOCKS: [Page; 3] = [const { Page::new() }; 3];

/// VMLOAD and VMSAVE switch these registers, VMRUN and #VMEXIT none of them.
pub(super) fn extra() -> Verdict {
    let [own, other, third] = BLOCKS.each_ref().map(Block);
    clgi();
    vmsave(own);
    let found = extra_state();
    let all = (0..512).map(|index| index * 8);
    all.clone().for_each(|offset| other.set(offset, own.get(offset)));
    for (number, (offset, _)) in MSRS.into_iter().enumerate() {
        other.set(offset, 0x1000_0000 * (number as u64 + 1) + 0x4_0000);
    }
    // LDTR and TR with other hidden parts than any descriptor has.
    other.set_segment(FS, 0x1b, USER_DATA, 0xf_ffff, other.get(FS + 8));
    other.set_segment(GS, 0x10, DATA, 0xe_ffff, other.get(GS + 8));
    other.set_segment(LDTR, 0x50, 0x82, 0x77, 0x12_3000);
    other.set_segment(TR, 0x60, 0x8b, 0x167, 0x34_5000);
    // SAFETY: no handler runs before the probe's own are back: GIF is 0, and nothing faults.
    unsafe { vmload(other) };
    let loaded = extra_state();
    vmsave(third);
    // VMRUN takes them as they are, and the guest's changes stay.
    let mut l2 = L2::with_pages(
        0,
        code!("mov ecx, 0xc0000102"; "xor edx, edx"; "mov eax, 0x7654000"; "wrmsr";
        "mov ecx, 0xc0000100"; "rdmsr"; "mov rbx, rax"; "mov ecx, 0xc0000082"; "rdmsr"),
    );
    let code = l2.run_held();
    let after = extra_state();
    // SAFETY: these are the probe's own.
    unsafe { vmload(own) };
    stgi();
    let back = extra_state();
    clause!("vmsave", in_block(own) == found, "{:x?}, not {found:x?}", in_block(own));
    clause!("vmload", in_block(other) == loaded, "{loaded:x?}, not {:x?}", in_block(other));
    let hidden = |block: Block| [FS, GS, LDTR, TR].map(|offset| [block.get(offset), block.get(offset + 8)]);
    clause!(
        "vmsave-hidden",
        hidden(third) == hidden(other),
        "{:x?}, not {:x?}",
        hidden(third),
        hidden(other)
    );
    clause!("vmsave", in_block(third) == loaded, "{:x?}, not {loaded:x?}", in_block(third));
    clause!("vmrun-shares-extra", code == exit::VMMCALL, "exit {code:#x}");
    let seen = (l2.registers.general[3], l2.block.get(RAX));
    clause!("vmrun-shares-extra", seen == (loaded[0], loaded[4]), "the guest finds {seen:x?}");
    let mut wanted = loaded;
    wanted[2] = 0x765_4000;
    clause!("exit-shares-extra", after == wanted, "{after:x?}, not {wanted:x?}");
    clause!("vmload", back == found, "{back:x?}, not {found:x?}");
    let rest: fn(&u64) -> bool = |offset| !(FS..CPL).contains(offset) && !(STAR..CR2).contains(offset);
    let is_rest = all.filter(rest).all(|offset| third.get(offset) == 0);
    clause!("vmsave-nothing-else", is_rest, "VMSAVE writes to other parts of the block");
    Ok(())
}
