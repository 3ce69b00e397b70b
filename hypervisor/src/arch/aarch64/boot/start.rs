//! The start-up sequence.

use alloc::vec::Vec;
use arrayvec::ArrayVec;
use baremetal::HardwareId;
use baremetal::aarch64::{info, power};
use baremetal::devicetree::{Board, Gic, PROCESSORS, RANGES, Ram};
use core::ops::Range;
use hostlink::exit::ExitCode;

use super::{features, header};
use crate::arch::aarch64::board::{clock, console, gic, interrupts, pci};
use crate::arch::aarch64::guest::entry;
use crate::arch::aarch64::memory::translation;
use crate::arch::{Local, PerCpu};
use crate::free_memory::FreeMemory;
use crate::image::{self, blocks, heap};
use crate::sched::CpuIndex;
use crate::vm::arch::Clock;
use crate::vm::percpu::MAX_CPUS;
use crate::vm::run;

// The list of processors has room for the maximum number of CPUs.
const _: () = assert!(MAX_CPUS == PROCESSORS);

/// Time for a CPU to come up.
const AP_START_US: u64 = 1_000_000;
const BOOT_MAP_END: u64 = 512 << 30;

/// The error if the device tree has no GICv3.
const NO_GIC: &str = "no GICv3 in the device tree: QEMU takes -M virt,virtualization=on,gic-version=3";

/// Results of `prepare` for the parts of the start that need the boot CPU's final stack.
static LATER: spin::Once<Later> = spin::Once::new();

struct Later {
    console: Option<u32>,
    control: Option<u32>,
    module: Option<Range<u64>>,
    /// Seconds since the beginning of 1970.
    date: Option<u64>,
    free: spin::Mutex<FreeMemory>,
    found: Option<pci::Found>,
}

fn unsupported(why: &dyn core::fmt::Display) -> ! {
    image::refuse(ExitCode::Unsupported, why)
}

/// The address of the registers of the serial ports on PCI, and their INTID.
type Ports = Option<(u64, Option<u32>)>;

/// Finds the console and the log's port first, so that every later error can be reported. No log
/// line goes to the guest's port, because the host tool could not tell it from the guest's.
///
/// # Safety
///
/// `tree` is the boot loader's argument.
unsafe fn begin(tree: u64) -> Result<(Board, Ports), &'static str> {
    crate::image::console::init();
    // SAFETY: the caller vouches for the address.
    let tree = unsafe { info::tree(tree) }.ok_or("no device tree: boot the flat image, not the ELF")?;
    let mut board = Board::read(tree)?;
    if let Some(console) = board.uarts.first() {
        console::init(console.registers.start);
    }
    power::set_conduit(board.psci);
    let ports = board.pci.as_ref().and_then(pci::find_ports);
    if let Some((registers, _)) = ports {
        console::init_pci_ports(registers);
    }
    let start = tree.as_ptr().addr() as u64;
    let own = Ram { start, end: start + tree.len() as u64 };
    board.reserved.try_push(own).map_err(|_| "more memory is reserved than can be remembered")?;
    Ok((board, ports))
}

/// Started at EL1: the only possible action is to report it.
pub(crate) extern "C" fn not_el2(tree: u64) -> ! {
    // SAFETY: the entry code passes on the boot protocol's values; its tables are identity
    // mappings.
    let _ = unsafe { begin(tree) };
    unsupported(&"not started at EL2: QEMU takes -M virt,virtualization=on,gic-version=3")
}

/// First Rust code of the boot CPU, on the boot stack with the boot tables.
pub(crate) extern "C" fn bsp_main(tree: u64) -> ! {
    // SAFETY: the entry code passes on the boot protocol's values.
    let (firmware, ports) = unsafe { begin(tree) }.unwrap_or_else(|why| unsupported(&why));
    let gic = firmware.gic.as_ref().unwrap_or_else(|| unsupported(&NO_GIC));
    log::info!("Quell {}", env!("CARGO_PKG_VERSION"));
    if firmware.left_out != 0 {
        log::warn!("more than {MAX_CPUS} CPUs; {} stay unused", firmware.left_out);
    }
    features::probe().unwrap_or_else(|why| unsupported(&why));
    clock::init().unwrap_or_else(|why| unsupported(&why));
    gic::init_distributor(gic.distributor.start).unwrap_or_else(|why| unsupported(&why));
    prepare(&firmware, gic, ports).unwrap_or_else(|why| unsupported(&why));
    let cpu = PerCpu::get(CpuIndex(0)).expect("the boot CPU has a block");
    // SAFETY: no CPU runs on the stacks of the blocks yet.
    unsafe { blocks::enter_block(cpu, bsp_on_block) }
}

