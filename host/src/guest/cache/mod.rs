//! The cache of guest files: the distribution's kernel and busybox, fetched as packages with apt
//! and unpacked, never installed. A filled cache is used without any network access.

mod backports;
mod bochs;
mod firmware;
mod linked;
#[cfg(test)]
mod tests;
mod xen;

pub(crate) use backports::{
    DebianPackages, debian_packages, kernel_of, newer_emulator, newer_kernel, owning_kernel,
};
pub(crate) use bochs::bochs;
pub(crate) use firmware::{grub, u_boot};
pub(crate) use linked::{LinkedProgram, foreign_qemu, herd, kexec};
pub(crate) use xen::{TOOLS, Xen, XenVersion, xen};

use crate::prelude::*;
use std::error::Error;
use std::io::ErrorKind;

/// Packages that depend on the newest kernel of a flavour, best first. Debian has only the first
/// one; Ubuntu has no cloud flavour of that name, and its virtual flavour is the nearest.
const fn kernel_packages(arch: Arch) -> [&'static str; 3] {
    let own = arch.pick("linux-image-cloud-amd64", "linux-image-cloud-arm64");
    [own, "linux-image-virtual", "linux-image-generic"]
}
/// Debian's keys, in the package debian-archive-keyring, and its mirror.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const MIRROR: &str = "http://deb.debian.org";
const BUSYBOX_PACKAGE: &str = "busybox-static";
/// The kernel's modules that make it a hypervisor, in the order of loading.
pub(crate) const KVM_MODULES: [&str; 3] = ["irqbypass.ko", "kvm.ko", "kvm-amd.ko"];
/// The last of them on Intel's processors.
pub(crate) const KVM_ON_INTEL: &str = "kvm-intel.ko";

/// Files of the cache with a package and its version, or with several.
const VERSION: &str = "version";
const VERSIONS: &str = "versions.json";

/// The distribution does not have what was asked for. A test that needs it is left out.
#[derive(Debug)]
pub(crate) struct Unavailable(pub(crate) String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Unavailable {}

#[derive(Clone, Debug)]
pub(crate) struct GuestFiles {
    /// The kernel: a bzImage, or an arm64 `Image`.
    pub(crate) kernel: PathBuf,
    pub(crate) busybox: PathBuf,
    /// Directory with those of [`KVM_MODULES`] that the kernel's package contains.
    pub(crate) modules: PathBuf,
    pub(crate) versions: Versions,
}

/// Packages with their versions, `name version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Versions {
    pub(crate) kernel: String,
    pub(crate) busybox: String,
}

/// `$XDG_CACHE_HOME/quell`, `~/.cache/quell`, or one under cargo's target directory.
pub(crate) fn directory() -> PathBuf {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map_or_else(|| crate::workspace::target_dir("cache"), |base| base.join("quell"))
}

/// Held while files are looked up, and fetched if they are missing.
static FETCHING: Mutex<()> = Mutex::new(());

/// The guest's files; fetches missing packages. With `refresh` fetches them again.
pub(crate) fn guest_files(arch: Arch, refresh: bool) -> Result<GuestFiles> {
    let name = arch.pick("guest-amd64", "guest-aarch64");
    let place = kept(name, &["vmlinuz", "busybox", "modules", VERSIONS], refresh, |new| {
        let versions = fetch(arch, new).context(
            "cannot fetch the guest's kernel and busybox as packages; this needs apt and, once, network access",
        )?;
        Ok(fs::write(new.kept.join(VERSIONS), serde_json::to_string_pretty(&versions)?)?)
    })?;
    let [kernel, busybox, modules] = ["vmlinuz", "busybox", "modules"].map(|name| place.join(name));
    let versions = serde_json::from_slice(&fs::read(place.join(VERSIONS))?);
    let versions = versions.with_context(|| format!("{VERSIONS} in {} is damaged", place.display()))?;
    Ok(GuestFiles { kernel, busybox, modules, versions })
}

impl GuestFiles {
    pub(crate) fn module(&self, name: &str) -> Result<PathBuf> {
        let path = self.modules.join(name);
        ensure!(path.is_file(), "the kernel's package ({}) has no {name}", self.versions.kernel);
        Ok(path)
    }
}

/// A kernel other than the stock guest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherKernel {
    pub(crate) kernel: PathBuf,
    /// Its modules that were asked for, in the order of loading.
    pub(crate) modules: Vec<PathBuf>,
    /// Its package and version.
    pub(crate) version: String,
}

