//! A stock guest of Quell is a hypervisor itself: Linux's KVM, and QEMU.

use crate::guest::peer::Flushes;
use crate::test::guests::expect::{count, with_console};
use crate::test::prelude::*;

pub(super) const ACTS: &[Named] = &[("a_guest_boots_debian_by_kvm", boot)];

/// Of what has two processors under it, one by software.
const TIMEOUT: Duration = Duration::from_secs(600);
const INNER_MEMORY: u64 = 256 * MIB;
/// What the guest's guest does: both of its vCPUs work, and flush one another.
const COMMAND: &str =
    "test \"$(nproc)\" = 2 && thrash --threads 2 --rounds 5 --settle 100 --report /dev/report";

fn boot(room: &Room<'_>) -> Result<()> {
    let stock = room.lab.stock_files(Arch::X86_64)?;
    let guest = room.lab.stock_guest(room.platform, Some(COMMAND))?;
    let guest = Guest { memory: INNER_MEMORY, ..guest };
    let inner = guest.under_kvm(Flushes::Paravirtual, false);
    let hypervisor = room.lab.hypervisor(Arch::X86_64)?;
    let spec = stock.with_kvm_on_quell(
        room.platform,
        &inner,
        hypervisor,
        room.switches,
        (2, Clock::Wall),
        room.directory,
    )?;
    let spec = Spec { timeout: Some(TIMEOUT), ..spec };
    let outcome = room.lab.ended(Machine::start(&spec, room.signals)?.run(|_, _| Ok(Flow::Continue))?);
    with_console(&outcome, || {
        let status = outcome.report("exit").and_then(|exit| exit["status"].as_i64());
        ensure!(status == Some(0), "the guest's guest has ended with {status:?}");
        let [runs, flushes, calls] = [Counter::InnerRuns, Counter::InnerFlushes, Counter::InnerCalls]
            .map(|counter| count(&outcome, counter));
        let (runs, flushes, calls) = (runs?, flushes?, calls?);
        ensure!(calls != 0, "KVM has not flushed by hypercall");
        // None is due to a switch: they are those of KVM's boot, and of changes of CPUs.
        ensure!(flushes * 100 < runs, "{flushes} of {runs} VMRUNs flushed a tag");
        outcome.ended_by(&[End::Hypervisor(ExitCode::GuestPowerOff)])
    })
}
