//! A mock processor, on the mock [board](crate::vm::made): registers read back what was written to
//! them, and a test supplies the guest's behaviour. It records the operations that it executes.

mod hardware;

use core::ops::Range;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use coherence::tlbi::{Errata, Granule, Setup, Stage2Tlb};
use hostlink::config::Config;
use memslots::Gpa;
use paging::Arm64Stage2;
use stay::{Cost, Measured, Mistake, Mistakes};

pub(super) use self::hardware::{Hardware, Recorded, Stuck, hardware, told};

use self::hardware::{DESCRIPTION, change, tell};
use super::arch_impl::OnArm64;
use super::audit::auditor::Auditor;
use super::controls::{self, Control};
use super::guest::Tag;
use super::processor::{Configuration, CpuData, Features, FloatState, Processor, Registers, Vector};
use super::vcpu::debug::{Counts, Debug};
use super::vcpu::exchanged::Register;
use crate::devices::virt::gic::Maintenance;
use crate::iommu::lines::MachineDevices;
use crate::vm::board::Clock as _;
use crate::vm::memory::NestedTables;
use crate::vm::mock::{self, OnMockBoard, board_impl};
use crate::vm::{Context, Files, Vm};

fn kernel() -> &'static [u8] {
    let mut kernel = vec![0x1f; 4096];
    kernel[8..16].copy_from_slice(&0u64.to_le_bytes());
    kernel[16..24].copy_from_slice(&0x1000u64.to_le_bytes());
    kernel[24..32].copy_from_slice(&0xau64.to_le_bytes());
    kernel[56..60].copy_from_slice(b"ARM\x64");
    Vec::leak(kernel)
}

fn set_up(change: impl FnOnce(&mut Hardware)) -> [CpuData; 2] {
    hardware(|hardware| {
        *hardware = Hardware::new();
        change(hardware);
    });
    Default::default()
}

/// A machine with a kernel of one page, on a processor as modified by `change`, with two CPUs.
pub(super) fn machine_on(
    config: &str,
    change: impl FnOnce(&mut Hardware),
) -> &'static mock::MockBoard<MockArm64> {
    let cpus = set_up(change);
    let config: &'static str = String::leak(alloc::format!("memory=16777216\n{config}"));
    let config = Config::parse(config).expect("a configuration");
    let files = Files { kernel: kernel(), initrd: None, config };
    mock::MockBoard::create_from(cpus, 48 << 20, files).unwrap_or_else(|why| panic!("{why}"))
}

pub(super) fn machines<const N: usize>(
    configs: [&'static str; N],
    change: impl FnOnce(&mut Hardware),
) -> [&'static Vm<MockArm64>; N] {
    let board = mock::MockBoard::create_several_with(kernel(), set_up(change), 96 << 20, &configs)
        .unwrap_or_else(|why| panic!("{why}"));
    core::array::from_fn(|number| board.host().next_guest(number as u32).expect("it starts with the machine"))
}

pub(super) fn machine(config: &str) -> &'static mock::MockBoard<MockArm64> {
    machine_on(config, |_| {})
}

pub(super) struct Mock;

pub(super) type MockArm64 = OnArm64<Mock>;

impl OnMockBoard for MockArm64 {
    type Data = CpuData;

    fn must_clean() -> bool {
        !Self::features().contains(Features::FORCED_WRITE_BACK)
    }

    fn clean(memory: Range<u64>) {
        tell(Recorded::Cleaned(memory));
    }
}

pub(super) struct Tlb;

impl Mistakes for Tlb {
    fn makes(&self, _: Mistake) -> bool {
        false
    }
}

macro_rules! instructions {
    ($($name:ident)*) => {
        $(fn $name(&self) {
            tell(Recorded::Tlb(stringify!($name)));
        })*
    };
}

impl Stage2Tlb for Tlb {
    instructions! {
        order_stores complete complete_local complete_caches context_sync combined everything all_vms instruction_cache
        local_instruction_cache
    }

    fn local_combined(&self) {
        tell(Recorded::Tlb("local_combined"));
        Auditor::drop_local::<MockArm64>();
    }

    fn local_all_vms(&self) {
        tell(Recorded::Tlb("local_all_vms"));
        Auditor::drop_local::<MockArm64>();
    }

    fn page(&self, _: u64) {
        tell(Recorded::Tlb("page"));
    }

    fn range(&self, _: u64) {
        tell(Recorded::Tlb("range"));
    }

    fn clean(&self, _: Range<u64>) {
        tell(Recorded::Tlb("clean"));
    }

    fn vttbr(&self) -> u64 {
        hardware(|hardware| hardware.vttbr)
    }

    fn set_vttbr(&self, value: u64) {
        tell(Recorded::Vttbr(value));
        change(Stuck::Vttbr, |hardware| hardware.vttbr = value);
    }

    fn forbid_stage1_walks(&self) -> u64 {
        let former = MockArm64::read(Register::Tcr);
        MockArm64::write(Register::Tcr, former | 1 << 7 | 1 << 23);
        former
    }

    fn restore_stage1_walks(&self, former: u64) {
        MockArm64::write(Register::Tcr, former);
    }
}

impl Processor for MockArm64 {
    type Tlb = Tlb;