/// The kernel that the cache has under a name, with these modules. Otherwise `fetch` fetches it,
/// and returns its package and version.
fn kept_kernel(
    name: &str,
    modules: &[&str],
    fetch: impl FnOnce(&New) -> Result<String>,
) -> Result<OtherKernel> {
    let modules: Vec<_> = modules.iter().map(|module| format!("modules/{module}")).collect();
    let needed: Vec<_> = ["vmlinuz", VERSION].into_iter().chain(modules.iter().map(String::as_str)).collect();
    let place = kept(name, &needed, false, |new| Ok(fs::write(new.kept.join(VERSION), fetch(new)?)?))?;
    Ok(OtherKernel {
        kernel: place.join("vmlinuz"),
        modules: modules.iter().map(|module| place.join(module)).collect(),
        version: fs::read_to_string(place.join(VERSION))?,
    })
}

struct New {
    cache: PathBuf,
    /// For what is not kept.
    work: TempDir,
    /// What becomes the cache's.
    kept: PathBuf,
}

/// The place of what the cache has under a name: a directory that has all that is `needed`.
/// Otherwise, or to `refresh` it, `fetch` makes it anew.
fn kept(
    name: &str,
    needed: &[&str],
    refresh: bool,
    fetch: impl FnOnce(&New) -> Result<()>,
) -> Result<PathBuf> {
    let _one_at_a_time = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let cache = directory();
    let place = cache.join(name);
    if !refresh && is_whole(&place, needed) {
        return Ok(place);
    }
    fs::create_dir_all(&cache)
        .with_context(|| format!("cannot make the cache directory {}", cache.display()))?;
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(&cache).context("cannot fetch")?;
    let new = New { kept: work.path().join("kept"), cache, work };
    fs::create_dir(&new.kept)?;
    fetch(&new)?;
    ensure!(is_whole(&new.kept, needed), "the packages for {name} lack some of {}", needed.join(", "));
    replace(&new.kept, &place)?;
    Ok(place)
}

fn is_whole(place: &Path, needed: &[&str]) -> bool {
    place.is_dir() && needed.iter().all(|name| place.join(name).exists())
}

/// Replaces `old` by `new`. A concurrent run may have done the same; either result is good.
fn replace(new: &Path, old: &Path) -> Result<()> {
    match fs::remove_dir_all(old) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", old.display()));
        }
        _ => {}
    }
    if let Err(error) = fs::rename(new, old) {
        // The loser of a race removes its files; the winner's directory stays.
        fs::remove_dir_all(new).ok();
        ensure!(old.is_dir(), "cannot rename {} to {}: {error}", new.display(), old.display());
    }
    Ok(())
}

fn fetch(arch: Arch, new: &New) -> Result<Versions> {
    if arch == Arch::Aarch64 {
        // The system's lists are for its own architecture.
        let foreign = Apt::foreign("arm64", &new.cache.join("apt-arm64"))?;
        foreign.run("apt-get", &["update"], new.work.path()).context(
            "apt-get update failed for arm64; Ubuntu has that at ports.ubuntu.com, which apt's sources have to name",
        )?;
        return fetch_with(&foreign, arch, new);
    }
    with_lists(new, |apt| fetch_with(apt, arch, new))
}

/// Fetches with the system's package lists. A fresh machine has none, or old ones that name
/// versions which the servers no longer have: then with private lists, which need no privileges.
fn with_lists<T>(new: &New, fetch: impl Fn(&Apt) -> Result<T>) -> Result<T> {
    fetch(&Apt::system()).or_else(|error| {
        eprintln!("quell: {error:#}");
        eprintln!("quell: trying again with package lists of our own");
        let private = Apt::private(&new.cache.join("apt"))?;
        private.run("apt-get", &["update"], new.work.path()).context("apt-get update failed")?;
        fetch(&private)
    })
}

fn fetch_with(apt: &Apt, arch: Arch, new: &New) -> Result<Versions> {
    let flavours = kernel_packages(arch);
    let image = flavours.iter().find_map(|name| Some((*name, apt.kernel_behind(name, new.work.path())?)));
    let (flavour, image) = image.with_context(|| format!("apt knows none of {}", flavours.join(", ")))?;
    eprintln!("quell: fetching {image} and {BUSYBOX_PACKAGE}");
    if flavour != flavours[0] {
        eprintln!("quell: this distribution has no {}; using {flavour}", flavours[0]);
    }
    let kernel = apt.kernel(&image, &[&KVM_MODULES[..], &[KVM_ON_INTEL]].concat(), new)?;
    let busybox = apt.unpacked(BUSYBOX_PACKAGE, new)?;
    let places = ["bin/busybox", "usr/bin/busybox"];
    let binary = places.iter().map(|place| busybox.root.join(place)).find(|path| path.is_file());
    fs::rename(binary.context("the package has no busybox in it")?, new.kept.join("busybox"))?;
    Ok(Versions { kernel, busybox: format!("{BUSYBOX_PACKAGE} {}", busybox.version) })
}

