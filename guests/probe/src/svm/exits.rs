//! A guest's instructions and exceptions that exit: which, and what the block then says.

use core::arch::x86_64::__cpuid;

use super::block::*;
use super::clauses::{clause, skip};
use super::l2::{Code, L2, RBX, RCX, RDI, code, features};
use crate::paging::WINDOW;
use crate::report::Verdict;

/// An instruction that exits by the code, if that is requested.
struct Exit {
    name: &'static str,
    code: u32,
    at: Code,
    /// It may be executed, too.
    passes: bool,
}

fn exit(name: &'static str, code: u32, at: Code) -> Exit {
    Exit { name, code, at, passes: true }
}

fn only(name: &'static str, code: u32, at: Code) -> Exit {
    Exit { passes: false, ..exit(name, code, at) }
}

fn instructions() -> [Exit; 33] {
    [
        exit("smsw", 0x00, code!("smsw rax")),
        exit("mov-from-cr0", 0x00, code!("mov rbx, cr0")),
        exit("mov-from-cr3", 0x03, code!("mov rbx, cr3")),
        exit("mov-from-cr4", 0x04, code!("mov rbx, cr4")),
        exit("mov-from-cr8", 0x08, code!("mov rbx, cr8")),
        exit("clts", 0x10, code!("clts")),
        only("mov-to-cr0", 0x10, code!("mov cr0, rbx")),
        only("mov-to-cr3", 0x13, code!("mov cr3, rbx")),
        only("mov-to-cr4", 0x14, code!("mov cr4, rbx")),
        only("mov-to-cr8", 0x18, code!("mov cr8, rbx")),
        exit("mov-from-dr0", 0x20, code!("mov rbx, dr0")),
        exit("mov-from-dr7", 0x27, code!("mov rbx, dr7")),
        only("mov-to-dr3", 0x33, code!("mov dr3, rbx")),
        only("mov-to-dr7", 0x37, code!("mov dr7, rbx")),
        exit("sidt", exit::IDTR_READ, code!("sidt [rdi]")),
        exit("sgdt", 0x67, code!("sgdt [rdi]")),
        exit("sldt", 0x68, code!("sldt eax")),
        exit("str", 0x69, code!("str eax")),
        only("lidt", 0x6a, code!("lidt [rdi]")),
        only("lgdt", 0x6b, code!("lgdt [rdi]")),
        only("lldt", 0x6c, code!("lldt ax")),
        only("ltr", 0x6d, code!("ltr ax")),
        exit("rdtsc", exit::RDTSC, code!("rdtsc")),
        only("rdpmc", 0x6f, code!("rdpmc")),
        exit("pushf", exit::PUSHF, code!("pushfq")),
        exit("cpuid", exit::CPUID, code!("cpuid")),
        only("invd", 0x76, code!("invd")),
        exit("pause", exit::PAUSE, code!("pause")),
        only("hlt", exit::HLT, code!("hlt")),
        exit("invlpg", 0x79, code!("invlpg [rdi]")),
        exit("wbinvd", 0x89, code!("wbinvd")),
        exit("prefixed-cpuid", exit::CPUID, code!(".byte 0x66, 0x48, 0x0f, 0xa2")),
        only("popf", 0x71, code!("popfq")),
    ]
}

/// The instructions of SVM itself.
fn svm_instructions() -> [Exit; 8] {
    [
        only("vmrun", exit::VMRUN, code!("vmrun rax")),
        only("vmmcall", exit::VMMCALL, code!("vmmcall")),
        only("vmload", 0x82, code!("vmload rax")),
        only("vmsave", 0x83, code!("vmsave rax")),
        only("stgi", 0x84, code!("stgi")),
        only("clgi", 0x85, code!("clgi")),
        only("skinit", 0x86, code!("skinit eax")),
        only("invlpga", 0x7a, code!("invlpga rax, ecx")),
    ]
}

/// Those that not every processor has.
fn optional() -> impl Iterator<Item = Exit> {
    let [first, extended] = [1, 0x8000_0001].map(__cpuid);
    let all = [
        (first.ecx & 1 << 3, only("monitor", 0x8a, code!("monitor"))),
        (first.ecx & 1 << 3, only("mwait", 0x8b, code!("mwait"))),
        (extended.edx & 1 << 27, exit("rdtscp", 0x87, code!("rdtscp"))),
    ];
    all.into_iter().filter(|(bit, _)| *bit != 0).map(|(_, exit)| exit)
}

/// A guest whose RDI points to memory of its own.
fn guest(code: Code) -> L2 {
    let mut l2 = L2::new(code);
    l2.registers.general[RDI] = l2.pages.data[0].address();
    l2.registers.general[RCX] = 0;
    l2.registers.general[RBX] = 0;
    l2
}

