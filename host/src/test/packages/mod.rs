//! The published crates as users get them: packed, and used outside of the tree.

use crate::guest::cache::find;
use crate::test::prelude::*;
use crate::workspace::output;

/// The directories in `crates/` of the published crates, each after those that it needs.
pub(super) const PUBLISHED: [&str; 5] = ["tlfs", "coherence", "paging", "memslots", "pvflush"];

/// Files that a package needs besides its sources; the licences are those of the tree.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
const OTHERS: [&str; 2] = ["README.md", "CHANGELOG.md"];

/// The target that the packages are built for. It has no standard library.
const TARGET: &str = "x86_64-unknown-none";

/// The tool that compares a crate's API with its former version, and the tool's version.
const COMPARER: &str = "cargo-semver-checks@0.51.0";

pub(super) const ACTS: &[Named] = &[
    ("packages_work_outside_the_tree", work_outside),
    ("packages_build_with_the_rust_they_name", build_with_the_rust_they_name),
    ("packages_break_nobody_without_a_new_version", break_nobody),
];

struct Package {
    name: String,
    directory: PathBuf,
}

/// The packages, unpacked outside of the tree, where they are no members of the workspace.
struct Outside {
    directory: tempfile::TempDir,
    packages: Vec<Package>,
}

impl Outside {
    fn pack() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let packed = directory.path().join("packed");
        let names: Vec<String> = PUBLISHED.iter().map(|name| format!("quell-{name}")).collect();
        finish_cargo(|| {
            let mut pack = workspace::cargo();
            pack.args(["package", "--allow-dirty", "--no-verify", "--locked", "--target-dir"]).arg(&packed);
            pack.args(names.iter().flat_map(|name| ["--package", name]));
            pack
        })?;
        let mut packages = Vec::new();
        for name in names {
            let archive = find(&packed.join("package"), &format!("{name}-"))?;
            let mut unpack = Command::new("tar");
            // With new times: those in the archive are the same in each.
            unpack.args(["--extract", "--gzip", "--touch", "--file"]).arg(&archive);
            unpack.arg("--directory").arg(directory.path());
            output(&mut unpack)?;
            let stem = archive.file_stem().context("an archive without a name")?;
            packages.push(Package { directory: directory.path().join(stem), name });
        }
        Ok(Self { directory, packages })
    }

    /// Arguments that make cargo use the packages instead of a registry.
    fn patches(&self, needed: impl Fn(&Package) -> bool) -> Vec<String> {
        let needed = self.packages.iter().filter(|package| needed(package));
        needed
            .flat_map(|Package { name, directory }| {
                let path = directory.display();
                ["--config".to_owned(), format!("patch.crates-io.{name}.path='{path}'")]
            })
            .collect()
    }

    fn run_in(&self, package: &Package, arguments: &[&str], toolchain: Option<&str>) -> Result<()> {
        let (built, patches) = (self.built(), self.patches(|other| other.name != package.name));
        let arguments = || arguments.iter().copied().chain(patches.iter().map(String::as_str));
        finish_cargo(|| cargo(&package.directory, toolchain, &built, arguments()))
            .with_context(|| format!("{} does not build alone from its package", package.name))
    }

    fn built(&self) -> PathBuf {
        self.directory.path().join("built")
    }

    /// A program's package next to the others, with the examples of all READMEs as tests.
    fn write_program(&self) -> Result<PathBuf> {
        let directory = self.directory.path().join("program");
        let mut manifest = "[package]\nname = \"program\"\nedition = \"2024\"\n\n[dependencies]\n".to_owned();
        let mut library = String::new();
        for (index, package) in self.packages.iter().enumerate() {
            let version = package.directory.to_string_lossy();
            let (_, version) = version.rsplit_once('-').context("a package without a version")?;
            manifest += &format!("{} = \"{version}\"\n", package.name);
            let readme = package.directory.join("README.md");
            library += &format!("#[doc = include_str!({readme:?})]\npub struct Readme{index};\n");
        }
        fs::create_dir_all(directory.join("src"))?;
        fs::write(directory.join("Cargo.toml"), manifest)?;
        fs::write(directory.join("src/lib.rs"), library)?;
        fs::write(directory.join("src/main.rs"), include_str!("program.rs"))?;
        // The same versions of all other dependencies as in the tree.
        fs::copy(workspace::root().join("Cargo.lock"), directory.join("Cargo.lock"))?;
        Ok(directory)
    }
}

