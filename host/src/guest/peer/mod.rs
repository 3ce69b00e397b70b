//! Linux with KVM inside the emulated machine, and QEMU in it: a hypervisor to compare Quell with.
//!
//! Its kernel is that of the stock guest. QEMU is the one installed on this system. It is put into
//! an initial RAM disk with its libraries and firmware; nothing is installed anywhere.

pub(crate) mod arm;
pub(crate) mod owning;
pub(crate) mod xen;

use super::cache::{GuestFiles, KVM_MODULES, KVM_ON_INTEL};
use super::cpio::Archive;
use crate::machine::kvm;
use crate::prelude::*;
use crate::workspace::output;
use hostlink::architecture::Architecture;
use hostlink::rom;

/// Firmware that QEMU needs to start a kernel on a machine without graphics.
const FIRMWARE: [&str; 4] = ["bios-256k.bin", "kvmvapic.bin", "pvh.bin", "linuxboot_dma.bin"];

/// The ports that Quell uses besides those of its guest: nobody asks it for anything, its log goes
/// to the console, and it ends by the last.
const QUELLS_PORTS: &str = " -chardev null,id=control -device isa-serial,index=3,chardev=control \
    -chardev file,id=log,path=/dev/console -device isa-debugcon,iobase=0xe9,chardev=log \
    -device isa-debug-exit,iobase=0xf4,iosize=0x04";

/// Of the hypervisor's kernel. With a clock other than the TSC, its guests' vCPUs lock up.
pub(crate) const CMDLINE: &str = "console=ttyS0 quiet panic=-1 tsc=reliable clocksource=tsc";

/// The same on this platform. Bochs's CPUID says another frequency than its TSC has: an instruction
/// is a tick, and has to be a nanosecond, too.
pub(crate) fn cmdline(platform: Platform) -> String {
    let frequency = if let Platform::Bochs(_) = platform { " tsc_early_khz=1000000" } else { "" };
    format!("{CMDLINE}{frequency}")
}

/// Memory for that kernel itself, and for each vCPU that it and QEMU manage.
const KERNEL_MEMORY: u64 = 256 * MIB;
const VCPU_MEMORY: u64 = 4 * MIB;
/// The outer kernel's report that its QEMU is started. Earlier ones are about its own boot.
pub(crate) const STARTS: &str = "peer-starts";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Flushes {
    /// By Hyper-V's hypercalls.
    HyperV,
    /// By IPIs. On KVM with Hyper-V's interface, but the hypercalls for flushes are not offered; on
    /// Xen in a PVH domain, where IPIs are events.
    Ipi,
    /// By the hypervisor's own interface. On KVM an IPI for each vCPU that runs, and a mark for
    /// each other one; on Xen the calls of a PV domain, which interrupt CPUs that may have its
    /// entries.
    Paravirtual,
    /// On Arm: by the guest's own instructions, which reach all processors.
    Own,
}

impl Flushes {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HyperV => "hyperv",
            Self::Ipi => "ipi",
            Self::Paravirtual => "paravirtual",
            Self::Own => "own",
        }
    }

    /// The value of QEMU's `-cpu`: the Hyper-V interface as far as QEMU 7.2 can request it from KVM
    /// 6.1, without KVM's own, which guests would prefer; or only KVM's own.
    pub(crate) const fn cpu(self) -> &'static str {
        match self {
            Self::HyperV => {
                "host,kvm=off,hv-relaxed,hv-vpindex,hv-synic,hv-stimer,hv-time,hv-frequencies,hv-runtime,\
                 hv-ipi,hv-xmm-input,hv-tlbflush"
            }
            Self::Ipi => {
                "host,kvm=off,hv-relaxed,hv-vpindex,hv-synic,hv-stimer,hv-time,hv-frequencies,hv-runtime,\
                 hv-ipi,hv-xmm-input"
            }
            Self::Paravirtual | Self::Own => "host",
        }
    }
}

pub(crate) struct Inner<'a> {
    /// Its kernel: an ELF file with a PVH entry, or a bzImage.
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: Option<&'a [u8]>,
    pub(crate) cmdline: &'a str,
    pub(crate) vcpus: u32,
    pub(crate) memory: u64,
    pub(crate) flushes: Flushes,
    /// Whether it has a PCI device with the expansion ROM of Quell's guests, at the same place.
    pub(crate) has_rom: bool,
    /// Whether it is Quell, with its ports, on KVM as it comes: `--accel kvm` in the machine.
    pub(crate) is_quell: bool,
    /// Further options, and the disks that they name by their absolute paths here.
    pub(crate) devices: (&'a [OsString], &'a [PathBuf]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) cpus: u32,
    /// Whether there is one more, the first, which runs none: KVM occasionally dies if vCPUs run on
    /// the first of several CPUs that QEMU emulates in threads (`docs/qemu.md`).
    pub(crate) has_first: bool,
}

