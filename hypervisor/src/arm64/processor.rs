//! The operations that only an Arm64 processor at EL2 can do: each is one register, or one short
//! sequence of instructions.
//!
//! `arch/aarch64` implements them by instructions, tests by a mock processor. The hypervisor uses
//! both in the same way.

use core::cell::Cell;

use alloc::sync::Arc;
use bitflags::bitflags;
use coherence::tlbi::{Setup, Stage2Tlb};
use paging::{Format, TableMemory};
use stay::{Cost, Mistakes};

use super::arch_impl::OnArm64;
#[cfg(any(test, feature = "audit"))]
use super::controls::Control;
use super::controls::{self, hcr};
use super::guest::{Common, Shared, Tag};
use super::vcpu::debug::{Counts, Debug};
use super::vcpu::exchanged::Register;
use super::vcpu::loaded::Loaded;
use super::vcpu::state::VcpuState;
use super::vcpu::{Inbox, Workspace};
use crate::devices::virt::gic::{ListRegisters, Maintenance};
use crate::iommu::lines::{MachineDevices, Wired};
use crate::owned::DeviceOwner;
use crate::vm::arch::{Arch, Board};
use crate::vm::memory::NestedTables;

/// Registers that are switched at each entry and exit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// X0 to X30.
    pub x: [u64; 31],
    /// The guest's program counter.
    pub pc: u64,
    /// Its processor state, as SPSR_EL2.
    pub pstate: u64,
}

/// The guest's floating-point and vector registers. The hypervisor does not use them, so they are
/// switched only with the vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct FloatState {
    /// V0 to V31.
    pub v: [u128; 32],
    /// FPCR.
    pub control: u64,
    /// FPSR.
    pub status: u64,
}

/// The EL2 vector through which the guest exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Vector {
    /// An exception, which ESR_EL2 describes.
    Synchronous = 0,
    /// An interrupt.
    Interrupt = 1,
    /// An asynchronous external abort.
    SError = 3,
}

/// HCR_EL2 for a guest: constant bits (see [`hcr_base`](super::controls::hcr_base)), and variable
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration(u64);

impl Configuration {
    /// Adds to `base`; with `broadcasts` the guest's local maintenance instructions reach all CPUs.
    pub const fn new(base: u64, broadcasts: bool) -> Self {
        let steady = base & !(hcr::VSE | hcr::TWE);
        Self(if broadcasts { steady | hcr::FB | hcr::BSU_INNER } else { steady })
    }

    /// The register's value.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the guest's local maintenance instructions reach all CPUs.
    pub const fn broadcasts(self) -> bool {
        self.0 & hcr::FB != 0
    }

    /// Whether a virtual SError is pending.
    pub const fn has_serror(self) -> bool {
        self.0 & hcr::VSE != 0
    }

    /// The same with or without a virtual SError.
    pub const fn with_serror(self, pends: bool) -> Self {
        Self(if pends { self.0 | hcr::VSE } else { self.0 & !hcr::VSE })
    }

    /// The same with WFE trapped or not.
    pub const fn with_wfe_trapped(self, is_trapped: bool) -> Self {
        Self(if is_trapped { self.0 | hcr::TWE } else { self.0 & !hcr::TWE })
    }
}

bitflags! {
    /// Features that matter to the hypervisor and differ between processors.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u32 {
        /// TLBI by range of addresses (FEAT_TLBIRANGE).
        const RANGE = 1 << 0;
        /// TLBI takes a hint of the level (FEAT_TTL).
        const LEVEL_HINT = 1 << 1;
        /// 16 bits of VMID (FEAT_VMID16).
        const VMID16 = 1 << 2;
        /// Stage 2 alone decides how memory is cached (FEAT_S2FWB).
        const FORCED_WRITE_BACK = 1 << 3;
        /// The processor sets the access flag in hardware (FEAT_HAFDBS).
        const ACCESS_FLAG = 1 << 4;
        /// It sets the dirty state, too.
        const DIRTY_STATE = 1 << 5;
        /// A table may replace a block, and a block a table, without an invalid entry in between
        /// (FEAT_BBM, level 2).
        const REPLACES_IN_PLACE = 1 << 6;
        /// Pointer authentication, with keys that belong to the guest.
        const POINTER_KEYS = 1 << 7;
        /// Virtualization host extensions, which are not used.
        const VHE = 1 << 8;
        /// An instruction cache whose lines are tagged by VMID or virtually indexed: dropping lines
        /// by address is not enough.
        const VIRTUAL_INSTRUCTION_CACHE = 1 << 9;
        /// Error records, deferred SErrors (FEAT_RAS).
        const ERRORS = 1 << 10;
        /// Matrix instructions (FEAT_SME), which guests do not have; one of their registers exists
        /// for guests anyway.
        const MATRICES = 1 << 11;
    }
}

/// Architecture-specific data of one CPU, in addition to [`PerCpu`](crate::vm::PerCpu)'s own.
#[derive(Debug)]
pub struct CpuData {
    /// Registers of its GIC redistributor.
    pub redistributor: Cell<u64>,
    /// Guest timers that have fired and that the vCPU on this CPU does not know of yet: a bit for
    /// each INTID.
    pub timers_fired: Cell<u32>,
    /// The virtual CPU interface has requested maintenance.
    pub maintenance_fired: Cell<bool>,
    /// The address space that it has loaded.
    pub loaded: Loaded,
    /// The auditor's record of this CPU.
    #[cfg(any(test, feature = "audit"))]
    pub books: core::cell::RefCell<super::audit::CpuBooks>,
}

