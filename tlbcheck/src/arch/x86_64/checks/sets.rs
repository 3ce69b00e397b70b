//! The targets of a flush: VP indices, masks, sets.

use super::prelude::*;

/// Rounds of each set, and maximum number of processors that are tested.
const ROUNDS: u32 = 3;
const PROCESSORS_MAX: usize = 16;

/// Each processor's VP index is unique and constant (H13).
pub(super) fn indices() -> Verdict {
    machine::flushes()?;
    let processors = machine::get().processors;
    for number in 0..processors {
        let earlier = (0..number).find(|other| machine::vp(*other) == machine::vp(number));
        ensure!(earlier.is_none(), "{number} and {earlier:?} have VP index {}", machine::vp(number));
    }
    let before = rdmsr(msr::VP_INDEX);
    machine::read_vp_indices()?;
    ensure!(before == rdmsr(msr::VP_INDEX), "the first processor's VP index changes from {before:?}");
    Ok(())
}

/// Processors besides the first one, up to this number, including the last one.
fn some_processors() -> impl Iterator<Item = usize> {
    let last = machine::get().processors - 1;
    let step = last.div_ceil(PROCESSORS_MAX).max(1);
    (0..PROCESSORS_MAX).map(move |index| last.saturating_sub(index * step)).take_while(|number| *number > 0)
}

/// Flushes everything of every processor, in the form that every hypervisor supports.
pub(super) fn flush_all() -> Verdict {
    let flags = FlushFlags::new().with_all_address_spaces(true);
    hypercall::flush(&Flush { space: 0, flags, ..plain(Kind::Space, Targets::AllFlag, &[]) })
}

/// Makes `processor` check while every call flushes it, with each of `targets`.
fn flushed(processor: usize, kinds: &[Kind], targets: &[Targets<'_>]) -> Verdict {
    let elements = [Element::Plain.word(WINDOW, 0)];
    watch::during(What::page(processor, WINDOW), |watch| {
        watch.notices(flush_all)?;
        for (kind, targets) in
            kinds.iter().flat_map(|kind| targets.iter().map(move |targets| (*kind, *targets)))
        {
            let flush = plain(kind, targets, &elements);
            for _ in 0..ROUNDS {
                let stale = watch.round(|| hypercall::flush(&flush))?;
                ensure!(stale == 0, "processor {processor} is not flushed, {kind:?} of {targets:x?}");
            }
        }
        Ok(())
    })
}

const EX: [Kind; 2] = [Kind::SpaceEx, Kind::ListEx];

/// Each processor is flushed by its own VP index, alone in a mask or a set.
pub(super) fn every_processor(by_set: bool) -> Verdict {
    offers(if by_set { Kind::SpaceEx } else { Kind::Space }, Via::Memory)?;
    machine::second()?;
    for processor in some_processors() {
        let vp = machine::vp(processor);
        let (valid, bank) = sparse_of(vp);
        match by_set {
            true => flushed(processor, &EX, &[Targets::Sparse(valid, &bank)])?,
            false if vp < 64 => flushed(processor, &[Kind::Space, Kind::List], &[Targets::Mask(1 << vp)])?,
            false => {}
        }
    }
    Ok(())
}

/// Banks are stored consecutively in the order of the valid ones, not by their numbers (H11).
pub(super) fn bank_by_number() -> Verdict {
    offers(Kind::SpaceEx, Via::Memory)?;
    let high = |number: &usize| machine::vp(*number) >= 64;
    let found = (1..machine::get().processors).rev().find(high);
    needs!(found.is_some(), "no processor has a VP index of 64 or more");
    let processor = found.unwrap_or_default();
    let (valid, [bank]) = sparse_of(machine::vp(processor));
    // Alone; after an empty bank; before an empty one; between them.
    let (low, high) = (1, 1 << 63);
    let targets = [
        Targets::Sparse(valid, &[bank]),
        Targets::Sparse(low | valid, &[0, bank]),
        Targets::Sparse(valid | high, &[bank, 0]),
        Targets::Sparse(low | valid | high, &[0, bank, 0]),
    ];
    flushed(processor, &EX, &targets)
}

/// A list begins after all banks, including empty ones (H10).
pub(super) fn empty_banks() -> Verdict {
    offers(Kind::SpaceEx, Via::Memory)?;
    let processor = machine::second()?;
    let (valid, [bank]) = sparse_of(machine::vp(processor));
    let holes = [
        Targets::Sparse(valid | 1 << 62, &[bank, 0]),
        Targets::Sparse(valid | 1 << 62 | 1 << 63, &[bank, 0, 0]),
    ];
    flushed(processor, &EX, &holes)
}

/// The last processor, which may be of another bank than the others.
fn last() -> usize {
    machine::get().processors - 1
}

/// The flag for all processors means all, regardless of mask or set.
pub(super) fn all_flag() -> Verdict {
    machine::flushes()?;
    for processor in [machine::second()?, last()] {
        flushed(processor, &[Kind::Space, Kind::List], &[Targets::AllFlag])?;
        offers(Kind::SpaceEx, Via::Memory)?;
        flushed(processor, &EX, &[Targets::AllFlag])?;
    }
    Ok(())
}

/// A set of the format for all means all, regardless of its banks (H12).
pub(super) fn all_format() -> Verdict {
    offers(Kind::SpaceEx, Via::Memory)?;
    let targets = [Targets::AllFormat(&[]), Targets::AllFormat(&[0]), Targets::AllFormat(&[0, 0, 0])];
    [machine::second()?, last()].into_iter().try_for_each(|processor| flushed(processor, &EX, &targets))
}

/// Processors that do not exist are ignored, and the others are flushed (H10).
pub(super) fn absent() -> Verdict {
    offers(Kind::SpaceEx, Via::Memory)?;
    let processor = machine::second()?;
    let targets =
        [Targets::Sparse(u64::MAX, &[u64::MAX; 64]), Targets::Sparse(u64::MAX >> 1, &[u64::MAX; 63])];
    flushed(processor, &EX, &targets)?;
    // No existing processor at all.
    let highest = Targets::Sparse(1 << 63, &[1 << 63]);
    let result = hypercall::result_of(&plain(Kind::SpaceEx, highest, &[]));
    ensure!(result == Ok(HvResult::of(Status::SUCCESS, 0)), "a set of VP 4095 alone: {result:x?}");
    Ok(())
}
