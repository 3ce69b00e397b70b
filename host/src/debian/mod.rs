//! `quell image-debian`: a disk with Debian, for the kernel that the guests have.
//!
//! One way for both architectures. Apt resolves and fetches the packages; `tree` has dpkg unpack
//! them without root's rights and makes a filesystem; `boot` starts that once under QEMU, where the
//! packages configure themselves. No program of the other architecture runs on this system.

pub(crate) mod boot;
mod stamp;
mod tree;

use crate::cli::ImageDebianArgs;
use crate::guest::cache;
use crate::prelude::*;
use crate::steps::Steps;
use stamp::Stamp;
use std::os::unix::fs::MetadataExt;
use tree::Tree;

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Made<'a> {
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
        let made = Made { path: &path, bytes, bytes_used, kernel: &disk.stamp.kernel, made, seconds };
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
        let (package, version) = self.stamp.kernel.split_once(' ').context("the kernel has no version")?;

        steps.begin(&format!("fetching Debian's packages for {}", arch.debian()));
        let kernel = format!("{package}={version}");
        let packages = cache::debian_packages(arch, &[&[&*kernel], &tree::PACKAGES[..]].concat())?;

        steps.begin("unpacking packages");
        let tree = Tree::unpack(&packages, work.path(), steps)?;
        tree.write_settings(&packages.sources, package, &self.args.password)?;

        steps.begin("making the filesystem");
        let file = work.path().join("disk.img");
        tree.make_disk(&file, self.args.size)?;

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
