//! Packages for a whole Debian system: those that are named, and all that they depend on. They are
//! fetched with apt into an archive of their own, never installed. An archive that is there already
//! is not fetched again.

use super::backports::codename;
use super::{Apt, FETCHING, KEYRING, MIRROR, directory};
use crate::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DebianPackages {
    pub(crate) archives: Vec<PathBuf>,
    /// Apt's list of sources, for the system itself.
    pub(crate) sources: String,
}

/// All packages that Debian calls essential.
const ESSENTIAL: &str = "?essential";

/// Fetches `packages` (each a name, or `name=version`), the essential packages, and what they
/// depend on, of the Debian that this system runs.
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
        "apt cannot install the disk's packages; if the kernel is not to be had any more, \
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

/// Apt's list of sources for a release: the release itself and its updates.
pub(super) fn sources(suite: &str, keyring: Option<&str>) -> String {
    let keys = keyring.map(|path| format!("[signed-by={path}] ")).unwrap_or_default();
    [("debian", ""), ("debian", "-updates"), ("debian-security", "-security")]
        .map(|(archive, kind)| format!("deb {keys}{MIRROR}/{archive} {suite}{kind} main\n"))
        .concat()
}

/// The file names of the packages that apt would install, from what `apt-get --simulate` prints:
/// `Inst NAME (VERSION SOURCE [ARCHITECTURE])`.
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

/// Removes packages of former systems.
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
        assert_eq!(text.lines().count(), 3);
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
