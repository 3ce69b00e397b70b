//! Processors, platform and VP indices, determined once at the beginning.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicU32, Ordering};

use baremetal::x86_64::firmware;
use baremetal::x86_64::guarded::rdmsr;
use baremetal::x86_64::hypercall::OS_ID;
use baremetal::x86_64::info::{BootInfo, Ram};
use baremetal::x86_64::processors::{self, MAX_PROCESSORS};
use baremetal::x86_64::{apic, clock};
use spin::Once;
use tlbcheck::command_line::Options;
pub(in crate::arch) use tlbcheck::platform::Platform;
use tlbcheck::platform::{HyperV, Leaf};
use tlbcheck::report::{Clock, Stop, Verdict, skip};
use tlbcheck::{ensure, needs};
use tlfs::msr;

use super::{back_end, hypercall, window};
use crate::arch::console;
use crate::arch::testbed::{self, PATIENCE_MS};
pub(super) use crate::arch::testbed::{get, give, join};

/// The last range of RAM below 4 GiB.
static LAST_RAM: Once<Option<Ram>> = Once::new();

fn cpuid(leaf: u32) -> Leaf {
    let leaf = __cpuid(leaf);
    [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]
}

/// Detects the machine, starts the processors, begins the report.
pub(in crate::arch) fn find(info: &BootInfo, options: &Options<'_>) {
    apic::enable();
    // Xen recommends nothing to a guest that has not named itself.
    if Platform::has_hyperv(cpuid) {
        // Where the name is refused, the rows that need it say so.
        let _ = hypercall::set_identity(OS_ID);
    }
    let platform = Platform::find(cpuid);
    let by_hypervisor = || rdmsr(msr::TSC_FREQUENCY).ok();
    let by_hypervisor = platform.hyperv.filter(HyperV::tells_frequencies).and_then(|_| by_hypervisor());
    // SAFETY: the address is the loader's.
    let firmware = match unsafe { firmware::prepare(info.rsdp, by_hypervisor) } {
        Ok(firmware) => firmware,
        Err(why) => console::bail(format_args!("{why}")),
    };
    window::open();
    back_end::listen();
    let below_4g = info.ram.iter().filter(|ram| ram.end <= 1 << 32 && ram.end - ram.start >= 4096);
    LAST_RAM.call_once(|| below_4g.max_by_key(|ram| ram.end).copied());
    let reached = firmware.apic_ids.into_iter().filter(|id| apic::reaches(*id));
    let clock = Clock::Tsc(clock::hz());
    testbed::begin(apic::id(), reached, platform, options, (clock, info.protocol.name()));
}

pub(super) fn last_ram() -> Option<Ram> {
    LAST_RAM.get().copied().flatten()
}

/// Waits until the condition holds, for at most [`PATIENCE_MS`]; returns whether it does.
pub(in crate::arch) fn wait_until(condition: impl FnMut() -> bool) -> bool {
    clock::wait_until(PATIENCE_MS, condition)
}

/// VP indices by processor; written by each for itself.
static VPS: [AtomicU32; MAX_PROCESSORS] = [const { AtomicU32::new(u32::MAX) }; MAX_PROCESSORS];

pub(super) fn read_vp_indices() -> Verdict {
    for number in 0..get().processors {
        on(number, |number| {
            let index = rdmsr(msr::VP_INDEX).ok().and_then(|index| u32::try_from(index).ok());
            VPS[number].store(index.unwrap_or(u32::MAX), Ordering::Release);
        })?;
        let index = vp(number);
        ensure!(index < tlfs::MAX_VPS, "processor {number} has VP index {index:#x}");
    }
    Ok(())
}

pub(super) fn vp(number: usize) -> u32 {
    VPS[number].load(Ordering::Acquire)
}

/// The Hyper-V interface, with hypercalls on and VP indices known; skips if it has no flushes.
pub(super) fn flushes() -> Result<&'static HyperV, Stop> {
    static READY: Once<Verdict> = Once::new();
    let machine = get();
    let Some(hyperv) = &machine.platform.hyperv else {
        return Err(skip(format_args!("there is no Hyper-V interface")));
    };
    needs!(hyperv.flushes(), "CPUID 0x40000004 does not recommend flushes by hypercall");
    READY.call_once(|| hypercall::enable().and_then(|()| read_vp_indices())).clone()?;
    Ok(hyperv)
}

/// A processor other than the first one; skips if there is none.
pub(super) fn second() -> Result<usize, Stop> {
    needs!(get().processors > 1, "there is one processor");
    Ok(1)
}

/// Runs `job` on a processor to its end; it may be the calling one, which is the first.
pub(super) fn on(number: usize, job: processors::Job) -> Verdict {
    if number == 0 {
        job(0);
        return Ok(());
    }
    give(number, job)?;
    join(number)
}
