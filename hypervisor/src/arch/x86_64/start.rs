//! The order in which everything is brought up.

use core::ops::Range;

use arrayvec::ArrayVec;
use hostlink::defect::Defect;
use hostlink::exit::ExitCode;
use multiboot2::{BootInformation, BootInformationHeader, MemoryAreaType, RsdpV1Tag, RsdpV2Tag};
use pvh::start_info::MemmapType;
use pvh::start_info::reader::StartInfoReader;
use x86_64::instructions::port::Port;

use super::svm::features;
use super::{apic, boot, clock, console, firmware, interrupts, tables, translation};
use crate::amd64::guest::allocate_pages;
use crate::amd64::{cpuid, instruction};
use crate::arch::{Local, PerCpu};
use crate::free_memory::FreeMemory;
use crate::image::blocks::{self, BLOCK_SIZE};
use crate::image::{self, heap};
use crate::vm::arch::Clock;
use crate::vm::files;
use crate::vm::percpu::MAX_CPUS;
use crate::vm::run;

/// The boot tables map so much.
const BOOT_MAP_END: u64 = 1 << 32;
/// How long a CPU gets to come up before it is sent a second start-up IPI, and after that.
const AP_RETRY_US: u64 = 20_000;
const AP_START_US: u64 = 1_000_000;

/// What the boot protocol says, copied out of the places where it lies.
struct BootInfo {
    ram: ArrayVec<Range<u64>, 64>,
    module: Option<Range<u64>>,
    rsdp: u64,
}

impl BootInfo {
    fn add_ram(&mut self, start: u64, size: u64) {
        if self.ram.try_push(start..start.saturating_add(size)).is_err() {
            log::warn!("the memory map has more entries than are used");
        }
    }
}

/// First Rust code of the boot CPU, on the boot stack with the boot tables.
pub(crate) extern "C" fn bsp_main(protocol: u32, start_info: u32) -> ! {
    console::init();
    crate::image::console::init();
    log::info!("Quell {}", env!("CARGO_PKG_VERSION"));
    // SAFETY: the entry code passes on what the boot protocol gave.
    let info = unsafe {
        match protocol {
            boot::PROTOCOL_MULTIBOOT2 => read_multiboot2(start_info),
            _ => read_start_info(start_info),
        }
    };
    let info = info.unwrap_or_else(|why| unsupported(&why));
    features::probe().unwrap_or_else(|why| unsupported(&why));
    // SAFETY: the boot tables are active, and the RSDP is the boot protocol's.
    let firmware = unsafe { firmware::read(info.rsdp) }.unwrap_or_else(|why| unsupported(&why));
    silence_interrupts(&firmware);
    prepare_memory(info, &firmware).unwrap_or_else(|why| unsupported(&why));
    instruction::build_decoder();
    tables::build_idt();
    let cpu = PerCpu::get(0).expect("the boot CPU has a block");
    // SAFETY: nobody runs on the stacks of the blocks yet.
    unsafe { blocks::enter_block(cpu, bsp_on_block) }
}

/// What `prepare_memory` leaves for the rest of the start: things that need the boot CPU's final
/// stack.
static LATER: spin::Once<Later> = spin::Once::new();

struct Later {
    pm_timer: u16,
    io_apic: Option<u64>,
    serial_pin: u32,
    control_pin: u32,
    module: Option<Range<u64>>,
    free: spin::Mutex<FreeMemory>,
}

fn unsupported(why: &dyn core::fmt::Display) -> ! {
    image::refuse(ExitCode::Unsupported, why)
}

/// Reads the PVH start information.
///
/// # Safety
///
/// `address` is what the boot loader passed; the boot tables are active.
unsafe fn read_start_info(address: u32) -> Result<BootInfo, &'static str> {
    // SAFETY: the caller vouches for the address; memory is mapped one to one.
    let reader = unsafe { StartInfoReader::from_paddr_identity(address) };
    let reader = reader.ok_or("not started by the PVH protocol")?;
    let mut info = BootInfo { ram: ArrayVec::new(), module: None, rsdp: reader.raw().rsdp_paddr };
    for entry in reader.memmap().iter().filter(|entry| entry.ty() == MemmapType::Ram) {
        info.add_ram(entry.addr, entry.size);
    }
    if let Some(module) = reader.modlist().next().map(|module| *module.raw()) {
        info.module = Some(module.paddr..module.paddr.saturating_add(module.size));
    }
    Ok(info)
}

