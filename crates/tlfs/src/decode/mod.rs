//! Turns the registers of a hypercall into a checked [`Call`].

use zerocopy::IntoBytes;

use crate::call::{SET_ALL, SET_SPARSE};
use crate::control::CallKind;
use crate::{
    Call, CallRegisters, CallShape, ClusterIpi, Control, EmptyTargets, FAST_WORDS, FlushCall, FlushFlags,
    FlushScope, GvaList, HvResult, InputError, InputPage, InputSource, PAGE_SIZE, Profile, Status, Targets,
    VpSet, XMM_FAST_WORDS,
};

/// The reason why decoding gives no [`Call`].
///
/// Exhaustive: each variant needs its own answer to the guest; no default would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// The call ends with this result.
    Failed(HvResult),
    /// The instruction is undefined: #UD. The call passes its input in a way that is not offered.
    UndefinedOpcode,
    /// There is no readable memory at the input's address. The TLFS has the hypervisor send a
    /// memory intercept to the parent partition; no status is returned.
    InputNotMemory {
        /// Address of the input.
        gpa: u64,
    },
}

/// Decodes a hypercall. First copies all of its input into `page`, in one go and no more than the
/// input itself. Nothing reads guest memory afterwards, so a guest that changes it meanwhile has no
/// effect.
///
/// The caller has checked that the guest may make hypercalls at all: its mode, its privilege level,
/// and that its hypercall page is enabled.
///
/// # Errors
///
/// In the order in which they are checked:
///
/// 1. `INVALID_HYPERCALL_CODE` if the call is not known or not offered.
/// 2. [`Reject::UndefinedOpcode`] for a fast call whose header needs more than two registers, if
///    input in XMM registers is not offered. Every flush is such a call, since its header has at
///    least 24 bytes.
/// 3. `INVALID_HYPERCALL_INPUT` by [`Control::check`], and for a fast call with more input than the
///    registers hold, but for a list of nested tables' ranges, which is not read.
/// 4. `INVALID_ALIGNMENT` if the input's address is not a multiple of 8, if the input crosses a
///    page, or if it lies outside the guest physical address space.
/// 5. [`Reject::InputNotMemory`].
/// 6. `INVALID_HYPERCALL_INPUT` for a flag of a flush of nested tables, `INVALID_PARAMETER` for a
///    reserved flag of another, for a vector below 0x10 or above 0xff, and for a
///    trust level other than 0; `INVALID_HYPERCALL_INPUT` for a VP set whose size is not that of
///    the variable header, `INVALID_PARAMETER` for a set of unknown format, and for no targets at
///    all under [`EmptyTargets::Strict`].
///
/// From 4 on, a failed rep call reports the elements before its rep start index as complete:
/// earlier invocations have done them.
#[inline(always)] // On the way of each hypercall; the compiler would not do so with several callers.
pub fn decode<'a>(
    registers: CallRegisters,
    source: &impl InputSource,
    page: &'a mut InputPage,
    profile: &Profile,
) -> Result<Call<'a>, Reject> {
    let control = Control::from_bits(registers.control);
    let undone = |status| Reject::Failed(HvResult::of(status, 0));
    let failed = |status| Reject::Failed(HvResult::of(status, control.rep_start()));

    let shape = profile.shape(control.code()).ok_or(undone(Status::INVALID_HYPERCALL_CODE))?;
    let needs_xmm = shape.header_words > FAST_WORDS;
    if control.fast() && needs_xmm && !profile.xmm_input {
        return Err(Reject::UndefinedOpcode);
    }
    if !control.fits(shape) {
        return Err(undone(Status::INVALID_HYPERCALL_INPUT));
    }

    let words = if !control.fast() {
        copy_input(control, shape, registers.input, source, page)?
    } else if needs_xmm && profile.xmm_input {
        copy_registers(control, shape, registers, source, page)
            .ok_or(undone(Status::INVALID_HYPERCALL_INPUT))?
    } else {
        page.words[..FAST_WORDS].copy_from_slice(&[registers.input, registers.output]);
        &page.words[..FAST_WORDS]
    };

    match shape.kind {
        CallKind::Flush => decode_flush(control, shape, words, profile),
        CallKind::LongSpinWait => {
            Ok(Call::LongSpinWait { spins: words.first().copied().unwrap_or_default() })
        }
        // Never here. It lets the compiler drop the code for calls that are never offered.
        CallKind::ClusterIpi if !profile.cluster_ipi => Err(undone(Status::INVALID_HYPERCALL_CODE)),
        CallKind::GuestPhysical if !profile.guest_physical => Err(undone(Status::INVALID_HYPERCALL_CODE)),
        CallKind::ClusterIpi => {
            decode_cluster_ipi(control, shape, words, profile).map(Call::ClusterIpi).map_err(failed)
        }
        CallKind::GuestPhysical => match words {
            [address_space, 0, ..] => {
                let (address_space, rep_count) = (*address_space, control.rep_count());
                Ok(Call::GuestPhysical { address_space, rep_count })
            }
            _ => Err(failed(Status::INVALID_HYPERCALL_INPUT)),
        },
    }
}

