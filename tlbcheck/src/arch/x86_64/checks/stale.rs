//! The pinned loop: no processor sees a page after the flush that removed it has returned (O1). See
//! [`watch`](crate::arch::x86_64::watch).

use baremetal::x86_64::interrupts::{VECTOR_NMI, count, handle};

use super::prelude::*;
use crate::arch::x86_64::back_end::others;
use crate::arch::x86_64::watch::Rounds;

const ROUNDS: u32 = 100;

/// Checks that the interface has calls of this kind in this way, and skips otherwise.
pub(super) fn offers(kind: Kind, via: Via) -> Verdict {
    let offered = machine::flushes()?.interface();
    needs!(!kind.is_ex() || offered.vp_sets, "CPUID 0x40000004 does not offer calls with VP sets");
    needs!(via == Via::Memory || offered.xmm_input, "CPUID 0x40000003 does not offer input in XMM registers");
    Ok(())
}

/// The kinds of calls that are offered, and the ways in which each is.
pub(super) fn ways() -> impl Iterator<Item = (Kind, Via)> {
    let all = Kind::ALL.into_iter().flat_map(|kind| [Via::Memory, Via::Xmm].map(|via| (kind, via)));
    all.filter(|(kind, via)| offers(*kind, *via).is_ok())
}

/// The kinds, with input in memory.
pub(super) fn kinds() -> impl Iterator<Item = Kind> {
    ways().filter_map(|(kind, via)| (via == Via::Memory).then_some(kind))
}

/// A flush of this kind with input in memory, of the usual space and without flags.
pub(super) fn plain<'a>(kind: Kind, targets: Targets<'a>, elements: &'a [u64]) -> Flush<'a> {
    Flush { kind, via: Via::Memory, targets, space: window::space(), flags: FlushFlags::new(), elements }
}

/// A VP alone, whose set is given as well, as calls of this kind name it; all if they cannot.
pub(super) fn only(kind: Kind, vp: u32, (valid, bank): &(u64, [u64; 1])) -> Targets<'_> {
    match kind.is_ex() {
        true => Targets::Sparse(*valid, bank),
        false if vp < 64 => Targets::Mask(1 << vp),
        false => Targets::AllFlag,
    }
}

