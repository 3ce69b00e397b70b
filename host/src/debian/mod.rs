//! `quell image-debian`: a disk with Debian, and the kernel that the guests have.
//!
//! One way for both architectures. Apt resolves and fetches the packages; `tree` has dpkg unpack
//! them without root's rights and makes a filesystem; `boot` starts that once under QEMU, where the
//! packages configure themselves. No program of the other architecture runs on this system.

use crate::cli::ImageDebianArgs;
use crate::guest::cache;
use crate::prelude::*;
use crate::steps::Steps;
use crate::text::hex;
use sha2::{Digest, Sha256};
use std::os::unix::fs::MetadataExt;
use tree::Tree;

pub(crate) mod boot;
pub(crate) mod layout;
mod tree;

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct DiskMade<'a> {
    path: &'a Path,
    bytes: u64,
    /// What the file takes of this system's disk.
    bytes_used: u64,
    /// Package and version.
    kernel: &'a str,
    /// Whether it was made now; otherwise it was current.
    made: bool,
    seconds: f64,
}

pub(crate) fn image(args: &ImageDebianArgs, signals: &Signals) -> Result<u8> {
    let started = Instant::now();
    let path = args.output.clone().unwrap_or_else(|| usual(args.arch));
    let disk = Disk::of(args, &path)?;
    let made = args.force || !disk.stamp.is_of(&path)?;
    if made {
        let steps = Steps::new(4, args.json);
        let result = disk.make(&steps, signals);
        steps.finish();
        if let (Err(error), Some(signal)) = (&result, signals.caught()) {
            eprintln!("quell: {error:#}");
            return Ok(u8::try_from(128 + signal).unwrap_or(1));
        }
        result?;
    }
    let metadata = fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (bytes, bytes_used) = (metadata.len(), metadata.blocks() * 512);
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        let made = DiskMade { path: &path, bytes, bytes_used, kernel: &disk.stamp.kernel, made, seconds };
        println!("{}", serde_json::to_string_pretty(&made)?);
    } else {
        let state = if made { format!("made in {seconds:.0} s") } else { "current".to_owned() };
        println!("{}", path.display());
        let [bytes, used] = [bytes, bytes_used].map(size::display);
        println!("{bytes}, {used} used; {}; {state}", disk.stamp.kernel);
    }
    Ok(0)
}

fn usual(arch: Arch) -> PathBuf {
    workspace::target_dir(&format!("debian-{}.img", arch.debian()))
}

/// The disk in the usual place, as it is; it is made if there is none.
pub(crate) fn usual_disk(arch: Arch) -> Result<PathBuf> {
    let path = usual(arch);
    if !path.is_file() {
        disk_for_tests(arch, &path)?;
    }
    Ok(path)
}

/// A copy of a disk that is kept for tests, which is made if there is none, or not a current one.
pub(crate) fn copy_for_tests(arch: Arch, path: &Path) -> Result<()> {
    let kept = workspace::target_dir(&format!("debian-{}-tests.img", arch.debian()));
    if !matches!(Disk::of(&args_for_tests(arch), &kept)?.stamp.is_of(&kept), Ok(true)) {
        disk_for_tests(arch, &kept)?;
    }
    // With its holes, which a copy by the standard library may fill.
    let copied = Command::new("cp").arg("--sparse=always").args([&kept, path]).status();
    ensure!(copied.context("cannot start cp")?.success(), "cannot copy {}", kept.display());
    Ok(())
}

fn args_for_tests(arch: Arch) -> ImageDebianArgs {
    let (size, password) = (2 * GIB, String::new());
    ImageDebianArgs { arch, output: None, size, password, force: true, json: true }
}

pub(crate) fn disk_for_tests(arch: Arch, path: &Path) -> Result<()> {
    Disk::of(&args_for_tests(arch), path)?.make(&Steps::new(4, true), &Signals::default())
}

struct Disk<'a> {
    args: &'a ImageDebianArgs,
    path: &'a Path,
    kernel: PathBuf,
    stamp: Stamp,
}

impl<'a> Disk<'a> {
    fn of(args: &'a ImageDebianArgs, path: &'a Path) -> Result<Self> {
        let cache::GuestFiles { kernel, versions, .. } = cache::guest_files(args.arch, false)?;
        let stamp = Stamp::new(args.arch, args.size, &versions.kernel, &args.password);
        Ok(Self { args, path, kernel, stamp })
    }

    /// Makes the disk, beside its place; it is moved there when it is complete.
    fn make(&self, steps: &Steps, signals: &Signals) -> Result<()> {
        let arch = self.args.arch;
        let place = directory_of(self.path)?;
        let work = tempfile::Builder::new().prefix(".debian-").tempdir_in(&place);
        let work = work.with_context(|| format!("cannot write into {}", place.display()))?;
        let kernel = self.stamp.kernel.split_once(' ').context("the kernel has no version")?;

        steps.begin(&format!("fetching Debian's packages for {}", arch.debian()));
        let kernel = format!("{}={}", kernel.0, kernel.1);
        let packages: Vec<_> = std::iter::once(&*kernel).chain(tree::PACKAGES.split(' ')).collect();
        let packages = cache::debian_packages(arch, &packages)?;

        steps.begin("unpacking packages");
        let tree = Tree::unpack(&packages, work.path(), steps)?;
        tree.write_settings(&packages.sources, &self.args.password)?;

        steps.begin("making the filesystem");
        let file = work.path().join("disk.img");
        tree.make_disk(arch, &file, self.args.size)?;

        steps.begin("first boot, in which the packages configure themselves");
        boot::first(arch, &self.kernel, &file, packages.archives.len(), steps, signals)?;
        self.stamp.publish(&file, self.path)
    }
}