/// Each instruction exits if that is requested, before it has done anything, and only then.
pub(super) fn intercepts() -> Verdict {
    for Exit { name, code, at, passes } in
        instructions().into_iter().chain(svm_instructions()).chain(optional())
    {
        let mut l2 = guest(at);
        l2.block.intercept(code);
        // A value that the register may have.
        let register = [(0x10, CR0), (0x13, CR3), (0x14, CR4)].into_iter().find(|(it, _)| *it == code);
        l2.registers.general[RBX] = register.map_or(0, |(_, offset)| l2.block.get(offset));
        let registers = l2.registers.general;
        let found = l2.run();
        let (rip, next) = (l2.block.get(RIP), l2.block.get(NEXT_RIP));
        clause!(name, found == code, "exit {found:#x} instead of {code:#x}");
        clause!(
            "exit-at-instruction",
            found != code || rip == at.at,
            "{name}: RIP {rip:#x}, not {:#x}",
            at.at
        );
        let is_next = !features().next_rip() || found != code || next == at.next;
        clause!("exit-next-rip", is_next, "{name}: next RIP {next:#x}, not {:#x}", at.next);
        let is_kept = found != code || registers == l2.registers.general;
        clause!("exit-changes-nothing", is_kept, "{name} changed a register");
        clause!("exit-keeps-host", l2.host_is_whole(), "{name}: {:x?}", l2.registers);
        let event = l2.block.get(EXIT_EVENT);
        clause!("exit-without-event", event >> 31 & 1 == 0, "{name}: EXITINTINFO {event:#x}");
        if passes {
            let mut l2 = guest(at);
            let found = l2.run();
            let rip = l2.block.get(RIP);
            let has_passed = found == exit::VMMCALL && rip == at.next;
            clause!("passes", has_passed, "{name} without its intercept: exit {found:#x} at {rip:#x}");
        }
    }
    if !features().next_rip() {
        skip("exit-next-rip", "CPUID has no NRIPS");
    }
    assists();
    selective();
    Ok(())
}

/// The intercept of those writes to CR0 that change more than TS and MP.
fn selective() {
    for (bits, at, wanted) in [
        (1 << 18, code!("mov cr0, rbx"), 0x65),
        (1 << 5, code!("mov cr0, rbx"), 0x65),
        (1 << 3, code!("mov cr0, rbx"), exit::VMMCALL),
        (0, code!("clts"), exit::VMMCALL),
        (1 << 3, code!("lmsw bx"), exit::VMMCALL),
    ] {
        let mut l2 = guest(at);
        l2.registers.general[RBX] = l2.block.get(CR0) ^ bits;
        l2.block.intercept(0x65);
        let code = l2.run();
        clause!("cr0-selective", code == wanted, "CR0 ^ {bits:#x}: exit {code:#x}, not {wanted:#x}");
    }
}

/// EXITINFO1 of control registers and INVLPG, and of INT n.
fn assists() {
    if !features().decode_assists() {
        skip("decode-assists", "CPUID has none");
        return;
    }
    let cases = [
        (0x13, code!("mov cr3, rbx"), 1 << 63 | 3),
        (0x04, code!("mov r9, cr4"), 1 << 63 | 9),
        (0x10, code!("clts"), 0),
        (0x79, code!("invlpg [rdi]"), L2::new(code!()).pages.data[0].address()),
        (0x75, code!("int 0x41"), 0x41),
    ];
    for (code, at, wanted) in cases {
        let mut l2 = guest(at);
        l2.block.intercept(code);
        let (found, info) = (l2.run(), l2.block.get(INFO_1));
        clause!(
            "decode-assists",
            found == code && info == wanted,
            "exit {found:#x}: {info:#x}, not {wanted:#x}"
        );
    }
}

/// An exception: its vector, the clause, the code, and the error code, if it has one.
struct Raised {
    vector: u32,
    clause: &'static str,
    at: Code,
    error: Option<u64>,
    /// The address that it is reported at.
    rip: u64,
}

fn raised(vector: u32, clause: &'static str, at: Code, error: Option<u64>) -> Raised {
    Raised { vector, clause, at, error, rip: at.at }
}

/// An address without memory.
const NOTHING: u64 = WINDOW + 0x1_2348;

fn all_raised() -> [Raised; 9] {
    [
        raised(0, "exception-0", code!("div ecx"), None),
        raised(3, "exception-3", code!("int3"), None),
        raised(6, "exception-6", code!("ud2"), None),
        raised(11, "exception-11", code!("mov fs, [rdi]"), Some(0x38)),
        raised(12, "exception-12", code!("mov rax, [rsp + rbx]"), Some(0)),
        raised(13, "exception-13", code!("mov rax, [rbx]"), Some(0)),
        raised(14, "exception-14", code!("mov rax, [r9]"), Some(0)),
        raised(14, "exception-14", code!("mov [r9], rax"), Some(2)),
        // Without NXE the error code does not say that it was a fetch.
        Raised { rip: NOTHING, ..raised(14, "exception-14", code!("jmp r9"), Some(0)) },
    ]
}

