//! `quell release`: the files of a release, made so that the same sources give the same bits.
//!
//! Possible differences between builds, and how each is avoided:
//!
//! | source | how it is avoided |
//! |---|---|
//! | paths of the tree and of cargo's sources, in messages of panics | rustc replaces them |
//! | debugging information | omitted; symbols stay, for backtraces |
//! | versions of dependencies and of the compiler | `Cargo.lock`, `rust-toolchain.toml` |
//! | times and identities in the CD | its tools are told what time it is: that of the last commit, or what `SOURCE_DATE_EPOCH` says |
//! | Debian's kernel and busybox in the CD | not fixed: their versions are in the bill of materials |

use crate::cli::{self, ImageArgs, ReleaseArgs};
use crate::guest::cache;
use crate::prelude::*;
use crate::steps::Steps;
use crate::text::hex;
use crate::workspace::Flavour;
use crate::{image, table};
use sha2::{Digest, Sha256};
use std::fmt::Write;

mod inventory;

/// The list of checksums, as `sha256sum --check` takes it.
const CHECKSUMS: &str = "SHA256SUMS";
const LICENCES: &str = "LICENCES.md";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct File {
    name: String,
    bytes: u64,
    sha256: String,
}

#[derive(Serialize)]
struct Release<'a> {
    version: &'static str,
    source_date_epoch: u64,
    files: &'a [File],
    /// Whether a second build gave the same bits; null if there was none.
    reproducible: Option<bool>,
    differ: &'a [String],
}

pub(crate) fn release(args: &ReleaseArgs, signals: &Signals) -> Result<u8> {
    workspace::choose(Flavour::Release);
    let epoch = epoch()?;
    let steps = Steps::new(if args.check { 6 } else { 5 }, args.json);
    let files = make(&args.output, epoch, &steps)?;
    let differ = if args.check {
        steps.begin("all of it once more, in a copy of the tree");
        Some(differing(&args.output, &files, epoch, signals)?)
    } else {
        None
    };
    steps.finish();
    report(args, epoch, &files, differ.as_deref())
}

fn report(args: &ReleaseArgs, epoch: u64, files: &[File], differ: Option<&[String]>) -> Result<u8> {
    let found = differ.unwrap_or_default();
    if args.json {
        let release = Release {
            version: env!("CARGO_PKG_VERSION"),
            source_date_epoch: epoch,
            files,
            reproducible: differ.map(<[_]>::is_empty),
            differ: found,
        };
        println!("{}", serde_json::to_string_pretty(&release)?);
    } else {
        let rows = files.iter().map(|file| [file.name.clone(), file.bytes.to_string(), file.sha256.clone()]);
        println!("{}\nin {}", table::table(["file", "bytes", "SHA-256"], rows), args.output.display());
        match differ {
            Some([]) => println!("built twice, in two places: the same bits"),
            Some(_) => eprintln!("quell: built twice, these are not the same: {}", found.join(", ")),
            None => {}
        }
    }
    Ok(u8::from(!found.is_empty()))
}

/// The time of the release, in seconds since 1970.
fn epoch() -> Result<u64> {
    const NAME: &str = "SOURCE_DATE_EPOCH";
    if let Some(value) = env::var_os(NAME) {
        let value = value.to_string_lossy();
        return value
            .parse()
            .with_context(|| format!("{NAME} is {value}, and has to be a number of seconds"));
    }
    let mut log = Command::new("git");
    log.args(["log", "-1", "--format=%ct"]).current_dir(workspace::root());
    let time = workspace::output(&mut log).ok().and_then(|time| time.trim().parse().ok());
    time.with_context(|| format!("the sources are in no repository that says of when they are: set {NAME}"))
}

fn make(directory: &Path, epoch: u64, steps: &Steps) -> Result<Vec<File>> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let version = env!("CARGO_PKG_VERSION");
    let named = |name: String| directory.join(name);
    let disc = named(format!("quell-{version}-x86_64.iso"));
    let elf = named(format!("tlbcheck-{version}-x86_64.elf"));
    let bzimage = named(format!("tlbcheck-{version}-x86_64.bzimage"));
    let boot = named(format!("tlbcheck-{version}-aarch64.img"));
    let bill = named(format!("quell-{version}.cdx.json"));
    let licences = named(LICENCES.to_owned());
    let files = [&disc, &elf, &bzimage, &boot, &bill, &licences];
    refuse_others(directory, &files)?;

    steps.begin("licences of what is built in");
    let mut inventory = inventory::of_programs()?;

    steps.begin("tlbcheck for x86_64");
    let tlbcheck = workspace::build(workspace::TLBCHECK, Arch::X86_64)?;
    copy(&tlbcheck, &elf)?;
    image::write_bzimage(&tlbcheck, &bzimage)?;

    steps.begin("tlbcheck for aarch64");
    let arm = workspace::build(workspace::TLBCHECK, Arch::Aarch64)?;
    copy(&workspace::bootable(arm, Arch::Aarch64)?, &boot)?;

    steps.begin("the hypervisor, its guest, and the CD");
    make_disc(&disc, epoch)?;
    inventory.add_packages(&cache::guest_files(Arch::X86_64, false)?.versions)?;

    steps.begin("bill of materials and checksums");
    fs::write(&bill, inventory.bill(epoch)?).with_context(|| format!("cannot write {}", bill.display()))?;
    fs::write(&licences, inventory.licences())
        .with_context(|| format!("cannot write {}", licences.display()))?;
    let made = files.iter().map(|path| File::of(path)).collect::<Result<Vec<_>>>()?;
    let sums = made.iter().fold(String::new(), |mut text, file| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}  {}", file.sha256, file.name);
        text
    });
    fs::write(directory.join(CHECKSUMS), sums).context("cannot write the checksums")?;
    Ok(made)
}

