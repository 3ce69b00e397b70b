//! Conversations with the hypervisor of a working guest: memory that comes and goes, dirty logs.

use super::watch;
use crate::bench::migrate::Writer;
use crate::ctl::dirty_runs;
use crate::machine::control::Control;
use crate::test::prelude::*;
use hostlink::ctl::record::Slot;
use hostlink::ctl::{Access, Input};

/// Memory of the guests. It is slot 0, at [`Arch::ram_base`].
pub(super) const GUEST_MEMORY: u64 = 256 * MIB;
/// An unused address.
const HIGH: u64 = 1 << 32;
const SIZE: u64 = 32 * MIB;
/// Fetches of a dirty log.
const FETCHES: u32 = 6;
/// Time between two of them.
const PERIOD: Duration = Duration::from_millis(300);
/// The least number of pages that a working guest changes between two fetches.
const CHANGES_MIN: usize = 4;

/// Holds the conversation.
pub(super) fn talk(machine: &Machine, arch: Arch, about: Talk) -> Result<()> {
    let control = || machine.control();
    match about {
        Talk::Refusals => refusals(&mut control()?, arch.ram_base()),
        Talk::Devices => devices(&mut control()?, arch),
        Talk::Memory => memory(&mut control()?),
        Talk::DirtyLog(way) => dirty_log(machine, &mut control()?, way),
        Talk::Watch => watch::watch(machine, arch),
    }
}

/// Wakes a guest that says by what it is to be woken, again and again until the machine ends: it
/// may go to sleep only after it is woken. One that does not wake runs into the row's time limit.
pub(super) fn wake(report: &Value, machine: &Machine) -> Result<Flow> {
    let guest = Name::GUEST;
    let request = match report["event"].as_str() {
        Some("awaits-wake") => Request::Wake { guest },
        Some("awaits-key") => {
            let bytes = Input::new(b"k").context("it is a byte")?;
            Request::Input { guest, port: 0, bytes }
        }
        _ => return Ok(Flow::Continue),
    };
    let mut control = machine.control()?;
    thread::spawn(move || {
        while control.ask(&request).is_ok() {
            thread::sleep(PERIOD);
        }
    });
    Ok(Flow::Continue)
}

/// The slots except for the ROM's, which is added and removed meanwhile.
fn slots(control: &mut Control) -> Result<Vec<Slot>> {
    let mut slots: Vec<Slot> = control.ask_for(&Request::Slots)?;
    slots.retain(|slot| slot.access == Access::ReadWrite);
    Ok(slots)
}

const DEVICE_SLOT: u16 = u16::MAX;

const fn add(gpa: u64, size: u64) -> Request {
    Request::Add { gpa, size, access: Access::ReadWrite }
}

fn refusals(control: &mut Control, base: u64) -> Result<()> {
    let overlap = format!("it overlaps slot 0, which is at {base:#x}");
    let requests = [
        (add(base + GUEST_MEMORY - PAGE, 2 * PAGE), overlap.as_str()),
        (add(HIGH + 1, PAGE), "multiples of 4096"),
        (add(HIGH, PAGE - 1), "multiples of 4096"),
        (add(HIGH, 0), "the size is 0"),
        (add(1 << 52, PAGE), "beyond the guest's physical address width"),
        (add(!(PAGE - 1), 2 * PAGE), "beyond the guest's physical address width"),
        (add(HIGH, 1 << 38), "free memory in one piece"),
        (Request::Delete { slot: 9 }, "there is no slot 9"),
        (Request::Delete { slot: 0 }, "was not added by a request"),
        (Request::LogStart { slot: 9, way: LogWay::DirtyBits }, "there is no slot 9"),
        (Request::LogFetch { slot: 0 }, "are not logged"),
        (Request::LogStop { slot: 0 }, "are not logged"),
    ];
    all_refused(control, &requests)
}

/// Memory over each device's registers, overlapping from below, within and beyond.
fn devices(control: &mut Control, arch: Arch) -> Result<()> {
    let requests = match arch {
        Arch::X86_64 => [
            (add(0xfec0_0000, PAGE), "it overlaps the I/O APIC"),
            (add(0xfebf_f000, 2 * PAGE), "it overlaps the I/O APIC"),
            (add(0xfee0_0000, PAGE), "it overlaps the local APICs"),
            (add(0xe000_0000, MIB), "it overlaps the PCI bus's window"),
            (add(0xefff_f000, 2 * PAGE), "it overlaps the PCI bus's window"),
            (add(3 * GIB, GIB), "it overlaps the PCI bus's window"),
        ],
        Arch::Aarch64 => [
            (add(0x0800_0000, PAGE), "it overlaps the GIC's distributor"),
            (add(0x0800_f000, 2 * PAGE), "it overlaps the GIC's distributor"),
            (add(0x080a_0000, PAGE), "it overlaps the GIC's redistributors"),
            (add(0x0900_0000, PAGE), "it overlaps the PL011"),
            (add(0x0901_0000, PAGE), "it overlaps the PL031"),
            (add(0x090a_f000, 2 * PAGE), "it overlaps the stolen times"),
        ],
    };
    all_refused(control, &requests)?;
    if arch == Arch::Aarch64 {
        let requests = [
            (add(0, GIB), "it overlaps the GIC's distributor"),
            // The memory of a device is a slot, which no request removes.
            (add(0x0909_f000, PAGE), "it overlaps the generation id"),
            (add(0x090a_0000, PAGE), "it overlaps the stolen times"),
            (Request::Delete { slot: DEVICE_SLOT }, "was not added by a request"),
            (Request::LogStart { slot: DEVICE_SLOT, way: LogWay::DirtyBits }, "cannot store to slot"),
        ];
        all_refused(control, &requests)?;
        let all: Vec<Slot> = control.ask_for(&Request::Slots)?;
        let shown = (DEVICE_SLOT, 0x0909_f000, 2 * PAGE);
        let is_shown = |slot: &Slot| (slot.slot, slot.gpa, slot.size) == shown;
        ensure!(all.iter().filter(|slot| slot.access == Access::ReadOnly).all(is_shown), "{all:?}");
        ensure!(all.iter().any(is_shown), "generation id and stolen times are in no slot: {all:?}");
    }
    // Next to them there is room.
    let free = match arch {
        Arch::X86_64 => 0xfec0_1000,
        Arch::Aarch64 => 0x0900_1000,
    };
    let slot = control.add(free, PAGE)?;
    control.delete(slot)?;
    Ok(())
}