/// The first entry of a directory whose name begins like this.
pub(crate) fn find(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("no {}", directory.display()))?;
    let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.sort();
    let starts = |path: &&PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix));
    names.iter().find(starts).cloned().with_context(|| format!("no {prefix}* in {}", directory.display()))
}

/// Moves these modules from the package's tree. Some distributions have them in another package.
fn keep_modules(tree: &Path, names: &[&str], directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    let mut left = vec![tree.join("lib/modules"), tree.join("usr/lib/modules")];
    while let Some(place) = left.pop() {
        // Without modules there is no such directory.
        for entry in fs::read_dir(place).into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            } else if names.iter().any(|module| name == *module) {
                fs::rename(entry.path(), directory.join(name))?;
            }
        }
    }
    Ok(())
}

struct Unpacked {
    root: PathBuf,
    version: String,
}

fn version(archive: &Path) -> Result<String> {
    let version = Command::new("dpkg-deb").arg("-f").arg(archive).arg("Version").output()?;
    Ok(String::from_utf8_lossy(&version.stdout).trim().to_owned())
}

fn unpack_to(archive: &Path, root: &Path) -> Result<()> {
    let status = Command::new("dpkg-deb").arg("-x").arg(archive).arg(root).status();
    let status = status.context("cannot start dpkg-deb")?;
    ensure!(status.success(), "dpkg-deb cannot unpack {}", archive.display());
    Ok(())
}

/// How to call apt: with the system's package lists or with private ones.
struct Apt {
    options: Vec<OsString>,
    directory: PathBuf,
}

impl Apt {
    fn system() -> Self {
        Self { options: Vec::new(), directory: PathBuf::new() }
    }

    /// Private lists and caches under `directory`; sources and keys are the system's.
    fn private(directory: &Path) -> Result<Self> {
        let mut apt = Self { options: Vec::new(), directory: directory.to_owned() };
        for (name, part) in [("Dir::State::Lists", "lists"), ("Dir::Cache", "cache")] {
            let path = directory.join(part);
            fs::create_dir_all(path.join("partial"))?;
            fs::create_dir_all(path.join("archives/partial"))?;
            apt.set(name, path);
        }
        Ok(apt)
    }

    fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        let option = [OsStr::new(name), "=".as_ref(), value.as_ref()];
        self.options.extend(["-o".into(), option.into_iter().collect()]);
    }

    /// The same with other sources; keys are the system's.
    fn with_sources(mut self, sources: &str) -> Result<Self> {
        let list = self.directory.join("sources.list");
        fs::write(&list, sources)?;
        self.set("Dir::Etc::SourceList", list);
        self.set("Dir::Etc::SourceParts", "/dev/null");
        Ok(self)
    }

    /// The same for another architecture, without this system's dpkg and its lists.
    fn foreign(architecture: &str, directory: &Path) -> Result<Self> {
        let mut apt = Self::private(directory)?;
        let status = directory.join("status");
        fs::write(&status, "")?;
        apt.set("Dir::State::status", status);
        apt.set("APT::Architecture", architecture);
        apt.set("APT::Architectures", architecture);
        Ok(apt)
    }

    fn command(&self, program: &str, args: &[&str], directory: &Path) -> Command {
        let mut command = Command::new(program);
        // Not dropped to apt's own user, which may not write into our cache.
        command.args(["-q", "-o", "APT::Sandbox::User=root"]).args(&self.options).args(args);
        command.current_dir(directory).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, args: &[&str], directory: &Path) -> Result<String> {
        let output = self
            .command(program, args, directory)
            .output()
            .with_context(|| format!("cannot start {program}; the guest is made from Debian packages"))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!("{program} {}: {}", args.join(" "), message.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn kernel_behind(&self, flavour: &str, directory: &Path) -> Option<String> {
        kernel_dependency(&self.run("apt-cache", &["depends", flavour], directory).ok()?)
    }

    fn unpacked(&self, package: &str, new: &New) -> Result<Unpacked> {
        let work = new.work.path();
        self.run("apt-get", &["download", package], work)?;
        let archive = find(work, &format!("{package}_"))?;
        let root = work.join(format!("{package}.unpacked"));
        unpack_to(&archive, &root)?;
        Ok(Unpacked { root, version: version(&archive)? })
    }

    /// Keeps the kernel of a package as `vmlinuz`, and `modules`; returns package and version.
    fn kernel(&self, image: &str, modules: &[&str], new: &New) -> Result<String> {
        let unpacked = self.unpacked(image, new)?;
        fs::rename(find(&unpacked.root.join("boot"), "vmlinuz-")?, new.kept.join("vmlinuz"))?;
        keep_modules(&unpacked.root, modules, &new.kept.join("modules"))?;
        Ok(format!("{image} {}", unpacked.version))
    }
}

fn kernel_dependency(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-") && name.contains(|c: char| c.is_ascii_digit()))
        .map(str::to_owned)
}
