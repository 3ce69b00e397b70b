//! Xen in the emulated machine: its first domain, of unpacked packages, starts another. What that
//! writes is in Xen's log, which is on the machine's console, or on the first domain's, which is
//! there, too.

use super::super::cache::{self, TOOLS, Xen, XenVersion};
use super::super::cpio::Archive;
use super::super::initramfs;
use super::{Flushes, STARTS, VCPU_MEMORY, with_files};
use crate::machine::payload::Payload;
use crate::prelude::*;

const SCRIPT: &str = include_str!("dom0");

/// Memory of the first domain, and of Xen itself.
const DOM0_MEMORY: u64 = 400 * MIB;
const XEN_MEMORY: u64 = 256 * MIB;

/// `HVMPV_base_freq`, `HVMPV_hcall_remote_tlb_flush`, `HVMPV_hcall_ipi` and
/// `HVMPV_ex_processor_masks` (Xen's public/hvm/params.h).
const FEATURES: u64 = 1 | 1 << 4 | 1 << 9 | 1 << 10;

const LINUX: &str = "console=hvc0 quiet panic=-1";

/// The first CPU is the first domain's alone and executes no VMRUN: in QEMU it must not
/// (`docs/qemu.md`). QEMU 7.2 takes an IRET from ring 3 to ring 3 for a violation of SMAP, so only
/// HVM domains have that.
pub(crate) fn cmdline() -> String {
    let memory = DOM0_MEMORY / MIB;
    format!(
        "console=com1 com1=115200,8n1 loglvl=warning guest_loglvl=all dom0_mem={memory}M,max:{memory}M \
         dom0_max_vcpus=1 dom0_vcpus_pin smap=hvm xsave=0"
    )
}

/// The domain: PV if it is to flush by Xen's own calls, else PVH. QEMU 7.2 reports an intercepted
/// RDTSCP as RDTSC, so the TSC is not intercepted.
pub(crate) fn domain(guest: &Guest, flushes: Flushes, cpus: u32) -> String {
    let mode = if flushes == Flushes::Paravirtual { "pv" } else { "pvh" };
    let ramdisk = guest.initrd.as_ref().map_or("", |_| "ramdisk = \"/initrd\"\n");
    format!(
        "type = \"{mode}\"\nname = \"guest\"\nkernel = \"/kernel\"\n{ramdisk}extra = \"{}\"\nmemory = {}\n\
         vcpus = {}\ncpus = \"1-{cpus}\"\ntsc_mode = \"native\"\non_poweroff = \"destroy\"\n\
         on_reboot = \"destroy\"\non_crash = \"destroy\"\n",
        guest.cmdline,
        guest.memory / MIB,
        guest.vcpus
    )
}

/// This Linux guest with a domain's console, where its reports are, too.
pub(crate) fn guest(guest: Guest) -> Guest {
    let cmdline = guest.cmdline.replace(guest.platform.arch().console(), "console=hvc0 quell.report");
    Guest { cmdline, ..guest }
}

/// A machine whose Xen runs `guest`, which flushes in this way, on `cpus` CPUs.
pub(crate) fn spec(
    version: XenVersion,
    guest: &Guest,
    flushes: Flushes,
    cpus: u32,
    directory: &Path,
) -> Result<Spec> {
    ensure!(
        guest.platform == Platform::X86_64,
        "Xen runs in QEMU's machine for x86_64 only: leave out --arch, --machine and --accel"
    );
    let xen = cache::xen(version)?;
    let files = cache::guest_files(Arch::X86_64, false)?;
    let viridian = workspace::build(workspace::VIRIDIAN, Arch::X86_64)?;
    let base = initramfs::base(&files, &[("viridian", viridian)])?;
    let initrd = [base, archive(&xen, guest, flushes, cpus)?].concat();
    let vcpus = u64::from(guest.vcpus) * VCPU_MEMORY;
    let memory = guest.memory + XEN_MEMORY + vcpus + with_files(DOM0_MEMORY, initrd.len() as u64);
    let path = directory.join("initrd");
    fs::write(&path, initrd).context("cannot write the initial RAM disk")?;
    let payload = Payload::Xen {
        hypervisor: xen.hypervisor,
        kernel: xen.kernel.kernel,
        initrd: path,
        cmdlines: [cmdline(), LINUX.to_owned()],
    };
    Ok(Spec::new(guest.platform, payload, cpus + 1, memory))
}

