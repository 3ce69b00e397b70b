//! Events that VMRUN injects, and deliveries that do not succeed: APM volume 2, sections 15.20 and
//! 15.7.2.

use super::block::*;
use super::clauses::clause;
use super::l2::{FLAGS, IF, L2, code, features};
use crate::paging::{PAGE, WINDOW};
use crate::report::Verdict;

const VALID: u64 = 1 << 31;
const HAS_ERROR: u64 = 1 << 11;
const INTERRUPT: u64 = 0;
const NMI: u64 = 2 << 8;
const EXCEPTION: u64 = 3 << 8;
const SOFT: u64 = 4 << 8;
const TF: u64 = 1 << 8;
const RF: u64 = 1 << 16;

/// The name, the event, and the error code.
const EVENTS: [(&str, u64, Option<u64>); 8] = [
    ("inject-interrupt", INTERRUPT | 0x45, None),
    ("inject-interrupt", INTERRUPT | 0xff, None),
    ("inject-nmi", NMI | 2, None),
    ("inject-exception", EXCEPTION, None),
    ("inject-exception", EXCEPTION | 6, None),
    ("inject-error", EXCEPTION | HAS_ERROR | 13, Some(0x1234)),
    ("inject-error", EXCEPTION | HAS_ERROR | 14, Some(7)),
    ("inject-soft", SOFT | 0x46, None),
];

fn inject(l2: &L2, event: u64, error: Option<u64>) {
    l2.block.set(EVENT, VALID | event | error.unwrap_or(0) << 32);
}

/// An injected event is delivered before the first instruction, whatever the guest's IF is.
pub(super) fn injected() -> Verdict {
    for (name, event, error) in EVENTS {
        for flags in [FLAGS, FLAGS | IF] {
            let at = code!("ud2");
            let mut l2 = L2::new(at);
            inject(&l2, event, error);
            l2.block.set(RFLAGS, flags);
            l2.block.set(CR2, 0x7777);
            // Injected events meet no intercept of their own.
            (0..32)
                .filter(|vector| *vector != 6)
                .for_each(|vector| l2.block.intercept(exit::EXCEPTION + vector));
            [exit::NMI, exit::INTR, 0x75].into_iter().for_each(|code| l2.block.intercept(code));
            // What a soft event returns to.
            l2.block.set(NEXT_RIP, at.at);
            let code = l2.run();
            clause!(name, l2.vector() == Some(event & 0xff), "exit {code:#x}, handler {:?}", l2.vector());
            if l2.vector() != Some(event & 0xff) {
                continue;
            }
            let [_, first, second, third, fourth] = l2.stack();
            // Faults set RF.
            let [third, fourth] = [third, fourth].map(|word| word & !RF);
            let frame =
                if error.is_some() { [first, second, third, fourth] } else { [0, first, second, third] };
            let wanted = [error.unwrap_or(0), at.at, 8, flags];
            clause!("inject-frame", frame == wanted, "{name}: {frame:x?}, not {wanted:x?}");
            let left = l2.block.get(EVENT);
            clause!("inject-once", left & VALID == 0, "{name}: EVENTINJ {left:#x} behind it");
            let event = l2.block.get(EXIT_EVENT);
            clause!("inject-done", event & VALID == 0, "{name}: EXITINTINFO {event:#x}");
            clause!("inject-keeps-cr2", l2.block.get(CR2) == 0x7777, "{name}: CR2 {:#x}", l2.block.get(CR2));
            let masked = l2.block.get(RFLAGS) & IF == 0;
            clause!("inject-gate", masked, "{name}: IF in the handler of an interrupt gate");
        }
    }
    Ok(())
}

