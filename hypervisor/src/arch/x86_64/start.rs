//! The start-up sequence.

use alloc::vec::Vec;
use arrayvec::ArrayVec;
use baremetal::HardwareId;
use baremetal::pages::PAGE;
use baremetal::x86_64::boot::{STARTUP_PAGE, StartupPage};
use baremetal::x86_64::firmware;
use baremetal::x86_64::info::{self, BootInfo, RANGES};
use baremetal::x86_64::{keyboard, screen};
use core::ops::Range;
use hostlink::defect::Defect;
use hostlink::exit::ExitCode;

use super::{apic, clock, console, features, interrupts, pci, svm, tables, translation, vmx};
use crate::arch::{Local, On, PerCpu};
use crate::free_memory::FreeMemory;
use crate::image::{self, Kind, Processor, blocks, heap};
use crate::pages::Pages;
use crate::sched::CpuIndex;
use crate::svm::vendor::OnSvm;
use crate::vm::arch::{Arch, Clock};
use crate::vm::percpu::MAX_CPUS;
use crate::vm::{defects, run};
use crate::vmx::processor::OnVmx;
use crate::x86::vcpu::instruction;
use crate::x86::{cpuid, vectors};

// The list of processors has room for the maximum number of CPUs.
const _: () = assert!(MAX_CPUS == baremetal::x86_64::processors::MAX_PROCESSORS);

const BOOT_MAP_END: u64 = 1 << 32;
/// ISA interrupts of COM1, and of COM2 and COM4.
const COM1_IRQ: usize = 4;
const COM4_IRQ: usize = 3;
/// Time for a CPU to come up before it is sent a second start-up IPI, and after that.
const AP_RETRY_US: u64 = 20_000;
const AP_START_US: u64 = 1_000_000;

/// First Rust code of the boot CPU, on the boot stack with the boot tables.
pub(crate) extern "C" fn bsp_main(protocol: u32, start_info: u32) -> ! {
    console::init();
    crate::image::console::init();
    // SAFETY: the entry code passes on the boot protocol's values.
    let info = unsafe { info::read(protocol, start_info) };
    let shown = info.as_ref().map_or(Ok(()), screen::open);
    log::info!("Quell {}", env!("CARGO_PKG_VERSION"));
    if let Err(why) = shown {
        log::warn!("the screen is not used: {why}");
    }
    let info = info.unwrap_or_else(|why| unsupported(&why));
    if info.has_more_ram {
        log::warn!("the memory map has more entries than are used");
    }
    if svm::features::is_there() {
        svm::features::probe().unwrap_or_else(|why| unsupported(&why));
    } else if vmx::features::is_there() {
        vmx::features::probe().unwrap_or_else(|why| unsupported(&why));
    } else {
        unsupported(
            &"this CPU has neither SVM nor VMX: Quell needs an AMD or Intel processor, or QEMU with -cpu EPYC,+svm,+npt",
        );
    }
    features::probe();
    // SAFETY: the boot tables are active, and the RSDP is the boot protocol's.
    let firmware = unsafe { firmware::read(info.rsdp) }.unwrap_or_else(|why| unsupported(&why));
    baremetal::x86_64::interrupts::silence();
    if firmware.left_out != 0 {
        log::warn!("more than {MAX_CPUS} CPUs; {} stay parked", firmware.left_out);
    }
    prepare_memory(info, &firmware).unwrap_or_else(|why| unsupported(&why));
    instruction::build_decoder();
    // SAFETY: no other CPU runs.
    unsafe { tables::build_idt() };
    let cpu = PerCpu::get(CpuIndex(0)).expect("the boot CPU has a block");
    // SAFETY: no CPU runs on the stacks of the blocks yet.
    unsafe { blocks::enter_block(cpu, bsp_on_block) }
}

/// Results of `prepare_memory` for the parts of the start that need the boot CPU's final stack.
static LATER: spin::Once<Later> = spin::Once::new();

struct Later {
    pm_timer: u16,
    io_apic: Option<(u64, u8)>,
    serial_pin: u32,
    control_pin: u32,
    keyboard_pin: u32,
    module: Option<Range<u64>>,
    pci: Option<pci::Found>,
    free: spin::Mutex<FreeMemory>,
}

fn unsupported(why: &dyn core::fmt::Display) -> ! {
    image::refuse(ExitCode::Unsupported, why)
}

