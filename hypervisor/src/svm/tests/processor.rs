//! A mock processor: it records the operations requested of it, and a test supplies the guest's
//! behaviour.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::ptr::NonNull;
use hostlink::config::Config;
use stay::{Cost, Measured};
use std::cell::RefCell;
use tlfs::XMM_WORDS;

use super::{with_whole, xmm_of};
use crate::devices::pc::platform::SerialPort;
use crate::iommu::messages::MachineDevices;
use crate::loader::test_kernel;
use crate::svm::features::Features;
use crate::svm::processor::Svm;
use crate::svm::vendor::OnSvm;
use crate::svm::vmcb::Vmcb;
use crate::vm::arch::Arch;
use crate::vm::mock::{self, OnMockBoard, board_impl};
use crate::vm::{Context, Files, PerCpu};
use crate::x86::arch_impl::OnX86;
use crate::x86::cpuid::kept::Word;
use crate::x86::hyperv::cpuid::CpuidResult;
use crate::x86::vcpu::registers::{RAX, Registers};

pub(crate) struct Mock;

pub(crate) use super::guest::{Guest, Kind};

/// A kind of processor that runs guests on the mock board, with the mock processor's registers.
pub(crate) trait OnMock: 'static {}

impl OnMock for OnSvm<Mock> {}

pub(crate) type MockSvm = OnX86<OnSvm<Mock>>;

/// The one that shared tests are about.
pub(crate) type Tested = MockSvm;

/// A CPU's data.
#[derive(Default)]
pub struct CpuData {
    /// Its guests halt if no test says what they do.
    halts: bool,
    books: RefCell<crate::svm::audit::CpuBooks>,
}

impl<V: OnMock> OnMockBoard for OnX86<V> {
    type Data = CpuData;
}

const FPU_SIZE: usize = 0x340;

type Stay = Box<dyn FnMut(&mut Vmcb, &mut Registers)>;

/// The processor of the calling thread.
pub(crate) struct Processor {
    pub(crate) features: Features,
    /// Of each register of CPUID, but for the highest leaves.
    pub(crate) bits: Option<u32>,
    /// Registers of its CPUID that are other.
    pub(crate) words: Vec<(Word, u32)>,
    /// Components of extended states.
    pub(crate) components: u64,
    pub(crate) xcr0: u64,
    /// The registers that XSAVE stores.
    pub(crate) fpu: [u8; FPU_SIZE],
    pub(crate) tsc_aux: u64,
    pub(crate) breakpoints: [u64; 4],
    pub(crate) sent: Vec<(SerialPort, u8)>,
    /// Pages that were dropped, with their ASIDs.
    pub(crate) dropped: Vec<(u64, u32)>,
    pub(crate) xmm: [u64; XMM_WORDS],
    pub(crate) stay: Option<Stay>,
    pub(crate) entries: u32,
    /// The virtual interrupt that the last stay began with.
    pub(crate) taken: Option<u8>,
    is_held: bool,
}

impl Processor {
    pub(crate) fn new() -> Self {
        Self {
            features: Features(1 << 5),
            bits: None,
            words: Vec::new(),
            components: 7,
            xcr0: 7,
            fpu: [0; FPU_SIZE],
            tsc_aux: 0,
            breakpoints: [0; 4],
            sent: Vec::new(),
            dropped: Vec::new(),
            xmm: [0; XMM_WORDS],
            stay: None,
            entries: 0,
            taken: None,
            is_held: false,
        }
    }
}

thread_local! {
    static PROCESSOR: RefCell<Processor> = RefCell::new(Processor::new());
}

pub(crate) fn processor<R>(act: impl FnOnce(&mut Processor) -> R) -> R {
    PROCESSOR.with_borrow_mut(act)
}

/// Address of the guest's code. Tests place nothing else there.
pub(crate) const CODE: u64 = 0x20_0000;
pub(crate) const DATA: u64 = 0x30_0000;
/// Tables of the guest: all addresses below 1 GiB are mapped one to one by pages of 2 MiB, for user
/// mode too.
pub(crate) const TABLES: u64 = 0x1000;
/// Addresses that are mapped, but have neither memory nor a device.
pub(crate) const HOLE: u64 = 0x3000_0000;
/// Linear address that is not mapped.
pub(crate) const UNMAPPED: u64 = 0x4000_0000;
pub(crate) const MEMORY: u64 = 16 << 20;

pub(crate) const TWO_VCPUS: &str = "vcpus=2\nmemory=16777216";

/// A board with a machine of two vCPUs.
pub(crate) fn board() -> &'static mock::MockBoard<MockSvm> {
    board_with(TWO_VCPUS)
}

