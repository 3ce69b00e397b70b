//! What the distribution's backports have: newer kernels and a newer emulator; kernels of other
//! releases; and the packages for a whole Debian system: those that are named, and all that they
//! depend on. They are fetched with apt into an archive of their own, never installed. An archive
//! that is there already is not fetched again.

use super::{
    Apt, FETCHING, KEYRING, KVM_MODULES, MIRROR, New, OtherKernel, Unavailable, directory, find, kept,
    kept_kernel, kernel_packages, unpack_to, with_lists,
};
use crate::prelude::*;

fn fetch(apt: &Apt, package: &str, modules: &[&str], new: &New) -> Result<String> {
    let image = apt.kernel_behind(package, new.work.path());
    let image = image.ok_or_else(|| Unavailable(format!("there is no kernel behind {package}")))?;
    eprintln!("quell: fetching {image}");
    apt.kernel(&image, modules, new)
}

pub(crate) fn newer_kernel(arch: Arch) -> Result<OtherKernel> {
    let name = arch.pick("guest-backports", "guest-backports-aarch64");
    kept_kernel(name, &[], |new| fetch(&at_backports(arch, new)?.0, kernel_packages(arch)[0], &[], new))
}

/// The kernel that `package` depends on in another release of Debian, with these modules.
pub(crate) fn kernel_of(suite: &str, arch: Arch, package: &str, modules: &[&str]) -> Result<OtherKernel> {
    kept_kernel(&format!("guest-{suite}-{package}"), modules, |new| {
        fetch(&at_release(suite, arch, false, new)?, package, modules, new)
    })
}

/// Apt for another release of Debian with up-to-date lists; of sources, too, if they are wanted.
pub(super) fn at_release(suite: &str, arch: Arch, with_source: bool, new: &New) -> Result<Apt> {
    let is_debian = Path::new(KEYRING).is_file();
    ensure!(is_debian, Unavailable(format!("{suite} is Debian's, and there is no {KEYRING}")));
    let apt = Apt::foreign(arch.debian(), &new.cache.join(format!("apt-{suite}-{}", arch.debian())))?;
    let binaries = sources(suite, Some(KEYRING));
    let source = if with_source { binaries.replace("deb ", "deb-src ") } else { String::new() };
    let apt = apt.with_sources(&(binaries + &source))?;
    if let Err(error) = apt.run("apt-get", &["update"], new.work.path()) {
        // What apt says of a release that was moved elsewhere.
        let is_gone = format!("{error:#}").contains("does not have a Release file");
        let lists = format!("there are no package lists of {suite}");
        return Err(if is_gone { error.context(Unavailable(lists)) } else { error.context(lists) });
    }
    Ok(apt)
}

/// The modules of a kernel for devices of guests, in the order of loading: what its KVM needs in
/// addition, KVM, and what gives devices to guests.
fn owning_modules() -> Vec<&'static str> {
    const VFIO: [&str; 5] =
        ["vfio.ko", "vfio_iommu_type1.ko", "vfio_virqfd.ko", "vfio-pci-core.ko", "vfio-pci.ko"];
    [&["ccp.ko"], &KVM_MODULES[..], &VFIO].concat()
}

/// The kernel of a hypervisor whose guests own devices, with its modules: that of the stock guest
/// has no driver for AMD's IOMMUs. It is the distribution's usual one, for machines of all kinds.
pub(crate) fn owning_kernel() -> Result<OtherKernel> {
    let modules = owning_modules();
    kept_kernel("guest-owning", &modules, |new| {
        with_lists(new, |apt| fetch(apt, "linux-image-amd64", &modules, new))
    })
}

const EMULATOR_PACKAGES: [&str; 5] =
    ["qemu-system-x86", "qemu-system-arm", "qemu-system-common", "qemu-system-data", "seabios"];

