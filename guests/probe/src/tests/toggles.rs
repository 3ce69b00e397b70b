//! Changes of control registers that drop translations, and rights that follow them at once (A13).

use x86_64::VirtAddr;
use x86_64::instructions::tlb;
use x86_64::registers::control::{Cr0, Cr0Flags};

use super::own;
use super::prelude::*;
use crate::guarded::store;
use crate::paging::{NO_EXECUTE, WRITABLE};
use crate::tables;

const CR4_PSE: u64 = 1 << 4;
const CR4_PGE: u64 = 1 << 7;
const CR4_PCIDE: u64 = 1 << 17;
const EFER: u32 = 0xc000_0080;
const EFER_NXE: u64 = 1 << 11;
const PAT: u32 = 0x277;
/// The type in PAT's last entry, which no page uses: uncacheable, or write-back.
const PAT_CHANGE: u64 = 6 << 56;

const ROUNDS: u32 = 50;

struct Toggle {
    name: &'static str,
    run: fn() -> Verdict,
    /// Global pages need not be dropped.
    spares_global: bool,
}

const fn toggle(name: &'static str, run: fn() -> Verdict) -> Toggle {
    Toggle { name, run, spares_global: false }
}

/// Changes that drop all translations by APM volume 2, section 5.5 "Translation-Lookaside Buffer",
/// CR3 those that are not global; and NXE and PAT, whose effect is cached in translations, so that
/// the hypervisor drops them where it changes these.
const TOGGLES: [Toggle; 8] = [
    Toggle { name: "CR3", run: write_cr3, spares_global: true },
    Toggle { name: "CR3 of another space", run: change_space, spares_global: true },
    toggle("CR4.PGE", || toggle_cr4(CR4_PGE)),
    toggle("CR4.PSE", || toggle_cr4(CR4_PSE)),
    toggle("CR4.PCIDE", toggle_pcide),
    toggle("CR0.PG", toggle_paging),
    toggle("EFER.NXE", || toggle_msr(EFER, EFER_NXE)),
    toggle("PAT", || toggle_msr(PAT, PAT_CHANGE)),
];

/// After each change the new page is seen, global or not.
pub(super) fn toggles_flush() -> Verdict {
    paging::set_global_pages(true);
    let result = [false, true].into_iter().try_for_each(|is_global| {
        own::notices(is_global)?;
        TOGGLES.iter().try_for_each(|toggle| flushes(toggle, is_global))
    });
    paging::set_global_pages(false);
    result
}

fn flushes(toggle: &Toggle, is_global: bool) -> Verdict {
    for _ in 0..ROUNDS {
        let sees_new = own::sees_new_after(is_global, toggle.run)?;
        let may_be_old = is_global && toggle.spares_global;
        ensure!(sees_new || may_be_old, "{}, global: {is_global}: the old page is seen", toggle.name);
    }
    Ok(())
}

fn write_cr3() -> Verdict {
    paging::enter_space(paging::space());
    Ok(())
}

fn change_space() -> Verdict {
    let own = paging::space();
    paging::enter_space(paging::other_space());
    paging::enter_space(own);
    Ok(())
}

fn toggle_cr4(bit: u64) -> Verdict {
    let before = Cr4::read_raw();
    for value in [before ^ bit, before] {
        // SAFETY: the program neither uses 4 MiB pages nor depends on global ones.
        let result = unsafe { write_cr4(value) };
        ensure!(result.is_ok(), "CR4 = {value:#x}: {result:?}");
    }
    Ok(())
}

/// PCIDs on and off: the latter drops all. Without PCIDs it is refused, and the page flushed.
fn toggle_pcide() -> Verdict {
    const ECX_PCID: u32 = 1 << 17;
    if __cpuid(1).ecx & ECX_PCID != 0 {
        return toggle_cr4(CR4_PCIDE);
    }
    // SAFETY: it is refused, as the test checks.
    let result = unsafe { write_cr4(Cr4::read_raw() | CR4_PCIDE) };
    ensure!(result == Err(Fault::PROTECTION), "PCIDE, which CPUID does not show: {result:?}");
    tlb::flush(VirtAddr::new(WINDOW));
    Ok(())
}