pub(crate) fn board_with(config: &'static str) -> &'static mock::MockBoard<MockSvm> {
    board_on(config)
}

/// The same on any kind of processor.
pub(crate) fn board_on<V: OnMock>(config: &'static str) -> &'static mock::MockBoard<OnX86<V>>
where
    OnX86<V>: Kind,
{
    PROCESSOR.set(Processor::new());
    let files = Files {
        kernel: Vec::leak(test_kernel()),
        initrd: None,
        config: Config::parse(config).expect("a configuration"),
    };
    mock::MockBoard::create_from([CpuData::default()], 32 << 20, files).unwrap_or_else(|why| panic!("{why}"))
}

/// Gives vCPU 0 of a machine with this configuration to `act`.
pub(crate) fn with_guest_of<R>(config: &'static str, act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    board_with(config).with_vcpu(0, |context| begin_on(context, &[], act))
}

/// A board with guests of these configurations, which halt, and so many CPUs.
pub(crate) fn board_of(count: usize, configs: &[&'static str]) -> &'static mock::MockBoard<MockSvm> {
    let cpus = core::iter::repeat_with(|| CpuData { halts: true, ..CpuData::default() }).take(count);
    mock::MockBoard::create_several_with(Vec::leak(test_kernel()), cpus, 64 << 20, configs)
        .unwrap_or_else(|why| panic!("{why}"))
}

/// Gives vCPU 0 of a new machine to `act`, in 64-bit mode at ring 0, with `code` at RIP.
pub(crate) fn with_guest<R>(code: &[u8], act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    with_guest_on(code, act)
}

/// The same on any kind of processor.
pub(crate) fn with_guest_on<V: OnMock, R>(
    code: &[u8],
    act: impl FnOnce(&mut Guest<'_, '_, OnX86<V>>) -> R,
) -> R
where
    OnX86<V>: Kind,
{
    board_on::<V>(TWO_VCPUS).with_vcpu(0, |context| begin_on(context, code, act))
}

/// A vCPU begins a test.
pub(crate) fn begin_on<A: Kind, R>(
    context: &mut Context<'_, A>,
    code: &[u8],
    act: impl FnOnce(&mut Guest<'_, '_, A>) -> R,
) -> R {
    let mut guest = Guest(context);
    // The local APIC is switched on by its spurious vector's register.
    let _nothing = guest.0.state.lapic.write_page(0xfee0_00f0, 0x1ff, 0);
    guest.begin(code);
    act(&mut guest)
}

/// The mock processor's CPUID: with `bits`, these everywhere but in the highest leaves. Otherwise
/// 40 bits of physical address, XSAVE and PCIDs, SMEP and SMAP, NX; a signature that is easy to
/// recognise.
fn answer_of_made(leaf: u32, subleaf: u32, bits: Option<u32>) -> CpuidResult {
    if let (Some(bits), false) = (bits, leaf << 1 == 0) {
        return CpuidResult { eax: bits, ebx: bits, ecx: bits, edx: bits };
    }
    let (eax, ebx, ecx, edx) = match (leaf, subleaf) {
        (0, _) => (0x10, 0x6874_7541, 0x444d_4163, 0x6974_6e65),
        (1, _) => (0x0080_0f12, 0x0800, u32::MAX, u32::MAX),
        (7, 0) => (1, u32::MAX, u32::MAX, u32::MAX),
        (0xd, 0) => (7, 0x340, 0x340, 0),
        (0xd, 1) => (0xf, 0x340, 0, 0),
        (0xd, 2) => (0x100, 0x240, 0, 0),
        (0x8000_0000, _) => (0x8000_001f, 0, 0, 0),
        (0x8000_0001, _) => (0x0080_0f12, 0, u32::MAX, !(1 << 26)),
        (0x8000_0007, _) => (0, 0, 0, 1 << 8),
        (0x8000_000a, _) => (1, 8, 0, 0),
        (0x8000_0008, _) => (0x3028, u32::MAX, 0, 0),
        _ => (leaf, subleaf, 3, 4),
    };
    CpuidResult { eax, ebx, ecx, edx }
}

impl<V: OnMock> crate::x86::processor::Processor for OnX86<V>
where
    Self: Arch,
{
    fn devices() -> Option<&'static MachineDevices> {
        crate::iommu::mock::devices()
    }

    fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
        assert!(subleaf == 0 || matches!(leaf, 4 | 7 | 0xb | 0xd), "{leaf:#x} may have {subleaf} one day");
        let CpuidResult { eax, ebx, ecx, edx } =
            answer_of_made(leaf, subleaf, processor(|processor| processor.bits));
        let mut registers = [eax, ebx, ecx, edx];
        processor(|processor| {
            for &((.., register), word) in
                processor.words.iter().filter(|((its, sub, _), _)| (*its, *sub) == (leaf, subleaf))
            {
                registers[register] = word;
            }
        });
        let [eax, ebx, ecx, edx] = registers;
        CpuidResult { eax, ebx, ecx, edx }
    }

    fn wrong() -> u32 {
        1 << 13
    }

    fn patch_level() -> u64 {
        0x0830_107c
    }

    fn has_tsc_aux() -> bool {
        true
    }

    fn read_tsc_aux() -> u64 {
        processor(|processor| processor.tsc_aux)
    }

    fn write_tsc_aux(value: u64) {
        processor(|processor| processor.tsc_aux = value);
    }

    fn read_breakpoints() -> [u64; 4] {
        processor(|processor| processor.breakpoints)
    }

    fn write_breakpoints(addresses: [u64; 4]) {
        processor(|processor| processor.breakpoints = addresses);
    }

    fn components() -> u64 {
        processor(|processor| processor.components)
    }

    fn fpu_size() -> usize {
        FPU_SIZE
    }

    fn read_xcr0() -> u64 {
        processor(|processor| processor.xcr0)
    }

    fn write_xcr0(value: u64) {
        processor(|processor| {
            assert!(value & 1 != 0 && value & !processor.components == 0, "the processor refuses {value:#x}");
            processor.xcr0 = value;
        });
    }

    unsafe fn load_fpu(area: NonNull<u8>) {
        with_whole(|processor| {
            // SAFETY: the area has the size that was asked for.
            processor.fpu = unsafe { area.cast().read() };
            // SAFETY: as above.
            processor.xmm = unsafe { xmm_of(area).read() };
        });
    }

    unsafe fn save_fpu(area: NonNull<u8>) {
        with_whole(|processor| {
            // SAFETY: as above.
            unsafe { area.cast().write(processor.fpu) };
            // SAFETY: as above.
            unsafe { xmm_of(area).write(processor.xmm) };
        });
    }

    fn xmm_words() -> [u64; XMM_WORDS] {
        processor(|processor| processor.xmm)
    }

    fn measure_flushes() -> Cost {
        Cost::new(Measured { page: 100, miss: 100, entries: 1024, ticks_per_us: 1000 })
    }

    fn transmit(port: SerialPort, byte: u8) {
        processor(|processor| processor.sent.push((port, byte)));
    }

    fn receive() -> Option<u8> {
        board_impl::receive_console::<Self>()
    }
}

impl Svm for MockSvm {
    fn features() -> Features {
        processor(|processor| processor.features)
    }

    fn pretend() {
        processor(|processor| processor.features = Features::PRETENDED);
    }

    fn tags() -> NonZeroU32 {
        NonZeroU32::new(7).expect("a number")
    }

    fn hold_interrupts() {
        processor(|processor| assert!(!core::mem::replace(&mut processor.is_held, true)));
    }

    fn release_interrupts() {
        processor(|processor| assert!(core::mem::replace(&mut processor.is_held, false)));
        board_impl::take_what_pends::<Self>();
    }

    unsafe fn run(cpu: &PerCpu<Self>, vmcb: &mut Vmcb, registers: &mut Registers) {
        let stay = processor(|processor| {
            assert!(processor.is_held, "an interrupt could be lost");
            processor.entries += 1;
            processor.stay.take()
        });
        assert_eq!(vmcb.rax, registers.0[RAX], "RAX is the processor's to exchange");
        let halt: Stay = Box::new(|vmcb, _| vmcb.exit_code = super::rows::HLT);
        let halt = cpu.arch.halts.then_some(halt);
        let mut stay = stay.or(halt).expect("a test says what the guest does");
        (vmcb.exit_code, vmcb.exit_info_1, vmcb.exit_info_2, vmcb.exit_interrupt_info) = (0x60, 0, 0, 0);
        let taken = super::entry::take_virtual_interrupt(vmcb);
        processor(|processor| processor.taken = taken);
        stay(vmcb, registers);
        processor(|processor| processor.stay = Some(stay));
    }

    fn invalidate_page(address: u64, asid: u32) {
        processor(|processor| processor.dropped.push((address, asid)));
    }

    fn books(cpu: &PerCpu<Self>) -> &RefCell<crate::svm::audit::CpuBooks> {
        &cpu.arch.books
    }
}
