//! This architecture's implementation of the core's traits.

use core::arch::x86_64::__cpuid_count;
use core::ptr::NonNull;
use stay::Cost;
use tlfs::XMM_WORDS;
use x86_64::registers::debug::{DebugAddressRegister, Dr0, Dr1, Dr2, Dr3};
use x86_64::registers::model_specific::Msr;

use super::{console, cost, features, fpu};
use crate::arch::On;
use crate::devices::pc::platform::SerialPort;
use crate::image::Kind;
use crate::iommu::messages::MachineDevices;
use crate::x86::hyperv::cpuid::CpuidResult;
use crate::x86::processor::Processor;
use crate::x86::vcpu::msr;

impl<V: Kind> Processor for On<V> {
    fn devices() -> Option<&'static MachineDevices> {
        super::pci::devices()
    }

    #[inline(always)]
    fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
        let core::arch::x86_64::CpuidResult { eax, ebx, ecx, edx } = __cpuid_count(leaf, subleaf);
        CpuidResult { eax, ebx, ecx, edx }
    }

    #[inline(always)]
    fn wrong() -> u32 {
        features::wrong()
    }

    fn patch_level() -> u64 {
        // SAFETY: every x86-64 processor has this register; reading it changes nothing.
        unsafe { Msr::new(msr::PATCH_LEVEL).read() }
    }

    #[inline(always)]
    fn has_tsc_aux() -> bool {
        features::has_tsc_aux()
    }

    #[inline(always)]
    fn read_tsc_aux() -> u64 {
        // SAFETY: the caller calls it only where the MSR exists.
        unsafe { Msr::new(msr::TSC_AUX).read() }
    }

    #[inline(always)]
    fn write_tsc_aux(value: u64) {
        // SAFETY: the caller calls it only where the MSR exists, and the hypervisor does not use
        // it.
        unsafe { Msr::new(msr::TSC_AUX).write(value) };
    }

    #[inline(always)]
    fn read_breakpoints() -> [u64; 4] {
        [Dr0::read(), Dr1::read(), Dr2::read(), Dr3::read()]
    }

    #[inline(always)]
    fn write_breakpoints(addresses: [u64; 4]) {
        let [dr0, dr1, dr2, dr3] = addresses;
        Dr0::write(dr0);
        Dr1::write(dr1);
        Dr2::write(dr2);
        Dr3::write(dr3);
    }

    #[inline(always)]
    fn components() -> u64 {
        fpu::components()
    }

    fn fpu_size() -> usize {
        fpu::size()
    }

    #[inline(always)]
    fn read_xcr0() -> u64 {
        fpu::read_xcr0()
    }

    #[inline(always)]
    fn write_xcr0(value: u64) {
        fpu::write_xcr0(value);
    }

    #[inline(always)]
    unsafe fn load_fpu(area: NonNull<u8>) {
        // SAFETY: the caller vouches for the area.
        unsafe { fpu::load(area) };
    }

    #[inline(always)]
    unsafe fn save_fpu(area: NonNull<u8>) {
        // SAFETY: the caller vouches for the area.
        unsafe { fpu::save(area) };
    }

    #[inline(always)]
    fn xmm_words() -> [u64; XMM_WORDS] {
        fpu::xmm_words()
    }

    fn measure_flushes() -> Cost {
        cost::measure()
    }

    fn transmit(port: SerialPort, byte: u8) {
        console::guest_transmit(usize::from(port == SerialPort::Com2), byte);
    }

    fn receive() -> Option<u8> {
        console::receive()
    }
}