/// Copies headers and list of a call into `page`, once, and returns the copied words.
#[inline(always)] // As `decode`.
fn copy_input<'a>(
    control: Control,
    shape: &CallShape,
    gpa: u64,
    source: &impl InputSource,
    page: &'a mut InputPage,
) -> Result<&'a [u64], Reject> {
    let misplaced = || Reject::Failed(HvResult::of(Status::INVALID_ALIGNMENT, control.rep_start()));
    let count = control.input_words(shape);
    let room = (PAGE_SIZE - (gpa % PAGE_SIZE as u64) as usize) / 8;
    if !gpa.is_multiple_of(8) || count > room {
        return Err(misplaced());
    }
    let words = page.words.get_mut(..count).ok_or_else(misplaced)?;
    source.read(gpa, words.as_mut_bytes()).map_err(|error| match error {
        InputError::OutsideGpaSpace => misplaced(),
        InputError::NotMemory => Reject::InputNotMemory { gpa },
    })?;
    Ok(words)
}

/// Copies headers and list of a fast call from general and XMM registers into `page`; `None` if the
/// registers do not hold that much.
#[inline(never)]
fn copy_registers<'a>(
    control: Control,
    shape: &CallShape,
    registers: CallRegisters,
    source: &impl InputSource,
    page: &'a mut InputPage,
) -> Option<&'a [u64]> {
    let count = control.input_words(shape);
    let (general, xmm) = page.words.get_mut(..XMM_FAST_WORDS)?.split_at_mut_checked(FAST_WORDS)?;
    if count > XMM_FAST_WORDS {
        return None;
    }
    general.copy_from_slice(&[registers.input, registers.output]);
    xmm.copy_from_slice(&source.xmm_words());
    page.words.get(..count)
}

/// Fixed header, banks of the variable header, and list. The copy was made with the same sizes, so
/// this cannot fail; if it did, the guest would have passed too little.
type Parts<'a> = (&'a [u64], &'a [u64], &'a [u64]);

#[inline]
fn split<'a>(control: Control, shape: &CallShape, words: &'a [u64]) -> Result<Parts<'a>, Status> {
    let (header, rest) = words.split_at_checked(shape.header_words).ok_or(SHORT)?;
    let (banks, list) = rest.split_at_checked(usize::from(control.variable_header_words())).ok_or(SHORT)?;
    Ok((header, banks, list))
}

/// Less input than the control word announces.
const SHORT: Status = Status::INVALID_HYPERCALL_INPUT;