/// Cargo for packages outside of the tree.
fn cargo<'a>(
    at: &Path,
    toolchain: Option<&str>,
    built: &Path,
    args: impl Iterator<Item = &'a str>,
) -> Command {
    let mut command = match toolchain {
        None => workspace::cargo(),
        Some(version) => {
            let mut command = Command::new("rustup");
            command.args(["run", version, "cargo"]).stdin(Stdio::null());
            command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
            command
        }
    };
    command.args(args).current_dir(at);
    command.env("CARGO_TARGET_DIR", built).env("CARGO_PROFILE_DEV_DEBUG", "false");
    command
}

/// Runs cargo. Uses the registry only if something is missing locally.
fn finish_cargo(command: impl Fn() -> Command) -> Result<()> {
    let mut offline = command();
    offline.env("CARGO_NET_OFFLINE", "true");
    output(&mut offline).or_else(|_| output(&mut command())).map(drop)
}

fn work_outside(_: &Room<'_>) -> Result<()> {
    let outside = Outside::pack()?;
    for package in &outside.packages {
        for licence in LICENCES {
            let packed = fs::read(package.directory.join(licence));
            let packed = packed.with_context(|| format!("{} is packed without {licence}", package.name))?;
            let is_same = packed == fs::read(workspace::root().join(licence))?;
            ensure!(is_same, "{licence} in {} differs", package.name);
        }
        for other in OTHERS {
            ensure!(package.directory.join(other).is_file(), "{} is packed without {other}", package.name);
        }
        // Without optional features, and with all of them.
        let manifest = fs::read_to_string(package.directory.join("Cargo.toml"))?;
        let all = manifest.contains("\n[features]\n").then_some("--all-features");
        for features in ["--no-default-features"].into_iter().chain(all) {
            outside.run_in(package, &["build", "--lib", "--target", TARGET, features], None)?;
        }
    }
    let (directory, patches) = (outside.write_program()?, outside.patches(|_| true));
    for arguments in [&["run"][..], &["test", "--doc"]] {
        let arguments = || arguments.iter().copied().chain(patches.iter().map(String::as_str));
        finish_cargo(|| cargo(&directory, None, &outside.built(), arguments()))
            .context("a program outside of the tree cannot use the packages")?;
    }
    Ok(())
}

fn build_with_the_rust_they_name(_: &Room<'_>) -> Result<()> {
    let outside = Outside::pack()?;
    for package in &outside.packages {
        let manifest = fs::read_to_string(package.directory.join("Cargo.toml"))?;
        let version =
            manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
        let version = version.with_context(|| format!("{} names no version of Rust", package.name))?;
        let mut install = Command::new("rustup");
        install.args(["toolchain", "install", version, "--profile", "minimal", "--no-self-update"]);
        output(&mut install)?;
        outside.run_in(package, &["check", "--lib", "--all-features"], Some(version))?;
    }
    Ok(())
}

/// The commit that gave a crate its current version: later changes must be compatible with it.
fn baseline(manifest: &str) -> Result<Option<String>> {
    let mut log = Command::new("git");
    log.args(["log", "-1", "--format=%H", "-G^version = ", "--", manifest]).current_dir(workspace::root());
    let output = log.output().context("cannot start git")?;
    let commit = String::from_utf8(output.stdout)?.trim().to_owned();
    // Without history there is nothing to compare with.
    Ok((output.status.success() && !commit.is_empty()).then_some(commit))
}

fn break_nobody(_: &Room<'_>) -> Result<()> {
    let directory = workspace::target_dir("semver-checks");
    let tool = workspace::installed(COMPARER, "semver-checks", &[])?;
    for name in PUBLISHED {
        let Some(commit) = baseline(&format!("crates/{name}/Cargo.toml"))? else {
            bail!("there is no history to compare with")
        };
        let mut compare = Command::new(&tool);
        compare.args(["semver-checks", "--package", &format!("quell-{name}"), "--baseline-rev", &commit]);
        compare.current_dir(workspace::root());
        compare.env("CARGO_TARGET_DIR", directory.join("built"));
        compare.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        output(&mut compare)?;
    }
    Ok(())
}