impl Default for CpuData {
    /// The data of a CPU that has not started.
    fn default() -> Self {
        Self {
            redistributor: Cell::new(0),
            timers_fired: Cell::new(0),
            maintenance_fired: Cell::new(false),
            loaded: Loaded::none(),
            #[cfg(any(test, feature = "audit"))]
            books: core::cell::RefCell::new(super::audit::CpuBooks::default()),
        }
    }
}

/// The calling CPU. The functions have no `self`, as those of [`Board`].
pub trait Processor: Board<CpuData = CpuData> {
    /// TLB instructions.
    type Tlb: Stage2Tlb + Mistakes;
    /// The calling CPU's TLB instructions.
    const TLB: Self::Tlb;
    /// Format of stage 2.
    type Stage2: Format + 'static;
    /// The allocator of its tables.
    type Stage2Tables: TableMemory + Send + Sync + 'static;

    /// How stage 2 is invalidated here, and what that costs. Called once, before the first guest
    /// exists.
    fn set_up_stage2() -> (Setup, Cost);

    /// The allocator of one guest's tables, which draws on this pool.
    fn stage2_tables(pool: NestedTables) -> Self::Stage2Tables;
    /// The tag of the translations of the guest with these tables.
    fn tag(tables: &Self::Stage2Tables) -> Arc<Tag>;
    /// Its features; all CPUs have the same.
    fn features() -> Features;
    /// The processor's description of itself, on which EL2's controls depend.
    fn description() -> controls::IdRegisters;
    /// Reads a control that the processor has.
    #[cfg(any(test, feature = "audit"))]
    fn control(control: Control) -> u64;
    /// The ID register S3_0_C0_C`crm`_`op2`. Registers that do not exist read as 0.
    fn identification(crm: u32, op2: u32) -> u64;
    /// ACTLR_EL1.
    fn auxiliary_control() -> u64;
    /// Reads a register of the guest.
    fn read(register: Register) -> u64;
    /// Writes a register of the guest.
    fn write(register: Register, value: u64);
    /// HCR_EL2, whose VSE the processor clears in hardware.
    fn configuration() -> u64;
    /// Writes HCR_EL2. It takes effect at the latest with the next entry.
    fn set_configuration(configuration: Configuration);
    /// Writes CNTVOFF_EL2 and CNTHCTL_EL2, as [`controls::counter`] has them.
    fn set_counter(controls: (u64, u64));
    /// ISB: earlier writes to system registers take effect before what follows.
    fn synchronize();

    /// Translates by the guest's stage 1 and stage 2, for a read at EL1 or EL0; returns the
    /// resulting PAR_EL1. The guest's PAR_EL1 is preserved.
    fn translate(address: u64, at_el0: bool) -> u64;

    /// ESR_EL2.
    fn syndrome() -> u64;
    /// FAR_EL2.
    fn fault_address() -> u64;
    /// HPFAR_EL2.
    fn fault_page() -> u64;
    /// Saves the floating-point registers from the processor to memory.
    fn save_float(to: &mut FloatState);
    /// Loads the floating-point registers from memory into the processor.
    fn load_float(from: &FloatState);
    /// Number of list registers: 1 to 16.
    fn list_count() -> usize;
    /// Reads a list register.
    fn read_list(index: usize) -> u64;
    /// Writes a list register.
    fn write_list(index: usize, value: u64);
    /// Number of priority bits that decide about preemption in the virtual CPU interface: 5 to 7.
    fn preemption_bits() -> u32;
    /// Initialises the virtual CPU interface: enabled and empty.
    fn init_interface();
    /// ICH_HCR_EL2.
    fn interface_control() -> u64;
    /// Selects the maintenance interrupts of the virtual CPU interface; sets EOIcount to 0.
    fn set_maintenance(maintenance: Maintenance);
    /// Deactivates a private interrupt of the machine.
    fn deactivate(intid: u32);
    /// Loads breakpoints and watchpoints, and MDSCR_EL1 with `control`.
    fn load_debug(debug: &Debug, counts: Counts, control: u64);
    /// Disables breakpoints, watchpoints and single step.
    fn stop_debug();

    /// Enters the guest, and returns the vector through which it exited.
    ///
    /// # Safety
    ///
    /// The registers are this CPU's vCPU's, and the rest of the vCPU's state is loaded. Stage 2
    /// maps the guest's memory only.
    unsafe fn run_guest(registers: &mut Registers) -> Vector;

    /// The machine's PCI functions and SMMUs, if there are any that guests may own.
    fn devices() -> Option<&'static MachineDevices>;
    /// Sends a byte from the guest's serial port over the real one.
    fn transmit(byte: u8);
    /// Next byte that the real console has received.
    fn receive() -> Option<u8>;

    /// The numbers of breakpoints and watchpoints.
    fn debug_counts() -> Counts {
        Counts::of(Self::identification(5, 0))
    }
}

/// An architecture whose processors are these.
pub trait Arm64:
    Processor
    + DeviceOwner<Platform = Wired>
    + Arch<Common = Common, Shared = Shared, Inbox = Inbox, State = VcpuState<Self>, Workspace = Workspace>
{
}

impl<P: 'static> Arm64 for OnArm64<P> where Self: Processor {}

pub(super) struct Lists<P>(core::marker::PhantomData<P>);

impl<P> Lists<P> {
    pub(super) const fn new() -> Self {
        Self(core::marker::PhantomData)
    }
}

impl<P: Processor> ListRegisters for Lists<P> {
    #[inline(always)]
    fn count(&self) -> usize {
        P::list_count()
    }

    #[inline(always)]
    fn read(&self, index: usize) -> u64 {
        P::read_list(index)
    }

    #[inline(always)]
    fn write(&mut self, index: usize, value: u64) {
        P::write_list(index, value);
    }
}
