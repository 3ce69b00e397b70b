//! Interrupts and NMIs while a guest runs: APM volume 2, sections 15.17 and 15.21.

use baremetal::x86_64::apic;
use x86_64::instructions::{interrupts, nop};

use super::block::*;
use super::clauses::{breaks, clause, skip};
use super::l2::{Code, FLAGS, IF, L2, clgi, code, host_state, stgi};
use crate::interrupts::{VECTOR_TEST, count, nmi_count};
use crate::processors::send_to_self;
use crate::report::Verdict;

pub(super) const MASKING: u64 = 1 << 24;
const REQUEST: u64 = 1 << 8;
const IGNORE_TPR: u64 = 1 << 20;
const PRIORITY: u32 = 16;
const VIRTUAL: u64 = 0x56;

/// Sends itself an interrupt or an NMI, which is to wait.
fn send(is_nmi: bool) {
    match is_nmi {
        true => apic::send_nmi(apic::id()),
        false => send_to_self(VECTOR_TEST),
    }
    // It may take its time.
    (0..1000).for_each(|_| nop());
}

fn taken(is_nmi: bool) -> u32 {
    if is_nmi { nmi_count() } else { count(VECTOR_TEST) }
}

/// Takes what waits, with the probe's IF.
fn take() {
    interrupts::enable();
    (0..1000).for_each(|_| nop());
    interrupts::disable();
}

/// Whether an interrupt is held though the probe's IF is 1, and is taken after STGI.
pub(super) fn self_is_held(_: &mut L2) -> bool {
    let before = count(VECTOR_TEST);
    send(false);
    take();
    let is_held = count(VECTOR_TEST) == before;
    stgi();
    take();
    is_held && count(VECTOR_TEST) == before + 1
}

/// CLGI holds interrupts and NMIs, STGI lets them in; a guest runs with GIF = 1.
pub(super) fn gif() -> Verdict {
    for is_nmi in [false, true] {
        let before = taken(is_nmi);
        clgi();
        interrupts::enable();
        send(is_nmi);
        let held = taken(is_nmi);
        stgi();
        (0..1000).for_each(|_| nop());
        let after = taken(is_nmi);
        interrupts::disable();
        clause!("clgi-holds", held == before, "NMI {is_nmi}: {} were taken", held - before);
        clause!("stgi-takes", after == before + 1, "NMI {is_nmi}: {} were taken", after - before);
    }
    Ok(())
}