fn directory_of(path: &Path) -> Result<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new(".")).to_owned();
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    // Absolute: programs are started elsewhere.
    directory.canonicalize().with_context(|| format!("cannot use {}", directory.display()))
}

/// What a disk was made of, in a file beside it. A disk is current if it would be made of the same
/// today. It is somebody's disk from then on, so it is never replaced without being told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    architecture: String,
    bytes: u64,
    /// Package and version of the kernel.
    pub(super) kernel: String,
    /// A checksum of everything else that this tool decides.
    recipe: String,
}

impl Stamp {
    /// Of a disk that is made now.
    pub(super) fn new(arch: Arch, bytes: u64, kernel: &str, password: &str) -> Self {
        let mut digest = Sha256::new();
        let parts = tree::SETTINGS.iter().flat_map(|(path, text)| [*path, *text]);
        let parts = parts.chain(tree::PACKAGES.split(' ')).chain([
            tree::UNPACK,
            tree::CONFIGURE,
            layout::SCRIPT,
            password,
        ]);
        for part in parts {
            // With its length, so that no two lists of parts have the same bytes.
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let recipe = hex(&digest.finalize());
        Self { architecture: arch.debian().to_owned(), bytes, kernel: kernel.to_owned(), recipe }
    }

    /// How a disk that has `self` differs from one with `wanted`.
    fn difference(&self, wanted: &Self) -> Option<String> {
        if self.architecture != wanted.architecture {
            return Some(format!("is for {}, not for {}", self.architecture, wanted.architecture));
        }
        if self.kernel != wanted.kernel {
            return Some(format!("has {}, and the guests have {}", self.kernel, wanted.kernel));
        }
        if self.bytes != wanted.bytes {
            return Some(format!("has {} bytes, not {}", self.bytes, wanted.bytes));
        }
        let is_other = self.recipe != wanted.recipe;
        is_other.then(|| "was made with another password, or by another version of this tool".to_owned())
    }

    /// Whether the disk at a place has this stamp, if there is one. An error if it has not.
    pub(super) fn is_of(&self, disk: &Path) -> Result<bool> {
        if !disk.exists() {
            return Ok(false);
        }
        let text = fs::read_to_string(beside(disk)).ok();
        let found = text.and_then(|text| serde_json::from_str::<Self>(&text).ok());
        let problem = match found {
            None => Some("is not a disk that this command made".to_owned()),
            Some(found) => found.difference(self),
        };
        match problem {
            None => Ok(true),
            Some(problem) => bail!(
                "{} exists and {problem}; --force replaces it with all that is on it, and -o FILE makes another",
                disk.display()
            ),
        }
    }

    pub(super) fn publish(&self, disk: &Path, place: &Path) -> Result<()> {
        let stamp = beside(place);
        // An old stamp must not vouch for the new disk, should this be interrupted.
        if stamp.exists() {
            fs::remove_file(&stamp).with_context(|| format!("cannot remove {}", stamp.display()))?;
        }
        fs::rename(disk, place)
            .with_context(|| format!("cannot move the new disk to {}", place.display()))?;
        results::replace(&stamp, self)
    }
}

fn beside(disk: &Path) -> PathBuf {
    disk.with_added_extension("json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp::new(Arch::X86_64, 1 << 30, "linux-image-1 1.2", "")
    }

    #[test]
    fn a_disk_is_current_if_it_would_be_made_the_same_way() {
        let directory = tempfile::tempdir().expect("makes");
        let (new, disk) = (directory.path().join("new"), directory.path().join("disk.img"));
        assert!(!stamp().is_of(&disk).expect("none"));
        fs::write(&new, "disk").expect("writes");
        stamp().publish(&new, &disk).expect("moves");
        assert!(!new.exists() && directory.path().join("disk.img.json").is_file());
        assert!(stamp().is_of(&disk).expect("is good"));
    }

    #[test]
    fn a_disk_that_is_not_current_is_not_replaced() {
        let directory = tempfile::tempdir().expect("makes");
        let (new, disk) = (directory.path().join("new"), directory.path().join("disk.img"));
        fs::write(&disk, "somebody's").expect("writes");
        let refused = |wanted: &Stamp| wanted.is_of(&disk).expect_err("is refused").to_string();
        let text = refused(&stamp());
        assert!(text.contains("not a disk that this command made") && text.contains("--force"), "{text}");
        fs::write(&new, "disk").expect("writes");
        stamp().publish(&new, &disk).expect("moves");
        let kernel = "linux-image-1 1.2";
        for (wanted, reason) in [
            (Stamp::new(Arch::X86_64, 1 << 30, "linux-image-2 2", ""), "the guests have linux-image-2 2"),
            (Stamp::new(Arch::X86_64, 2 << 30, kernel, ""), "1073741824 bytes"),
            (Stamp::new(Arch::X86_64, 1 << 30, kernel, "secret"), "another password"),
            (Stamp::new(Arch::Aarch64, 1 << 30, kernel, ""), "for amd64, not for arm64"),
        ] {
            assert!(refused(&wanted).contains(reason), "{}", refused(&wanted));
        }
    }
}
