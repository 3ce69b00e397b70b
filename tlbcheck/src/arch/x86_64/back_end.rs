//! Flushes of other processors, by interrupt and by hypercall, behind one trait.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use baremetal::pages::PAGE;
use baremetal::x86_64::interrupts::{self, VECTOR_FREE};
use baremetal::x86_64::processors::MAX_PROCESSORS;
use baremetal::x86_64::{apic, clock, processors};
use tlbcheck::ensure;
use tlbcheck::report::{Verdict, fail};
use tlfs::encode::{FlushCalls, FlushRequest, ListLimit, Progress, VaRange};
use tlfs::{PAGE_WORDS, Targets, VpSet};

use super::machine::{self, PATIENCE_MS};
use super::{hypercall, window};

/// Ranges of one flush at most: as many as a list of a hypercall.
pub(super) const RANGES_MAX: usize = 509;

/// What a flush is to take.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scope<'a> {
    /// Everything that is not global.
    Everything,
    /// The pages at these addresses.
    Pages(&'a [u64]),
}

/// A way to flush the TLBs of processors. When `flush` returns, no processor that was named uses a translation that
/// was replaced before the call, and what was done by such is to be seen.
pub(super) trait BackEnd {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Flushes the calling processor's TLB and those of `others`, by number.
    ///
    /// # Errors
    ///
    /// Somebody does not answer, or the hypervisor refuses.
    fn flush(&self, others: &[usize], scope: Scope<'_>) -> Verdict;
}

/// Asks for a flush.
const VECTOR_FLUSH: u8 = VECTOR_FREE;

/// The request that is under way: how many pages, or 0 for everything, and which. Written before the interrupts are
/// sent and not before all have answered the one before.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static PAGES: [AtomicU64; RANGES_MAX] = [const { AtomicU64::new(0) }; RANGES_MAX];
/// Processors that have not answered. The decrement, with release, comes after the flush; the initiator's load, with
/// acquire, before its return.
static UNANSWERED: AtomicU32 = AtomicU32::new(0);

/// Has all processors heed requests.
pub(super) fn listen() {
    interrupts::handle(
        VECTOR_FLUSH,
        Some(|_| {
            match COUNT.load(Ordering::Acquire) {
                0 => flush_own(Scope::Everything),
                count => PAGES[..count.min(RANGES_MAX)]
                    .iter()
                    .for_each(|page| window::invlpg(page.load(Ordering::Relaxed))),
            }
            UNANSWERED.fetch_sub(1, Ordering::AcqRel);
        }),
    );
}

/// Flushes the calling processor's TLB.
pub(super) fn flush_own(scope: Scope<'_>) {
    match scope {
        Scope::Everything => {
            window::enter_space(x86_64::registers::control::Cr3::read().0.start_address().as_u64())
        }
        Scope::Pages(pages) => pages.iter().for_each(|page| window::invlpg(*page)),
    }
}

/// By interrupts: the others flush on them and answer, and the calling processor flushes meanwhile.
pub(super) struct Ipi;

impl BackEnd for Ipi {
    fn name(&self) -> &'static str {
        "ipi"
    }

    fn flush(&self, others: &[usize], scope: Scope<'_>) -> Verdict {
        let pages = match scope {
            Scope::Everything => &[][..],
            Scope::Pages(pages) => pages,
        };
        // More than there is room for becomes everything.
        let count = if pages.len() > RANGES_MAX { 0 } else { pages.len() };
        PAGES.iter().zip(pages).for_each(|(place, page)| place.store(*page, Ordering::Relaxed));
        UNANSWERED.store(others.len() as u32, Ordering::Relaxed);
        COUNT.store(count, Ordering::Release);
        others.iter().for_each(|number| apic::send_fixed(processors::apic_id(*number), VECTOR_FLUSH));
        flush_own(scope);
        let answered = clock::wait_until(PATIENCE_MS, || UNANSWERED.load(Ordering::Acquire) == 0);
        ensure!(answered, "{} processors do not answer", UNANSWERED.load(Ordering::Acquire));
        Ok(())
    }
}

/// By hypercall, in the form that the encoder chooses; the own flush is the processor's own.
pub(super) struct Hypercall;

impl BackEnd for Hypercall {
    fn name(&self) -> &'static str {
        "hypercall"
    }

    fn flush(&self, others: &[usize], scope: Scope<'_>) -> Verdict {
        let hyperv = machine::flushes()?;
        let mut banks = [0u64; MAX_PROCESSORS / 64 + 1];
        for number in others {
            let vp = machine::vp(*number) as usize;
            let Some(bank) = banks.get_mut(vp / 64) else {
                return Err(fail(format_args!("VP index {vp} is more than is kept")));
            };
            *bank |= 1 << (vp % 64);
        }
        let set = VpSet::dense(&banks).map_err(|error| fail(format_args!("{error:?}")))?;
        let request = FlushRequest {
            targets: Targets::Set(set),
            address_space: Some(window::space()),
            non_global_only: false,
        };
        let done = match scope {
            Scope::Everything => make(FlushCalls::space(request, hyperv.interface())),
            Scope::Pages(pages) => {
                let ranges = pages.iter().map(|page| VaRange::new(*page, *page | (PAGE - 1)));
                make(FlushCalls::list(request, hyperv.interface(), ranges, ListLimit::default()))
            }
        };
        flush_own(scope);
        done
    }
}

/// Makes the calls of a flush.
fn make<R: Iterator<Item = VaRange> + Clone>(mut calls: FlushCalls<'_, R>) -> Verdict {
    let mut words = [0; PAGE_WORDS];
    while let Some(mut call) = calls.next_into(&mut words) {
        loop {
            let result = hypercall::call_with(call.control, call.words(&words));
            let result = result.map_err(|fault| fail(format_args!("a flush ends with {fault:?}")))?;
            match call.progress(result) {
                Progress::Done => break,
                Progress::Unfinished(rest) => call = rest,
                Progress::Failed { status, done } => {
                    return Err(fail(format_args!("a flush ends with {status:x?} after {done} elements")));
                }
            }
        }
    }
    Ok(())
}

/// All processors but the first, up to `count` of them.
pub(super) fn others(count: usize) -> ArrayVec<usize, MAX_PROCESSORS> {
    (1..machine::get().processors).take(count).collect()
}
