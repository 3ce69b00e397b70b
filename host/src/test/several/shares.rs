//! CPU sets, caps and weights of guests that want all the time that they can get.
//!
//! All times are the hypervisor's own, and are compared with each other: what a guest had, and what
//! it waited for a CPU. A guest that never sleeps does one or the other, so both together are the
//! time that has passed. Where shares have to be exact the machine has one CPU, and its clock
//! counts instructions; otherwise turns take as long as the emulator's host lets them.

use super::*;
use crate::trace::collect::{Collected, Collector};
use crate::vm::Hypervisor;
use hostlink::trace::Event;

const TIMEOUT: Duration = Duration::from_secs(180);

/// Slices of 5 ms over which shares are compared: where instructions are counted, and otherwise.
const SLICES_COUNTED: u64 = 200;
const SLICES: u64 = 1000;
const SLICES_PER_SECOND: u64 = 200;
/// Slices before that, in which the guests start.
const SLICES_BEFORE: u64 = 4;
/// How far a guest's part of a CPU may be from what it should be. What is under way when it is read
/// is missing: a turn and a wait. Either takes two slices of 200 at most; or a tenth of a second
/// and more of five, where the emulator's host has other work. The cap pays back what was too much.
const TOLERANCE_COUNTED: f64 = 0.02;
const TOLERANCE: f64 = 0.05;
/// The same for the ratio of two guests' times.
const RATIO_TOLERANCE: f64 = 0.1;

/// What a guest has had and waited for, in ticks.
#[derive(Clone, Copy, Debug)]
struct Times {
    used: u64,
    waited: u64,
}

impl Times {
    fn of(stage: &Stage<'_>, name: &str) -> Result<Self> {
        let guest = stage.guest(name)?.with_context(|| format!("there is no guest {name}"))?;
        Ok(Self { used: guest.used_ticks, waited: stage.count(name, Counter::SchedSteal)? })
    }

    const fn passed(self) -> u64 {
        self.used + self.waited
    }
}

/// What these guests have had while so many slices passed, as parts of that time.
fn parts<const N: usize>(stage: &mut Stage<'_>, names: [&str; N], slices: u64) -> Result<[f64; N]> {
    let slice = stage.clock_hz()? / SLICES_PER_SECOND;
    let all = |stage: &Stage<'_>| -> Result<Vec<Times>> {
        names.iter().map(|name| Times::of(stage, name)).collect()
    };
    let before = stage.until("the guests have started", |stage| {
        let times = all(stage)?;
        let have_all = times.iter().all(|times| times.used >= SLICES_BEFORE * slice);
        Ok(have_all.then_some(times))
    })?;
    let since = |(now, before): (&Times, &Times)| Times {
        used: now.used - before.used,
        waited: now.waited - before.waited,
    };
    let times = stage.until("the guests have run for some time", |stage| {
        let times: Vec<Times> = all(stage)?.iter().zip(&before).map(since).collect();
        let have_all = times.iter().all(|times| times.passed() >= slices * slice);
        Ok(have_all.then_some(times))
    })?;
    // A wait is counted at its end.
    let passed = times.iter().map(|times| times.passed()).max().unwrap_or(1);
    #[expect(clippy::cast_precision_loss, reason = "ticks stay far below 2^53")]
    let part = |index: usize| times[index].used as f64 / passed as f64;
    Ok(std::array::from_fn(part))
}

/// The guests switch themselves off.
fn end(mut stage: Stage<'_>, names: &[&str]) -> Result<()> {
    for name in names {
        stage.type_end(name, "qpoweroff\n")?;
    }
    stage.finish()?.ended_by(ExitCode::GuestPowerOff)
}

/// Of two CPUs one guest may use CPU 1 only, one half of any, and one everything.
pub(super) fn sets(room: &Room<'_>) -> Result<()> {
    const NAMES: [&str; 3] = ["pinned", "capped", "free"];
    let hypervisor = Hypervisor::with_trace(room.platform.arch())?;
    let base = room.platform.arch().ram_base();
    let keys = ["cpus = \"1\"", "cap = 50", ""];
    let text: String = NAMES.iter().zip(keys).map(|(name, keys)| storing(base, name, keys)).collect();
    let (mut collector, mut migrated) = (None, 0);
    let stage = Room { other: Some(&hypervisor), ..*room }.play(&text, TIMEOUT, |stage| {
        collector = Some(Collector::of(&stage.machine)?);
        let [pinned, capped, free] = parts(stage, NAMES, SLICES)?;
        let all = format!("pinned {pinned:.3}, capped {capped:.3}, free {free:.3}");
        ensure!(capped <= 0.5 + TOLERANCE, "the cap does not hold: {all}");
        migrated = stage.count("pinned", Counter::SchedMigrated)?;
        Ok(())
    })?;
    end(stage, &NAMES)?;
    let trace = collector.context("no trace was collected")?.finish()?;
    ran_on_one_cpu(&trace, migrated)
}

/// All turns of the first guest's vCPU were on the last CPU. Some records may have been overwritten
/// before they were read; but a vCPU that never moved was always on the CPU of any turn.
fn ran_on_one_cpu(trace: &Collected, migrated: u64) -> Result<()> {
    const PINNED: u16 = 0;
    ensure!(migrated == 0, "the vCPU changed its CPU {migrated} times");
    let turns_on = |cpu: usize, is_wanted: fn(u16) -> bool| {
        let begins =
            |record: &&hostlink::trace::Record| record.event == Event::TurnBegins && is_wanted(record.vcpu);
        trace.cpus[cpu].records.iter().filter(begins).count()
    };
    let last = trace.cpus.len().checked_sub(1).context("the machine has no CPUs")?;
    for cpu in 0..last {
        let turns = turns_on(cpu, |vcpu| vcpu == PINNED);
        ensure!(turns == 0, "of its turns, {turns} were on CPU {cpu} of 0 to {last}");
    }
    ensure!(turns_on(last, |vcpu| vcpu == PINNED) > 0, "there is no turn of it on CPU {last}");
    ensure!(last >= 1 && turns_on(last - 1, |vcpu| vcpu != PINNED) > 0, "nobody ran on CPU {}", last - 1);
    Ok(())
}

/// On one CPU, a guest has what its cap says, and two others share the rest as their weights say.
pub(super) fn shares(room: &Room<'_>) -> Result<()> {
    const NAMES: [&str; 3] = ["capped", "light", "heavy"];
    let base = room.platform.arch().ram_base();
    let keys = ["cap = 20\nweight = 1000", "weight = 100", "weight = 300"];
    let guests: String = NAMES.iter().zip(keys).map(|(name, keys)| storing(base, name, keys)).collect();
    let text = format!("[machine]\ncpus = 1\n{guests}");
    let stage = Room { clock: Clock::Instructions, ..*room }.play(&text, TIMEOUT, |stage| {
        let [capped, light, heavy] = parts(stage, NAMES, SLICES_COUNTED)?;
        let all = format!("capped {capped:.3}, light {light:.3}, heavy {heavy:.3}");
        ensure!((capped - 0.2).abs() <= TOLERANCE_COUNTED, "a cap of 20 % is not kept: {all}");
        let is_fair = (heavy / light / 3.0 - 1.0).abs() <= RATIO_TOLERANCE;
        ensure!(is_fair, "weights of 100 and 300 are not kept: {all}");
        Ok(())
    })?;
    end(stage, &NAMES)
}
