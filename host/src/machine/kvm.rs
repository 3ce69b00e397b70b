//! This computer's own processor by Linux KVM, whose guest Quell is then: it needs nested
//! virtualisation, which AMD's processors and Intel's have.

use crate::prelude::*;
use clap::ValueEnum;
use hostlink::architecture::Architecture;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// What carries out the machine's instructions
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Accel {
    /// An emulator
    Tcg,
    /// This computer's processor, by Linux KVM
    Kvm,
    /// KVM where it can be used, else an emulator
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    Amd,
    Intel,
}

/// QEMU's options for a machine on this computer's processor. KVM hides the invariant TSC from one
/// that may migrate; without it Linux takes Hyper-V's clock page.
pub(crate) const MACHINE: &str = "-accel kvm -machine q35,smm=off -cpu host,migratable=off,+invtsc";
/// The same with an IOMMU, which has to translate interrupts.
pub(crate) const WITH_IOMMU: [&str; 2] = ["-machine", "kernel-irqchip=split"];

pub(crate) const NOT_ON_ARM: &str =
    "Quell runs on KVM on x86_64 only: on Arm, KVM's guests have EL2 with E2H set, and Quell needs it clear";

impl Vendor {
    pub(crate) const ALL: [Self; 2] = [Self::Amd, Self::Intel];

    pub(crate) const fn module(self) -> &'static str {
        match self {
            Self::Amd => "kvm_amd",
            Self::Intel => "kvm_intel",
        }
    }

    pub(crate) const fn architecture(self) -> Architecture {
        match self {
            Self::Amd => Architecture::Amd64,
            Self::Intel => Architecture::Intel64,
        }
    }

    /// Whose processors have this architecture.
    pub(crate) fn of(architecture: Architecture) -> Option<Self> {
        Self::ALL.into_iter().find(|vendor| vendor.architecture() == architecture)
    }
}

/// A socket by which QEMU says why the machine has ended, and its other end, which the options that
/// are added name.
pub(super) fn events(arguments: &mut Vec<OsString>) -> Result<(UnixStream, UnixStream)> {
    let (mut ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
    ours.write_all(br#"{"execute": "qmp_capabilities"}"#)?;
    let device = format!("socket,id=events,fd={}", theirs.as_raw_fd());
    arguments.extend(["-chardev", &device, "-mon", "chardev=events,mode=control"].map(OsString::from));
    Ok((ours, theirs))
}

/// Whose processor this computer has, if its KVM can run Quell.
///
/// # Errors
///
/// Why it cannot, and what to do.
pub(crate) fn vendor() -> Result<Vendor> {
    below(Path::new("/"))
}

/// The module's parameter is read first: the device is opened only where guests may have guests.
fn below(root: &Path) -> Result<Vendor> {
    for vendor in Vendor::ALL {
        let module = vendor.module();
        let Ok(nested) = fs::read_to_string(root.join(format!("sys/module/{module}/parameters/nested")))
        else {
            continue;
        };
        ensure!(
            matches!(nested.trim(), "Y" | "1"),
            "KVM's guests may have no guests here: {module} was loaded with nested=0. Load it with nested=1, \
             unless that was for CVE-2026-53359: then update the kernel first, to 6.1.177, 6.12.95, 6.18.38, \
             7.1.3 or later"
        );
        let device = root.join("dev/kvm");
        File::options().read(true).write(true).open(&device).with_context(|| {
            format!("cannot open {}; a member of its group may (`ls -l`, `usermod -a -G`)", device.display())
        })?;
        return Ok(vendor);
    }
    bail!(
        "neither kvm_amd nor kvm_intel is loaded: load one, after virtualisation was switched on in the \
         firmware, or in the hypervisor that this computer runs on"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_is_taken_where_guests_may_have_guests_and_the_device_opens() {
        let cases = [
            (&[("kvm_amd", "1\n")][..], true, Ok(Vendor::Amd)),
            (&[("kvm_intel", "Y\n")], true, Ok(Vendor::Intel)),
            (&[("kvm_intel", "N\n")], true, Err("kvm_intel was loaded with nested=0")),
            // The device, which is not there, was not looked for.
            (&[("kvm_amd", "0\n")], false, Err("CVE-2026-53359")),
            (&[("kvm_amd", "1\n")], false, Err("cannot open")),
            (&[], true, Err("neither kvm_amd nor kvm_intel")),
        ];
        for (modules, has_device, expected) in cases {
            let root = tempfile::tempdir().expect("makes");
            for (module, nested) in modules {
                let directory = root.path().join(format!("sys/module/{module}/parameters"));
                fs::create_dir_all(&directory).expect("makes");
                fs::write(directory.join("nested"), nested).expect("writes");
            }
            fs::create_dir(root.path().join("dev")).expect("makes");
            if has_device {
                fs::write(root.path().join("dev/kvm"), "").expect("writes");
            }
            match (below(root.path()), expected) {
                (Ok(vendor), expected) => assert_eq!(Ok(vendor), expected, "{modules:?}"),
                (Err(error), Err(why)) => assert!(format!("{error:#}").contains(why), "{error:#}"),
                (Err(error), Ok(vendor)) => panic!("{vendor:?}: {error:#}"),
            }
        }
    }
}
