//! Guests of the peer that own PCI functions: Linux gives them by vfio. The machine around has an
//! IOMMU, and a kernel with its driver.

use super::super::cache::OtherKernel;
use super::super::cpio::Archive;
use super::{Around, CMDLINE, Inner, STARTS, qemu};
use crate::prelude::*;

/// The command line of the hypervisor's kernel. It is not to test at boot whether the timer's
/// interrupt comes often enough for an emulated machine beside others.
pub(crate) fn cmdline() -> String {
    format!("{CMDLINE} no_timer_check")
}

/// Functions of the machine, by address, for a guest of the peer.
pub(crate) struct Given<'a> {
    pub(crate) functions: &'a [String],
    /// Whether KVM polls before it halts, as it does by default. That counts as work.
    pub(crate) polls: bool,
}

/// The part of the initial RAM disk that takes the functions, and runs a machine that owns them.
pub(crate) fn archive(kernel: &OtherKernel, inner: &Inner<'_>, given: &Given<'_>) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let mut names = Vec::new();
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.add(&format!("modules/{name}"), module)?;
        names.push(name);
    }
    super::add_qemu(&mut archive)?;
    super::finish_with(archive, inner, &command(&names, inner, given))
}

pub(crate) fn qemu_with(inner: &Inner<'_>, functions: &[String]) -> String {
    let devices = functions.iter().map(|function| format!(" -device vfio-pci,host={function},rombar=0"));
    qemu(inner) + &devices.collect::<String>()
}

fn command(modules: &[String], inner: &Inner<'_>, given: &Given<'_>) -> String {
    let functions = given.functions;
    let mut steps: Vec<_> = modules.iter().map(|module| format!("insmod /modules/{module}")).collect();
    for function in functions {
        let device = format!("/sys/bus/pci/devices/0000:{function}");
        steps.push(format!("echo vfio-pci >{device}/driver_override"));
        steps.push(format!("echo 0000:{function} >/sys/bus/pci/drivers_probe"));
    }
    if !given.polls {
        steps.push("echo 0 >/sys/module/kvm/parameters/halt_poll_ns".to_owned());
    }
    steps.push(format!("echo '{{\"event\":\"{STARTS}\"}}' >/dev/report"));
    let mask = Around { cpus: 1, has_first: false }.mask();
    steps.push(format!("taskset {mask} {} </dev/null", qemu_with(inner, functions)));
    steps.join(" && ")
}

#[cfg(test)]
mod tests {
    use super::super::Flushes;
    use super::*;

    #[test]
    fn functions_are_taken_before_the_machine_that_owns_them_starts() {
        let inner = Inner {
            kernel: Path::new("/k"),
            initrd: None,
            cmdline: "quiet",
            vcpus: 1,
            memory: 512 * MIB,
            flushes: Flushes::Paravirtual,
            has_rom: false,
            is_quell: false,
            devices: (&[], &[]),
        };
        let functions = ["00:08.0".to_owned(), "00:09.0".to_owned()];
        let command =
            |polls| command(&["vfio.ko".to_owned()], &inner, &Given { functions: &functions, polls });
        assert!(command(false).contains("halt_poll_ns") && !command(true).contains("halt_poll_ns"));
        let words = command(false);
        assert!(words.starts_with("insmod /modules/vfio.ko && echo vfio-pci >"), "{words}");
        let at = |text: &str| words.find(text).unwrap_or_else(|| panic!("no {text} in {words}"));
        assert!(at("0000:00:09.0 >/sys/bus/pci/drivers_probe") < at(STARTS));
        assert!(at(STARTS) < at(" -device vfio-pci,host=00:08.0,rombar=0 -device vfio-pci,host=00:09.0"));
    }
}
