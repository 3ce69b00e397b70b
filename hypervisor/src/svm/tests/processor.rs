//! A mock processor: it records the operations requested of it, and a test supplies the guest's
//! behaviour.

use std::cell::RefCell;

use core::num::NonZeroU32;
use core::ptr::NonNull;

use alloc::boxed::Box;
use alloc::vec::Vec;
use hostlink::config::Config;
use hostlink::counters::Counter;
use memslots::Gpa;
use stay::{Cost, Measured};
use tlfs::XMM_WORDS;

use super::{with_whole, xmm_of};
use crate::devices::pc::platform::SerialPort;
use crate::iommu::messages::MachineDevices;
use crate::loader::test_kernel;
use crate::svm::features::Features;
use crate::svm::processor::Svm;
use crate::svm::vendor::OnSvm;
use crate::svm::vmcb::{EFER_SVME, Vmcb};
use crate::vm::made::{self, OnMockBoard, offer};
use crate::vm::{Context, Files, Next, PerCpu};
use crate::x86::enter;
use crate::x86::hyperv::cpuid::CpuidResult;
use crate::x86::offer::OnX86;
use crate::x86::vcpu::block::Segment;
use crate::x86::vcpu::registers::{RAX, Registers};
use crate::x86::vcpu::state::Activity;
use crate::x86::{CR0_PE, EFER_LMA};
use crate::x86::{CR4_PAE, EFER_LME};

/// The mock processor.
pub(crate) struct Mock;

/// AMD64 on the mock board.
pub(crate) type Made = OnX86<OnSvm<Mock>>;

/// A CPU's data.
#[derive(Default)]
pub(crate) struct CpuData {
    /// Its guests halt if no test says what they do.
    halts: bool,
    books: RefCell<crate::svm::audit::CpuBooks>,
}

impl CpuData {
    pub(crate) const fn set_halts(&mut self) {
        self.halts = true;
    }
}

impl OnMockBoard for Made {
    type Data = CpuData;
}

/// Size of the registers' image.
const FPU_SIZE: usize = 0x340;

/// The guest's behaviour during a stay.
type Stay = Box<dyn FnMut(&mut Vmcb, &mut Registers)>;

/// The processor of the calling thread.
pub(crate) struct Processor {
    pub(crate) features: Features,
    /// Of each register of CPUID, but for the highest leaves.
    pub(crate) bits: Option<u32>,
    /// Components of extended states.
    pub(crate) components: u64,
    pub(crate) xcr0: u64,
    /// The registers that XSAVE stores.
    pub(crate) fpu: [u8; FPU_SIZE],
    pub(crate) tsc_aux: u64,
    pub(crate) breakpoints: [u64; 4],
    /// Bytes that were sent.
    pub(crate) sent: Vec<(SerialPort, u8)>,
    /// Pages that were dropped, with their ASIDs.
    pub(crate) dropped: Vec<(u64, u32)>,
    pub(crate) xmm: [u64; XMM_WORDS],
    pub(crate) stay: Option<Stay>,
    /// Entries so far.
    pub(crate) entries: u32,
    /// The virtual interrupt that the last stay began with.
    pub(crate) taken: Option<u8>,
    /// Interrupts are held.
    is_held: bool,
}

