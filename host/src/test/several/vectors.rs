//! One guest wants all interrupt vectors.

use super::*;

const TIMEOUT: Duration = Duration::from_secs(240);
const DISK: usize = 1 << 20;
/// Messages of three disks. The one CPU has fewer vectors for functions.
const MESSAGES: u32 = 3 * 65;
/// The other guest says how often its kernel has found a command of its disk done by looking.
const LOOKS: &str = "looked 0 times";

/// A guest unmasks more messages than there are vectors. A later one's disk has interrupts.
pub(super) fn leave_vectors(room: &Room<'_>) -> Result<()> {
    for number in 0..4 {
        room.disk(&format!("disk{number}.img"), &[0; DISK])?;
    }
    let text = format!(
        "[machine]\ncpus = 1\nboot_cpu = \"run\"\n{}\n\
         [[guest]]\nname = \"victim\"\nvcpus = 1\nmemory = \"128M\"\n{MANUAL}\ndisks = [\"disk3.img\"]\n\
         cmdline = \"quiet nvme_core.admin_timeout=5 nvme_core.io_timeout=5\"\n\
         exec = \"until [ -b /dev/nvme0n1 ]; do sleep 0.1; done; \
         dd if=/dev/nvme0n1 of=/dev/null bs=4k count=64 iflag=direct 2>/dev/null && \
         echo looked $(dmesg | grep -c 'completion polled') times; while :; do sleep 1; done\"\n",
        bare("hog", 1, "64M", "disks = [\"disk0.img\", \"disk1.img\", \"disk2.img\"]")
    );
    let mut stage = room.play(&text, TIMEOUT, |stage| {
        let from = stage.until_shown("hog", READY, 0)?;
        stage.command("hog", "hog", from)?;
        stage.until_shown("hog", &format!("hog count={MESSAGES} "), from)?;
        stage.start("victim")?;
        stage.until_shown("victim", " times", 0)?;
        ensure!(stage.has_shown("victim", LOOKS, 0)?, "the other guest's disk does not interrupt");
        Ok(())
    })?;
    stage.destroy("victim")?;
    stage.end("hog", "poweroff\n").map(drop)
}