/// The directory of an emulator newer than the distribution's own, from its backports.
pub(crate) fn newer_emulator() -> Result<PathBuf> {
    kept("qemu-backports", &[], false, |new| {
        let (apt, suite) = at_backports(Arch::X86_64, new)?;
        eprintln!("quell: fetching {}", EMULATOR_PACKAGES.join(", "));
        let wanted = EMULATOR_PACKAGES.map(|package| format!("{package}/{suite}"));
        let mut args = vec!["download"];
        args.extend(wanted.iter().map(String::as_str));
        apt.run("apt-get", &args, new.work.path()).context("the backports have no QEMU")?;
        for package in EMULATOR_PACKAGES {
            unpack_to(&find(new.work.path(), &format!("{package}_"))?, &new.kept)?;
        }
        Ok(())
    })
}

/// Apt for the backports of the distribution with up-to-date lists, and the suite's name.
fn at_backports(arch: Arch, new: &New) -> Result<(Apt, String)> {
    let release = fs::read_to_string("/etc/os-release").context("cannot tell the distribution")?;
    let (suite, sources) =
        backports(&release).ok_or_else(|| Unavailable("only Debian's backports are known".into()))?;
    let apt = match arch {
        Arch::X86_64 => Apt::private(&new.cache.join("apt-backports"))?,
        Arch::Aarch64 => Apt::foreign("arm64", &new.cache.join("apt-backports-arm64"))?,
    };
    let apt = apt.with_sources(&sources)?;
    apt.run("apt-get", &["update"], new.work.path()).context("apt-get update failed for the backports")?;
    Ok((apt, suite))
}

/// The backports of the Debian in `/etc/os-release`: their name, and a line of apt's sources.
pub(super) fn backports(release: &str) -> Option<(String, String)> {
    let suite = format!("{}-backports", codename(release)?);
    let sources = format!("deb [signed-by={KEYRING}] {MIRROR}/debian {suite} main\n");
    Some((suite, sources))
}

pub(super) fn codename(release: &str) -> Option<&str> {
    let value = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"'))
    };
    let codename = value("VERSION_CODENAME").filter(|name| name.chars().all(|c| c.is_ascii_lowercase()))?;
    (value("ID") == Some("debian")).then_some(codename)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DebianPackages {
    pub(crate) archives: Vec<PathBuf>,
    /// Apt's list of sources, for the system itself.
    pub(crate) sources: String,
}

const ESSENTIAL: &str = "?essential";

/// Fetches `packages` (`name` or `name=version`), the essential ones, and what they depend on.
pub(crate) fn debian_packages(arch: Arch, packages: &[&str]) -> Result<DebianPackages> {
    let _one_at_a_time = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let release = fs::read_to_string("/etc/os-release").context("cannot tell the distribution")?;
    let Some(suite) = codename(&release) else {
        bail!(
            "a disk with Debian needs the kernel that the guests have, and here that is not Debian's; \
             make the disk on Debian 12"
        )
    };
    ensure!(Path::new(KEYRING).is_file(), "there is no {KEYRING}; install debian-archive-keyring");
    let cache = directory();
    let place = cache.join(format!("apt-debian-{}", arch.debian()));
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let apt = Apt::foreign(arch.debian(), &place)?.with_sources(&sources(suite, Some(KEYRING)))?;
    apt.run("apt-get", &["update"], &place)
        .context("cannot fetch Debian's package lists; this needs network access")?;
    let mut args = vec!["install", "--yes", "--no-install-recommends", ESSENTIAL];
    args.extend(packages);
    let plan = apt.run("apt-get", &[&["--simulate"], &args[..]].concat(), &place).context(
        "apt cannot install the disk's packages; if the kernel is no longer available, \
         `./quell fetch --refresh` fetches a newer one",
    )?;
    let names = archives(&plan);
    ensure!(!names.is_empty(), "apt has nothing to install, and prints:\n{plan}");
    apt.run("apt-get", &[&["--download-only"], &args[..]].concat(), &place)
        .context("cannot fetch the disk's packages; this needs network access")?;
    let archive = place.join("cache/archives");
    keep_only(&archive, &names)?;
    let archives: Vec<_> = names.iter().map(|name| archive.join(name)).collect();
    for path in &archives {
        ensure!(path.is_file(), "apt has not fetched {}", path.display());
    }
    Ok(DebianPackages { archives, sources: sources(suite, None) })
}

