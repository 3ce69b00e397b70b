//! What a machine starts, and how QEMU is told.

use super::devices::{drive, value as escaped};
use super::spec::Arguments;
use crate::prelude::*;

#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Quell {
        /// Its file for `-kernel`: ELF, or a flat boot image on Arm.
        hypervisor: PathBuf,
        bundle: PathBuf,
        /// Physical address of the beacon in the ELF file.
        beacon: Option<u64>,
    },
    Bare {
        /// A bzImage, or an arm64 `Image`.
        kernel: PathBuf,
        initrd: Option<PathBuf>,
        cmdline: String,
    },
    /// Xen, and its first domain.
    Xen {
        hypervisor: PathBuf,
        kernel: PathBuf,
        initrd: PathBuf,
        /// Xen's, and the kernel's, which has no comma.
        cmdlines: [String; 2],
    },
    Disc {
        disc: PathBuf,
        /// UEFI firmware; BIOS if there is none.
        firmware: Option<PathBuf>,
    },
}

impl Payload {
    pub(crate) const fn beacon(&self) -> Option<u64> {
        match self {
            Self::Quell { beacon, .. } => *beacon,
            Self::Bare { .. } | Self::Xen { .. } | Self::Disc { .. } => None,
        }
    }

    pub(super) fn arguments(&self, args: &mut Arguments) -> Result<()> {
        match self {
            Self::Quell { hypervisor, bundle, .. } => {
                args.option("-kernel", "", hypervisor);
                args.option("-initrd", "", bundle);
            }
            Self::Bare { kernel, initrd, cmdline } => {
                args.option("-kernel", "", kernel);
                if let Some(initrd) = initrd {
                    args.option("-initrd", "", initrd);
                }
                args.pair("-append", cmdline);
            }
            Self::Xen { hypervisor, kernel, initrd, cmdlines: [xen, linux] } => {
                args.option("-kernel", "", hypervisor);
                args.pair("-append", xen);
                let has_space = |path: &Path| path.to_string_lossy().contains(' ');
                for path in [kernel, initrd] {
                    ensure!(
                        !has_space(path),
                        "QEMU takes a module's path to end at a space: '{}'; set XDG_CACHE_HOME and TMPDIR \
                         to paths without",
                        path.display()
                    );
                }
                let modules =
                    [&escaped(kernel), OsStr::new(" "), linux.as_ref(), ",".as_ref(), &escaped(initrd)];
                args.pair("-initrd", modules.into_iter().collect::<OsString>());
            }
            Self::Disc { disc, firmware } => {
                if let Some(firmware) = firmware {
                    args.option("-bios", "", firmware);
                }
                args.pair("-drive", drive("media=cdrom,index=2", disc)?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::emulator::Version;
    use super::*;

    #[test]
    fn xen_is_started_with_its_first_domain_as_modules() {
        let words = |kernel: &str| {
            let cmdlines = ["com1".to_owned(), "quiet".to_owned()];
            let payload = Payload::Xen {
                hypervisor: "/x".into(),
                kernel: kernel.into(),
                initrd: "/a,b".into(),
                cmdlines,
            };
            let mut args = Arguments::default();
            let old = Version { major: 7, minor: 2 };
            Spec::new(Platform::X86_64, payload.clone(), 2, MIB).machine(&mut args, old);
            payload.arguments(&mut args).map(|()| args.0.join("|".as_ref()).into_string().expect("is text"))
        };
        let said = words("/k").expect("can be made");
        assert!(said.contains("EPYC,+svm,+npt,-cx16,-monitor|-kernel|/x|-append|com1|"), "{said}");
        assert!(said.ends_with("-initrd|/k quiet,/a,,b"), "{said}");
        let error = words("/a k").expect_err("is refused").to_string();
        assert!(error.contains("'/a k'; set XDG_CACHE_HOME"), "{error}");
    }
}
