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
        room.disk(name, &vec![0; DISK])?;
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
    let create_thief = Request::Create { guest: named("thief")? };
    let stage = room.play(&text, LIMIT, |stage| {
        stage.until_shown("beside", "tick", 0)?;
        let mut before = None;
        for _ in 0..CYCLES {
            stage.start("writer")?;
            let from = stage.until_shown("writer", "written", 0)?;
            stage.until_shown("writer", "written", from)?;
            stage.refused(&create_thief, "another guest owns 00:08.0")?;
            stage.destroy("writer")?;
            // The first time, the list of vectors gets its length.
            let now = stage.memory()?;
            stage.has_memory(before.get_or_insert(now))?;
        }
        // The disk is free now.
        stage.ask(&create_thief)?;
        stage.destroy("thief")?;
        stage.goes_on("beside", "tick", 1)
    })?;
    stage.end("beside", "\n").map(drop)
}

/// Thirteen disks are the first number for which the bus had to give the place of the machine's I/O
/// APIC. The last one works, and so do the control channel and the hypervisor's own interrupts.
pub(super) fn own_many(room: &Room<'_>) -> Result<()> {
    let disks = |from: u32, count: u32| -> Result<String> {
        let names: Vec<_> = (from..from + count).map(|number| format!("disk{number}.img")).collect();
        for name in &names {
            room.disk(name, name.repeat(1 << 12).as_bytes())?;
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
    let mut stage = room.play(&text, LIMIT, |stage| {
        stage.start("second")?;
        let mut from = 0;
        for _ in 0..CYCLES {
            from = stage.until_shown("second", &format!("disk{}.img", first + second), from)?;
            stage.memory()?;
        }
        Ok(())
    })?;
    stage.destroy("second")?;
    stage.end("first", "poweroff\n").map(drop)
}
