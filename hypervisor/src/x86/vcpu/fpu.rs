//! A vCPU's floating-point and vector state while it is on no CPU.
//!
//! The hypervisor uses none of these registers. So the guest's values stay in the processor across
//! exits, and are switched only when another vCPU arrives on the CPU. XCR0 stays the guest's too:
//! QEMU 7.2 lets a guest write it without an exit, so it is read back rather than remembered.

use alloc::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use core::ptr::NonNull;
use migration::{Archive, Flaw};

use crate::x86::cpuid::kept::Hidden;
use crate::x86::cpuid::{image_size, shown_components};
use crate::x86::hyperv::cpuid::CpuidResult;
use crate::x86::processor::X86;

/// XCR0 after reset: x87 only.
const XCR0_RESET: u64 = 1;
/// Alignment of an XSAVE area.
const ALIGNMENT: usize = 64;
/// Initial x87 control word and MXCSR, at their places in the FXSAVE image.
const FCW: (usize, u16) = (0, 0x37f);
const MXCSR: (usize, u32) = (24, 0x1f80);
/// Bits of MXCSR that every processor has, and the one of those with misaligned SSE: others raise
/// #GP where it is loaded.
const MXCSR_BITS: u32 = 0xffff;
const MXCSR_MISALIGNED: u32 = 1 << 17;
/// What follows MXCSR in an FXSAVE image. In an XSAVE image a header follows: the components that
/// it has, and what must be zero.
const OTHERS: usize = 484;
const HEADER_REST: usize = 56;

/// Size of an FXSAVE image in bytes.
pub const LEGACY_SIZE: u32 = 512;

/// All components that a processor can save, and the size of their image, by CPUID's leaf 0xd (APM
/// volume 3, E.3.10). It has another size for those that are enabled now, of which there are fewer.
pub fn image(leaf: CpuidResult) -> (u64, u32) {
    (u64::from(leaf.edx) << 32 | u64::from(leaf.eax), leaf.ecx.max(LEGACY_SIZE))
}

/// Components that a guest is shown if the processor has them: x87, SSE, AVX, AVX-512. The features
/// of all others are hidden.
pub const SHOWN: u64 = 0xe7;

/// Whether a guest may set XCR0 to `value`: x87 always set, AVX only with SSE, AVX-512 all at once
/// and with AVX, and nothing outside the processor's `components` that it is
/// [shown](SHOWN) (APM volume 2, section 11.5.2).
pub fn is_valid_xcr0(value: u64, components: u64) -> bool {
    const SSE: u64 = 1 << 1;
    const AVX: u64 = 1 << 2;
    const AVX512: u64 = 7 << 5;
    value & 1 != 0
        && value & !(components & SHOWN) == 0
        && (value & AVX == 0 || value & SSE != 0)
        && (value & AVX512 == 0 || value & (AVX512 | AVX) == AVX512 | AVX)
}

#[cfg_attr(not(test), derive(Debug))]
pub(crate) struct FpuState {
    area: NonNull<u8>,
    size: usize,
    xcr0: u64,
}

impl FpuState {
    pub(crate) fn new<A: X86>() -> Self {
        let size = A::fpu_size();
        let layout =
            Layout::from_size_align(size, ALIGNMENT).expect("the processor's area is a valid layout");
        // SAFETY: the size is not zero.
        let area =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let mut state = Self { area, size, xcr0: XCR0_RESET };
        state.reset();
        state
    }

    /// Returns to the state after reset. An XSAVE image of zeros with an empty component mask means
    /// initial values.
    pub(crate) fn reset(&mut self) {
        self.xcr0 = XCR0_RESET;
        // SAFETY: the area is ours and at least 512 bytes long; both places are aligned.
        unsafe {
            self.area.as_ptr().write_bytes(0, self.size);
            self.area.as_ptr().add(FCW.0).cast::<u16>().write(FCW.1);
            self.area.as_ptr().add(MXCSR.0).cast::<u32>().write(MXCSR.1);
        }
    }

