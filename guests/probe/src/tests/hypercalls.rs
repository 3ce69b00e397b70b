//! Flushes, and the other processor's VP index.

use super::prelude::*;
use tlbcheck::form::{Element, Flush, Kind, Targets, Via};
use tlfs::{FlushFlags, PAGE_WORDS};

pub(super) fn space() -> Control {
    Control::new().with_call_code(CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE.0)
}

/// Flushes the page at `address` of the current space, or more, on the processors of `mask`.
pub(super) fn flush(kind: Kind, mask: u64, address: u64) -> Verdict {
    let elements = &[Element::Plain.word(address, 0)];
    let (via, targets, space, flags) = (Via::Memory, Targets::Mask(mask), paging::space(), FlushFlags::new());
    let flush = Flush { kind, via, targets, space, flags, elements };
    let mut words = [0; PAGE_WORDS];
    let (control, used) = flush.encode(&mut words).expect("a few words fit");
    let result = call_with(control, &words[..used]);
    ensure!(result == Ok(flush.success()), "{kind:?}: {result:?}");
    Ok(())
}

static SECOND_VP: AtomicU32 = AtomicU32::new(u32::MAX);

pub(super) fn second_vp() -> Result<u32, Failure> {
    processors::run(SECOND, |_| {
        let index = rdmsr(msr::VP_INDEX).ok().and_then(|index| u32::try_from(index).ok());
        SECOND_VP.store(index.unwrap_or(u32::MAX), Ordering::Release);
    })?;
    let index = SECOND_VP.load(Ordering::Acquire);
    ensure!(index < 64, "the second processor's VP index is {index:#x}");
    Ok(index)
}
