//! From the registers of a hypercall to a checked [`Call`].

use zerocopy::IntoBytes;

use crate::control::FAST_WORDS;
use crate::{
    Call, CallCode, CallShape, Control, FlushCall, FlushFlags, FlushScope, GvaList, HvResult, PAGE_SIZE,
    Status, Targets, VaWidth, VpSet,
};

/// HV_GENERIC_SET_FORMAT: the members are listed in banks.
const SET_SPARSE: u64 = 0;
/// HV_GENERIC_SET_FORMAT: every virtual processor.
const SET_ALL: u64 = 1;

/// The registers that a hypercall passes. TLFS, "Hypercall Inputs".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRegisters {
    /// The control word: RCX, or EDX:EAX of a 32-bit caller.
    pub control: u64,
    /// Address of the input, or the first word of a fast call: RDX, or EBX:ECX.
    pub input: u64,
    /// Address of the output, or the second word of a fast call: R8, or EDI:ESI.
    pub output: u64,
}

/// Where a hypercall's input comes from: the memory of the guest.
pub trait InputSource {
    /// Copies guest memory from `gpa` on into `into`, reading each byte at most once. `gpa` is a
    /// multiple of 8 and the bytes lie within one page.
    ///
    /// # Errors
    ///
    /// Why nothing could be copied. What `into` holds then does not matter.
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError>;
}

/// Why a hypercall's input cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputError {
    /// The address is beyond the partition's guest physical address space.
    OutsideGpaSpace,
    /// There is no readable memory at the address.
    NotMemory,
}

/// What of the specification is left to the implementation, or is done differently by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What a call without any target does.
    pub empty_targets: EmptyTargets,
    /// Width of the guest's virtual addresses.
    pub va_width: VaWidth,
}

/// What a call does that names no target and does not set [`FlushFlags::all_processors`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmptyTargets {
    /// An empty 64-bit mask means every processor: Windows Server 2012 passes it and expects that, and
    /// flushing too much is never wrong. An empty VP set means no processor: no guest is known to mean
    /// anything else by it, and it must not grow. Linux KVM does the same.
    #[default]
    Lenient,
    /// Either is an invalid parameter, as it is on Hyper-V.
    Strict,
}

/// Why there is no [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// The call ends with this result.
    Failed(HvResult),
    /// The instruction is undefined: #UD. The input is passed in a way that is not offered.
    UndefinedOpcode,
    /// There is no readable memory at the input's address. The TLFS has the hypervisor send a memory
    /// intercept to the parent partition; no status is returned.
    InputNotMemory {
        /// Address of the input.
        gpa: u64,
    },
}

/// Room for the one copy of a hypercall's input.
#[derive(Clone, Debug)]
pub struct InputPage {
    words: [u64; PAGE_SIZE / 8],
}

impl InputPage {
    /// An empty page.
    pub const fn new() -> Self {
        Self { words: [0; PAGE_SIZE / 8] }
    }
}

impl Default for InputPage {
    fn default() -> Self {
        Self::new()
    }
}

/// Decodes a hypercall. All of its input is copied into `page` first, in one go and no more than there
/// is; nothing looks at guest memory afterwards, so a guest that changes it meanwhile changes nothing.
///
/// The caller has seen to it that the guest may call at all: mode, privilege level, and that its
/// hypercall page is enabled.
///
/// # Errors
///
/// In the order in which they are looked for:
///
/// 1. `INVALID_HYPERCALL_CODE` if the call is not known.
/// 2. [`Reject::UndefinedOpcode`] for a fast call whose header needs more than two registers. That is
///    the form with XMM registers, which is not offered (CPUID 0x40000003.EDX\[4\]); every flush is
///    such a call, since its header has at least 24 bytes.
/// 3. `INVALID_HYPERCALL_INPUT` by [`Control::check`].
/// 4. `INVALID_ALIGNMENT` if the input's address is not a multiple of 8, if the input crosses a page,
///    or if it lies outside the guest physical address space.
/// 5. [`Reject::InputNotMemory`].
/// 6. `INVALID_PARAMETER` for a reserved flag, `INVALID_HYPERCALL_INPUT` for a VP set whose size is not
///    that of the variable header, `INVALID_PARAMETER` for a set of unknown format, and for no targets
///    at all under [`EmptyTargets::Strict`].
///
/// From 4 on a failed rep call reports the elements before its rep start index as complete: they have
/// been done by earlier invocations.
pub fn decode<'a>(
    registers: CallRegisters,
    source: &impl InputSource,
    page: &'a mut InputPage,
    profile: &Profile,
) -> Result<Call<'a>, Reject> {
    let control = Control::from_bits(registers.control);
    let undone = |status| Reject::Failed(HvResult::of(status, 0));
    let failed = |status| Reject::Failed(HvResult::of(status, control.rep_start()));

    let shape = control.code().shape().ok_or(undone(Status::INVALID_HYPERCALL_CODE))?;
    if control.fast() && shape.header_words > FAST_WORDS {
        return Err(Reject::UndefinedOpcode);
    }
    if !control.fits(shape) {
        return Err(undone(Status::INVALID_HYPERCALL_INPUT));
    }

    let words = if control.fast() {
        page.words[..FAST_WORDS].copy_from_slice(&[registers.input, registers.output]);
        &page.words[..FAST_WORDS]
    } else {
        copy_input(control, shape, registers.input, source, page)?
    };

    match control.code() {
        CallCode::NOTIFY_LONG_SPIN_WAIT => {
            Ok(Call::LongSpinWait { spins: words.first().copied().unwrap_or_default() })
        }
        _ => decode_flush(control, shape, words, profile).map(Call::Flush).map_err(failed),
    }
}

