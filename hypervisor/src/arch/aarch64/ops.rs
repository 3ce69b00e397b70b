//! This architecture's implementation of the core's traits.

use alloc::sync::Arc;
use coherence::tlbi::Setup;
use stay::Cost;

use super::board::{console, gic, pci};
use super::boot::features;
use super::guest::{entry, float, points, registers, vgic};
use super::memory::flush::Tlb;
use super::memory::stage2::{self, Stage2, Tables};
use super::sysreg::{isb, read, write};
use crate::arch::Local;
use crate::arm64::controls;
use crate::arm64::guest::Tag;
use crate::arm64::processor::{Configuration, Features, FloatState, Processor, Registers, Vector};
use crate::arm64::vcpu::debug::{Counts, Debug};
use crate::arm64::vcpu::exchanged::Register;
use crate::devices::virt::gic::Maintenance;
use crate::iommu::lines::MachineDevices;
use crate::vm::memory::NestedTables;

impl Processor for Local {
    type Tlb = Tlb;

    const TLB: Tlb = Tlb;

    type Stage2 = Stage2;

    type Stage2Tables = Tables;

    fn set_up_stage2() -> (Setup, Cost) {
        stage2::set_up()
    }

    fn stage2_tables(pool: NestedTables) -> Tables {
        Tables::new(pool)
    }

    fn tag(tables: &Tables) -> Arc<Tag> {
        tables.tag()
    }

    #[inline(always)]
    fn features() -> Features {
        features::get()
    }

    fn description() -> controls::IdRegisters {
        features::processor()
    }

    #[cfg(feature = "audit")]
    #[inline(always)]
    fn control(control: controls::Control) -> u64 {
        features::read_control(control)
    }

    #[inline(always)]
    fn identification(crm: u32, op2: u32) -> u64 {
        registers::identification(crm, op2)
    }

    fn auxiliary_control() -> u64 {
        read!("actlr_el1")
    }

    #[inline(always)]
    fn read(register: Register) -> u64 {
        registers::get(register)
    }

    #[inline(always)]
    fn write(register: Register, value: u64) {
        registers::set(register, value);
    }

    #[inline(always)]
    fn configuration() -> u64 {
        read!("hcr_el2")
    }

    #[inline(always)]
    fn set_configuration(configuration: Configuration) {
        // SAFETY: only these bits differ between vCPUs and over time: local maintenance, virtual
        // SErrors, traps of WFE.
        unsafe { write!("hcr_el2", configuration.bits()) };
    }

    fn set_counter((offset, access): (u64, u64)) {
        // SAFETY: the hypervisor uses the physical counter and EL2's timer, whatever these say.
        unsafe {
            write!("cntvoff_el2", offset);
            write!("cnthctl_el2", access);
        }
    }

    #[inline(always)]
    fn synchronize() {
        isb();
    }

    fn translate(address: u64, at_el0: bool) -> u64 {
        registers::translate(address, at_el0)
    }

    #[inline(always)]
    fn syndrome() -> u64 {
        read!("esr_el2")
    }

    #[inline(always)]
    fn fault_address() -> u64 {
        read!("far_el2")
    }

    #[inline(always)]
    fn fault_page() -> u64 {
        read!("hpfar_el2")
    }

    #[inline(always)]
    fn save_float(to: &mut FloatState) {
        float::save(to);
    }

    #[inline(always)]
    fn load_float(from: &FloatState) {
        float::load(from);
    }

    #[inline(always)]
    fn list_count() -> usize {
        vgic::list_count()
    }

    #[inline]
    fn read_list(index: usize) -> u64 {
        vgic::read_list(index)
    }

    #[inline]
    fn write_list(index: usize, value: u64) {
        vgic::write_list(index, value);
    }

    #[inline(always)]
    fn preemption_bits() -> u32 {
        vgic::preemption_bits()
    }

    fn init_interface() {
        vgic::init_cpu();
    }

    #[inline(always)]
    fn interface_control() -> u64 {
        vgic::control()
    }

    #[inline(always)]
    fn set_maintenance(maintenance: Maintenance) {
        vgic::set_maintenance(maintenance);
    }

    #[inline(always)]
    fn deactivate(intid: u32) {
        gic::deactivate(intid);
    }

    fn load_debug(debug: &Debug, counts: Counts, control: u64) {
        points::load(debug, counts, control);
    }

    fn stop_debug() {
        points::switch_off();
    }

    #[inline(always)]
    unsafe fn run_guest(registers: &mut Registers) -> Vector {
        // SAFETY: the caller vouches for the registers.
        unsafe { entry::run(registers) }
    }

    fn devices() -> Option<&'static MachineDevices> {
        pci::devices()
    }

    fn transmit(byte: u8) {
        console::guest_transmit(byte);
    }

    fn receive() -> Option<u8> {
        console::receive()
    }
}