fn prepare(firmware: &Board, gic: &Gic, ports: Ports) -> Result<(), &'static str> {
    let mut free = FreeMemory::default();
    let ram = firmware.ram.iter().filter(|range| range.end <= BOOT_MAP_END);
    let ram: ArrayVec<Range<u64>, RANGES> = ram.copied().map(Range::from).collect();
    ram.iter().for_each(|range| free.add(range.clone()));
    free.reserve(heap::image());
    for &range in firmware.reserved.iter().chain(&firmware.initrd) {
        free.reserve(range.into());
    }
    heap::init_heap(&mut free, BOOT_MAP_END)?;

    // SAFETY: the boot tables map all free memory below their end.
    let blocks = unsafe { blocks::create(&mut free, &boot_cpu_first(firmware), BOOT_MAP_END) }?;
    for cpu in PerCpu::all() {
        let mut regions = gic.redistributors.iter();
        let found = regions.find_map(|&region| gic::find_redistributor(region.into(), cpu.id));
        cpu.arch.redistributor.set(found.ok_or("a CPU has no redistributor")?);
    }

    let console = firmware.uarts.first();
    // SAFETY: the boot tables map configuration space, and of the bus only the ports are in use.
    let found = firmware.pci.as_ref().and_then(|host| unsafe { pci::find(host) });
    let mut devices = Vec::<Range<u64>>::new();
    devices.push(gic.distributor.into());
    devices.extend(gic.redistributors.iter().copied().map(Range::from));
    devices.extend(console.map(|console| console.registers.into()));
    devices.extend(ports.map(|(registers, _)| registers..registers + 16));
    devices.extend(found.iter().flat_map(|found| found.registers.iter().cloned()));
    translation::build_tables(&ram, &devices, blocks).map_err(|_| "the memory map cannot be mapped")?;
    LATER.call_once(|| Later {
        console: console.and_then(|console| console.interrupt),
        control: ports.and_then(|(_, intid)| intid),
        module: firmware.initrd.map(Range::from),
        date: firmware.clock.map(|clock| clock::date(clock.registers.start)),
        free: spin::Mutex::new(free),
        found,
    });
    Ok(())
}

/// Affinities of all CPUs, the calling one's first.
fn boot_cpu_first(firmware: &Board) -> ArrayVec<HardwareId, { MAX_CPUS }> {
    let own = gic::affinity();
    let others = firmware.processors.iter().copied().filter(|&id| id != own);
    core::iter::once(own).chain(others).take(MAX_CPUS).collect()
}

/// The boot CPU on its final stack.
extern "C" fn bsp_on_block() -> ! {
    let later = LATER.get().expect("memory is prepared");
    let cpu = PerCpu::current();
    // SAFETY: the tables are built and map all memory in use.
    unsafe { translation::activate_tables() };
    enable_cpu(cpu).unwrap_or_else(|why| unsupported(&why));
    let _nobody_gives_up_this_one = cpu.presence.come_online();
    // SAFETY: the module was reserved, so it is as the boot loader left it.
    let bundle = unsafe { image::read_module(later.module.clone(), "the initial RAM disk") };
    start_others();
    log::info!(
        "{} CPUs, {} MiB free, counter {} kHz, {}",
        PerCpu::online().count(),
        later.free.lock().total() >> 20,
        clock::hz() / 1000,
        features::Names,
    );
    if let Some(found) = &later.found {
        found.start(cpu);
    }
    image::run_guests::<image::Processor>(bundle, &mut later.free.lock(), later.date, |has_console| {
        interrupts::route_ports(cpu, later.console, later.control);
        console::enable_receive_interrupts(has_console);
    })
}

/// Per-CPU initialisation after the CPU's tables are active.
fn enable_cpu(cpu: &'static PerCpu) -> Result<(), &'static str> {
    entry::install_vectors();
    features::enable();
    clock::init_cpu();
    gic::init_cpu(cpu.arch.redistributor.get(), interrupts::PRIVATE)
}

/// Starts all other CPUs, one after the other. A CPU that does not come up in time is given up; see
/// [`crate::bringup`].
fn start_others() {
    for cpu in PerCpu::all().skip(1) {
        let answer = power::cpu_on(cpu.id, header::secondary_entry(), cpu.main_stack_top());
        let patience = if answer.is_ok() { Local::ticks_of_us(AP_START_US) } else { 0 };
        let deadline = clock::now() + patience;
        while !cpu.presence.is_settled() && clock::now() < deadline {
            core::hint::spin_loop();
        }
        if cpu.presence.give_up() {
            let (index, id) = (cpu.index, cpu.id);
            log::error!(
                "CPU {index} (affinity {id:#x}) does not start, and is not used: CPU_ON says {answer:?}"
            );
        }
    }
}

/// First Rust code of every other CPU, on its main stack with the boot tables.
pub(crate) extern "C" fn ap_main() -> ! {
    // SAFETY: the tables are built and map all memory in use.
    unsafe { translation::activate_tables() };
    let cpu = PerCpu::current();
    // A CPU that lacks a feature need not end the machine.
    if let Err(why) = enable_cpu(cpu) {
        cpu.presence.give_up();
        log::error!("CPU {} (affinity {:#x}) is not used: {why}", cpu.index, cpu.id);
    }
    run::come_online(cpu);
    run::cpu_loop(run::wait_for_start::<Local>())
}
