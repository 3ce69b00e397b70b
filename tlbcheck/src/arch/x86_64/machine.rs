//! Processors, platform and VP indices, determined once at the beginning.

use baremetal::HardwareId;
use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicU32, Ordering};

use baremetal::x86_64::firmware;
use baremetal::x86_64::guarded::rdmsr;
use baremetal::x86_64::info::{BootInfo, Ram};
use baremetal::x86_64::power::Switch;
use baremetal::x86_64::processors::{self, MAX_PROCESSORS};
use baremetal::x86_64::{apic, clock};
use spin::Once;
use tlbcheck::command_line::Options;
use tlbcheck::platform::{HyperV, Platform};
use tlbcheck::report::{Clock, Head, Stop, Verdict, skip};
use tlbcheck::{ensure, needs};
use tlfs::msr;

use super::{back_end, hypercall, window};
use crate::arch::console;

pub(in crate::arch) struct Testbed {
    /// Number of running processors; they are numbered from 0.
    pub(in crate::arch) processors: usize,
    /// The platform as CPUID shows it.
    pub(super) platform: Platform,
    /// The last range of RAM below 4 GiB.
    pub(super) last_ram: Option<Ram>,
    /// `rounds=` of the command line.
    pub(super) rounds: Option<u32>,
}

static TESTBED: Once<Testbed> = Once::new();
static SWITCH: Once<Option<Switch>> = Once::new();

/// Time limit for any action of a processor, in milliseconds.
pub(in crate::arch) const PATIENCE_MS: u64 = 20_000;

pub(in crate::arch) fn get() -> &'static Testbed {
    TESTBED.get().unwrap_or_else(|| console::bail(format_args!("the machine has not been looked at")))
}

/// How to switch the machine off, as far as known.
pub(super) fn switch() -> Option<Switch> {
    SWITCH.get().copied().flatten()
}

/// Detects the machine, starts the processors, begins the report.
pub(in crate::arch) fn find(info: &BootInfo, options: &Options<'_>) {
    apic::enable();
    let platform = Platform::find(|leaf| {
        let leaf = __cpuid(leaf);
        [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx]
    });
    // SAFETY: the address is the loader's.
    let firmware = match unsafe { firmware::read(info.rsdp) } {
        Ok(firmware) => firmware,
        Err(why) => console::bail(format_args!("{why}")),
    };
    // SAFETY: as above.
    SWITCH.call_once(|| unsafe { firmware::switch(info.rsdp) });
    let by_hypervisor = || rdmsr(msr::TSC_FREQUENCY).ok();
    let by_hypervisor = platform.hyperv.filter(HyperV::tells_frequencies).and_then(|_| by_hypervisor());
    let by_timer = || firmware.pm_timer.and_then(clock::hz_by_pm_timer);
    if let Some(hz) = by_hypervisor.or_else(clock::hz_by_cpuid).or_else(by_timer) {
        clock::set_hz(hz);
    }
    window::open();
    let limit = options.cpus.map_or(MAX_PROCESSORS, |limit| limit as usize);
    let processors = start(&firmware.apic_ids, limit);
    back_end::listen();
    let below_4g = info.ram.iter().filter(|ram| ram.end <= 1 << 32 && ram.end - ram.start >= 4096);
    let last_ram = below_4g.max_by_key(|ram| ram.end).copied();
    TESTBED.call_once(|| Testbed { processors, platform, last_ram, rounds: options.rounds });
    let (clock, protocol) = (Clock::Tsc(clock::hz()), info.protocol.name());
    let head = Head { name: platform.name(), platform: &platform, processors, clock, protocol };
    console::report(|report| report.head(&head));
}

/// Starts the processors with these APIC ids, at most `limit`; returns their number.
fn start(apic_ids: &[HardwareId], limit: usize) -> usize {
    let own = apic::id();
    processors::set_apic_id(0, own);
    let mut number = 1;
    for id in apic_ids.iter().filter(|id| **id != own) {
        if number >= limit.min(MAX_PROCESSORS) || !apic::reaches(*id) {
            break;
        }
        processors::set_apic_id(number, *id);
        match processors::start(number) {
            true => number += 1,
            false => console::note(format_args!("the processor with APIC id {id} does not start")),
        }
    }
    number
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

pub(in crate::arch) fn give(number: usize, job: processors::Job) -> Verdict {
    ensure!(!processors::is_busy(number), "processor {number} has not come back from an earlier row");
    processors::give(number, job);
    Ok(())
}

/// Waits until it has finished the job.
pub(in crate::arch) fn join(number: usize) -> Verdict {
    ensure!(processors::join(number, PATIENCE_MS), "processor {number} does not come to its end");
    Ok(())
}
