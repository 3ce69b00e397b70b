//! The source tree, and the images that are built from it.
//!
//! The images have other targets, so they are built by inner runs of cargo. Those use a separate
//! target directory: the outer cargo may hold the lock of the usual one.

use crate::cli::Program;
use crate::machine::emulator::PluginInterface;
use crate::machine::flat;
use crate::prelude::*;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::process;
use std::sync::{LazyLock, OnceLock};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Ground {
    Bare,
    Linux,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Image {
    package: &'static str,
    binary: &'static str,
    ground: Ground,
    features: &'static [&'static str],
    /// Distinguishes it from an image of the same binary with other features.
    variant: Option<&'static str>,
}

impl Image {
    /// A program for bare machines, in a package of the same name.
    const fn bare(name: &'static str) -> Self {
        Self { package: name, binary: name, ground: Ground::Bare, features: &[], variant: None }
    }

    const fn workload(binary: &'static str) -> Self {
        let package = "quell-workloads";
        Self { package, binary, ground: Ground::Linux, features: &[], variant: None }
    }
}

pub(crate) const HYPERVISOR: Image = Image { features: &["image"], ..Image::bare("quell-hypervisor") };

/// It can inject defects, and an auditor checks each entry into the guest.
pub(crate) const HYPERVISOR_FOR_TESTS: Image =
    Image { features: &["image", "defects", "audit"], variant: Some("tests"), ..HYPERVISOR };

/// It can inject defects, and no auditor sees them: a machine has to show them.
pub(crate) const HYPERVISOR_WITH_DEFECTS: Image =
    Image { features: &["image", "defects"], variant: Some("defects"), ..HYPERVISOR };

/// The hypervisor that notes what each CPU does.
pub(crate) const HYPERVISOR_WITH_TRACE: Image =
    Image { features: &["image", "trace"], variant: Some("trace"), ..HYPERVISOR };

pub(crate) const TLBCHECK: Image = Image::bare("quell-tlbcheck");
pub(crate) const PROBE: Image = Image::bare("quell-probe");
pub(crate) const HOSTILE: Image = Image::bare("quell-hostile");
pub(crate) const LOAD: Image = Image::bare("quell-load");
pub(crate) const BOOT: Image = Image::bare("quell-boot");

// Each workload says in its own file what it is for.
pub(crate) const THRASH: Image = Image::workload("thrash");
pub(crate) const STALE: Image = Image::workload("stale");
pub(crate) const MMTEST: Image = Image::workload("mmtest");
pub(crate) const LOOPS: Image = Image::workload("loops");
pub(crate) const MIXED: Image = Image::workload("mixed");
pub(crate) const BATTERY: Image = Image::workload("battery");
pub(crate) const OCCUPY: Image = Image::workload("occupy");
pub(crate) const KVMSLOTS: Image = Image::workload("kvmslots");
pub(crate) const PHASE: Image = Image::workload("phase");
pub(crate) const VIRIDIAN: Image = Image::workload("viridian");

impl Program {
    pub(crate) const fn image(self) -> Image {
        match self {
            Self::Hostile => HOSTILE,
            Self::Load => LOAD,
            Self::Probe => PROBE,
        }
    }
}

/// The source tree from which this tool was started. It may differ from the one it was built from:
/// a tree may be copied together with its build output.
pub(crate) fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        find_root(manifest, env::current_exe().ok()).unwrap_or_else(|| {
            eprintln!("quell: there is no source tree around this program: start it as ./quell, in the tree that is meant");
            process::exit(1);
        })
    })
}

/// The tree around the manifest directory that cargo passes on, or around the program.
fn find_root(manifest: Option<PathBuf>, program: Option<PathBuf>) -> Option<PathBuf> {
    let is_root = |path: &&Path| path.join("quell").is_file() && path.join("host/src/workspace.rs").is_file();
    let around = |path: &PathBuf| path.ancestors().find(is_root).map(Path::to_owned);
    manifest.as_ref().and_then(around).or_else(|| program.as_ref().and_then(around))
}

/// Directory under cargo's target directory for this tool's output.
pub(crate) fn target_dir(name: &str) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    root().join(target).join(name)
}

/// Cargo as the outer one, without its flags: they would replace those of `.cargo/config.toml`.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).stdin(Stdio::null());
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

/// What a command prints that has to succeed. If it fails, all that it prints is the error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {command:?}"))?;
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&all));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The program of a crate, `NAME@VERSION`: in this directory below the target directory, where it
/// is built if it is missing.
pub(crate) fn installed(of: &str, directory: &str, options: &[&str]) -> Result<PathBuf> {
    let directory = target_dir(directory);
    let program = directory.join("bin").join(of.split('@').next().unwrap_or(of));
    if !program.is_file() {
        eprintln!("quell: building {of}, which takes some minutes");
        let mut install = cargo();
        // Unoptimized: building takes longer than running.
        install.args(["install", "--locked", "--debug", "--quiet", of]).args(options);
        output(install.arg("--root").arg(&directory)).with_context(|| format!("{of} cannot be installed"))?;
    }
    Ok(program)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Usual,
    /// For distribution: without paths of this machine, and without debugging information.
    Release,
}

