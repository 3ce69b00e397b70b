//! Xen in the emulated machine: its first domain, of unpacked packages, starts a PVH domain. What
//! that writes is in Xen's log, which is on the machine's console.

use super::super::cache::{self, TOOLS, Xen, XenVersion};
use super::super::cpio::Archive;
use super::super::initramfs;
use super::with_files;
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
fn cmdline() -> String {
    let memory = DOM0_MEMORY / MIB;
    format!(
        "console=com1 com1=115200,8n1 loglvl=warning guest_loglvl=all dom0_mem={memory}M,max:{memory}M \
         dom0_max_vcpus=1 dom0_vcpus_pin smap=hvm"
    )
}

/// The domain. QEMU 7.2 reports an intercepted RDTSCP as RDTSC, so the TSC is not intercepted.
fn domain(guest: &Guest, cpus: u32) -> String {
    format!(
        "type = \"pvh\"\nname = \"guest\"\nkernel = \"/kernel\"\nextra = \"{}\"\nmemory = {}\nvcpus = {cpus}\n\
         cpus = \"1-{cpus}\"\ntsc_mode = \"native\"\non_poweroff = \"destroy\"\non_reboot = \"destroy\"\n\
         on_crash = \"destroy\"\n",
        guest.cmdline,
        guest.memory / MIB
    )
}

/// A machine whose Xen runs `guest`, with as many vCPUs as CPUs.
pub(crate) fn spec(version: XenVersion, guest: &Guest, cpus: u32, directory: &Path) -> Result<Spec> {
    ensure!(
        guest.platform == Platform::X86_64,
        "Xen runs in QEMU's machine for x86_64 only: leave out --arch, --machine and --accel"
    );
    let xen = cache::xen(version)?;
    let files = cache::guest_files(Arch::X86_64, false)?;
    let viridian = workspace::build(workspace::VIRIDIAN, Arch::X86_64)?;
    let base = initramfs::base(&files, &[("viridian", viridian)])?;
    let initrd = [base, archive(&xen, guest, cpus)?].concat();
    let memory = guest.memory + XEN_MEMORY + with_files(DOM0_MEMORY, initrd.len() as u64);
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
fn archive(xen: &Xen, guest: &Guest, cpus: u32) -> Result<Vec<u8>> {
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
    archive.file("domain.cfg", 0o644, domain(guest, cpus).as_bytes());
    archive.file("command", 0o644, format!("features={FEATURES}\n{SCRIPT}").as_bytes());
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
        let text = domain(&guest("/k".into()), 3);
        assert!(text.contains("vcpus = 3\ncpus = \"1-3\"\n"), "{text}");
        assert!(text.contains("extra = \"check json\"\nmemory = 256\n"), "{text}");
        assert!(cmdline().contains("dom0_mem=400M,max:400M dom0_max_vcpus=1 dom0_vcpus_pin smap=hvm"));
        assert!(!LINUX.contains(','), "QEMU splits modules at commas");
    }

    #[test]
    fn the_interface_is_on_before_the_domain_runs() {
        let at = |text: &str| SCRIPT.find(text).unwrap_or_else(|| panic!("no {text}"));
        let order =
            ["insmod", "xenstored --pid", "xl create -p", "viridian", "xl unpause", "xl domid guest >"];
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
        let bytes = archive(&xen, &guest(file("k")), 2).expect("packs");
        let names = TOOLS.map(|tool| format!("bin/{tool}\0"));
        let others =
            ["lib64\0", "lib/libx.so.1\0", "modules/0\0", "kernel\0", "domain.cfg\0", "features=1553\n"];
        for name in names.iter().map(String::as_str).chain(others) {
            assert!(bytes.windows(name.len()).any(|window| window == name.as_bytes()), "{name:?}");
        }
    }

    #[test]
    fn other_machines_are_refused() {
        let arm = Guest { platform: Platform::Aarch64(ArmCpu::Max), ..guest("/k".into()) };
        let error = spec(XenVersion::V4_17, &arm, 1, Path::new("/")).expect_err("is refused").to_string();
        assert!(error.contains("leave out --arch, --machine and --accel"), "{error}");
    }
}
