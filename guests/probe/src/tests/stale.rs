//! No processor sees a page after the flush that removed it has returned: see [`watch`].

use super::prelude::*;
use super::watch::{self, Watch, What};
use crate::interrupts::work_in_nmi;
use crate::paging::{LARGE_PAGE, LARGE_WINDOW};

const ROUNDS: u64 = 50;

fn flush(form: Form, mask: u64, address: u64) -> Verdict {
    let result = form.flush(mask, address);
    ensure!(result == Ok(form.success()), "{form:?}: {result:?}");
    Ok(())
}

/// By every form of the flush.
pub(super) fn stale() -> Verdict {
    enable()?;
    let mask = 1 << second_vp()?;
    let replace = |round| replace(round, false);
    watch::during(What::page(), replace, |watch| {
        for form in Form::all() {
            for _ in 0..ROUNDS {
                let stale = watch.round(replace, || flush(form, mask, WINDOW))?;
                ensure!(stale == 0, "{stale} stale reads, {form:?}");
            }
        }
        Ok(())
    })
}

/// Pieces of a large page, one of which is flushed, and the offset in it.
const FLUSHED: [(u64, u64); 5] = [(0, 0), (1, 0x123), (255, 0xfff), (256, 8), (511, 0)];

/// A flush of one address in a page of 2 MiB drops all of it, whatever its form in the TLB (A17).
pub(super) fn large_pages() -> Verdict {
    enable()?;
    let mask = 1 << second_vp()?;
    let what = What { address: LARGE_WINDOW, words: LARGE_PAGE / PAGE, ..What::page() };
    watch::during(what, replace_large, |watch| {
        watch.notices(replace_large, || flush_any(mask, LARGE_WINDOW))?;
        for form in Form::all().filter(Form::is_list) {
            for (piece, offset) in FLUSHED {
                let address = LARGE_WINDOW + piece * PAGE + offset;
                let stale = watch.round(replace_large, || flush(form, mask, address))?;
                ensure!(stale == 0, "{stale} stale pieces, {form:?} of piece {piece}");
            }
        }
        Ok(())
    })
}

fn replace_large(round: u64) {
    let index = (round % 2) as usize;
    paging::large_page(index).iter().for_each(|piece| piece.write(&[round]));
    paging::exchange_large(index);
}

/// Flushes by the first available form.
fn flush_any(mask: u64, address: u64) -> Verdict {
    Form::usual().next().map_or(Ok(()), |form| flush(form, mask, address))
}

static LOOKS: AtomicU64 = AtomicU64::new(0);
const NMIS: u32 = 200;

/// NMIs reach a processor that is flushed all the time; their handler sees nothing stale (P25).
pub(super) fn nmi_in_flush() -> Verdict {
    enable()?;
    let mask = 1 << second_vp()?;
    LOOKS.store(0, Ordering::Relaxed);
    let replace = |round| replace(round, false);
    watch::during(What::page(), replace, |watch| {
        watch.notices(replace, || flush_any(mask, WINDOW))?;
        work_in_nmi(Some(|| {
            watch::look();
            LOOKS.fetch_add(1, Ordering::AcqRel);
        }));
        let result = storm(watch, mask);
        work_in_nmi(None);
        result
    })
}

fn storm(watch: &mut Watch<'_>, mask: u64) -> Verdict {
    let before = nmi_count();
    let mut forms = Form::all().cycle();
    for number in 1..=NMIS {
        let Some(form) = forms.next() else { break };
        // Before the flush, or after it.
        let is_early = number % 2 == 0;
        let flush = || {
            if is_early {
                apic::send_nmi(SECOND);
            }
            flush(form, mask, WINDOW)
        };
        let stale = watch.round(|round| replace(round, false), flush)?;
        if !is_early {
            apic::send_nmi(SECOND);
        }
        ensure!(stale == 0, "{stale} stale reads in round {number}, {form:?}");
        // Two that arrive before the first is taken count as one.
        let arrived = || nmi_count().wrapping_sub(before);
        clock::wait_until(PATIENCE_MS, || {
            arrived() == number && LOOKS.load(Ordering::Acquire) == number.into()
        });
        let looks = LOOKS.load(Ordering::Acquire);
        ensure!(arrived() == number, "{} NMIs instead of {number}", arrived());
        ensure!(looks == number.into(), "{looks} handlers have looked, instead of {number}");
    }
    Ok(())
}