/// Reads a flush call from the words of its input.
#[inline(always)] // It has one caller, and its result is large to move.
fn decode_flush<'a>(
    control: Control,
    shape: &CallShape,
    words: &'a [u64],
    profile: &Profile,
) -> Result<Call<'a>, Reject> {
    let failed = |status| Reject::Failed(HvResult::of(status, control.rep_start()));
    let (header, banks, list) = split(control, shape, words).map_err(failed)?;
    let [address_space, flags, set @ ..] = header else { return Err(failed(SHORT)) };

    let flags = FlushFlags::from_bits(*flags);
    if !flags.is_within(profile.flush_flags()) {
        // The extended range format may be among the flags. Reading such a list in the plain format
        // would flush too little; an error makes the guest flush by its own means.
        return Err(failed(Status::INVALID_PARAMETER));
    }
    let targets = match set {
        _ if flags.all_processors() => Targets::All,
        [mask] => mask_targets(mask, profile).map_err(failed)?,
        [format, valid_banks] => set_targets(*format, *valid_banks, banks, profile).map_err(failed)?,
        _ => return Err(failed(SHORT)),
    };
    let scope = if shape.rep {
        let todo = list.get(usize::from(control.rep_start())..).ok_or_else(|| failed(SHORT))?;
        FlushScope::List(
            GvaList::new(todo, profile.va_width)
                .starting_at(control.rep_start())
                .extended(flags.extended_ranges()),
        )
    } else {
        FlushScope::Everything
    };
    let (address_space, rep_count) = (*address_space, control.rep_count());
    Ok(Call::Flush(FlushCall { targets, address_space, flags, scope, rep_count }))
}

/// Reads a call that sends an interrupt from the words of its input. Bytes 5 to 7 are padding and
/// ignored.
#[inline(never)]
fn decode_cluster_ipi<'a>(
    control: Control,
    shape: &CallShape,
    words: &'a [u64],
    profile: &Profile,
) -> Result<ClusterIpi<'a>, Status> {
    let (header, banks, _) = split(control, shape, words)?;
    let [interrupt, set @ ..] = header else { return Err(SHORT) };
    let [vector, _, _, _, trust_level, ..] = interrupt.to_le_bytes();
    if *interrupt & 0xffff_ff00 != 0 || vector < ClusterIpi::VECTOR_MIN || trust_level != 0 {
        return Err(Status::INVALID_PARAMETER);
    }
    let targets = match set {
        [0] if profile.empty_targets == EmptyTargets::Strict => return Err(Status::INVALID_PARAMETER),
        [mask] => Targets::Set(VpSet::from_mask(mask)),
        [format, valid_banks] => set_targets(*format, *valid_banks, banks, profile)?,
        _ => return Err(SHORT),
    };
    Ok(ClusterIpi { vector, targets })
}

/// The targets that a 64-bit mask names for a flush.
fn mask_targets<'a>(mask: &'a u64, profile: &Profile) -> Result<Targets<'a>, Status> {
    match (*mask, profile.empty_targets) {
        (0, EmptyTargets::Lenient) => Ok(Targets::All),
        (0, EmptyTargets::Strict) => Err(Status::INVALID_PARAMETER),
        _ => Ok(Targets::Set(VpSet::from_mask(mask))),
    }
}

/// The targets that a VP set names. A set of all processors may carry a bank mask and banks. These
/// are ignored; the header's size alone determines where the list starts.
#[inline(always)] // As `decode`; that of interrupts is apart.
fn set_targets<'a>(
    format: u64,
    valid_banks: u64,
    banks: &'a [u64],
    profile: &Profile,
) -> Result<Targets<'a>, Status> {
    match format {
        SET_ALL => Ok(Targets::All),
        SET_SPARSE => {
            let set = VpSet::sparse(valid_banks, banks).map_err(|_| Status::INVALID_HYPERCALL_INPUT)?;
            match profile.empty_targets {
                EmptyTargets::Strict if set.is_empty() => Err(Status::INVALID_PARAMETER),
                _ => Ok(Targets::Set(set)),
            }
        }
        _ => Err(Status::INVALID_PARAMETER),
    }
}

#[cfg(test)]
mod offered_tests;
#[cfg(test)]
mod tests;