/// Copies headers and list of a call into `page`, once, and returns its words.
fn copy_input<'a>(
    control: Control,
    shape: CallShape,
    gpa: u64,
    source: &impl InputSource,
    page: &'a mut InputPage,
) -> Result<&'a [u64], Reject> {
    let misplaced = Reject::Failed(HvResult::of(Status::INVALID_ALIGNMENT, control.rep_start()));
    let count =
        shape.header_words + usize::from(control.variable_header_words()) + usize::from(control.rep_count());
    let room = (PAGE_SIZE - (gpa % PAGE_SIZE as u64) as usize) / 8;
    if !gpa.is_multiple_of(8) || count > room {
        return Err(misplaced);
    }
    let words = page.words.get_mut(..count).ok_or(misplaced)?;
    source.read(gpa, words.as_mut_bytes()).map_err(|error| match error {
        InputError::OutsideGpaSpace => misplaced,
        InputError::NotMemory => Reject::InputNotMemory { gpa },
    })?;
    Ok(words)
}

/// Reads a flush call from the words of its input.
fn decode_flush<'a>(
    control: Control,
    shape: CallShape,
    words: &'a [u64],
    profile: &Profile,
) -> Result<FlushCall<'a>, Status> {
    // The sizes are those that the copy was made by, so this cannot fail; if it could, the guest would
    // have passed too little.
    let short = Status::INVALID_HYPERCALL_INPUT;
    let (header, rest) = words.split_at_checked(shape.header_words).ok_or(short)?;
    let (banks, list) = rest.split_at_checked(usize::from(control.variable_header_words())).ok_or(short)?;
    let [address_space, flags, set @ ..] = header else { return Err(short) };

    let flags = FlushFlags::from_bits(*flags);
    if flags.reserved() != 0 {
        // Among them is the extended range format. To read such a list by the plain format would flush
        // too little; an error makes the guest flush by its own means.
        return Err(Status::INVALID_PARAMETER);
    }
    let targets = match set {
        _ if flags.all_processors() => Targets::All,
        [mask] => mask_targets(mask, profile)?,
        [format, valid_banks] => set_targets(*format, *valid_banks, banks, profile)?,
        _ => return Err(short),
    };
    let scope = if shape.rep {
        let todo = list.get(usize::from(control.rep_start())..).ok_or(short)?;
        FlushScope::List(GvaList::new(todo, profile.va_width))
    } else {
        FlushScope::Everything
    };
    Ok(FlushCall { targets, address_space: *address_space, flags, scope, rep_count: control.rep_count() })
}

/// The targets that a 64-bit mask names.
fn mask_targets<'a>(mask: &'a u64, profile: &Profile) -> Result<Targets<'a>, Status> {
    match (*mask, profile.empty_targets) {
        (0, EmptyTargets::Lenient) => Ok(Targets::All),
        (0, EmptyTargets::Strict) => Err(Status::INVALID_PARAMETER),
        _ => Ok(Targets::Set(VpSet::from_mask(mask))),
    }
}

/// The targets that a VP set names. A set of all processors may carry a bank mask and banks; they say
/// nothing, and the header's size alone says where the list starts.
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
mod tests;
