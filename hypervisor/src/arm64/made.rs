//! A mock processor, on the mock [board](crate::vm::made): registers read back what was written to
//! them, and a test supplies the guest's behaviour. It records the operations that it executes.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use core::ops::Range;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use coherence::tlbi::{Errata, Granule, Setup, Stage2Tlb};
use hostlink::config::Config;
use memslots::Gpa;
use paging::Arm64Stage2;
use stay::{Cost, Measured};
use stay::{Mistake, Mistakes};

use super::controls;
use super::debug::{Counts, Debug};
use super::exchanged::Register;
use super::lines::MachineDevices;
use super::offer::offer_arm64;
use super::processor::{Configuration, CpuData, Features, FloatState, Processor, Registers, Vector};
use crate::devices::virt::gic::Maintenance;
use crate::vm::made::{self, made_board, offer};
use crate::vm::memory::NestedTables;
use crate::vm::{Context, Files};

/// Recorded operations that leave no other trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// FAR_EL2 was read.
    ReadAddress,
    /// HPFAR_EL2 was read.
    ReadPage,
    /// ESR_EL2 was read.
    ReadSyndrome,
    /// A TLB instruction.
    Tlb(&'static str),
    /// VTTBR_EL2 was written.
    Vttbr(u64),
    /// TCR_EL1 was written.
    Tcr(u64),
    /// An interrupt was deactivated.
    Deactivate(u32),
    /// Breakpoints were loaded, with this control.
    LoadDebug(u64),
    /// Breakpoints were disabled.
    StopDebug,
    /// The guest was entered.
    Entered,
}

/// The guest's behaviour during a stay.
type Stay = Box<dyn FnMut(&mut Registers) -> Vector>;

/// The processor.
pub(super) struct Hardware {
    pub(super) registers: BTreeMap<Register, u64>,
    pub(super) configuration: u64,
    pub(super) syndrome: u64,
    pub(super) address: u64,
    pub(super) page: u64,
    pub(super) features: Features,
    pub(super) lists: [u64; 16],
    pub(super) list_count: usize,
    pub(super) preemption_bits: u32,
    /// ICH_HCR_EL2.
    pub(super) interface: u64,
    pub(super) vttbr: u64,
    /// The processor may translate speculatively with a mixture of two guests' registers.
    pub(super) speculates: bool,
    pub(super) float: FloatState,
    /// Stage 1 by page: PAR_EL1. Pages that are not listed have no translation.
    pub(super) pages: BTreeMap<u64, u64>,
    pub(super) transmitted: Vec<u8>,
    pub(super) told: Vec<Told>,
    /// The guest's behaviour at its next entries. Without any it is interrupted.
    pub(super) stays: VecDeque<Stay>,
}

thread_local! {
    static HARDWARE: RefCell<Hardware> = RefCell::new(Hardware::new());
}

impl Hardware {
    fn new() -> Self {
        Self {
            registers: BTreeMap::new(),
            configuration: 0,
            syndrome: 0,
            address: 0,
            page: 0,
            features: Features::ERRORS | Features::POINTER_KEYS | Features::FORCED_WRITE_BACK,
            lists: [0; 16],
            list_count: 4,
            preemption_bits: 5,
            interface: 0,
            vttbr: 0,
            speculates: false,
            float: FloatState::default(),
            pages: BTreeMap::new(),
            transmitted: Vec::new(),
            told: Vec::new(),
            stays: VecDeque::new(),
        }
    }
}

/// Reads or changes the processor.
pub(super) fn hardware<R>(act: impl FnOnce(&mut Hardware) -> R) -> R {
    HARDWARE.with_borrow_mut(act)
}

/// The operations recorded since the previous call.
pub(super) fn told() -> Vec<Told> {
    hardware(|hardware| core::mem::take(&mut hardware.told))
}

fn tell(told: Told) {
    hardware(|hardware| hardware.told.push(told));
}

/// A machine with a kernel of one page, on a processor as modified by `change`, with two CPUs.
pub(super) fn machine_on(config: &str, change: impl FnOnce(&mut Hardware)) -> &'static made::Made<Made> {
    let mut kernel = vec![0x1f; 4096];
    kernel[8..16].copy_from_slice(&0u64.to_le_bytes());
    kernel[16..24].copy_from_slice(&0x1000u64.to_le_bytes());
    kernel[24..32].copy_from_slice(&0xau64.to_le_bytes());
    kernel[56..60].copy_from_slice(b"ARM\x64");
    hardware(|hardware| {
        *hardware = Hardware::new();
        change(hardware);
    });
    let config: &'static str = String::leak(alloc::format!("memory=16777216\n{config}"));
    let files = Files {
        kernel: Vec::leak(kernel),
        initrd: None,
        config: Config::parse(config).expect("a configuration"),
    };
    made::Made::create_from([CpuData::new(), CpuData::new()], 48 << 20, files)
        .unwrap_or_else(|why| panic!("{why}"))
}

/// The same on the default processor.
pub(super) fn machine(config: &str) -> &'static made::Made<Made> {
    machine_on(config, |_| {})
}

/// The architecture.
pub(super) struct Made;

made_board!(Made, CpuData);

/// Its TLB instructions.
pub(super) struct Tlb;

impl Mistakes for Tlb {
    fn makes(&self, _: Mistake) -> bool {
        false
    }
}

macro_rules! instructions {
    ($($name:ident)*) => {
        $(fn $name(&self) {
            tell(Told::Tlb(stringify!($name)));
        })*
    };
}

impl Stage2Tlb for Tlb {
    instructions! {
        order_stores complete complete_local complete_caches context_sync combined everything all_vms local_combined
        local_all_vms instruction_cache local_instruction_cache
    }

    fn page(&self, _: u64) {
        tell(Told::Tlb("page"));
    }