/// Exceptions exit at the instruction, or reach the guest's handler.
pub(super) fn exceptions() -> Verdict {
    for raised in all_raised() {
        for is_intercepted in [true, false] {
            let mut l2 = guest(raised.at);
            l2.registers.general[RBX] = 1 << 62;
            l2.registers.general[9] = NOTHING;
            l2.pages.data[0].write(&[0x38]);
            absent_segment(&l2);
            l2.block.set(CR2, 0x5555);
            if is_intercepted {
                l2.block.intercept(exit::EXCEPTION + raised.vector);
                intercepted(&mut l2, &raised);
            } else {
                delivered(&mut l2, &raised);
            }
        }
    }
    Ok(())
}

/// A segment of the guest's own table that is not present: selector 38h.
fn absent_segment(l2: &L2) {
    let table = l2.own_gdt(1);
    table.write_at(7, &[0x00cf_1300_0000_ffff]);
    l2.block.set_segment(GDTR, 0, 0, 0x3f, table.address());
}

fn intercepted(l2: &mut L2, raised: &Raised) {
    let &Raised { vector, clause, at, error, rip } = raised;
    let found = l2.run();
    clause!(clause, found == exit::EXCEPTION + vector, "exit {found:#x}");
    if found != exit::EXCEPTION + vector {
        return;
    }
    let (at_rip, infos) = (l2.block.get(RIP), [INFO_1, INFO_2].map(|info| l2.block.get(info)));
    clause!("exception-at-instruction", at_rip == rip, "#{vector}: RIP {at_rip:#x}, not {rip:#x}");
    clause!("exception-keeps-stack", l2.block.get(RSP) == l2.stack_top(), "#{vector}: another RSP");
    if let Some(error) = error {
        clause!("exception-error", infos[0] == error, "#{vector}: EXITINFO1 {:#x}, not {error:#x}", infos[0]);
    }
    if vector == 14 {
        clause!("page-fault-address", infos[1] == NOTHING, "EXITINFO2 {:#x}", infos[1]);
        clause!("page-fault-keeps-cr2", l2.block.get(CR2) == 0x5555, "CR2 {:#x}", l2.block.get(CR2));
    }
    if vector == 3 && features().next_rip() {
        let next = l2.block.get(NEXT_RIP);
        clause!("exit-next-rip", next == at.next, "INT3: next RIP {next:#x}");
    }
}

fn delivered(l2: &mut L2, raised: &Raised) {
    let &Raised { vector, clause, at, error, rip } = raised;
    l2.run();
    let found = l2.vector();
    clause!(clause, found == Some(u64::from(vector)), "handler {found:?}");
    if found != Some(u64::from(vector)) {
        return;
    }
    let [_, first, second, third] = l2.stack();
    let (code, frame_rip, selector) =
        if error.is_some() { (first, second, third) } else { (0, first, second) };
    let rip = if vector == 3 { at.next } else { rip };
    let is_right = (code, frame_rip, selector) == (error.unwrap_or(0), rip, 8);
    clause!("handler-frame", is_right, "#{vector}: error {code:#x}, RIP {frame_rip:#x}, CS {selector:#x}");
    if vector == 14 {
        clause!("page-fault-sets-cr2", l2.block.get(CR2) == NOTHING, "CR2 {:#x}", l2.block.get(CR2));
    }
}

/// A guest without handlers shuts down.
pub(super) fn shutdown() -> Verdict {
    let mut l2 = L2::new(code!("ud2"));
    l2.block.set_segment(IDTR, 0, 0, 0, 0);
    let code = l2.run();
    clause!("shutdown", code == exit::SHUTDOWN, "exit {code:#x}");
    clause!("shutdown-keeps-host", l2.host_is_whole(), "{:x?}", l2.registers);
    Ok(())
}

/// INT n, IRET and ICEBP.
pub(super) fn soft_events() -> Verdict {
    let mut l2 = L2::new(code!("int 0x41"));
    l2.block.intercept(0x75);
    let code = l2.run();
    clause!("int-n", code == 0x75, "exit {code:#x}");
    l2.block.pass(0x75);
    l2.block.intercept(exit::IRET);
    l2.run();
    clause!("int-n-delivered", l2.vector() == Some(0x41), "handler {:?}", l2.vector());
    let code = l2.go_on();
    clause!("iret", code == exit::IRET, "exit {code:#x}");
    l2.block.pass(exit::IRET);
    let code = l2.run();
    let is_back = code == exit::VMMCALL && l2.vector().is_none() && l2.block.get(RSP) == l2.stack_top();
    clause!("iret-passes", is_back, "exit {code:#x} at {:#x}", l2.block.get(RIP));
    let at = code!(".byte 0xf1");
    let mut l2 = L2::new(at);
    l2.block.intercept(0x88);
    let code = l2.run();
    clause!("icebp", code == 0x88 && l2.block.get(RIP) == at.at, "exit {code:#x}");
    Ok(())
}