fn prepare_memory(info: BootInfo, firmware: &firmware::FirmwareTables) -> Result<(), &'static str> {
    let pm_timer = firmware.pm_timer.ok_or("ACPI has no power management timer")?;
    let mut free = FreeMemory::default();
    let ram: ArrayVec<Range<u64>, RANGES> = info.ram.into_iter().map(Range::from).collect();
    let module = info.module.map(Range::from);
    ram.iter().for_each(|range| free.add(range.clone()));
    free.reserve(heap::image());
    if let Some(module) = &module {
        free.reserve(module.clone());
    }
    heap::init_heap(&mut free, BOOT_MAP_END)?;

    // SAFETY: the boot tables map all free memory below their end.
    let blocks = unsafe { blocks::create(&mut free, &boot_cpu_first(firmware), BOOT_MAP_END) }?;

    // SAFETY: the boot tables map it, and no other CPU runs.
    let pci = unsafe { pci::find(firmware) };
    let page = |start: u64| start..start + PAGE;
    let mut devices: Vec<Range<u64>> = apic::probe().map(page).into_iter().collect();
    devices.extend(firmware.io_apic.map(|(base, _)| page(base)));
    devices.extend(pci.iter().flat_map(|found| found.registers.iter().cloned()));
    let is_ram = |pages: &Range<u64>| ram.iter().any(|ram| ram.start < pages.end && pages.start < ram.end);
    devices.extend(screen::pages().filter(|pages| !is_ram(pages)));
    let mapped: Vec<Range<u64>> =
        ram.iter().cloned().chain(module.clone().and_then(|m| beyond(&m, &ram))).collect();
    translation::build_tables(&mapped, &devices, blocks).map_err(|_| "the memory map cannot be mapped")?;
    LATER.call_once(|| Later {
        pm_timer,
        io_apic: firmware.io_apic,
        serial_pin: firmware.isa_pins[COM1_IRQ],
        control_pin: firmware.isa_pins[COM4_IRQ],
        keyboard_pin: firmware.isa_pins[keyboard::IRQ],
        module,
        pci,
        free: spin::Mutex::new(free),
    });
    Ok(())
}

/// The pages of the boot module that are not in RAM by the memory map.
///
/// The module may lie across its end: QEMU puts it below the ACPI tables, and firmware that drives
/// a disk reserves more there than QEMU knows of, before the module is loaded.
fn beyond(module: &Range<u64>, ram: &[Range<u64>]) -> Option<Range<u64>> {
    let around = ram.iter().find(|range| range.contains(&module.start))?;
    let end = module.end.next_multiple_of(PAGE);
    let mapped = around.end & !(PAGE - 1);
    (mapped < end).then_some(mapped..end)
}

/// APIC ids of all CPUs, the calling one first.
fn boot_cpu_first(firmware: &firmware::FirmwareTables) -> ArrayVec<HardwareId, { MAX_CPUS }> {
    let own = cpuid::host_apic_id::<Local>();
    let others = firmware.apic_ids.iter().copied().filter(|&id| id != own);
    core::iter::once(own).chain(others).take(MAX_CPUS).collect()
}

/// The boot CPU on its final stack.
extern "C" fn bsp_on_block() -> ! {
    if svm::features::is_there() {
        start_with::<OnSvm<Processor>>()
    } else {
        start_with::<OnVmx<Processor>>()
    }
}

/// Starts everything, on a boot CPU of this kind.
fn start_with<K: Starts>() -> !
where
    On<K>: Arch,
{
    let later = LATER.get().expect("memory is prepared");
    let cpu = PerCpu::current();
    // SAFETY: the tables are built and map all memory in use.
    unsafe { translation::activate_tables() };
    // SAFETY: they map the screen one to one.
    unsafe { screen::moved() };
    // SAFETY: the IDT is built, and the CPU gets here once.
    unsafe { tables::load(cpu) };
    apic::enable();
    apic::set_timer_divider();
    interrupts::serve::<On<K>>();
    clock::calibrate(later.pm_timer, cpuid::host_has_tsc_deadline::<Local>())
        .unwrap_or_else(|why| unsupported(&why));
    enable_cpu::<K>(cpu);
    let _nobody_gives_up_this_one = cpu.presence.come_online();
    // SAFETY: the module was reserved, so it is as the boot loader left it.
    let bundle = unsafe { image::read_module(later.module.clone(), "the boot module") };
    start_others();
    if let Some(found) = &later.pci {
        found.start(cpu.id);
    }
    log::info!(
        "{}: {} CPUs, {} MiB free, TSC {} MHz",
        cpuid::brand::<Local>(),
        PerCpu::online().count(),
        later.free.lock().total() >> 20,
        clock::hz() / 1_000_000,
    );
    image::run_guests::<K>(bundle, &mut later.free.lock(), clock::date(), |has_console| {
        if let Some((base, number)) = later.io_apic {
            let Some(to) = vectors::destination(cpu.id) else {
                return log::error!("there is no input: the boot CPU has APIC id {}", cpu.id);
            };
            // SAFETY: the register page is mapped; no other code drives the I/O APIC.
            unsafe {
                apic::route_pin(base, later.serial_pin, pci::redirection(number, to, vectors::SERIAL));
                apic::route_pin(base, later.control_pin, pci::redirection(number, to, vectors::CONTROL));
                apic::route_pin(base, later.keyboard_pin, pci::redirection(number, to, vectors::SERIAL));
            }
            console::enable_receive_interrupts(has_console);
        }
    })
}

