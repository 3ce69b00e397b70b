//! Calls that send an interrupt to several virtual processors.

use super::targets::TargetForm;
use super::{EncodedCall, Interface, Writer};
use crate::{CallCode, ClusterIpi, Control, PAGE_WORDS, XMM_FAST_WORDS};

/// Why an interrupt cannot be sent by hypercall. The guest then sends it in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IpiError {
    /// The vector is below [`ClusterIpi::VECTOR_MIN`].
    Vector,
    /// The targets can be named by a VP set only, and the calls that take one are not offered.
    NeedsVpSets,
}

/// Writes the input of a call that sends `ipi` into `page` and returns how to make the call; `None`
/// if there are no targets. A call with a mask needs two words, so it is always a fast call.
///
/// # Errors
///
/// See [`IpiError`]. Unlike a flush, an interrupt is never widened.
pub fn cluster_ipi(
    ipi: ClusterIpi<'_>,
    interface: Interface,
    page: &mut [u64; PAGE_WORDS],
) -> Result<Option<EncodedCall>, IpiError> {
    if ipi.vector < ClusterIpi::VECTOR_MIN {
        return Err(IpiError::Vector);
    }
    let Some(targets) = TargetForm::of(ipi.targets) else { return Ok(None) };
    let mut writer = Writer::new(page);
    writer.push(ipi.vector.into());
    let (code, fast_words) = match targets {
        TargetForm::Mask(mask) => {
            writer.push(mask);
            (CallCode::SEND_SYNTHETIC_CLUSTER_IPI, writer.count)
        }
        _ if !interface.vp_sets => return Err(IpiError::NeedsVpSets),
        _ => {
            targets.write_set(&mut writer);
            let fast_words = if interface.xmm_input { XMM_FAST_WORDS } else { 0 };
            (CallCode::SEND_SYNTHETIC_CLUSTER_IPI_EX, fast_words)
        }
    };
    let count = writer.count;
    let control = Control::new()
        .with_call_code(code.0)
        .with_fast(count <= fast_words)
        .with_variable_header_words(targets.bank_count());
    Ok(Some(EncodedCall::new(control, count)))
}
