//! Registers that all virtual processors of a partition share.

use core::sync::atomic::{AtomicU64, Ordering};
use migration::{Archive, Described, Flaw, described};
use spin::Mutex;
use tlfs::msr::{self, CrashControl, HypercallMsr, PageMsr};

use super::cpuid::PartitionTraits;
use super::crash;
use super::msrs::{CrashMessage, CrashReport, GpFault, MsrEffect, PageMove};
use super::time::{ReferenceClock, SharedClock};

/// The state that a partition's virtual processors share.
#[derive(Debug)]
pub struct Partition {
    platform: PartitionTraits,
    clock: SharedClock,
    /// [`HypercallMsr`]. Written under the lock of `registers`. Read without it at each hypercall.
    /// Relaxed, because no other read depends on it, and a guest that disables the page while
    /// another of its processors makes a call cannot tell which is first.
    hypercall: AtomicU64,
    registers: Mutex<Registers>,
}

#[derive(Debug, Default)]
struct Registers {
    guest_os_id: u64,
    reference_tsc: PageMsr,
    invariant_tsc: bool,
    crash: [u64; 5],
    crashes: u32,
}

described!(Registers: guest_os_id, reference_tsc (describe_page), invariant_tsc, crash, crashes);

/// Describes a register with a page.
pub(super) fn describe_page(page: &mut PageMsr, archive: &mut Archive<'_>) -> Result<(), Flaw> {
    archive.through(page, |page| page.into_bits(), |bits| Some(PageMsr::from_bits(bits)))
}

impl Partition {
    /// A partition that is created when its TSC is `now`. `None` if the TSC is too slow for a
    /// [`ReferenceClock`].
    pub fn new(platform: PartitionTraits, now: u64) -> Option<Self> {
        let clock = ReferenceClock::new(platform.tsc_hz, now)?;
        Some(Self {
            platform,
            clock: SharedClock::new(clock),
            hypercall: AtomicU64::new(0),
            registers: Mutex::new(Registers::default()),
        })
    }

    /// The properties of the partition's platform.
    pub fn platform(&self) -> &PartitionTraits {
        &self.platform
    }

    /// The partition's reference time.
    #[inline]
    pub fn clock(&self) -> ReferenceClock {
        self.clock.get()
    }

    /// Whether hypercalls are enabled: the guest has identified itself and has a hypercall page.
    pub fn hypercalls_enabled(&self) -> bool {
        self.hypercall().enable()
    }

    /// Whether CPUID 0x80000007.EDX\[8\] must show the invariant TSC because the guest asked for
    /// it.
    pub fn shows_invariant_tsc(&self) -> bool {
        self.registers.lock().invariant_tsc
    }

    /// Resets all registers to their state at creation. The reference time continues. The overlay
    /// pages are removed; if memory survives the reset, the caller must restore the contents that
    /// they covered.
    pub fn reset(&self) {
        let mut registers = self.registers.lock();
        *registers = Registers::default();
        self.hypercall.store(0, Ordering::Relaxed);
    }

