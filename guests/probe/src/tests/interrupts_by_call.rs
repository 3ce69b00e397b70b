//! Interrupts by hypercall.

use super::prelude::*;

const ROUNDS: u32 = 100;

type Send = fn(u64, u64) -> Result<HvResult, Fault>;

const ONE: Control = Control::new().with_call_code(CallCode::SEND_SYNTHETIC_CLUSTER_IPI.0);
const EX: Control = Control::new().with_call_code(CallCode::SEND_SYNTHETIC_CLUSTER_IPI_EX.0);

const WAYS: [(&str, Send); 4] = [
    ("by memory", |vector, mask| call_with(ONE, &[vector, mask])),
    ("by registers", |vector, mask| call_with(ONE.with_fast(true), &[vector, mask])),
    ("set by memory", |vector, mask| {
        call_with(EX.with_variable_header_words(2), &[vector, 0, 3, mask, u64::MAX])
    }),
    ("set by registers", |vector, mask| {
        call_with(EX.with_fast(true).with_variable_header_words(1), &[vector, 0, 1, mask])
    }),
];

/// Every interrupt arrives once, at its destination, even if that halts or is the sender.
pub(super) fn cluster_ipi() -> Verdict {
    enable()?;
    let other = 1 << second_vp()?;
    let own = rdmsr(tlfs::msr::VP_INDEX).map(|index| 1 << index).unwrap_or(0);
    ensure!(own != 0 && own != other, "both processors have VP index mask {own:#x}");
    for (number, (way, send)) in WAYS.iter().enumerate() {
        let vector = VECTOR_TEST + number as u8;
        // Processors that do not exist are ignored.
        let cases = [("the other", other, 1), ("itself", own | 1 << 63, 1), ("both", own | other, 2)];
        for (whom, mask, arrivals) in cases.into_iter().chain([("nobody", 0, 0)]) {
            let before = count(vector);
            for round in 1..=ROUNDS {
                let result = send(vector.into(), mask);
                let good = result == Ok(HvResult::of(Status::SUCCESS, 0));
                ensure!(good, "{way}, to {whom}: {result:?}");
                let expected = before.wrapping_add(round * arrivals);
                interrupts::enable();
                clock::wait_until(PATIENCE_MS, || count(vector) == expected);
                interrupts::disable();
                let arrived = count(vector).wrapping_sub(before);
                let wanted = round * arrivals;
                ensure!(arrived == wanted, "{way}, to {whom}: {arrived} arrivals instead of {wanted}");
            }
        }
        refused(way, *send, own | other)?;
    }
    // The other processor has taken no more than it was sent.
    processors::run(SECOND, |_| ())
}

/// Vectors that cannot be sent, and another trust level.
fn refused(way: &str, send: Send, mask: u64) -> Verdict {
    for vector in [0, 2, 0xf, 0x100, 0x1_0000_0040, u64::MAX] {
        let result = send(vector, mask);
        let good = result == Ok(HvResult::of(Status::INVALID_PARAMETER, 0));
        ensure!(good, "{way}, vector {vector:#x}: {result:?}");
    }
    Ok(())
}