/// Apt's list of sources for a release: the release itself and its updates, which sid is.
pub(super) fn sources(suite: &str, keyring: Option<&str>) -> String {
    let keys = keyring.map(|path| format!("[signed-by={path}] ")).unwrap_or_default();
    let all = [("debian", ""), ("debian", "-updates"), ("debian-security", "-security")];
    let count = if suite == "sid" { 1 } else { all.len() };
    all[..count]
        .iter()
        .map(|(archive, kind)| format!("deb {keys}{MIRROR}/{archive} {suite}{kind} main\n"))
        .collect()
}

/// The files that apt would fetch, by `apt-get --simulate`: `Inst NAME (VERSION SOURCE [ARCH])`.
fn archives(plan: &str) -> BTreeSet<String> {
    let file = |line: &str| {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
        let (version, _) = rest.split_once(' ')?;
        let (_, architecture) = rest.split_once('[')?;
        let (architecture, _) = architecture.split_once(']')?;
        // A colon would end a host's name in some protocols.
        Some(format!("{name}_{}_{architecture}.deb", version.replace(':', "%3a")))
    };
    plan.lines().filter_map(file).collect()
}

fn keep_only(archive: &Path, names: &BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(archive).with_context(|| format!("cannot read {}", archive.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".deb") && !names.contains(&name) {
            fs::remove_file(entry.path())
                .with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_after_those_that_they_use() {
        let names = owning_modules();
        let at = |name: &str| names.iter().position(|other| *other == name).expect("is there");
        assert!(at("ccp.ko") < at("kvm-amd.ko") && at("irqbypass.ko") < at("vfio-pci-core.ko"));
        assert!(at("vfio.ko") < at("vfio_iommu_type1.ko") && at("vfio-pci-core.ko") < at("vfio-pci.ko"));
    }

    #[test]
    fn the_archives_of_a_plan_are_named_as_apt_names_them() {
        let plan = "Reading package lists...\n\
            Inst gcc-12-base (12.2.0-14+deb12u1 Debian:12.12/oldstable [amd64])\n\
            Inst login (1:4.13+dfsg1-1 Debian:12.12/oldstable [amd64]) []\n\
            Inst netbase (6.4 Debian:12.12/oldstable [all]) [libc6:amd64 ]\n\
            Conf netbase (6.4 Debian:12.12/oldstable [all])\n";
        let names: Vec<_> = archives(plan).into_iter().collect();
        assert_eq!(
            names,
            [
                "gcc-12-base_12.2.0-14+deb12u1_amd64.deb",
                "login_1%3a4.13+dfsg1-1_amd64.deb",
                "netbase_6.4_all.deb"
            ]
        );
        assert!(archives("0 upgraded, 0 newly installed\n").is_empty());
    }

    #[test]
    fn the_systems_sources_name_no_file_of_this_one() {
        let text = sources("bookworm", None);
        assert_eq!((text.lines().count(), sources("sid", None).lines().count()), (3, 1));
        assert!(
            text.lines().all(|line| line.starts_with("deb http://") && line.ends_with(" main")),
            "{text}"
        );
        assert!(text.contains("/debian-security bookworm-security "), "{text}");
        assert!(sources("bookworm", Some("/k")).starts_with("deb [signed-by=/k] http://"));
    }

    #[test]
    fn packages_of_former_systems_go() {
        let directory = tempfile::tempdir().expect("makes");
        for name in ["a_1_all.deb", "a_2_all.deb", "lock"] {
            fs::write(directory.path().join(name), name).expect("writes");
        }
        keep_only(directory.path(), &BTreeSet::from(["a_2_all.deb".to_owned()])).expect("removes");
        let is_there = |name: &str| directory.path().join(name).is_file();
        assert!(!is_there("a_1_all.deb") && is_there("a_2_all.deb") && is_there("lock"));
    }
}