/// Reads the Multiboot 2 boot information.
///
/// # Safety
///
/// As for [`read_start_info`].
unsafe fn read_multiboot2(address: u32) -> Result<BootInfo, &'static str> {
    let header = address as usize as *const BootInformationHeader;
    // SAFETY: the caller vouches for the address; memory is mapped one to one.
    let boot = unsafe { BootInformation::load(header) };
    let boot = boot.map_err(|_| "the Multiboot 2 information is not valid")?;
    // The tag has a copy of the root pointer behind its own header of 8 bytes.
    let newer = boot.rsdp_v2_tag().map(|tag: &RsdpV2Tag| (&raw const *tag).addr());
    let older = boot.rsdp_v1_tag().map(|tag: &RsdpV1Tag| (&raw const *tag).addr());
    let rsdp = newer.or(older).map_or(0, |tag| tag as u64 + 8);
    let mut info = BootInfo { ram: ArrayVec::new(), module: None, rsdp };
    for area in boot.memory_map_tag().map_or(&[][..], |tag| tag.memory_areas()) {
        if area.typ() == MemoryAreaType::Available {
            info.add_ram(area.start_address(), area.size());
        }
    }
    if let Some(module) = boot.module_tags().next() {
        info.module = Some(module.start_address().into()..module.end_address().into());
    }
    Ok(info)
}

fn prepare_memory(info: BootInfo, firmware: &firmware::Machine) -> Result<(), &'static str> {
    let mut free = FreeMemory::default();
    info.ram.iter().for_each(|range| free.add(range.clone()));
    free.reserve(heap::image());
    if let Some(module) = &info.module {
        free.reserve(module.clone());
    }
    heap::init_heap(&mut free, BOOT_MAP_END)?;

    let ids = boot_cpu_first(firmware);
    let size = ids.len() as u64 * BLOCK_SIZE;
    let blocks = free.take(size, BLOCK_SIZE, BOOT_MAP_END).ok_or("no room for the CPUs' stacks")?;
    // SAFETY: the memory is free RAM, mapped by the boot tables, and ours from here on.
    unsafe {
        core::ptr::write_bytes(blocks as *mut u8, 0, size as usize);
        blocks::create(blocks, &ids);
    }
    heap::set_stacks(blocks..blocks + size);

    let mut devices = ArrayVec::<u64, 2>::new();
    devices.extend(apic::probe(cpuid::host_has_x2apic::<Local>()));
    devices.extend(firmware.io_apic);
    translation::build_tables(&info.ram, &devices, blocks..blocks + size)
        .map_err(|_| "the memory map cannot be mapped")?;
    LATER.call_once(|| Later {
        pm_timer: firmware.pm_timer,
        io_apic: firmware.io_apic,
        serial_pin: firmware.serial_pin,
        control_pin: firmware.control_pin,
        module: info.module,
        free: spin::Mutex::new(free),
    });
    Ok(())
}

/// Has nothing interrupt but what is asked for from here on, whatever the firmware has left. The
/// boot tables are active.
fn silence_interrupts(firmware: &firmware::Machine) {
    // SAFETY: the first MiB is mapped one to one, and nothing has been written there yet.
    let has_imcr = unsafe { pic::firmware_has_imcr() };
    // SAFETY: the ports are those of the 8259s and of the IMCR, or nobody's.
    pic::silence(has_imcr, |port, value| unsafe { Port::new(port).write(value) });
    for &base in &firmware.io_apics {
        // SAFETY: ACPI says that it is there; below 4 GiB all is mapped, uncached as the memory
        // type ranges say.
        pic::mask_pins(&mut unsafe { pic::Mapped::new(base) });
    }
}

