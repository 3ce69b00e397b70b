//! Xen with its tools, and the kernel of its first domain, of Debian's packages.

use super::backports::at_release;
use super::linked::{LinkedProgram, fetch};
use super::{OtherKernel, kept, kernel_of};
use crate::prelude::*;
use crate::workspace::output;
use clap::ValueEnum;

/// What the cache keeps of the tools: xl, and what it needs to run.
pub(crate) const TOOLS: [&str; 4] = ["xl", "xenstored", "xenconsoled", "xen-init-dom0"];
/// What the C library loads when a thread of xl ends.
const UNWINDER: (&str, &str) = ("lib/libgcc_s.so.1", "libgcc_s.so.1");
/// The modules of its first domain's kernel, in the order of loading.
const MODULES: [&str; 5] =
    ["xen-privcmd.ko", "xen-evtchn.ko", "xen-gntdev.ko", "xen-gntalloc.ko", "xenfs.ko"];
/// The release of that kernel: the one with which both versions were tried. The kernel of the stock
/// guest cannot be that of a first domain.
const KERNEL: (&str, &str) = ("bookworm", "linux-image-amd64");

/// A version of Xen that Debian has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum XenVersion {
    /// Debian 12's
    #[default]
    #[value(name = "4.17")]
    V4_17,
    /// Debian 13's
    #[value(name = "4.20")]
    V4_20,
}

impl XenVersion {
    /// Its number, and the release of Debian that has it.
    pub(crate) const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::V4_17 => ("4.17", "bookworm"),
            Self::V4_20 => ("4.20", "trixie"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Xen {
    /// An ELF file that a Multiboot loader starts.
    pub(crate) hypervisor: PathBuf,
    pub(crate) kernel: OtherKernel,
    /// The first of [`TOOLS`]; the others are beside it.
    pub(crate) xl: LinkedProgram,
}

/// Xen of this version; fetches its packages if they are missing.
pub(crate) fn xen(version: XenVersion) -> Result<Xen> {
    let (number, suite) = version.names();
    let (tools, hypervisor) = (format!("xen-utils-{number}"), format!("xen-hypervisor-{number}-amd64"));
    let name = format!("xen-{number}");
    let needed = [&TOOLS[..], &["xen", UNWINDER.0, super::VERSION]].concat();
    let place = kept(&name, &needed, false, |new| {
        let apt = at_release(suite, Arch::X86_64, false, new)?;
        let paths = TOOLS.map(|tool| format!("usr/lib/xen-{number}/bin/{tool}"));
        let mut programs = vec![UNWINDER];
        programs.extend(TOOLS.into_iter().zip(paths.iter().map(String::as_str)));
        fetch(&apt, &[&tools, &hypervisor], &programs, new)
            .with_context(|| format!("cannot fetch {name}; this needs apt and, once, network access"))?;
        let packed = new.work.path().join(format!("root/boot/xen-{number}-amd64.gz"));
        output(Command::new("gzip").arg("-d").arg(&packed))?;
        fs::rename(packed.with_extension(""), new.kept.join("xen"))
            .with_context(|| format!("the package {hypervisor} has no Xen"))
    })?;
    let kernel = kernel_of(KERNEL.0, Arch::X86_64, KERNEL.1, &MODULES)?;
    Ok(Xen { hypervisor: place.join("xen"), kernel, xl: LinkedProgram::at(&place, TOOLS[0])? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_in_the_packages() {
        for version in XenVersion::value_variants() {
            let name = version.to_possible_value().expect("has a name");
            assert_eq!(name.get_name(), version.names().0);
        }
    }
}