/// The part of the initial RAM disk that has the tools, and what they start.
fn archive(xen: &Xen, guest: &Guest, flushes: Flushes, cpus: u32) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.symlink("lib64", "lib");
    for tool in TOOLS {
        archive.add(&format!("bin/{tool}"), &xen.xl.program.with_file_name(tool))?;
    }
    xen.xl.add_libraries(&mut archive)?;
    for (index, module) in xen.kernel.modules.iter().enumerate() {
        archive.add(&format!("modules/{index}"), module)?;
    }
    for directory in ["run", "var", "etc/xen"] {
        archive.directory(directory);
    }
    archive.file("etc/xen/xl.conf", 0o644, b"autoballoon=\"off\"\n");
    archive.add("kernel", &guest.kernel)?;
    if let Some(initrd) = &guest.initrd {
        archive.file("initrd", 0o644, initrd);
    }
    archive.file("domain.cfg", 0o644, domain(guest, flushes, cpus).as_bytes());
    let features = if flushes == Flushes::HyperV { FEATURES.to_string() } else { String::new() };
    archive.file("command", 0o644, format!("starts={STARTS}\nfeatures={features}\n{SCRIPT}").as_bytes());
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::super::super::cache::{LinkedProgram, OtherKernel};
    use super::*;

    fn guest(kernel: PathBuf) -> Guest {
        Guest { memory: 256 * MIB, ..Guest::new(Platform::X86_64, kernel, None, "check json".into()) }
    }

    #[test]
    fn the_domain_is_kept_off_the_first_domains_cpu() {
        let bare = Guest { vcpus: 5, ..guest("/k".into()) };
        let text = domain(&bare, Flushes::HyperV, 3);
        assert!(text.contains("vcpus = 5\ncpus = \"1-3\"\n"), "{text}");
        assert!(text.contains("extra = \"check json\"\nmemory = 256\n"), "{text}");
        assert!(cmdline().contains("dom0_mem=400M,max:400M dom0_max_vcpus=1 dom0_vcpus_pin smap=hvm"));
        assert!(!LINUX.contains(','), "QEMU splits modules at commas");
    }

    #[test]
    fn a_linux_guest_has_its_initial_ram_disk_and_reports_on_the_domains_console() {
        let linux =
            Guest { initrd: Some(vec![1]), cmdline: "console=ttyS0 quiet".into(), ..guest("/k".into()) };
        let linux = super::guest(linux);
        assert_eq!(linux.cmdline, "console=hvc0 quell.report quiet");
        let [ipi, own] = [Flushes::Ipi, Flushes::Paravirtual].map(|flushes| domain(&linux, flushes, 2));
        assert!(ipi.starts_with("type = \"pvh\"\n") && ipi.contains("\nramdisk = \"/initrd\"\n"), "{ipi}");
        assert_eq!(own, ipi.replace("\"pvh\"", "\"pv\""));
    }

    #[test]
    fn the_interface_is_on_before_the_domain_runs() {
        let at = |text: &str| SCRIPT.find(text).unwrap_or_else(|| panic!("no {text}"));
        let order = [
            "insmod",
            "xenstored --pid",
            "\\\"$starts",
            "xl create -p",
            "viridian",
            "xl unpause",
            "cat /dev/pts",
        ];
        assert!(order.map(at).is_sorted());
        assert_eq!(FEATURES, 0x611);
    }

    #[test]
    fn the_archive_has_the_tools_and_what_they_start() {
        let directory = tempfile::tempdir().expect("makes");
        let file = |name: &str| {
            let path = directory.path().join(name);
            fs::write(&path, name).expect("writes");
            path
        };
        for tool in TOOLS {
            file(tool);
        }
        let (program, libraries) = (file(TOOLS[0]), vec![file("libx.so.1")]);
        let modules = vec![file("m.ko")];
        let xen = Xen {
            hypervisor: file("xen"),
            kernel: OtherKernel { kernel: file("vmlinuz"), modules, version: String::new() },
            xl: LinkedProgram { program, libraries, version: String::new() },
        };
        let bytes = archive(&xen, &guest(file("k")), Flushes::HyperV, 2).expect("packs");
        let names = TOOLS.map(|tool| format!("bin/{tool}\0"));
        let others = [
            "lib64\0",
            "lib/libx.so.1\0",
            "modules/0\0",
            "kernel\0",
            "domain.cfg\0",
            "features=1553\n",
            "starts=peer",
        ];
        for name in names.iter().map(String::as_str).chain(others) {
            assert!(bytes.windows(name.len()).any(|window| window == name.as_bytes()), "{name:?}");
        }
        let linux = Guest { initrd: Some(b"linux's".to_vec()), ..guest(file("k")) };
        let text = archive(&xen, &linux, Flushes::Ipi, 2).expect("packs");
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("initrd\0") && text.contains("linux's") && text.contains("features=\n"));
    }

    #[test]
    fn other_machines_are_refused() {
        let arm = Guest { platform: Platform::Aarch64(ArmCpu::Max), ..guest("/k".into()) };
        let error = spec(XenVersion::V4_17, &arm, Flushes::HyperV, 1, Path::new("/"))
            .expect_err("is refused")
            .to_string();
        assert!(error.contains("leave out --arch, --machine and --accel"), "{error}");
    }
}
