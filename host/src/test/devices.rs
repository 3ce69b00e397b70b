//! Devices that a guest owns, behind an IOMMU.
//!
//! The bare guest `load` has an NVMe controller write 4096 bytes by DMA wherever it is told. So
//! rows see what the IOMMU keeps: memory is added, written by the device, removed, and added again
//! elsewhere. It is the same memory, zeroed. If the device then still reaches it at the former
//! address, an invalidation is missing.

use super::guests::expect::with_console;
use super::script::Script;
use crate::machine::devices::{Devices, Network};
use crate::test::prelude::*;

pub(super) const ACTS: &[Named] = &[
    ("p16_memory_that_goes_is_gone_for_devices", |room| dma(room, false)),
    ("p16_missing_iommu_invalidation_is_caught", |room| dma(room, true)),
    ("p16_missing_smmu_invalidation_is_caught", |room| dma(room, true)),
    ("p16_iommu_invalidation_of_another_domain_is_caught", |room| dma(room, true)),
    ("p16_smmu_invalidation_of_another_domain_is_caught", |room| dma(room, true)),
    ("devices_reach_the_guests_memory_alone", stray),
    ("a_disk_keeps_what_a_guest_writes", disk),
    ("a_disk_works_after_its_guest_has_reset_it", own_reset),
];

/// Where memory is added, and where it is added again: addresses without anything.
const FIRST: u64 = 0x8000_0000;
const SECOND: u64 = 0x9000_0000;
const SIZE: u64 = 64 << 10;
/// What the device writes.
const ANSWER: u64 = 4096;
/// Longest time for a step, and for a whole run.
const PATIENCE: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(120);
const MEMORY: u64 = 256 * MIB;

/// Does something with a machine whose guest `load` has an NVMe controller.
fn run<T>(room: &Room<'_>, act: impl FnOnce(&mut Script) -> Result<T>) -> Result<(T, Outcome)> {
    let image = room.directory.join("disk.img");
    fs::write(&image, vec![0; MIB as usize])?;
    let guest = Guest {
        devices: Devices { disks: vec![image], ..Devices::default() },
        ..Guest::load(room.platform, 1, MEMORY, room.switches)?
    };
    let mut spec = room.on_quell(&guest, 1, TIMEOUT)?;
    spec.memory += 16 * MIB;
    Script::run(&spec, room.signals, PATIENCE, act)
}

impl Script {
    /// Whether the answer's place is zero.
    fn is_zero(&mut self, address: u64) -> Result<bool> {
        self.machine.type_text(&format!("zero={address:#x},{ANSWER}\n"))?;
        let (line, end) = self.machine.await_line("load: ", self.read, PATIENCE)?;
        self.read = end;
        ensure!(line.contains("zero="), "the guest says: {line}");
        Ok(line.contains("done"))
    }
}

/// A device writes to memory that comes and goes.
fn dma(room: &Room<'_>, is_stale: bool) -> Result<()> {
    let (reached, _) = run(room, come_and_go)?;
    ensure!(
        reached == is_stale,
        match is_stale {
            true => "the device does not reach the memory: the mistake makes no difference",
            false => "the device has written to memory that was removed and is used for something else",
        }
    );
    Ok(())
}

/// Whether the device reaches memory by an address at which it was before.
fn come_and_go(script: &mut Script) -> Result<bool> {
    let add = |script: &Script, at| script.machine.control()?.add(at, SIZE);
    let slot = add(script, FIRST)?;
    ensure!(script.is_zero(FIRST)?, "new memory is not zero");
    script.command(&format!("identify={FIRST:#x}"))?;
    ensure!(!script.is_zero(FIRST)?, "the device does not reach new memory");
    script.machine.control()?.delete(slot).map(drop)?;
    // The only free piece of this size that was just returned: it is taken again.
    add(script, SECOND)?;
    ensure!(script.is_zero(SECOND)?, "new memory is not zero");
    script.command(&format!("identify={FIRST:#x}"))?;
    Ok(!script.is_zero(SECOND)?)
}

