//! A vCPU that is written or read by its description.

use migration::{Archive, Described, Flaw, described, fields};

use super::inject::{AARCH32, EL0, EL1H, EL1T, MODE};
use super::state::{Activity, VcpuState};
use super::{Inbox, stolen_time};
use crate::arm64::processor::{Arm64, Configuration, FloatState, Processor, Registers};
use crate::vm::{Vm, VpIndex};

/// Describes a vCPU that has left its CPU: its private state, and what is posted to it.
///
/// # Errors
///
/// What is wrong with it.
pub fn describe<A: Arm64>(
    vm: &Vm<A>,
    state: &mut VcpuState<A>,
    inbox: &Inbox,
    archive: &mut Archive<'_>,
) -> Result<(), Flaw> {
    state.describe(archive)?;
    let Inbox { interrupts, power } = inbox;
    interrupts.describe(archive)?;
    power.describe(state.activity != Activity::Off, archive)?;
    // The alarm is a date, which the guest's clock has. The machine's counter gets there at another
    // reading here.
    let mut waits = state.alarm != u64::MAX;
    waits.describe(archive)?;
    if archive.is_reading() {
        let due = vm.guest.rtc.lock().due_ns().filter(|_| waits);
        state.alarm = due.map_or(u64::MAX, |due| vm.wall_ticks(due));
        stolen_time::tell(vm, state.index(), state.stolen);
    }
    Ok(())
}

impl<P: Processor> VcpuState<P> {
    fn index(&self) -> VpIndex {
        self.place.0
    }
}

impl<P: Processor> Described for VcpuState<P> {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        // A vCPU that begins has run nowhere: no CPU has translations of it, nothing is remembered
        // of its accesses, and nobody has watched it spin. TCR_EL1 is kept aside, and the way of
        // the exit is known, while it is on a CPU. Its place is the configuration's. Its alarm is
        // described with what is posted to it, and its guest's clock by itself.
        fields!(self, archive: registers (describe_registers::<P>), gic, activity, configuration,
            debug (|debug, archive| (**debug).describe(archive)), system,
            float (|float, archive| (**float).describe(archive)), interface, stolen;
            stays home, auditor, mmio, exit, walks, alarm, base, look_every, spin, place, processor)?;
        if archive.is_reading() {
            self.auditor.forget();
        }
        archive.same("number of vCPUs", self.place.1.into())?;
        archive.same("ICH_VTR_EL2.PREbits", P::preemption_bits().into())
    }
}

described!(Activity: [Self::Running, Self::Halted, Self::Off]);

described!(FloatState: v, control, status);

impl Described for Configuration {
    /// Whether an SError pends. The rest of HCR_EL2 is the hypervisor's, and stays.
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let mut has_serror = self.has_serror();
        has_serror.describe(archive)?;
        *self = self.with_serror(has_serror);
        Ok(())
    }
}

fn describe_registers<P: Processor>(
    registers: &mut Registers,
    archive: &mut Archive<'_>,
) -> Result<(), Flaw> {
    let Registers { x, pc, pstate } = registers;
    x.describe(archive)?;
    pc.describe(archive)?;
    describe_pstate::<P>(pstate, archive)
}

/// Describes a processor state to which ERET is legal: any other would leave the processor at EL2
/// (Arm DDI 0487, D1.3.4 "Illegal exception returns").
fn describe_pstate<P: Processor>(pstate: &mut u64, archive: &mut Archive<'_>) -> Result<(), Flaw> {
    /// SPSR_EL2 has more bits for features that guests do not have.
    const BITS: u64 = 0xffff_ffff & !MODE;
    /// ID_AA64PFR0_EL1.EL0: AArch32, too.
    const BOTH: u64 = 2;
    const MODES: &[u64] = &[EL0, EL1T, EL1H];
    let has_aarch32 = P::identification(4, 0) & 0xf >= BOTH;
    let modes = if has_aarch32 { &[EL0, EL1T, EL1H, AARCH32] } else { MODES };
    let (mut mode, mut rest) = (*pstate & MODE, *pstate & !MODE);
    let named = |flaw: Flaw| flaw.named("pstate");
    archive.choice(&mut mode, modes).map_err(named)?;
    archive.within(&mut rest, BITS).map_err(named)?;
    *pstate = rest | mode;
    Ok(())
}