    /// Describes the state of a vCPU that is on no CPU. The size and the places in the image follow
    /// from what CPUID shows. What is read can be loaded without a fault: the header names no
    /// component that the guest is not shown, and the rest of it is zero.
    pub(crate) fn describe<A: X86>(
        &mut self,
        hidden: &Hidden,
        archive: &mut Archive<'_>,
    ) -> Result<(), Flaw> {
        let components = shown_components::<A>(hidden);
        // The processor's image may be larger.
        let size =
            if components == 0 { self.size } else { self.size.min(image_size::<A>(components) as usize) };
        archive.same("the size of extended states", size as u64)?;
        let kept = |xcr0: u64| match xcr0 & components {
            xcr0 if is_valid_xcr0(xcr0, components) => xcr0,
            _ => XCR0_RESET,
        };
        archive.fixed(&mut self.xcr0, kept).map_err(|flaw| flaw.named("XCR0"))?;
        // SAFETY: the area is ours, has at least this size, and was all written in `new`.
        let area = unsafe { core::slice::from_raw_parts_mut(self.area.as_ptr(), size) };
        let parts = area.split_first_chunk_mut::<{ MXCSR.0 }>();
        let Some((first, rest)) = parts else { return Err(Flaw::Short) };
        let Some((mxcsr, rest)) = rest.split_first_chunk_mut::<4>() else { return Err(Flaw::Short) };
        let Some((others, rest)) = rest.split_first_chunk_mut::<OTHERS>() else { return Err(Flaw::Short) };
        archive.bytes(first)?;
        let mut value = u32::from_le_bytes(*mxcsr);
        // What a guest is shown has been compared: that feature is on both sides, or on none.
        let misaligned = (A::cpuid(0x8000_0001, 0).ecx >> 7 & 1) * MXCSR_MISALIGNED;
        archive.within(&mut value, MXCSR_BITS | misaligned).map_err(|flaw| flaw.named("MXCSR"))?;
        *mxcsr = value.to_le_bytes();
        archive.bytes(others)?;
        if components == 0 {
            return archive.bytes(rest);
        }
        let Some((present, rest)) = rest.split_first_chunk_mut::<8>() else { return Err(Flaw::Short) };
        // The guest has no state in components that it is not shown.
        let mut value = u64::from_le_bytes(*present) & components;
        archive.within(&mut value, components).map_err(|flaw| flaw.named("extended states"))?;
        *present = value.to_le_bytes();
        let Some((header, rest)) = rest.split_first_chunk_mut::<HEADER_REST>() else {
            return Err(Flaw::Short);
        };
        archive.fixed(header, |_| [0; HEADER_REST]).map_err(|flaw| flaw.named("an XSAVE header"))?;
        archive.bytes(rest)
    }

    /// Loads the state into the processor. Its XCR0 must have all components, as at the start and
    /// after [`save`](Self::save).
    pub(crate) fn load<A: X86>(&mut self) {
        // SAFETY: the area was allocated for this, and has an image of `save`, `reset` or
        // `describe`.
        unsafe { A::load_fpu(self.area) };
        let components = A::components();
        if components != 0 && self.xcr0 != components {
            A::write_xcr0(self.xcr0);
        }
    }

    pub(crate) fn save<A: X86>(&mut self) {
        let components = A::components();
        if components != 0 {
            self.xcr0 = A::read_xcr0();
            if self.xcr0 != components {
                A::write_xcr0(components);
            }
        }
        // SAFETY: the area is ours and was allocated for this.
        unsafe { A::save_fpu(self.area) };
    }
}

impl Drop for FpuState {
    fn drop(&mut self) {
        if let Ok(layout) = Layout::from_size_align(self.size, ALIGNMENT) {
            // SAFETY: allocated in `new` with this layout; no processor has it loaded.
            unsafe { dealloc(self.area.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
impl core::fmt::Debug for FpuState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { area, size, xcr0 } = self;
        // SAFETY: the area is ours, has this size, and was all written in `new`.
        let area = unsafe { core::slice::from_raw_parts(area.as_ptr(), *size) };
        f.debug_struct("FpuState").field("area", &area).field("xcr0", xcr0).finish()
    }
}

// SAFETY: the area belongs to the state alone.
unsafe impl Send for FpuState {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_room_for_all_components_and_not_only_for_those_that_are_enabled() {
        // CPUID Fn0000_000D_x0: EAX and EDX are the mask, EBX the size for XCR0, ECX for all.
        let leaf = CpuidResult { eax: 0x207, ebx: 0x240, ecx: 0x988, edx: 0x4000_0000 };
        assert_eq!(image(leaf), (0x4000_0000_0000_0207, 0x988));
        assert_eq!(image(CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 }), (0, 512));
    }
}