/// A guest that spins until something comes, or halts.
fn waits() -> [(&'static str, Code); 2] {
    [("spins", code!("5:"; "jmp 5b")), ("halts", code!("5:"; "hlt"; "jmp 5b"))]
}

/// What is pending at VMRUN ends the guest at once if it is intercepted, and stays pending.
pub(super) fn pending() -> Verdict {
    for (is_nmi, code) in [(false, exit::INTR), (true, exit::NMI)] {
        for ((name, at), masking, guest_if) in
            waits().into_iter().flat_map(|wait| [(wait, MASKING, 0), (wait, MASKING, IF), (wait, 0, IF)])
        {
            let mut l2 = L2::new(at);
            l2.block.intercept(code);
            l2.block.set(INT_CTL, masking);
            l2.block.set(RFLAGS, FLAGS | guest_if);
            l2.flags = if masking == 0 { FLAGS } else { FLAGS | IF };
            let before = taken(is_nmi);
            clgi();
            send(is_nmi);
            let found = l2.run_held();
            let held = taken(is_nmi);
            clause!(
                "pending-exits",
                found == code,
                "{name}, IF {guest_if:#x}: exit {found:#x}, not {code:#x}"
            );
            clause!("pending-stays", held == before, "{name}: {} were taken before STGI", held - before);
            clause!("pending-keeps-host", l2.host_is_whole(), "{name}: {:x?}", l2.registers);
            stgi();
            take();
            let after = taken(is_nmi);
            clause!("pending-taken", after == before + 1, "{name}: {} were taken", after - before);
            let event = l2.block.get(EXIT_EVENT);
            clause!("pending-is-no-event", event >> 31 & 1 == 0, "{name}: EXITINTINFO {event:#x}");
        }
    }
    Ok(())
}

/// A guest that is about to run with an interrupt of the probe's pending, GIF being 0; and how many
/// were taken before.
fn pending_for(code: Code, masking: u64, own: u64, guest_if: u64) -> (L2, u32) {
    let mut l2 = L2::new(code);
    l2.block.set(INT_CTL, masking);
    l2.block.set(RFLAGS, FLAGS | guest_if);
    l2.flags = FLAGS | own;
    let before = count(VECTOR_TEST);
    clgi();
    send(false);
    (l2, before)
}

/// Which IF decides: with V_INTR_MASKING the probe's at VMRUN, without it the guest's.
pub(super) fn masks() -> Verdict {
    for (masking, own, guest_if) in [(MASKING, 0, IF), (MASKING, 0, 0), (0, IF, 0)] {
        let (mut l2, before) = pending_for(code!("nop"; "nop"), masking, own, guest_if);
        l2.block.intercept(exit::INTR);
        let code = l2.run();
        let held = count(VECTOR_TEST) == before;
        take();
        let is_once = count(VECTOR_TEST) == before + 1;
        clause!(
            "masked",
            code == exit::VMMCALL,
            "masking {masking:#x}: exit {code:#x}, IF {own:#x}, {guest_if:#x}"
        );
        clause!("masked-once", held && is_once, "masking {masking:#x}: held {held}, once {is_once}");
    }
    // Without the intercept it is the guest's, by its own table.
    for (masking, own, guest_if) in [(MASKING, IF, 0), (MASKING, IF, IF), (0, 0, IF)] {
        let (mut l2, before) = pending_for(code!("5:"; "jmp 5b"), masking, own, guest_if);
        let code = l2.run_held();
        let vector = l2.vector();
        apic::end_of_interrupt();
        stgi();
        take();
        let is_taken = vector == Some(VECTOR_TEST.into()) && count(VECTOR_TEST) == before;
        clause!("guest-takes", is_taken, "masking {masking:#x}: exit {code:#x}, handler {vector:?}");
    }
    let mut l2 = L2::new(code!("5:"; "jmp 5b"));
    let before = nmi_count();
    clgi();
    send(true);
    l2.run();
    let is_taken = l2.vector() == Some(2) && nmi_count() == before;
    clause!("guest-takes-nmi", is_taken, "handler {:?}", l2.vector());
    // The probe's NMIs are blocked until IRET now: the guest's.
    let mut l2 = L2::new(code!("iretq"));
    let frame = [l2.block.get(RIP) + 2, 8, FLAGS, l2.stack_top(), 0x10];
    l2.pages_stack(512 - 5, &frame);
    l2.block.set(RSP, l2.stack_top() - 40);
    let code = l2.run();
    clause!("guest-unblocks-nmi", code == exit::VMMCALL, "exit {code:#x}");
    let before = nmi_count();
    send(true);
    clause!(
        "nmi-comes-again",
        nmi_count() == before + 1,
        "{} NMIs behind the guest's IRET",
        nmi_count() - before
    );
    Ok(())
}

/// An NMI that is injected blocks none.
pub(super) fn injected_nmi() -> Verdict {
    let mut l2 = L2::new(code!());
    l2.block.set(EVENT, 1 << 31 | 2 << 8 | 2);
    let code = l2.run();
    clause!("inject-nmi", code == exit::VMMCALL && l2.vector() == Some(2), "exit {code:#x}");
    let before = nmi_count();
    send(true);
    let after = nmi_count();
    clause!("inject-nmi-blocks-none", after == before + 1, "{} NMIs are taken", after - before);
    Ok(())
}

/// A virtual interrupt: its control word, and what comes of it.
struct Request {
    name: &'static str,
    control: u64,
    guest_if: u64,
    is_taken: bool,
}

const fn request(name: &'static str, control: u64, guest_if: u64, is_taken: bool) -> Request {
    Request { name, control, guest_if, is_taken }
}

const REQUESTS: [Request; 8] = [
    request("virtual-taken", 5 << PRIORITY, IF, true),
    request("virtual-without-if", 5 << PRIORITY, 0, false),
    request("virtual-without-masking", 5 << PRIORITY | MASKING, IF, true),
    request("virtual-above-tpr", 5 << PRIORITY | 4, IF, true),
    request("virtual-at-tpr", 5 << PRIORITY | 5, IF, false),
    request("virtual-below-tpr", 5 << PRIORITY | 6, IF, false),
    request("virtual-ignores-tpr", 5 << PRIORITY | 6 | IGNORE_TPR, IF, true),
    request("virtual-ignores-tpr", 5 << PRIORITY | 6 | IGNORE_TPR, 0, false),
];

/// Virtual interrupts wait for the guest's IF and its TPR.
pub(super) fn virtual_interrupts() -> Verdict {
    for Request { name, control, guest_if, is_taken } in REQUESTS {
        let at = code!("nop"; "nop");
        for is_intercepted in [false, true] {
            let mut l2 = L2::new(at);
            l2.block.set(INT_CTL, control | MASKING | REQUEST | VIRTUAL << 32);
            l2.block.set(RFLAGS, FLAGS | guest_if);
            if is_intercepted {
                l2.block.intercept(exit::VINTR);
            }
            let code = l2.run();
            let found = match (is_taken, is_intercepted) {
                (true, false) => l2.vector() == Some(VIRTUAL) && l2.stack::<2>()[1] == at.at,
                (true, true) => code == exit::VINTR && l2.block.get(RIP) == at.at,
                (false, _) => code == exit::VMMCALL && l2.vector().is_none(),
            };
            clause!(name, found, "exit {code:#x}, handler {:?}, intercept {is_intercepted}", l2.vector());
            let is_left = l2.block.get(INT_CTL) & REQUEST != 0;
            let is_right = !found || is_left == (is_intercepted || !is_taken);
            clause!("virtual-request", is_right, "{name}: left {is_left}, intercept {is_intercepted}");
            let event = l2.block.get(EXIT_EVENT);
            clause!("virtual-is-no-event", event >> 31 & 1 == 0, "{name}: EXITINTINFO {event:#x}");
        }
    }
    shadow();
    tpr();
    both();
    Ok(())
}

/// An interrupt waits for the end of the shadow, and for STI.
fn shadow() {
    let at = code!("nop"; "nop");
    let mut l2 = L2::new(at);
    l2.block.set(INT_CTL, 5 << PRIORITY | MASKING | REQUEST | VIRTUAL << 32);
    l2.block.set(RFLAGS, FLAGS | IF);
    l2.block.set(SHADOW, 1);
    l2.run();
    let rip = l2.stack::<2>()[1];
    let is_behind = l2.vector() == Some(VIRTUAL) && rip == at.next;
    clause!("shadow-loaded", is_behind, "handler {:?} for {rip:#x}, not {:#x}", l2.vector(), at.next);
    let at = code!("sti"; "nop"; "6:"; "nop");
    let mut l2 = L2::new(at);
    l2.block.set(INT_CTL, 5 << PRIORITY | MASKING | REQUEST | VIRTUAL << 32);
    l2.run();
    let rip = l2.stack::<2>()[1];
    let is_behind = l2.vector() == Some(VIRTUAL) && rip == at.next + 1;
    clause!("shadow-of-sti", is_behind, "handler {:?} for {rip:#x}, not {:#x}", l2.vector(), at.next + 1);
    if breaks("virtual-ends-halt") {
        return skip("virtual-ends-halt", "the guest halts for ever");
    }
    let at = code!("hlt"; "nop");
    let mut l2 = L2::new(at);
    l2.block.set(INT_CTL, 5 << PRIORITY | MASKING | REQUEST | VIRTUAL << 32);
    l2.block.set(RFLAGS, FLAGS | IF);
    l2.block.set(SHADOW, 1);
    l2.run();
    let is_behind = l2.vector() == Some(VIRTUAL) && l2.stack::<2>()[1] == at.next;
    clause!("virtual-ends-halt", is_behind, "handler {:?}", l2.vector());
}

/// The guest's CR8 is V_TPR where there is masking, and not the probe's.
fn tpr() {
    let mut l2 = L2::new(code!("mov rbx, cr8"; "mov eax, 9"; "mov cr8, rax"));
    l2.block.set(INT_CTL, MASKING | 3);
    let code = l2.run();
    let (read, left) = (l2.registers.general[3], l2.block.get(INT_CTL) & 0xff);
    let own = host_state()[3];
    clause!("virtual-tpr", code == exit::VMMCALL && read == 3, "exit {code:#x}, CR8 {read}");
    clause!("virtual-tpr-saved", left == 9, "V_TPR {left}");
    clause!("virtual-tpr-apart", own == 0, "the probe's CR8 is {own}");
    // Without masking it is the probe's own.
    let mut l2 = L2::new(code!("mov eax, 9"; "mov cr8, rax"));
    let code = l2.run();
    let own = host_state()[3];
    L2::new(code!("xor eax, eax"; "mov cr8, rax")).run();
    let after = host_state()[3];
    clause!(
        "shared-tpr",
        code == exit::VMMCALL && (own, after) == (9, 0),
        "the probe's CR8 is {own}, {after}"
    );
    // Its write lets a waiting interrupt in.
    if breaks("virtual-after-tpr") {
        return skip("virtual-after-tpr", "it ends the emulator");
    }
    let mut l2 = L2::new(code!("xor eax, eax"; "mov cr8, rax"; "nop"));
    l2.block.set(INT_CTL, 5 << PRIORITY | 6 | MASKING | REQUEST | VIRTUAL << 32);
    l2.block.set(RFLAGS, FLAGS | IF);
    l2.run();
    clause!("virtual-after-tpr", l2.vector() == Some(VIRTUAL), "handler {:?}", l2.vector());
}

/// A physical interrupt comes before a virtual one, which stays requested.
fn both() {
    let mut l2 = L2::new(code!("nop"));
    l2.block.intercept(exit::INTR);
    l2.block.set(INT_CTL, 5 << PRIORITY | MASKING | REQUEST | VIRTUAL << 32);
    l2.block.set(RFLAGS, FLAGS | IF);
    l2.flags = FLAGS | IF;
    clgi();
    send(false);
    let code = l2.run_held();
    let left = l2.block.get(INT_CTL) & REQUEST;
    stgi();
    take();
    clause!("physical-first", code == exit::INTR && left != 0, "exit {code:#x}, V_IRQ {left:#x}");
}