    fn range(&self, _: u64) {
        tell(Told::Tlb("range"));
    }

    fn clean(&self, _: Range<u64>) {
        tell(Told::Tlb("clean"));
    }

    fn vttbr(&self) -> u64 {
        hardware(|hardware| hardware.vttbr)
    }

    fn set_vttbr(&self, value: u64) {
        tell(Told::Vttbr(value));
        hardware(|hardware| hardware.vttbr = value);
    }

    fn forbid_stage1_walks(&self) -> u64 {
        let former = Made::read(Register::Tcr);
        Made::write(Register::Tcr, former | 1 << 7 | 1 << 23);
        former
    }

    fn restore_stage1_walks(&self, former: u64) {
        Made::write(Register::Tcr, former);
    }
}

impl Processor for Made {
    type Tlb = Tlb;

    const TLB: Tlb = Tlb;

    fn features() -> Features {
        hardware(|hardware| hardware.features)
    }

    fn base_configuration() -> u64 {
        controls::hcr::VM | controls::hcr::RW | controls::hcr::TWI
    }

    fn identification(crm: u32, op2: u32) -> u64 {
        match (crm, op2) {
            // Four breakpoints, two watchpoints.
            (5, 0) => 0x0010_3006,
            _ => 0x1111_1111_1111_1111,
        }
    }

    fn auxiliary_control() -> u64 {
        0xac
    }

    fn read(register: Register) -> u64 {
        hardware(|hardware| hardware.registers.get(&register).copied().unwrap_or(0))
    }

    fn write(register: Register, value: u64) {
        if register == Register::Tcr {
            tell(Told::Tcr(value));
        }
        hardware(|hardware| hardware.registers.insert(register, value));
    }

    fn configuration() -> u64 {
        hardware(|hardware| hardware.configuration)
    }

    fn set_configuration(configuration: Configuration) {
        hardware(|hardware| hardware.configuration = configuration.bits());
    }

    fn synchronize() {}

    fn translate(address: u64, _: bool) -> u64 {
        hardware(|hardware| hardware.pages.get(&(address & !0xfff)).copied().unwrap_or(1))
    }

    fn syndrome() -> u64 {
        tell(Told::ReadSyndrome);
        hardware(|hardware| hardware.syndrome)
    }

    fn fault_address() -> u64 {
        tell(Told::ReadAddress);
        hardware(|hardware| hardware.address)
    }

    fn fault_page() -> u64 {
        tell(Told::ReadPage);
        hardware(|hardware| hardware.page)
    }

    fn save_float(to: &mut FloatState) {
        *to = hardware(|hardware| hardware.float.clone());
    }

    fn load_float(from: &FloatState) {
        hardware(|hardware| hardware.float = from.clone());
    }

    fn list_count() -> usize {
        hardware(|hardware| hardware.list_count)
    }

    fn read_list(index: usize) -> u64 {
        hardware(|hardware| hardware.lists[index])
    }

    fn write_list(index: usize, value: u64) {
        hardware(|hardware| {
            assert!(index < hardware.list_count, "list register {index} does not exist");
            hardware.lists[index] = value;
        });
    }

    fn preemption_bits() -> u32 {
        hardware(|hardware| hardware.preemption_bits)
    }

    fn init_interface() {
        hardware(|hardware| {
            hardware.lists = [0; 16];
            hardware.interface = 1;
        });
    }

    fn interface_control() -> u64 {
        hardware(|hardware| hardware.interface)
    }

    fn set_maintenance(maintenance: Maintenance) {
        hardware(|hardware| hardware.interface = 1 | u64::from(maintenance.bits()));
    }

    fn deactivate(intid: u32) {
        tell(Told::Deactivate(intid));
    }

    fn load_debug(_: &Debug, _: Counts, control: u64) {
        tell(Told::LoadDebug(control));
    }

    fn stop_debug() {
        tell(Told::StopDebug);
    }

    unsafe fn run_guest(registers: &mut Registers) -> Vector {
        tell(Told::Entered);
        let stay = hardware(|hardware| hardware.stays.pop_front());
        stay.map_or(Vector::Interrupt, |mut stay| stay(registers))
    }

    fn devices() -> Option<&'static MachineDevices> {
        None
    }

    fn transmit(byte: u8) {
        hardware(|hardware| hardware.transmitted.push(byte));
    }

    fn receive() -> Option<u8> {
        offer::receive_console::<Self>()
    }
}

offer_arm64! {
    Made {
        type Nested = Arm64Stage2<3, true>;
        type Tables = NestedTables;

        fn physical_address_bits() -> u32 {
            39
        }

        fn tables(pool: NestedTables) -> NestedTables {
            pool
        }

        fn common(config: &Config<'_>) -> Result<Common, CreateError> {
            let features = coherence::tlbi::Features::from_id(0, 0, 0);
            let speculative_at = hardware(|hardware| hardware.speculates);
            let errata = Errata { repeat_tlbi: false, speculative_at };
            let measured = Measured { page: 1, miss: 1, entries: 1, ticks_per_us: 1 };
            let cost = Cost::new(measured).limited_to(Some(16));
            let setup = Setup { granule: Granule::Size4K, features, errata, limits: cost.limits() };
            Common::new::<Self>(config, setup, cost)
        }

        fn share(
            config: &Config<'static>,
            common: &'static Common,
            space: &VmMemory<Self>,
            claim: Claim,
        ) -> Result<Shared, CreateError> {
            Shared::new::<Self>(config, common, space, Arc::default(), claim)
        }
    }
}

/// Stores to guest memory.
pub(super) fn store(context: &Context<'_, Made>, gpa: u64, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    context.vm.space.slots().memory().write(Gpa(gpa), &bytes).expect("memory");
}