    const TLB: Tlb = Tlb;

    type Stage2 = Arm64Stage2<3, true>;

    type Stage2Tables = NestedTables;

    fn set_up_stage2() -> (Setup, Cost) {
        let (has_ranges, speculative_at) = hardware(|hardware| (hardware.has_ranges, hardware.speculates));
        // FEAT_TLBIRANGE: ID_AA64ISAR0_EL1.TLB.
        let features = coherence::tlbi::Features::from_id(if has_ranges { 2 << 56 } else { 0 }, 0, 0);
        let errata = Errata { repeat_tlbi: false, speculative_at };
        let measured = Measured { page: 1, miss: 1, entries: 1, ticks_per_us: 1 };
        let cost = Cost::new(measured).limited_to(Some(16));
        (Setup { granule: Granule::Size4K, features, errata, limits: cost.limits() }, cost)
    }

    fn stage2_tables(pool: NestedTables) -> NestedTables {
        pool
    }

    fn tag(_: &NestedTables) -> Arc<Tag> {
        Arc::default()
    }

    fn features() -> Features {
        hardware(|hardware| hardware.features)
    }

    fn description() -> controls::IdRegisters {
        DESCRIPTION
    }

    fn control(control: Control) -> u64 {
        match control {
            Control::Hcr => Self::configuration(),
            Control::Vdisr => Self::read(Register::Vdisr),
            _ => hardware(|hardware| hardware.controls[control as usize]),
        }
    }

    fn identification(crm: u32, op2: u32) -> u64 {
        match (crm, op2) {
            // Four breakpoints, two watchpoints.
            (5, 0) => 0x0010_3006,
            // Each has a value of its own, and 1 in its lowest field.
            _ => 0x1111_1111_1111_0001 | u64::from(crm << 4 | op2) << 8,
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
            tell(Recorded::Tcr(value));
        }
        change(Stuck::Register(register), |hardware| {
            hardware.registers.insert(register, value);
            hardware.is_unsynchronized = true;
            let control = hardware.registers.get(&Register::VirtualControl).copied().unwrap_or(0);
            // As of an emulator that looks at the time then, and never again.
            if register == Register::VirtualValue && control & 1 != 0 {
                let count = Self::now().wrapping_sub(hardware.controls[Control::Cntvoff as usize]);
                let is_due = u64::from(count >= value);
                hardware.registers.insert(Register::VirtualControl, control & !4 | is_due << 2);
            }
        });
    }

    fn configuration() -> u64 {
        hardware(|hardware| hardware.configuration)
    }

    fn set_configuration(configuration: Configuration) {
        change(Stuck::Configuration, |hardware| hardware.configuration = configuration.bits());
    }

    fn set_counter((offset, access): (u64, u64)) {
        change(Stuck::Counter, |hardware| {
            hardware.controls[Control::Cntvoff as usize] = offset;
            hardware.controls[Control::Cnthctl as usize] = access;
        });
    }

    fn synchronize() {
        hardware(|hardware| hardware.is_unsynchronized = false);
    }

    fn translate(address: u64, _: bool) -> u64 {
        // Of PAR_EL1 beside the address: normal memory, write-back, inner shareable, not secure.
        const ATTRIBUTES: u64 = 0xff << 56 | 1 << 11 | 1 << 9 | 3 << 7;
        let result = hardware(|hardware| hardware.pages.get(&(address & !0xfff)).copied()).unwrap_or(1);
        if result & 1 == 0 { result | ATTRIBUTES } else { result }
    }

    fn syndrome() -> u64 {
        tell(Recorded::ReadSyndrome);
        hardware(|hardware| hardware.syndrome)
    }

    fn fault_address() -> u64 {
        tell(Recorded::ReadAddress);
        hardware(|hardware| hardware.address)
    }

    fn fault_page() -> u64 {
        tell(Recorded::ReadPage);
        hardware(|hardware| hardware.page)
    }

    fn save_float(to: &mut FloatState) {
        *to = hardware(|hardware| hardware.float.clone());
    }

    fn load_float(from: &FloatState) {
        change(Stuck::Float, |hardware| hardware.float = from.clone());
    }

    fn list_count() -> usize {
        hardware(|hardware| hardware.list_count)
    }

    fn read_list(index: usize) -> u64 {
        hardware(|hardware| hardware.lists[index])
    }

    fn write_list(index: usize, value: u64) {
        change(Stuck::Lists, |hardware| {
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
        tell(Recorded::Deactivate(intid));
    }

    fn load_debug(_: &Debug, _: Counts, control: u64) {
        change(Stuck::Debug, |hardware| hardware.controls[Control::Mdscr as usize] = control);
        tell(Recorded::LoadDebug(control));
    }

    fn stop_debug() {
        change(Stuck::Debug, |hardware| hardware.controls[Control::Mdscr as usize] = 0);
        tell(Recorded::StopDebug);
    }

    unsafe fn run_guest(registers: &mut Registers) -> Vector {
        tell(Recorded::Entered);
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
        board_impl::receive_console::<Self>()
    }
}

pub(super) fn store(context: &Context<'_, MockArm64>, gpa: u64, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    context.vm.space.slots().memory().write(Gpa(gpa), &bytes).expect("memory");
}