/// APIC ids of all CPUs, the one that runs now first.
fn boot_cpu_first(firmware: &firmware::Machine) -> ArrayVec<u64, { MAX_CPUS }> {
    let own = cpuid::host_apic_id::<Local>();
    let others = firmware.apic_ids.iter().copied().filter(|&id| id != own);
    core::iter::once(own).chain(others).take(MAX_CPUS).map(u64::from).collect()
}

/// The boot CPU on its final stack.
extern "C" fn bsp_on_block() -> ! {
    let later = LATER.get().expect("memory is prepared");
    let cpu = PerCpu::current();
    // SAFETY: the tables are built and map all that is in use.
    unsafe { translation::activate_tables() };
    tables::load(cpu);
    apic::enable();
    clock::calibrate(later.pm_timer, cpuid::host_has_tsc_deadline::<Local>())
        .unwrap_or_else(|why| unsupported(&why));
    enable_cpu(cpu);
    let _nobody_gives_up_this_one = cpu.presence.come_online();
    // SAFETY: the module was reserved, so it stays as the boot loader left it.
    let files = unsafe { image::files_of_module(later.module.clone(), "the boot module") };
    start_others();
    log::info!(
        "{} CPUs, {} MiB free, TSC {} MHz",
        PerCpu::online().count(),
        later.free.lock().total() >> 20,
        clock::hz() / 1_000_000,
    );
    image::run_machine(files, &mut later.free.lock(), clock::date(), || {
        if let Some(base) = later.io_apic {
            // SAFETY: the register page is mapped; nobody else drives the I/O APIC.
            unsafe {
                apic::route_isa(base, later.serial_pin, cpu.id as u32, interrupts::VECTOR_SERIAL);
                apic::route_isa(base, later.control_pin, cpu.id as u32, interrupts::VECTOR_CONTROL);
            }
            console::enable_receive_interrupts();
        }
    })
}

/// What each CPU does once for itself after its tables are loaded.
fn enable_cpu(cpu: &'static PerCpu) {
    cpu.arch.host_save.set(allocate_pages(1));
    cpu.arch.host_vmcb.set(allocate_pages(1));
    // SAFETY: the pages were just allocated.
    unsafe {
        features::enable(cpu.arch.host_save.get());
        core::arch::asm!("vmsave rax", in("rax") cpu.arch.host_vmcb.get(), options(nostack, preserves_flags));
    }
    super::svm::fpu::enable();
    clock::init_cpu();
}

/// Starts all other CPUs, one after the other. One that does not come up in time is given up; see
/// [`crate::bringup`].
fn start_others() {
    // SAFETY: the page is in low memory, which is never handed out, and is mapped.
    let page = unsafe { boot::StartupPage::install() };
    for cpu in PerCpu::all().skip(1) {
        let id = cpu.id as u32;
        if !apic::reaches(id) {
            log::error!("CPU {} (APIC id {id}) is not used: such an id needs x2APIC mode", cpu.index);
            cpu.presence.give_up();
            continue;
        }
        page.offer(id, cpu.main_stack_top());
        apic::send_init(id);
        // With the defect the third CPU is started when it has been given up, while the next one
        // is.
        let is_later = |cpu: &PerCpu| cpu.index == 2 && files::makes(Defect::LateCpu);
        if let Some(late) = PerCpu::get(cpu.index - 1).filter(|before| is_later(before)) {
            apic::send_startup(late.id as u32, boot::AP_PAGE);
        }
        clock::delay_us(200);
        for patience in [AP_RETRY_US, AP_START_US] {
            if !is_later(cpu) {
                apic::send_startup(id, boot::AP_PAGE);
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
                // Back to where only a start-up IPI gets it from, which nobody sends.
                apic::send_init(id);
            }
            // One that has taken the offer may hold a lock at this moment: it is left to stop by
            // itself.
        }
    }
}

/// First Rust code of every other CPU, on its main stack with the boot tables.
pub(crate) extern "C" fn ap_main() -> ! {
    // SAFETY: the tables are built and map all that is in use.
    unsafe { translation::activate_tables() };
    let cpu = PerCpu::current();
    tables::load(cpu);
    apic::enable();
    enable_cpu(cpu);
    run::come_online(cpu);
    run::cpu_loop(run::wait_for_start::<Local>())
}