impl Around {
    pub(crate) const fn all(self) -> u32 {
        self.cpus + self.has_first as u32
    }

    fn mask(self) -> String {
        format!("{:#x}", ((1_u64 << self.cpus) - 1) << u32::from(self.has_first))
    }
}

/// The part of the initial RAM disk that loads KVM and runs the machine, whose second serial port
/// is the report channel. The command's status is QEMU's.
pub(crate) fn archive(
    files: &GuestFiles,
    inner: &Inner<'_>,
    platform: Platform,
    around: Around,
) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let load = add_kvm(&mut archive, files, platform, inner.is_quell)?;
    add_qemu(&mut archive)?;
    if inner.has_rom {
        let image = (0..rom::LEN / rom::LINE).flat_map(|index| rom::line(rom::LEN, index));
        archive.file("rom", 0o644, &image.collect::<Vec<u8>>());
    }
    for (number, disk) in (0..).zip(inner.devices.1) {
        archive.add(&format!("disk{number}"), disk)?;
    }
    finish_with(archive, inner, &format!("{load} && {}", command(inner, around)))
}

/// Adds what makes the kernel a hypervisor on this platform; the shell command that loads it, as it
/// comes or as it is measured.
pub(super) fn add_kvm(
    archive: &mut Archive,
    files: &GuestFiles,
    platform: Platform,
    as_it_comes: bool,
) -> Result<String> {
    let [bypass, kvm, svm] = KVM_MODULES.map(|module| (module, ""));
    let vendor = match platform.architecture() {
        Architecture::Intel64 if as_it_comes => (KVM_ON_INTEL, ""),
        // As the table in docs/performance.md was measured: all exits that remain are shorter so.
        Architecture::Intel64 => (KVM_ON_INTEL, " enable_apicv=0"),
        _ => svm,
    };
    let mut steps = Vec::new();
    for (module, options) in [bypass, kvm, vendor] {
        archive.add(&format!("modules/{module}"), &files.module(module)?)?;
        steps.push(format!("insmod /modules/{module}{options}"));
    }
    steps.push(format!("echo '{{\"event\":\"{STARTS}\"}}' >/dev/report"));
    Ok(steps.join(" && "))
}

pub(crate) fn memory(inner: &Inner<'_>, initrd_bytes: u64) -> u64 {
    with_files(without_files(inner), initrd_bytes)
}

/// The same without what its files take.
pub(crate) fn without_files(inner: &Inner<'_>) -> u64 {
    inner.memory + KERNEL_MEMORY + u64::from(inner.vcpus) * VCPU_MEMORY
}

/// The initial RAM disk exists twice while the kernel unpacks it, to half of the memory at most.
fn with_files(memory: u64, initrd_bytes: u64) -> u64 {
    let initrd = initrd_bytes.next_multiple_of(MIB);
    (memory + 2 * initrd).max(3 * initrd)
}

/// The shell command that starts the machine: QEMU's command line. The kernel's own is in a file.
pub(crate) fn qemu(inner: &Inner<'_>) -> String {
    let machine = match inner.is_quell {
        true => kvm::MACHINE.to_owned(),
        false => format!("-accel kvm -machine q35 -cpu {}", inner.flushes.cpu()),
    };
    let mut words = format!(
        "qemu -L /firmware {machine} -smp {} -m {} -nodefaults -no-user-config -no-reboot -display none \
         -monitor none -serial stdio -serial /dev/ttyS1 -kernel /kernel",
        inner.vcpus,
        inner.memory / MIB
    );
    if inner.initrd.is_some() {
        words += " -initrd /initrd";
    }
    if inner.has_rom {
        words += " -device pci-testdev,addr=1,romfile=/rom";
    }
    for option in inner.devices.0 {
        let mut option = option.to_string_lossy().into_owned();
        for (number, disk) in (0..).zip(inner.devices.1) {
            option = option.replace(&*disk.to_string_lossy(), &format!("/disk{number}"));
        }
        words += &format!(" '{option}'");
    }
    words += if inner.is_quell { QUELLS_PORTS } else { " -append \"$(cat /cmdline)\"" };
    words
}

fn command(inner: &Inner<'_>, around: Around) -> String {
    format!("taskset {} {} </dev/null", around.mask(), qemu(inner))
}

fn add_qemu(archive: &mut Archive) -> Result<()> {
    let qemu = program(Arch::X86_64.qemu())?;
    archive.add("bin/qemu", &qemu)?;
    for library in libraries(&qemu)? {
        archive.add(library.to_string_lossy().trim_start_matches('/'), &library)?;
    }
    let directories = data_directories(&qemu)?;
    for name in FIRMWARE {
        let path = directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file());
        archive.add(&format!("firmware/{name}"), &path.with_context(|| format!("QEMU has no {name}"))?)?;
    }
    Ok(())
}