static FLAVOUR: OnceLock<Flavour> = OnceLock::new();

/// Sets how this process builds images; call it before the first build.
pub(crate) fn choose(flavour: Flavour) {
    let _ = FLAVOUR.set(flavour);
}

/// Makes rustc replace the paths of this machine. `target`'s flags in `.cargo/config.toml` stay.
fn leave_paths_out(command: &mut Command, target: &str) -> Result<()> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let sources = home.context("cargo has no home")?.join("registry/src");
    let mut flags = vec![format!("--remap-path-prefix={}=/quell", root().display())];
    // One for each registry ever used: its name may differ from machine to machine.
    for registry in fs::read_dir(&sources).into_iter().flatten() {
        flags.push(format!("--remap-path-prefix={}=/crates", registry?.path().display()));
    }
    let flags: Vec<String> = flags.iter().map(|flag| format!("{flag:?}")).collect();
    command.arg("--config").arg(format!("target.{target}.rustflags=[{}]", flags.join(",")));
    Ok(())
}

/// Each image is built once: changes during the tests must not lead to two versions of one image.
static BUILT: LazyLock<Mutex<HashMap<(Image, Arch), PathBuf>>> = LazyLock::new(Mutex::default);

/// Builds `image`, unless that has been done, one at a time; returns the path of its ELF file.
pub(crate) fn build(image: Image, arch: Arch) -> Result<PathBuf> {
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(&(image, arch)) {
        return Ok(path.clone());
    }
    let path = build_anew(image, arch)?;
    built.insert((image, arch), path.clone());
    Ok(path)
}

fn build_anew(image: Image, arch: Arch) -> Result<PathBuf> {
    let target = match image.ground {
        Ground::Bare => arch.bare_target(),
        Ground::Linux => arch.linux_target(),
    };
    let is_release = FLAVOUR.get_or_init(|| Flavour::Usual) == &Flavour::Release;
    let directory = target_dir(if is_release { "release-images" } else { "images" });
    let mut command = cargo();
    command.args(["build", "--release", "--package", image.package]);
    command.args(["--bin", image.binary, "--target", target]);
    command.arg("--target-dir").arg(&directory);
    if is_release {
        command.arg("--locked").env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
        leave_paths_out(&mut command, target)?;
    }
    if !image.features.is_empty() {
        command.arg("--features").arg(image.features.join(","));
    }
    finish(command, &format!("{} for {target}", image.binary))?;
    let built = directory.join(target).join("release").join(image.binary);
    keep(&built, image.variant.unwrap_or("usual"))
}

/// A copy that stays: building another variant replaces cargo's file, and what was read from it, as
/// addresses of symbols, would belong to another image than the one that is started.
fn keep(built: &Path, variant: &str) -> Result<PathBuf> {
    let kept = built.with_added_extension(variant);
    let fresh = built.with_added_extension(format!("{variant}.{}", std::process::id()));
    let copied = fs::copy(built, &fresh).and_then(|_| fs::rename(&fresh, &kept));
    copied.with_context(|| format!("cannot copy {} to {}", built.display(), kept.display()))?;
    Ok(kept)
}

/// Builds the plugin with which QEMU counts instructions, for an interface version.
pub(crate) fn build_plugin(interface: PluginInterface) -> Result<PathBuf> {
    let _one_at_a_time = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = target_dir("images");
    let mut command = cargo();
    command.args(["build", "--release", "--package", "quell-plugin", "--target-dir"]).arg(&directory);
    let variant = match interface {
        PluginInterface::One => "interface-1",
        PluginInterface::Three => {
            command.args(["--features", "interface-3"]);
            "interface-3"
        }
    };
    finish(command, "QEMU's plugin")?;
    keep(&directory.join("release/libquell_plugin.so"), variant)
}

fn finish(mut command: Command, what: &str) -> Result<()> {
    if !io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let status = command.status().context("cannot start cargo")?;
    ensure!(status.success(), "building {what} failed ({status})");
    Ok(())
}

/// What a machine starts by `-kernel`, and Quell as a guest's kernel: the ELF file itself, or on
/// Arm a flat boot image of it.
pub(crate) fn bootable(elf: PathBuf, arch: Arch) -> Result<PathBuf> {
    match arch {
        Arch::X86_64 => Ok(elf),
        Arch::Aarch64 => {
            let _one_at_a_time = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
            flat::write_boot_image(&elf)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_was_copied_is_its_own_root() {
        let trees = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let tree = trees.path().join(name);
            fs::create_dir_all(tree.join("host/src")).unwrap();
            fs::write(tree.join("quell"), "").unwrap();
            fs::write(tree.join("host/src/workspace.rs"), "").unwrap();
            tree
        };
        let (original, copy) = (make("original"), make("copy"));
        let program = |tree: &Path| Some(tree.join("target/debug/quell"));
        assert_eq!(find_root(Some(copy.join("host")), program(&original)), Some(copy.clone()));
        assert_eq!(find_root(None, program(&copy)), Some(copy.clone()));
        let foreign = Some(trees.path().join("foreign"));
        assert_eq!(find_root(foreign.clone(), program(&copy)), Some(copy));
        assert_eq!(find_root(foreign, None), None);
    }
}