/// DMA to addresses that the guest does not have: nothing happens, and everything goes on. An SMMU
/// reports it with the guest and the address; QEMU's AMD-Vi has no log.
fn stray(room: &Room<'_>) -> Result<()> {
    let end = room.platform.arch().ram_base() + MEMORY;
    let strays = [end, 0x3000_0000, FIRST, 0xe000_0000, 1 << 40, u64::MAX - 4095];
    let ((), outcome) = run(room, |script| {
        // Addresses that are memory of the machine, nothing, the bus's window, and the end of
        // addresses. Not the window of interrupts: QEMU 7.2 ends there (`docs/qemu.md`).
        for address in strays {
            script.command(&format!("identify={address:#x}"))?;
        }
        let slot = script.machine.control()?.add(FIRST, SIZE)?;
        script.command(&format!("identify={FIRST:#x}"))?;
        ensure!(!script.is_zero(FIRST)?, "the device does not work any more");
        script.machine.control()?.delete(slot).map(drop)
    })?;
    // Of the others' events, some may be missing: a guest's share of the log is limited.
    let event = format!("write of {end:#x}");
    let is_told = outcome.log.lines().any(|line| line.contains("guest 'guest': ") && line.contains(&event));
    ensure!(room.platform == Platform::X86_64 || is_told, outcome.explain(anyhow!("no line has '{event}'")));
    Ok(())
}

/// Words of a pattern that a disk has.
const PATTERN: &[u8] = b"what was written to the disk stays on the disk\n";

/// A stock guest reads what the host wrote, writes to the disk, resets, and reads that.
fn disk(room: &Room<'_>) -> Result<()> {
    // Each queue has a message of its own, or all have the pin.
    let interrupts = if room.platform == Platform::X86_64 { 2 } else { 1 };
    // After the reset the copy is there.
    let command = format!(
        "D=/dev/nvme0n1; [ \"$(head -c 4 $D)\" = what ] || exit 3; \
        [ -e /sys/class/net ] && grep -q 0x1041 /sys/bus/pci/devices/*/device || exit 4; \
        [ \"$(dd if=$D bs=1M skip=1 count=1 2>/dev/null | head -c 4)\" = what ] && exit 0; \
        dd if=$D of=$D bs=1M count=1 seek=1 conv=fsync 2>/dev/null && \
        [ $(grep nvme /proc/interrupts | wc -l) -ge {interrupts} ] && reboot -f"
    );
    copies(room, &command, 1)
}

/// A stock guest resets its disk by the function's own reset, as often as it copies.
fn own_reset(room: &Room<'_>) -> Result<()> {
    let command = "D=/dev/nvme0n1; N=/sys/class/nvme/nvme0/device; \
        [ \"$(cat $N/reset_method)\" = af_flr ] || exit 5; \
        for n in 1 2 3; do echo 1 >$N/reset || exit 6; echo 3 >/proc/sys/vm/drop_caches; \
        [ \"$(head -c 4 $D)\" = what ] || exit 3; \
        dd if=$D of=$D bs=1M count=1 seek=$n conv=fsync 2>/dev/null || exit 4; done";
    copies(room, command, 3)
}

/// A stock guest runs a command, which copies the first MiB of the disk to so many after it.
fn copies(room: &Room<'_>, command: &str, count: usize) -> Result<()> {
    let image = room.directory.join("disk:1,2.img");
    let mut contents = vec![0; 4 * MIB as usize];
    contents[..PATTERN.len()].copy_from_slice(PATTERN);
    fs::write(&image, &contents)?;
    let guest = Guest {
        memory: MEMORY,
        reset: ResetPolicy::Reboot,
        devices: Devices { disks: vec![image.clone()], network: Some(Network::User), ..Devices::default() },
        ..room.lab.stock_guest(room.platform, Some(command))?
    };
    let machine = Machine::start(&room.on_quell(&guest, 2, TIMEOUT)?, room.signals)?;
    let outcome = machine.run(|_, _| Ok(Flow::Continue))?;
    with_console(&outcome, || {
        ensure!(crate::run::conclude(&outcome, false) == 0, "the guest failed");
        let written = fs::read(&image)?;
        for copy in written.chunks(MIB as usize).skip(1).take(count) {
            ensure!(copy.starts_with(PATTERN), "the disk does not have the copy");
        }
        ensure!(written.len() == contents.len(), "the disk has another size");
        Ok(())
    })
}
