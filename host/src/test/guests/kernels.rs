//! What kernels do that the stock guest does not do by itself.

use super::Lab;
use super::expect::{expect_battery, expect_status, with_console};
use crate::guest::cache::{self, Unavailable};
use crate::guest::cpio::Archive;
use crate::machine::emulator;
use crate::test::kernels::{From, Kernel};
use crate::test::prelude::*;

fn battery(rounds: u32) -> String {
    format!("mount -t tracefs t /sys/kernel/tracing && battery --rounds {rounds} --report /dev/report")
}

/// Rounds, and those of a long search.
const ROUNDS: u32 = 1;
const ROUNDS_LONG: u32 = 5;

impl Lab<'_> {
    /// A kernel does everything that [`CHECKS`](crate::test::kernels::CHECKS) names, with data
    /// checks. It patches its code, which an emulator must not stay with.
    pub(in crate::test) fn battery(&self, case: &Case, kernel: &Kernel) -> Result<()> {
        let arch = case.platform.arch();
        if !emulator::version(arch)?.notices_changed_code() {
            bail!(Unavailable("this QEMU may stay with code that was changed".into()));
        }
        let command = battery(if self.long { ROUNDS_LONG } else { ROUNDS });
        let mut guest = self.stock_guest(case.platform, Some(&command))?;
        guest.kernel = match kernel.from {
            From::Backports => cache::newer_kernel(arch)?.kernel,
            From::Release(suite, package) => cache::kernel_of(suite, arch, package, &[])?.kernel,
        };
        let mut archive = Archive::default();
        archive.file("bin/battery", 0o755, &fs::read(workspace::build(workspace::BATTERY, arch)?)?);
        guest.initrd.get_or_insert_default().extend(archive.finish());
        (guest.vcpus, guest.memory) = (4, GIB);
        guest.switches = switches(case.settings)?;
        let outcome = self.boot(&guest, 2, |_, _| Ok(Flow::Continue))?;
        with_console(&outcome, || {
            outcome.ended_by(&[OFF])?;
            expect_battery(&outcome, kernel)?;
            expect_status(&outcome, 0)
        })
    }

    /// The stock kernel starts itself again, or crashes with itself loaded as crash kernel.
    pub(in crate::test) fn second_kernel(&self, case: &Case, is_crash: bool) -> Result<()> {
        let arch = case.platform.arch();
        let [first, second] = if is_crash { crash() } else { restart() };
        let mut guest = self.stock_guest(case.platform, Some(&first))?;
        let stock = self.stock_files(arch)?;
        guest.initrd.get_or_insert_default().extend(kexec_files(stock, arch, &second)?);
        guest.vcpus = 4;
        let image = self.directory.join("busy.img");
        if is_crash {
            guest.cmdline.push_str(CRASH_KERNEL);
            let lines = format!("{LINE}\n").into_bytes();
            let mut contents: Vec<u8> = lines.into_iter().cycle().take(KEPT).collect();
            contents.resize(DISK, 0);
            fs::write(&image, &contents)?;
            guest.devices.disks.push(image.clone());
        }
        let outcome = self.boot(&guest, 2, |_, _| Ok(Flow::Continue))?;
        with_console(&outcome, || {
            outcome.ended_by(&[OFF])?;
            expect_status(&outcome, 0)?;
            let boots = outcome.reports.iter().filter(|report| report["event"] == "boot").count();
            ensure!(boots == 2 && outcome.report("second").is_some(), "{boots} kernels have booted");
            if is_crash {
                let disk = fs::read(&image)?;
                let written = disk.get(KEPT..).is_some_and(|rest| rest.starts_with(WRITTEN.as_bytes()));
                ensure!(written, "the disk does not have the crash kernel's line");
            }
            Ok(())
        })
    }
}

const CRASH_KERNEL: &str = " crashkernel=160M";
/// Bytes of the disk, and what the first of them are, which nobody writes to.
const DISK: usize = 16 << 20;
const KEPT: usize = 1 << 20;
const LINE: &str = "the first mebibyte of this disk stays as it is";
/// What the crash kernel writes to the block after it.
const WRITTEN: &str = "written by the crash kernel";

/// The guest loads another kernel, which has the same command line and a word more.
fn load(way: &str, words: &str) -> String {
    format!(
        "kexec {way} /boot/kernel --initrd=/boot/initrd \
         --command-line=\"$(sed 's/crashkernel=[^ ]*//' /proc/cmdline) second {words}\" || exit 3"
    )
}

/// What the other kernel does at its end: before that, it has found everything as it must be.
const SECOND: &str = "echo '{\"event\":\"second\"}' > /dev/report";

/// Commands of a kernel that starts another one, and of that.
fn restart() -> [String; 2] {
    let first = format!("{}; kexec -e; exit 4", load("-l", ""));
    let second = format!(
        "grep -qw second /proc/cmdline && test $(nproc) = 4 && thrash --threads 4 --rounds 10 && {SECOND}"
    );
    [first, second]
}

/// Commands of a kernel that crashes, and of the crash kernel. Writers have a part of the disk
/// each; when they have written a while, the last processor crashes. The crash kernel runs on that
/// one. The disk is as it was, and writable. The other kernel's notes have the crash's time.
///
/// Where a disk may have several controllers (QEMU 10), Linux counts its writes as those of the
/// path, `nvme0c0n1`, and none of the disk.
fn crash() -> [String; 2] {
    let first = format!(
        "{}; D=/dev/nvme0n1; \
         for part in 1 2 3; do \
             (while :; do dd if=/dev/zero of=$D bs=16k seek=$((part * 256)) count=256 oflag=direct; done) \
                 2>/dev/null & \
         done; \
         until [ $(awk '/ nvme/ {{ writes += $8 }} END {{ print writes }}' /proc/diskstats) -gt 600 ]; do \
             usleep 10000; \
         done; \
         taskset -c 3 sh -c 'echo c > /proc/sysrq-trigger'; exit 4",
        load("-p", "nr_cpus=1 irqpoll reset_devices")
    );
    let second = format!(
        "grep -qw second /proc/cmdline && test $(nproc) = 1 && \
         {{ grep -q '^apicid.*: 3$' /proc/cpuinfo || dmesg | grep -q 'physical CPU 0x0*3 '; }} && \
         grep -aqm 1 CRASHTIME= /proc/vmcore && \
         test \"$(head -c {KEPT} /dev/nvme0n1 | md5sum)\" = \"$(yes '{LINE}' | head -c {KEPT} | md5sum)\" && \
         echo '{WRITTEN}' | dd of=/dev/nvme0n1 bs=4k seek=256 conv=sync,fsync && {SECOND}"
    );
    [first, second]
}

/// The stock kernel and its RAM disk with this command, for kexec, and the program itself.
fn kexec_files(stock: &StockGuest, arch: Arch, command: &str) -> Result<Vec<u8>> {
    let kexec = cache::kexec(arch)?;
    let mut archive = Archive::default();
    for directory in ["boot", "lib"] {
        archive.directory(directory);
    }
    // Where the loader is looked for on AMD64.
    archive.symlink("lib64", "lib");
    archive.file("bin/kexec", 0o755, &fs::read(&kexec.program)?);
    kexec.add_libraries(&mut archive)?;
    archive.file("boot/kernel", 0o644, &fs::read(stock.kernel())?);
    archive.file("boot/initrd", 0o644, &stock.initrd(Some(command)));
    Ok(archive.finish())
}