    /// Describes it; see [`Described`]. None of its virtual processors runs.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn describe(&self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Self { platform, clock, hypercall, registers } = self;
        { *platform }.describe(archive)?;
        let mut time = clock.get();
        time.describe(archive)?;
        clock.set(time);
        registers.lock().describe(archive)?;
        let may = |bits: &u64| HypercallMsr::from_bits(*bits).gpa().is_none_or(|gpa| platform.has_gpa(gpa));
        let mut page = hypercall.load(Ordering::Relaxed);
        archive
            .through(&mut page, |page| *page, |page| Some(page).filter(may))
            .map_err(|flaw| flaw.named("the hypercall page"))?;
        hypercall.store(page, Ordering::Relaxed);
        Ok(())
    }

    /// Reads a partition-wide register; `None` for other registers.
    pub(super) fn read_msr(&self, number: u32, now: u64) -> Option<u64> {
        Some(match number {
            msr::GUEST_OS_ID => self.registers.lock().guest_os_id,
            msr::HYPERCALL => self.hypercall().into_bits(),
            msr::RESET => 0,
            msr::TIME_REF_COUNT => self.clock().time_at(now),
            msr::REFERENCE_TSC => self.registers.lock().reference_tsc.into_bits(),
            msr::TSC_FREQUENCY => self.clock().tsc_hz(),
            msr::APIC_FREQUENCY => self.platform.apic_hz,
            msr::CRASH_P0..=msr::CRASH_P4 => *self.registers.lock().crash.get(crash_index(number))?,
            msr::CRASH_CTL => CrashControl::new().with_message(true).with_notify(true).into_bits(),
            msr::TSC_INVARIANT_CONTROL if self.platform.invariant_tsc => {
                u64::from(self.registers.lock().invariant_tsc)
            }
            _ => return None,
        })
    }

    pub(super) fn write_msr(&self, number: u32, value: u64) -> Result<MsrEffect, GpFault> {
        match number {
            msr::GUEST_OS_ID => Ok(self.set_guest_os_id(value)),
            msr::HYPERCALL => self.set_hypercall(HypercallMsr::from_bits(value)),
            msr::RESET => Ok(if value & 1 != 0 { MsrEffect::Reset } else { MsrEffect::None }),
            msr::REFERENCE_TSC => Ok(self.set_reference_tsc(PageMsr::from_bits(value))),
            msr::CRASH_P0..=msr::CRASH_P4 => {
                let mut registers = self.registers.lock();
                *registers.crash.get_mut(crash_index(number)).ok_or(GpFault)? = value;
                Ok(MsrEffect::None)
            }
            msr::CRASH_CTL => Ok(self.crash(CrashControl::from_bits(value))),
            msr::TSC_INVARIANT_CONTROL if self.platform.invariant_tsc && value <= 1 => {
                self.registers.lock().invariant_tsc = value != 0;
                Ok(MsrEffect::None)
            }
            _ => Err(GpFault),
        }
    }

    fn hypercall(&self) -> HypercallMsr {
        HypercallMsr::from_bits(self.hypercall.load(Ordering::Relaxed))
    }

    /// A guest that withdraws its identity loses the hypercall page, locked or not; a locked
    /// register is then unchanged until reset.
    fn set_guest_os_id(&self, value: u64) -> MsrEffect {
        let mut registers = self.registers.lock();
        registers.guest_os_id = value;
        let old = self.hypercall();
        if value != 0 || !old.enable() {
            return MsrEffect::None;
        }
        self.hypercall.store(old.with_enable(false).into_bits(), Ordering::Relaxed);
        PageMove { from: old.gpa(), to: None }.effect(MsrEffect::HypercallPage)
    }

    /// A guest without identity cannot enable the page: the bit stays 0 and the rest is written.
    /// The page cannot be outside the address space, and a locked register cannot be written: #GP.
    fn set_hypercall(&self, value: HypercallMsr) -> Result<MsrEffect, GpFault> {
        let registers = self.registers.lock();
        let old = self.hypercall();
        let new = value.with_enable(value.enable() && registers.guest_os_id != 0);
        let reachable = new.gpa().is_none_or(|gpa| self.platform.has_gpa(gpa));
        if old.locked() || !reachable {
            return Err(GpFault);
        }
        self.hypercall.store(new.into_bits(), Ordering::Relaxed);
        Ok(PageMove { from: old.gpa(), to: new.gpa() }.effect(MsrEffect::HypercallPage))
    }

    /// A page outside the address space is legal here: it is simply not visible.
    fn set_reference_tsc(&self, value: PageMsr) -> MsrEffect {
        let mut registers = self.registers.lock();
        let page = PageMove { from: registers.reference_tsc.gpa(), to: value.gpa() };
        registers.reference_tsc = value;
        page.effect(MsrEffect::TscPage)
    }

    fn crash(&self, control: CrashControl) -> MsrEffect {
        if !control.notify() {
            return MsrEffect::None;
        }
        let parameters = {
            let mut registers = self.registers.lock();
            registers.crashes = registers.crashes.saturating_add(1);
            if registers.crashes > crash::REPORTS_MAX {
                return MsrEffect::CrashAgain;
            }
            registers.crash
        };
        let [_, _, _, gpa, len] = parameters;
        let message = control.message().then_some(CrashMessage { gpa, len });
        MsrEffect::Crash(CrashReport { parameters, message })
    }
}

fn crash_index(number: u32) -> usize {
    number.wrapping_sub(msr::CRASH_P0) as usize
}

#[cfg(test)]
mod tests;