/// A kind of processor that can be enabled.
trait Starts: Kind {
    /// Enables it on the calling CPU.
    ///
    /// # Safety
    ///
    /// The CPU's [own page](super::cpu::CpuData::own_page) is used for nothing else.
    unsafe fn enable(cpu: &PerCpu);
}

impl Starts for OnSvm<Processor> {
    unsafe fn enable(cpu: &PerCpu) {
        cpu.arch.host_vmcb.set(Pages::new(1).forever());
        // SAFETY: the caller vouches for the one page; the other was just allocated, and is for
        // this CPU's host state alone. SVM is on when VMSAVE is executed.
        unsafe {
            svm::features::enable(cpu.arch.own_page.get());
            core::arch::asm!("vmsave rax", in("rax") cpu.arch.host_vmcb.get(), options(nostack, preserves_flags));
        }
    }
}

impl Starts for OnVmx<Processor> {
    unsafe fn enable(cpu: &PerCpu) {
        // SAFETY: the caller vouches for the page.
        unsafe { vmx::features::enable(cpu.arch.own_page.get()) };
    }
}

/// Per-CPU initialisation after the CPU's tables are loaded.
fn enable_cpu<K: Starts>(cpu: &'static PerCpu) {
    cpu.arch.own_page.set(Pages::new(1).forever());
    // SAFETY: the page was just allocated, for nothing else, and is never freed.
    unsafe { K::enable(cpu) };
    super::fpu::enable();
    clock::init_cpu();
}

/// Starts all other CPUs, one after the other. A CPU that does not come up in time is given up; see
/// [`crate::bringup`].
fn start_others() {
    // SAFETY: the page is in low memory, which is never handed out, and is mapped.
    let page = unsafe { StartupPage::install() };
    for cpu in PerCpu::all().skip(1) {
        let id = cpu.id;
        if !apic::reaches(id) {
            log::error!("CPU {} (APIC id {id}) is not used: such an id needs x2APIC mode", cpu.index);
            cpu.presence.give_up();
            continue;
        }
        page.offer(id, cpu.main_stack_top());
        apic::send_init(id);
        // With the defect the third CPU is started after it has been given up, while the next one
        // is being started.
        let is_later = |cpu: &PerCpu| cpu.index == CpuIndex(2) && defects::makes(Defect::LateCpu);
        if let Some(late) = PerCpu::get(CpuIndex(cpu.index.0 - 1)).filter(|before| is_later(before)) {
            apic::send_startup(late.id, STARTUP_PAGE);
        }
        clock::delay_us(200);
        for patience in [AP_RETRY_US, AP_START_US] {
            if !is_later(cpu) {
                apic::send_startup(id, STARTUP_PAGE);
            }
            let deadline = clock::now() + Local::ticks_of_us(patience);
            while !cpu.presence.is_settled() && clock::now() < deadline {
                core::hint::spin_loop();
            }
            if cpu.presence.is_settled() {
                break;
            }
        }
        if cpu.presence.give_up() {
            log::error!("CPU {} (APIC id {id}) does not start, and is not used", cpu.index);
            if page.withdraw() {
                // Returns it to the state that only a start-up IPI ends, and none is sent.
                apic::send_init(id);
            }
            // A CPU that has taken the offer may hold a lock at this moment: it is left to stop on
            // its own.
        }
    }
}

/// First Rust code of every other CPU, on its main stack with the boot tables.
pub(crate) extern "C" fn ap_main(_stack_top: u64) -> ! {
    // SAFETY: the tables are built and map all memory in use.
    unsafe { translation::activate_tables() };
    let cpu = PerCpu::current();
    // SAFETY: the IDT is built, and the CPU gets here once.
    unsafe { tables::load(cpu) };
    apic::enable();
    apic::set_timer_divider();
    if svm::features::is_there() { join::<OnSvm<Processor>>(cpu) } else { join::<OnVmx<Processor>>(cpu) }
}

/// Joins the other CPUs, which are of this kind.
fn join<K: Starts>(cpu: &'static PerCpu) -> !
where
    On<K>: Arch,
{
    enable_cpu::<K>(cpu);
    run::come_online(cpu);
    run::cpu_loop(run::wait_for_start::<On<K>>())
}