fn finish_with(mut archive: Archive, inner: &Inner<'_>, command: &str) -> Result<Vec<u8>> {
    archive.add("kernel", inner.kernel)?;
    if let Some(initrd) = inner.initrd {
        archive.file("initrd", 0o644, initrd);
    }
    archive.file("cmdline", 0o644, inner.cmdline.as_bytes());
    archive.file("command", 0o644, command.as_bytes());
    Ok(archive.finish())
}

fn program(name: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("there is no {name}"))
}

fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let found: Vec<_> = output(Command::new("ldd").arg(program))?.lines().filter_map(library).collect();
    ensure!(!found.is_empty(), "ldd found no libraries of {}", program.display());
    Ok(found)
}

/// The path in a line of ldd's output: `name => path (address)`, or `path (address)`.
fn library(line: &str) -> Option<PathBuf> {
    let path = line.split_once(" => ").map_or(line, |(_, path)| path).trim();
    let path = path.split_once(" (").map_or(path, |(path, _)| path);
    path.starts_with('/').then(|| PathBuf::from(path))
}

pub(crate) fn qemu_version() -> Result<String> {
    let said = output(Command::new(program(Arch::X86_64.qemu())?).arg("--version"))?;
    said.lines().next().map(str::to_owned).context("QEMU does not say its version")
}

fn data_directories(qemu: &Path) -> Result<Vec<PathBuf>> {
    Ok(output(Command::new(qemu).args(["-L", "help"]))?.lines().map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_lines_of_ldd() {
        for (line, path) in [
            (
                "\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)",
                Some("/lib/x86_64-linux-gnu/libz.so.1"),
            ),
            ("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)", Some("/lib64/ld-linux-x86-64.so.2")),
            ("\tlinux-vdso.so.1 (0x00007ffd)", None),
            ("\tlibgone.so => not found", None),
        ] {
            assert_eq!(library(line).as_deref(), path.map(Path::new), "{line}");
        }
    }

    const WAYS: [Flushes; 3] = [Flushes::HyperV, Flushes::Ipi, Flushes::Paravirtual];

    fn inner(initrd: Option<&'static [u8]>, flushes: Flushes, has_rom: bool) -> Inner<'static> {
        let (kernel, memory) = (Path::new("/k"), 256 * MIB);
        let (cmdline, devices) = ("check", (&[][..], &[][..]));
        Inner { kernel, initrd, cmdline, vcpus: 3, memory, flushes, has_rom, is_quell: false, devices }
    }

    #[test]
    fn vcpus_are_kept_off_the_first_cpu() {
        let machine = inner(None, Flushes::HyperV, false);
        let around = Around { cpus: 3, has_first: true };
        let words = command(&machine, around);
        assert!(words.contains("taskset 0xe qemu"), "{words}");
        assert_eq!(around.all(), 4);
        let alone = Around { cpus: 1, has_first: false };
        assert!(command(&machine, alone).contains("taskset 0x1 qemu"), "where there is no other CPU");
        assert_eq!(alone.all(), 1);
    }

    #[test]
    fn the_machine_has_what_its_guest_starts_with() {
        let words = qemu(&inner(None, Flushes::HyperV, false));
        assert!(!words.contains("-initrd") && !words.contains("romfile"), "{words}");
        let words = qemu(&inner(Some(b"x"), Flushes::Paravirtual, true));
        assert!(words.contains(" -initrd /initrd") && words.contains("addr=1,romfile=/rom"), "{words}");
        assert!(words.contains("-cpu host -smp 3 -m 256 "), "{words}");
    }

    #[test]
    fn ways_to_flush_differ_in_what_the_guest_is_offered() {
        let [hyperv, ipi, paravirtual] = WAYS.map(Flushes::cpu);
        assert_eq!(hyperv, format!("{ipi},hv-tlbflush"));
        assert!(ipi.contains("kvm=off") && !ipi.contains("tlbflush"));
        assert!(!paravirtual.contains("hv-"), "KVM's interface alone");
        let names = WAYS.map(Flushes::name);
        assert!(names.iter().enumerate().all(|(index, name)| !names[..index].contains(name)), "{names:?}");
    }

    #[test]
    fn the_machine_around_has_room_for_what_is_unpacked() {
        let machine = inner(None, Flushes::HyperV, false);
        assert!(memory(&machine, 200 * MIB) >= (256 + 2 * 200 + 256) * MIB);
        assert!(memory(&machine, 4096 * MIB) >= 2 * 4096 * MIB);
    }
}