/// All flushes of one kind and way that drop the page at `address` on the VP, in every form.
pub(super) fn each_form(
    kind: Kind,
    via: Via,
    vp: u32,
    address: u64,
    mut each: impl FnMut(&Flush<'_>) -> Verdict,
) -> Verdict {
    let (valid, bank) = sparse_of(vp);
    let targets = [
        (vp < 64, Targets::Mask(1 << (vp % 64))),
        (true, Targets::AllFlag),
        (kind.is_ex(), Targets::Sparse(valid, &bank)),
        (kind.is_ex(), Targets::AllFormat(&[])),
        (kind.is_ex(), Targets::AllFormat(&[0])),
    ];
    let elements = [Element::Plain.word(address, 0)];
    for (_, targets) in targets.into_iter().filter(|(exists, _)| *exists) {
        each(&Flush { via, ..plain(kind, targets, &elements) })?;
    }
    Ok(())
}

/// A target that leaves guest mode only when kicked.
pub(super) fn pinned(kind: Kind, via: Via) -> Verdict {
    offers(kind, via)?;
    let processor = machine::second()?;
    watch::during(What::page(processor, WINDOW), |watch| {
        let mut is_first = true;
        each_form(kind, via, machine::vp(processor), WINDOW, |flush| {
            if matches!(flush.targets, Targets::AllFlag | Targets::AllFormat(_)) {
                // They have their own rows.
                return Ok(());
            }
            if core::mem::take(&mut is_first) {
                watch.notices(|| hypercall::flush(flush))?;
            }
            for round in rounds(ROUNDS) {
                let stale = watch.round(|| hypercall::flush(flush))?;
                ensure!(stale == 0, "{stale} stale reads in round {round}, {:x?}", flush.targets);
            }
            Ok(())
        })
    })
}

/// The same by the shootdown engine in each of its modes, for the page or for everything.
pub(super) fn by_engine(back_ends: &[BackEnd], is_page: bool) -> Verdict {
    let processor = machine::second()?;
    let what = What { interrupts: true, ..What::page(processor, WINDOW) };
    let scope = if is_page { Scope::Pages(&[WINDOW]) } else { Scope::Everything };
    for back_end in back_ends {
        let flush = || back_end.flush(&[processor], scope);
        among(&[processor], || {
            watch::during(what, |watch| {
                watch.notices(flush)?;
                for round in rounds(ROUNDS) {
                    let stale = watch.round(flush)?;
                    ensure!(stale == 0, "{}: {stale} stale reads in round {round}", back_end.name());
                }
                Ok(())
            })
        })?;
    }
    Ok(())
}

/// A flush of all processors by interrupts reaches each of them.
pub(super) fn every_processor_by_ipi() -> Verdict {
    machine::second()?;
    let all = others(usize::MAX);
    let each = |processor: usize| {
        let what = What { interrupts: true, ..What::page(processor, WINDOW) };
        watch::during(what, |watch| {
            watch.notices(|| BackEnd::Concurrent.flush(&all, Scope::Everything))?;
            for back_end in BackEnd::BY_IPI {
                let stale = watch.round(|| back_end.flush(&all, Scope::Pages(&[WINDOW])))?;
                ensure!(stale == 0, "{}: {stale} stale reads of processor {processor}", back_end.name());
            }
            Ok(())
        })
    };
    among(&all, || all.iter().try_for_each(|processor| each(*processor)))
}

/// Offsets in a large page that are flushed.
pub(super) const FLUSHED: [u64; 5] = [0, PAGE + 0x123, 255 * PAGE + 0xfff, 256 * PAGE + 8, 511 * PAGE];

/// A flush of one address in a page of 2 MiB drops all of it, whatever its form in the TLB (A17).
pub(super) fn large_by_ipi() -> Verdict {
    let processor = machine::second()?;
    let what = What { interrupts: true, ..What::large_page(processor) };
    let rounds = |watch: &mut Rounds| {
        watch.notices(|| BackEnd::Concurrent.flush(&[processor], Scope::Everything))?;
        for back_end in BackEnd::BY_IPI {
            for offset in FLUSHED {
                let pages = [LARGE_WINDOW + offset];
                let stale = watch.round(|| back_end.flush(&[processor], Scope::Pages(&pages)))?;
                let name = back_end.name();
                ensure!(stale == 0, "{name}: {stale} stale pieces after a flush at {offset:#x}");
            }
        }
        Ok(())
    };
    among(&[processor], || watch::during(what, rounds))
}

static LOOKS: AtomicU64 = AtomicU64::new(0);
const NMIS: u32 = 100;

/// NMIs reach a processor that is flushed all the time; their handler sees nothing stale (P25).
pub(super) fn in_nmi() -> Verdict {
    machine::flushes()?;
    let processor = machine::second()?;
    watch::during(What::page(processor, WINDOW), |watch| {
        handle(
            VECTOR_NMI,
            Some(|_| {
                watch::look();
                LOOKS.fetch_add(1, Ordering::AcqRel);
            }),
        );
        let verdict = storm(watch, processor);
        handle(VECTOR_NMI, None);
        verdict
    })
}

fn storm(watch: &mut Rounds, processor: usize) -> Verdict {
    let (before, looks) = (count(VECTOR_NMI), LOOKS.load(Ordering::Acquire));
    let vp = machine::vp(processor);
    let flush = |kind| {
        let elements = [Element::Plain.word(WINDOW, 0)];
        hypercall::flush(&plain(kind, only(kind, vp, &sparse_of(vp)), &elements))
    };
    for number in 1..=NMIS {
        let kind = if number / 2 % 2 == 0 { Kind::Space } else { Kind::List };
        // Before the flush, or after it.
        let is_early = number % 2 == 0;
        let send = || apic::send_nmi(processors::id(processor));
        let stale = watch.round(|| {
            if is_early {
                send();
            }
            flush(kind)
        })?;
        if !is_early {
            send();
        }
        ensure!(stale == 0, "{stale} stale reads in round {number}, {kind:?}");
        // Two that arrive before the first is taken count as one.
        let seen = || LOOKS.load(Ordering::Acquire) - looks;
        let arrived = clock::wait_until(PATIENCE_MS, || seen() == u64::from(number));
        let taken = count(VECTOR_NMI).wrapping_sub(before);
        ensure!(arrived, "{taken} NMIs, of which {} have looked, instead of {number}", seen());
    }
    Ok(())
}