/// A delivery that faults is reported, if the fault exits: an absent stack, an absent table.
pub(super) fn interrupted() -> Verdict {
    for (name, event, error) in EVENTS {
        for is_stack in [true, false] {
            let at = code!("nop");
            let mut l2 = L2::new(at);
            inject(&l2, event, error);
            l2.block.set(NEXT_RIP, at.at);
            l2.block.intercept(exit::EXCEPTION + 14);
            let (address, wanted_error) = if is_stack {
                l2.block.set(RSP, WINDOW + 0x8000);
                (WINDOW + 0x7ff8, 2)
            } else {
                l2.block.set_segment(IDTR, 0, 0, PAGE as u32 - 1, WINDOW + 0x1_0000);
                (WINDOW + 0x1_0000 + (event & 0xff) * 16, 0)
            };
            let code = l2.run();
            let (rip, infos) = (l2.block.get(RIP), [INFO_1, INFO_2].map(|info| l2.block.get(info)));
            clause!("delivery-fault", code == exit::EXCEPTION + 14, "{name}: exit {code:#x}");
            let is_there = infos[0] == wanted_error && infos[1] & !0xf == address & !0xf;
            clause!("delivery-address", is_there, "{name}: {infos:x?}, not {address:#x}");
            clause!("delivery-rip", rip == at.at, "{name}: RIP {rip:#x}, not {:#x}", at.at);
            let found = l2.block.get(EXIT_EVENT);
            let is_right = found as u32 == (VALID | event) as u32;
            clause!("exit-event", is_right, "{name}: EXITINTINFO {found:#x}, not {:#x}", VALID | event);
            let is_right = error.is_none_or(|error| found >> 32 == error);
            clause!("exit-event-error", is_right, "{name}: EXITINTINFO {found:#x}, not {error:x?}");
            let left = l2.block.get(EVENT);
            clause!("inject-once", left & VALID == 0, "{name}: EVENTINJ {left:#x} behind it");
        }
    }
    of_its_own();
    Ok(())
}

/// The same for events that the guest itself has raised.
fn of_its_own() {
    for (name, at, event) in
        [("own-soft", code!("int 0x43"), SOFT | 0x43), ("own-exception", code!("ud2"), EXCEPTION | 6)]
    {
        let mut l2 = L2::new(at);
        l2.block.set_segment(IDTR, 0, 0, PAGE as u32 - 1, WINDOW + 0x1_0000);
        l2.block.intercept(exit::EXCEPTION + 14);
        let code = l2.run();
        let (found, rip) = (l2.block.get(EXIT_EVENT), l2.block.get(RIP));
        let is_right = code == exit::EXCEPTION + 14 && found as u32 == (VALID | event) as u32;
        clause!(name, is_right, "exit {code:#x}, EXITINTINFO {found:#x}");
        clause!("own-rip", rip == at.at, "{name}: RIP {rip:#x}, not {:#x}", at.at);
    }
    // A second fault of a delivery becomes #DF, and is no event of its own.
    let mut l2 = L2::new(code!("ud2"));
    l2.block.intercept(exit::EXCEPTION + 8);
    l2.block.set_segment(IDTR, 0, 0, 0, l2.block.get(IDTR + 8));
    let code = l2.run();
    clause!("double-fault", code == exit::EXCEPTION + 8, "exit {code:#x}");
}

/// TF traps behind the guest's first instruction, and the shadow holds interrupts off one.
pub(super) fn traps() -> Verdict {
    let at = code!("nop"; "nop");
    for is_intercepted in [true, false] {
        let mut l2 = L2::new(at);
        l2.block.set(RFLAGS, FLAGS | TF);
        if is_intercepted {
            l2.block.intercept(exit::EXCEPTION + 1);
        }
        let code = l2.run();
        let rip = if is_intercepted {
            clause!("trap", code == exit::EXCEPTION + 1, "exit {code:#x}");
            l2.block.get(RIP)
        } else {
            clause!("trap", l2.vector() == Some(1), "exit {code:#x}, handler {:?}", l2.vector());
            l2.stack::<2>()[1]
        };
        clause!("trap-behind-first", rip == at.next, "at {rip:#x}, not {:#x}", at.next);
        let dr6 = l2.block.get(DR6);
        clause!("trap-dr6", is_intercepted || dr6 >> 14 & 1 == 1, "DR6 {dr6:#x}");
        clause!("trap-keeps-host", l2.host_is_whole(), "{:x?}", l2.registers);
    }
    // An exit between STI and the next instruction is in the shadow.
    for (at, shadow) in [(code!("sti"; "cpuid"), 1), (code!("sti"; "nop"; "cpuid"), 0)] {
        let mut l2 = L2::new(at);
        l2.block.intercept(exit::CPUID);
        let code = l2.run();
        let found = l2.block.get(SHADOW) & 1;
        clause!(
            "shadow-saved",
            code == exit::CPUID && found == shadow,
            "exit {code:#x}, {found}, not {shadow}"
        );
    }
    if features().next_rip() {
        let at = code!("cpuid");
        let mut l2 = L2::new(at);
        l2.block.intercept(exit::EXCEPTION + 14);
        l2.block.set(RIP, WINDOW);
        l2.block.set(NEXT_RIP, 0x1234);
        l2.run();
        let next = l2.block.get(NEXT_RIP);
        clause!("fault-without-next-rip", next == 0, "#PF with next RIP {next:#x}");
    }
    Ok(())
}