fn toggle_msr(number: u32, bits: u64) -> Verdict {
    let before = rdmsr(number);
    let Ok(value) = before else { return Err(failure(format_args!("{number:#x}: {before:?}"))) };
    for value in [value ^ bits, value] {
        // SAFETY: nothing that the program maps depends on these bits.
        let result = unsafe { wrmsr(number, value) };
        ensure!(result.is_ok(), "{number:#x} = {value:#x}: {result:?}");
    }
    Ok(())
}

// Paging is turned off and on in 32-bit code: APM volume 2, sections 14.6.1 and 14.7. Registers
// that only 64-bit code has, and RSP's upper half, are undefined afterwards.
global_asm!(
    r#"
.section .text
.balign 16
paging_off_and_on:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    lea rax, [rip + 2f]
    push {code_32}
    push rax
    retfq
.code32
2:  mov eax, cr0
    and eax, 0x7fffffff         // PG
    mov cr0, eax
    or eax, 0x80000000
    mov cr0, eax
    push {code}
    mov eax, offset paging_is_on
    push eax
    retf
.code64
paging_is_on:
    mov esp, esp
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
"#,
    code_32 = const tables::KERNEL_CODE_32,
    code = const tables::KERNEL_CODE,
);

unsafe extern "C" {
    fn paging_off_and_on();
}

fn toggle_paging() -> Verdict {
    // SAFETY: code, stack and tables are below 4 GiB and mapped one to one; interrupts are off.
    unsafe { paging_off_and_on() };
    Ok(())
}

/// A page's rights follow the present CR0.WP and EFER.NXE, regardless of earlier accesses.
pub(super) fn rights_follow() -> Verdict {
    let result = write_protection().and_then(|()| no_execute());
    paging::map(0, None);
    result
}

fn map_with(bits: u64) {
    paging::entry(0).store(own::PAGES[0].address() | bits, Ordering::SeqCst);
    tlb::flush(VirtAddr::new(WINDOW));
}

fn write_protection() -> Verdict {
    /// Present, and a write.
    const REFUSED: Fault = Fault::page(0b11);
    map_with(RIGHTS & !WRITABLE);
    for round in 0..ROUNDS {
        let [off, on] = [false, true].map(|on| {
            // SAFETY: the program writes to no write-protected page.
            unsafe { Cr0::update(|flags| flags.set(Cr0Flags::WRITE_PROTECT, on)) };
            // SAFETY: the page is for this test's stores.
            unsafe { store(WINDOW, round.into()) }
        });
        ensure!(off.is_ok(), "a write without CR0.WP: {off:?}");
        ensure!(on == Err(REFUSED), "a write with CR0.WP: {on:?}");
    }
    Ok(())
}

fn no_execute() -> Verdict {
    /// Of the error code: a reserved bit was set. QEMU does not say that the page was present.
    const RESERVED: u64 = 1 << 3;
    let before = rdmsr(EFER);
    let Ok(efer) = before else { return Err(failure(format_args!("EFER: {before:?}"))) };
    map_with(RIGHTS | NO_EXECUTE);
    let write = |value| {
        // SAFETY: only this page has the bit that is affected.
        let written = unsafe { wrmsr(EFER, value) };
        ensure!(written.is_ok(), "EFER = {value:#x}: {written:?}");
        Ok(())
    };
    let result = (0..ROUNDS).try_for_each(|_| {
        write(efer | EFER_NXE)?;
        let on = load(WINDOW);
        write(efer & !EFER_NXE)?;
        let off = load(WINDOW);
        ensure!(on.is_ok(), "a read with EFER.NXE: {on:?}");
        let is_refused = matches!(off, Err(Fault { vector: 14, error }) if error & RESERVED != 0);
        ensure!(is_refused, "a read without EFER.NXE, where bit 63 is reserved: {off:?}");
        Ok(())
    });
    result.and(write(efer))
}