impl Processor {
    pub(crate) fn new() -> Self {
        Self {
            features: Features(0),
            bits: None,
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

/// Reads or changes the processor.
pub(crate) fn processor<R>(act: impl FnOnce(&mut Processor) -> R) -> R {
    PROCESSOR.with_borrow_mut(act)
}

/// Address of the guest's code. Tests place nothing else there.
pub(crate) const CODE: u64 = 0x20_0000;
/// A page for a test's data.
pub(crate) const DATA: u64 = 0x30_0000;
/// Tables of the guest: all addresses below 1 GiB are mapped one to one by pages of 2 MiB, for user
/// mode too.
pub(crate) const TABLES: u64 = 0x1000;
/// Addresses that are mapped, but have neither memory nor a device.
pub(crate) const HOLE: u64 = 0x3000_0000;
/// Linear address that is not mapped.
pub(crate) const UNMAPPED: u64 = 0x4000_0000;
/// The guest's memory.
pub(crate) const MEMORY: u64 = 16 << 20;

/// A board with a machine of two vCPUs.
pub(crate) fn board() -> &'static made::Made<Made> {
    board_with("vcpus=2\nmemory=16777216")
}

/// A board with this machine.
pub(crate) fn board_with(config: &'static str) -> &'static made::Made<Made> {
    PROCESSOR.set(Processor::new());
    let files = Files {
        kernel: Vec::leak(test_kernel()),
        initrd: None,
        config: Config::parse(config).expect("a configuration"),
    };
    made::Made::create_from([CpuData::default()], 32 << 20, files).unwrap_or_else(|why| panic!("{why}"))
}

/// Gives vCPU 0 of a new machine to `act`, in 64-bit mode at ring 0, with `code` at RIP.
pub(crate) fn with_guest<R>(code: &[u8], act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    board().with_vcpu(0, |context| {
        let mut guest = Guest(context);
        // The local APIC is switched on by its spurious vector's register.
        let _nothing = guest.0.state.lapic.write_page(0xfee0_00f0, 0x1ff, 0);
        guest.begin(code);
        act(&mut guest)
    })
}

/// vCPU 0 on a CPU.
pub(crate) struct Guest<'c, 'a>(pub(crate) &'c mut Context<'a, Made>);

impl Guest<'_, '_> {
    /// Everything as at the beginning of a test.
    pub(crate) fn begin(&mut self, code: &[u8]) {
        self.0.state.activity = Activity::Running;
        self.0.state.exception = None;
        self.write(TABLES, &((TABLES + 0x1000) | 7).to_le_bytes());
        self.write(TABLES + 0x1000, &((TABLES + 0x2000) | 7).to_le_bytes());
        for index in 0..512 {
            self.write(TABLES + 0x2000 + 8 * index, &(index << 21 | 0xe7).to_le_bytes());
        }
        self.long_mode();
        self.write(CODE, code);
    }

    /// 64-bit mode at ring 0.
    pub(crate) fn long_mode(&mut self) {
        let vmcb = &mut *self.0.state.block;
        vmcb.efer = EFER_SVME | EFER_LME | EFER_LMA;
        vmcb.cr0 = 1 << 31 | CR0_PE | 1 << 16;
        vmcb.cr3 = TABLES;
        vmcb.cr4 = CR4_PAE | 1 << 18;
        vmcb.cs = Segment { selector: 8, attributes: 0x29b | Segment::LONG, limit: u32::MAX, base: 0 };
        vmcb.cpl = 0;
        vmcb.rflags = 2;
        vmcb.rip = CODE;
        vmcb.rsp = DATA + 0x1000;
        vmcb.event_injection = 0;
        vmcb.exit_interrupt_info = 0;
    }

    /// Protected mode without paging, of 32 or 16 bits, at ring 0.
    pub(crate) fn legacy_mode(&mut self, attributes: u16) {
        let vmcb = &mut *self.0.state.block;
        vmcb.efer = EFER_SVME;
        vmcb.cr0 = CR0_PE;
        vmcb.cr4 = 1 << 18;
        vmcb.cs = Segment { selector: 8, attributes: 0x9b | attributes, limit: u32::MAX, base: 0 };
    }

    pub(crate) fn write(&self, gpa: u64, bytes: &[u8]) {
        self.0.vm.space.slots().memory().write(Gpa(gpa), bytes).expect("memory of the guest's");
    }

    pub(crate) fn read(&self, gpa: u64) -> u64 {
        self.0.vm.space.slots().memory().read_u64(Gpa(gpa)).expect("memory of the guest's")
    }

    pub(crate) fn vmcb(&mut self) -> &mut Vmcb {
        &mut self.0.state.block
    }

    pub(crate) fn set(&mut self, register: usize, value: u64) {
        self.0.state.registers.0[register] = value;
    }

    pub(crate) fn set_all(&mut self, registers: &[(usize, u64)]) {
        for &(register, value) in registers {
            self.set(register, value);
        }
    }

    pub(crate) fn get(&self, register: usize) -> u64 {
        self.0.state.registers.0[register]
    }

    /// The vCPU exits.
    pub(crate) fn exit(&mut self, code: u64, info_1: u64, info_2: u64) -> Next {
        let vmcb = &mut *self.0.state.block;
        (vmcb.exit_code, vmcb.exit_info_1, vmcb.exit_info_2) = (code, info_1, info_2);
        crate::svm::table::handle_exit(self.0)
    }

    /// The value of a counter.
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.0.counters[counter as usize].load(core::sync::atomic::Ordering::Relaxed)
    }

    /// Vector of the exception that has been raised.
    pub(crate) fn raised(&self) -> Option<u64> {
        self.0.state.exception.map(|event| event & 0xff)
    }

    /// How far RIP has advanced.
    pub(crate) fn advanced(&self) -> u64 {
        self.0.state.block.rip.wrapping_sub(CODE)
    }

    /// Enters the guest, which does `stay`; returns whether it was entered.
    pub(crate) fn enter(&mut self, stay: impl FnMut(&mut Vmcb, &mut Registers) + 'static) -> bool {
        processor(|processor| processor.stay = Some(Box::new(stay)));
        enter::enter(self.0)
    }
}

impl crate::x86::processor::Processor for Made {
    fn devices() -> Option<&'static MachineDevices> {
        super::machine::devices()
    }

    fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
        let bits = processor(|processor| processor.bits);
        super::cpuid::answer_of_made(leaf, subleaf, bits)
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
        offer::receive_console::<Self>()
    }
}

impl Svm for Made {
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
        offer::take_what_pends::<Self>();
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