/// Refuses a directory with other contents, which would be taken for the release.
fn refuse_others(directory: &Path, files: &[&PathBuf]) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        if path.file_name().is_none_or(|name| name != CHECKSUMS) && !files.contains(&&path) {
            bail!("{} is no file of a release: choose an empty directory", path.display());
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// The CD of `quell image`, with this time.
fn make_disc(path: &Path, epoch: u64) -> Result<()> {
    image::make(&ImageArgs { output: path.to_owned(), ..cli::arguments(&[])? }, Some(epoch))
}

impl File {
    fn of(path: &Path) -> Result<Self> {
        let contents = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_name().context("a file without a name")?.to_string_lossy().into_owned();
        ensure!(!contents.is_empty(), "{name} is empty");
        Ok(Self { name, bytes: contents.len() as u64, sha256: hex(&Sha256::digest(&contents)) })
    }
}

/// Directories of the tree that no build reads.
const LEFT_OUT: [&str; 2] = ["target", ".git"];
const LOOK: Duration = Duration::from_millis(200);

fn differing(first: &Path, files: &[File], epoch: u64, signals: &Signals) -> Result<Vec<String>> {
    let place = tempfile::Builder::new().prefix("quell-again-").tempdir()?;
    let (tree, second) = (place.path().join("another tree"), place.path().join("release"));
    copy_tree(workspace::root(), &tree, first)?;
    let mut command = Command::new(env::current_exe().context("this program has no path")?);
    command.args(["release", "--output"]).arg(&second);
    command.env("CARGO_MANIFEST_DIR", tree.join("host")).env("CARGO_TARGET_DIR", tree.join("target"));
    command.env("SOURCE_DATE_EPOCH", epoch.to_string());
    // Its messages are written to standard error: the output may be JSON.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().context("cannot start the second build")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Some(signal) = signals.caught() {
            // The terminal has sent the signal to the child as well, or nothing has.
            let _ = child.kill();
            child.wait()?;
            bail!("the second build was ended by signal {signal}");
        }
        thread::sleep(LOOK);
    };
    ensure!(status.success(), "the second build failed ({status})");
    Ok(others(first, &second, files))
}

fn others(first: &Path, second: &Path, files: &[File]) -> Vec<String> {
    let is_other = |file: &&File| match [first, second].map(|at| fs::read(at.join(&file.name))) {
        [Ok(first), Ok(second)] => first != second,
        // What cannot be read is not known to be the same.
        _ => true,
    };
    files.iter().filter(is_other).map(|file| file.name.clone()).collect()
}

fn copy_tree(from: &Path, to: &Path, release: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let release = release.canonicalize().ok();
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_left_out = LEFT_OUT.iter().any(|left_out| name == *left_out);
        if is_left_out || path.canonicalize().ok() == release {
            continue;
        }
        let copy = to.join(&name);
        if entry.file_type()?.is_dir() {
            copy_tree(&path, &copy, release.as_deref().unwrap_or(Path::new("")))?;
        } else {
            fs::copy(&path, &copy).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("abc");
        fs::write(&path, "abc").unwrap();
        // FIPS 180-4's example.
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned();
        assert_eq!(File::of(&path).unwrap(), File { name: "abc".to_owned(), bytes: 3, sha256 });
        fs::write(&path, "").unwrap();
        assert!(File::of(&path).is_err(), "an empty file is none of a release");
    }

    #[test]
    fn a_directory_with_other_files_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (known, other) = (directory.path().join("known"), directory.path().join("other"));
        for path in [&known, &directory.path().join(CHECKSUMS)] {
            fs::write(path, "x").unwrap();
        }
        assert!(refuse_others(directory.path(), &[&known]).is_ok());
        fs::write(&other, "x").unwrap();
        let error = refuse_others(directory.path(), &[&known]).unwrap_err().to_string();
        assert!(error.contains("other is no file of a release"), "{error}");
    }

    #[test]
    fn files_that_are_not_the_same_are_named() {
        let place = tempfile::tempdir().unwrap();
        let (first, second) = (place.path().join("1"), place.path().join("2"));
        for (directory, files) in [(&first, "abc"), (&second, "ab")] {
            fs::create_dir(directory).unwrap();
            for name in files.chars() {
                fs::write(directory.join(name.to_string()), name.to_string()).unwrap();
            }
        }
        let files = ["a", "b", "c"].map(|name| File::of(&first.join(name)).unwrap());
        assert_eq!(others(&first, &second, &files), ["c"], "it is missing");
        fs::write(second.join("a"), "A").unwrap();
        assert_eq!(others(&first, &second, &files), ["a", "c"]);
        fs::remove_file(first.join("c")).unwrap();
        assert_eq!(others(&first, &second, &files), ["a", "c"], "it is in neither");
        let args = cli::arguments(&[]).unwrap();
        let status = |differ| report(&args, 0, &files, differ).unwrap();
        assert_eq!([None, Some(&[][..]), Some(&["a".to_owned()][..])].map(status), [0, 0, 1]);
    }

    #[test]
    fn a_copy_has_the_sources_alone() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        for file in ["src/main.rs", "target/built", ".git/config", "release/image", "Cargo.toml"] {
            let path = tree.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let copy = place.path().join("copy");
        copy_tree(&tree, &copy, &tree.join("release")).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&copy).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["Cargo.toml", "src"]);
        assert_eq!(fs::read_to_string(copy.join("src/main.rs")).unwrap(), "src/main.rs");
    }
}