/// Checks that each request is refused for the named reason. The slots must not change.
fn all_refused(control: &mut Control, requests: &[(Request, &str)]) -> Result<()> {
    let before = slots(control)?;
    for (request, reason) in requests {
        match control.ask(request) {
            Ok(answer) => return Err(anyhow!("'{request}' was not refused: {answer:?}")),
            Err(error) => {
                let message = format!("{error:#}");
                ensure!(message.contains(reason), "'{request}' was refused for another reason: {message}");
            }
        }
    }
    ensure!(slots(control)? == before, "a refused request changed something");
    Ok(())
}

fn memory(control: &mut Control) -> Result<()> {
    let before = slots(control)?;
    for round in 0..20 {
        let slot = control.add(HIGH + round * SIZE, SIZE)?;
        ensure!(slots(control)?.len() == before.len() + 1, "the slot is not listed");
        let gone = control.delete(slot)?;
        ensure!(gone.flushes >= 1, "memory was taken back without a flush: {gone:?}");
    }
    ensure!(slots(control)? == before, "not all is as before");
    // Returned memory can be allocated again: much of it at once, three times.
    for _ in 0..3 {
        let slot = control.add(HIGH, 3 * SIZE)?;
        control.delete(slot)?;
    }
    Ok(())
}

pub(super) const MIGRATED: u64 = 32 * MIB;
/// More than exists.
const TOO_MUCH: u64 = 1 << 38;
/// The guest's write rate meanwhile, in 10^6 bytes per second.
const RATE: u32 = 64;

/// Cancelled migrations while the guest writes to its memory: no store is lost, and slots and free
/// memory are as before.
pub(super) fn migrate(writer: &mut Writer) -> Result<()> {
    let (slots, free) = (writer.load.slots()?, largest_free(writer)?);
    writer.begin(RATE)?;
    for rounds in [0, 2] {
        let moved = writer.migrate(rounds)?.moved;
        let again: u64 = moved.rounds.iter().skip(1).map(|round| round.pages + round.zeros).sum();
        ensure!(rounds == 0 || again > 0, "the guest's stores are in no round's log: {moved:?}");
        let now = writer.load.slots()?;
        ensure!(now == slots, "{rounds} rounds: the slots are {now:?} after {slots:?}");
        let now = largest_free(writer)?;
        ensure!(now == free, "{rounds} rounds: memory is missing: '{now}' after '{free}'");
    }
    let stores = writer.end()?;
    writer.check(stores)
}

/// The hypervisor's report of the largest piece of free memory.
fn largest_free(writer: &Writer) -> Result<String> {
    let added = writer.load.control()?.add(1 << 36, TOO_MUCH);
    let error = added.err().context("there was more memory than there can be")?;
    let message = format!("{error:#}");
    let (_, largest) = message.split_once("the largest has ").with_context(|| message.clone())?;
    Ok(largest.to_owned())
}

/// Each page whose contents differ between two samples must be in the log that was fetched between
/// them and the next, or in the one after that: a store may come before the sample.
fn dirty_log(machine: &Machine, control: &mut Control, way: LogWay) -> Result<()> {
    let host = slots(control)?.first().context("there is no slot")?.host;
    let look = || machine.ram().page_digests(host, GUEST_MEMORY);
    control.ask(&Request::LogStart { slot: 0, way })?;
    fetch(control)?;
    let mut before = look()?;
    let mut changed = BTreeSet::new();
    for round in 0..FETCHES {
        thread::sleep(PERIOD);
        let dirty = fetch(control)?;
        let now = look()?;
        let missed: Vec<_> = changed.difference(&dirty).collect();
        ensure!(missed.is_empty(), "round {round}: {} pages in no log, {:x?}", missed.len(), missed.first());
        let differs = (0..).zip(before.iter().zip(&now)).filter(|(_, (then, now))| then != now);
        let pages: BTreeSet<u64> = differs.map(|(page, _)| page).collect();
        ensure!(pages.len() >= CHANGES_MIN, "round {round}: the guest changed {} pages", pages.len());
        // The others have to be in the next one.
        changed = pages.difference(&dirty).copied().collect();
        before = now;
    }
    control.ask(&Request::LogStop { slot: 0 })?;
    ensure!(control.ask(&Request::LogFetch { slot: 0 }).is_err(), "the log has not ended");
    Ok(())
}

fn fetch(control: &mut Control) -> Result<BTreeSet<u64>> {
    Ok(dirty_runs(control, 0)?.into_iter().flatten().collect())
}
