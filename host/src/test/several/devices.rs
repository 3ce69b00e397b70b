//! Guests with devices of their own come and go.

use super::*;

const LIMIT: Duration = Duration::from_secs(240);
/// How often a guest is destroyed while its disk writes.
const CYCLES: u32 = 3;
const DISK: usize = 4 << 20;
/// Disks of the two guests that have many.
const MANY: [u32; 2] = [8, 5];

/// A guest that writes to its disk is destroyed, again and again. Its memory and its disk are free
/// afterwards, nobody else gets the disk before, and a guest with a disk of its own goes on.
pub(super) fn come_and_go(room: &Room<'_>) -> Result<()> {
    for name in ["writer.img", "beside.img"] {
        fs::write(room.directory.join(name), vec![0; DISK]).context("cannot write a disk")?;
    }
    // The first place on the bus for devices of guests is the writer's.
    let text = format!(
        "[machine]\ncpus = 2\n\
         [[guest]]\nname = \"writer\"\nvcpus = 2\nmemory = \"128M\"\n{MANUAL}\n\
         disks = [\"writer.img\"]\nnet = \"user\"\ncmdline = \"quiet\"\n\
         exec = \"while dd if=/dev/urandom of=/dev/nvme0n1 bs=64k count=32 conv=fsync 2>/dev/null; \
         do echo written; done\"\n\
         [[guest]]\nname = \"thief\"\nmemory = \"64M\"\nprogram = \"load\"\n{MANUAL}\n\
         devices = [\"00:08.0\"]\n\
         {}disks = [\"beside.img\"]\n",
        BESIDE.trim_start()
    );
    let file = room.write(&text)?;
    let thief = Name::parse("thief").context("a name")?;
    let writer = Name::parse("writer").context("a name")?;
    let mut stage = room.play(&file, LIMIT, |stage| {
        stage.until_shown("beside", "tick", 0)?;
        let mut before = None;
        for _ in 0..CYCLES {
            stage.start("writer")?;
            let from = stage.until_shown("writer", "written", 0)?;
            stage.until_shown("writer", "written", from)?;
            stage.refused(&Request::Create { guest: thief }, "another guest owns 00:08.0")?;
            stage.ask(&Request::Destroy { guest: writer })?;
            // The first time, the list of vectors gets its length.
            let now = stage.memory()?;
            stage.has_memory(before.get_or_insert(now))?;
        }
        // The disk is free now.
        stage.ask(&Request::Create { guest: thief })?;
        stage.ask(&Request::Destroy { guest: thief })?;
        let from = stage.length("beside")?;
        stage.until_shown("beside", "tick", from).map(drop)
    })?;
    stage.type_end("beside", "\n")?;
    stage.finish()?.ended_by(ExitCode::GuestPowerOff)
}

/// Thirteen disks are the first number for which the bus had to give the place of the machine's I/O
/// APIC. The last one works, and so do the control channel and the hypervisor's own interrupts.
pub(super) fn own_many(room: &Room<'_>) -> Result<()> {
    let disks = |from: u32, count: u32| -> Result<String> {
        let names: Vec<_> = (from..from + count).map(|number| format!("disk{number}.img")).collect();
        for name in &names {
            fs::write(room.directory.join(name), name.repeat(1 << 12)).context("cannot write a disk")?;
        }
        Ok(format!("disks = {names:?}"))
    };
    let [first, second] = MANY;
    let text = format!(
        "[machine]\ncpus = 1\nboot_cpu = \"run\"\n{}\n\
         [[guest]]\nname = \"second\"\nmemory = \"128M\"\n{MANUAL}\n{}\ncmdline = \"quiet\"\n\
         exec = \"while for d in /dev/nvme?n1; do dd if=$d iflag=direct bs=4k count=1 2>/dev/null | \
         head -c 10; done; do echo; done\"\n",
        bare("first", 1, "64M", &disks(1, first)?),
        disks(first + 1, second)?
    );
    let file = room.write(&text)?;
    let mut stage = room.play(&file, LIMIT, |stage| {
        stage.start("second")?;
        let mut from = 0;
        for _ in 0..CYCLES {
            from = stage.until_shown("second", &format!("disk{}.img", first + second), from)?;
            stage.memory()?;
        }
        Ok(())
    })?;
    stage.ask(&Request::Destroy { guest: named("second")? })?;
    stage.type_end("first", "poweroff\n")?;
    stage.finish()?.ended_by(ExitCode::GuestPowerOff)
}
