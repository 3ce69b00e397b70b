//! The emulator: the system's QEMU, or another one.

use super::spec::{Channels, Console, Spec};
use super::{bochs, kvm};
use crate::guest::cache::{self, Unavailable};
use crate::migration::Listener;
use crate::prelude::*;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{IsTerminal, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The selection on the command line.
static WANTED: OnceLock<Wanted> = OnceLock::new();
/// The emulator that this process uses: found, and fetched if need be, when it is first used.
static CHOSEN: Mutex<Option<&'static Emulator>> = Mutex::new(None);
/// Its version for each architecture, once it was queried.
static VERSIONS: [OnceLock<Version>; 2] = [const { OnceLock::new() }; 2];

/// The version from which QEMU lacks the worst of the defects in `docs/qemu.md`.
const NEW: u32 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    System,
    /// QEMU 10 or later: the installed one, else that of the distribution's backports. Where these
    /// have none, it is the installed one all the same.
    Ten,
    In(PathBuf),
}

impl Wanted {
    /// The arguments that make another process of this tool use it.
    pub(crate) fn arguments(&self) -> [OsString; 2] {
        let which = match self {
            Self::System => "system".into(),
            Self::Ten => "10".into(),
            Self::In(directory) => directory.into(),
        };
        ["--qemu".into(), which]
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "system" => Ok(Self::System),
            "10" => Ok(Self::Ten),
            path if path.contains('/') => Ok(Self::In(path.into())),
            _ => Err(format!("'{text}' is neither 'system' nor '10' nor a directory, which has a '/' in it")),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Emulator {
    /// The directory of its programs; `None` if they are on the path.
    programs: Option<PathBuf>,
    firmware: Vec<PathBuf>,
    modules: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PluginInterface {
    /// Of QEMU 6.0 to 8.2.
    One,
    /// Of QEMU 9.1 and later.
    Three,
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let (_, version) = text.lines().next()?.split_once("version ")?;
        let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
        Some(Self { major, minor })
    }

    /// Whether CMPXCHG16B leaves unrelated flags unchanged (`docs/qemu.md`).
    pub(crate) const fn has_cmpxchg16b(self) -> bool {
        self.major >= 10
    }

    /// Whether code that another CPU changes while it is translated is translated anew. 7.2 keeps
    /// what it has read before (`docs/qemu.md`).
    pub(crate) fn notices_changed_code(self) -> bool {
        self >= Self { major: 8, minor: 1 }
    }

    pub(crate) fn plugin_interface(self) -> Result<PluginInterface> {
        match (self.major, self.minor) {
            (..6, _) | (9, 0) => {
                bail!("QEMU {}.{} has no interface for plugins that is known", self.major, self.minor)
            }
            (6..9, _) => Ok(PluginInterface::One),
            _ => Ok(PluginInterface::Three),
        }
    }
}

/// Selects the emulator for this process.
///
/// # Errors
///
/// If one was selected before.
pub(crate) fn choose(wanted: &Wanted) -> Result<()> {
    WANTED.set(wanted.clone()).ok().context("an emulator was chosen before")
}

pub(crate) fn wanted() -> &'static Wanted {
    WANTED.get().unwrap_or(&Wanted::Ten)
}

/// The selected emulator.
///
/// # Errors
///
/// If it is not there and cannot be fetched.
pub(crate) fn chosen() -> Result<&'static Emulator> {
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(emulator) = *chosen {
        return Ok(emulator);
    }
    let emulator = match wanted() {
        Wanted::System => Emulator::default(),
        Wanted::In(directory) => {
            // Absolute: it is used in other directories, too.
            let programs = directory.canonicalize().with_context(|| format!("no {}", directory.display()))?;
            Emulator { programs: Some(programs), ..Emulator::default() }
        }
        Wanted::Ten => ten()?,
    };
    Ok(chosen.insert(Box::leak(Box::new(emulator))))
}

pub(crate) fn version(arch: Arch) -> Result<Version> {
    let place = &VERSIONS[arch as usize];
    match place.get() {
        Some(version) => Ok(*version),
        None => chosen()?.version(arch).map(|version| *place.get_or_init(|| version)),
    }
}

fn ten() -> Result<Emulator> {
    let system = Emulator::default();
    let is_new = |arch| system.version(arch).is_ok_and(|version| version.major >= NEW);
    if Arch::ALL.into_iter().all(is_new) {
        return Ok(system);
    }
    let directory = match cache::newer_emulator() {
        Err(error) if error.is::<Unavailable>() => {
            eprintln!("quell: no QEMU {NEW} ({error:#}); the system's is used: see docs/qemu.md");
            return Ok(system);
        }
        found => found.with_context(|| format!("cannot fetch QEMU {NEW}; --qemu system does without"))?,
    };
    let emulator = Emulator::unpacked(&directory)?;
    for arch in Arch::ALL {
        let missing = emulator.missing_libraries(arch)?;
        ensure!(
            missing.is_empty(),
            "{} of the backports needs libraries that are not installed: {}",
            arch.qemu(),
            missing.join(", ")
        );
        let Version { major, minor } = emulator.version(arch)?;
        ensure!(major >= NEW, "the backports have {} {major}.{minor}, not {NEW}", arch.qemu());
    }
    Ok(emulator)
}

impl Emulator {
    fn unpacked(root: &Path) -> Result<Self> {
        // Modules are in the architecture's directory, the only one there.
        let libraries = fs::read_dir(root.join("usr/lib")).context("the packages have no modules")?;
        let mut places = libraries.filter_map(|entry| Some(entry.ok()?.path().join("qemu")));
        let modules = places.find(|path| path.is_dir());
        Ok(Self {
            programs: Some(root.join("usr/bin")),
            firmware: ["qemu", "seabios"].map(|name| root.join("usr/share").join(name)).to_vec(),
            modules,
        })
    }

    fn program(&self, arch: Arch) -> OsString {
        match &self.programs {
            Some(directory) => directory.join(arch.qemu()).into(),
            None => arch.qemu().into(),
        }
    }

    pub(crate) fn command(&self, arch: Arch) -> Command {
        let mut command = Command::new(self.program(arch));
        for directory in &self.firmware {
            command.arg("-L").arg(directory);
        }
        if let Some(directory) = &self.modules {
            command.env("QEMU_MODULE_DIR", directory);
        }
        command
    }

    fn version(&self, arch: Arch) -> Result<Version> {
        let program = arch.qemu();
        let output = self.command(arch).arg("--version").stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot start {program}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Version::parse(&text).with_context(|| format!("{program} does not say its version: {}", text.trim()))
    }

    fn missing_libraries(&self, arch: Arch) -> Result<Vec<String>> {
        let output = Command::new("ldd").arg(self.program(arch)).stdin(Stdio::null()).output();
        let output = output.context("cannot start ldd")?;
        Ok(missing(&String::from_utf8_lossy(&output.stdout)))
    }
}

fn missing(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.trim().strip_suffix(" => not found"));
    names.map(str::to_owned).collect()
}

/// The process of this command ends when the calling thread does.
pub(crate) fn end_with_us(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec, and makes only a system call.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

/// An emulator that is about to start.
pub(super) struct Prepared {
    pub(super) command: Command,
    /// The other end of the console, unless that is the process's standard input and output.
    pub(super) console: Option<UnixStream>,
    /// Its ends of sockets: to be closed here when it runs.
    pub(super) sockets: Vec<UnixStream>,
    /// The other end of what says why the machine has ended, where no log does.
    pub(super) events: Option<UnixStream>,
}

/// The emulator's command, which is to inherit the pipes for the hypervisor's log and for its own.
pub(super) fn prepare(
    spec: &Spec,
    ram: &Ram,
    channels: &Channels<'_>,
    [log, own_log]: [&PipeWriter; 2],
    files: &Path,
) -> Result<Prepared> {
    let arch = spec.platform.arch();
    if let Platform::Bochs(bochs) = spec.platform {
        let mut prepared = bochs::prepare(bochs, spec, ram, channels, own_log.as_raw_fd(), files)?;
        prepared.command.stdout(log.try_clone()?);
        return Ok(prepared);
    }
    let mut arguments = spec.arguments(version(arch)?, ram, channels)?;
    let mut inherited = vec![ram.fd().as_raw_fd(), log.as_raw_fd(), own_log.as_raw_fd()];
    let is_kvm = matches!(spec.platform, Platform::Kvm(_));
    let (events, sockets) = is_kvm.then(|| kvm::events(&mut arguments)).transpose()?.unzip();
    inherited.extend(sockets.iter().map(AsRawFd::as_raw_fd));
    let command = command(spec, chosen()?.command(arch), &arguments, inherited);
    Ok(Prepared { command, console: None, sockets: Vec::from_iter(sockets), events })
}

pub(super) type Ends = (Option<Box<dyn Write + Send>>, Box<dyn Read + Send>);

/// What is typed on the guest's console goes into the first, what it shows comes from the second.
pub(super) fn ends(console: Option<UnixStream>, child: &mut Child) -> Result<Ends> {
    if let Some(console) = console {
        return Ok((Some(Box::new(console.try_clone()?)), Box::new(console)));
    }
    let stdin = child.stdin.take().map(|it| Box::new(it) as Box<dyn Write + Send>);
    let stdout = child.stdout.take().map(|it| Box::new(it) as Box<dyn Read + Send>);
    Ok((stdin, stdout.unwrap_or_else(|| Box::new(io::empty()))))
}

/// The path by which a process that has inherited a descriptor opens what it is one of.
pub(super) fn path_in_child(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The command for QEMU: its streams, inherited descriptors, and its death together with us.
pub(super) fn command(
    spec: &Spec,
    mut command: Command,
    arguments: &[OsString],
    mut inherited: Vec<RawFd>,
) -> Command {
    command.args(arguments);
    inherited.extend(spec.keeps.iter().map(Listener::fd));
    match spec.console {
        Console::Terminal => command.stdin(Stdio::inherit()).stdout(Stdio::inherit()),
        Console::Echo if io::stdin().is_terminal() => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
        Console::Echo => command.stdin(Stdio::null()).stdout(Stdio::piped()),
        Console::Capture => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
    };
    // On the terminal QEMU has to be in the foreground group; otherwise Ctrl-C is for this process.
    if spec.console != Console::Terminal {
        command.process_group(0);
    }
    end_with_us(&mut command);
    // SAFETY: the closure runs between fork and exec and makes only system calls. The descriptors
    // are open there: the child has copies, and the parent holds them until it has started.
    unsafe {
        command.pre_exec(move || {
            for fd in &inherited {
                fcntl_setfd(BorrowedFd::borrow_raw(*fd), FdFlags::empty())?;
            }
            Ok(())
        });
    }
    command
}

pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(major: u32, minor: u32) -> Version {
        Version { major, minor }
    }

    #[test]
    fn u29_versions_are_read_from_what_qemu_prints() {
        for (text, expected) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright", Some((7, 2))),
            ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2~bpo12+1)\n", Some((10, 0))),
            ("QEMU emulator version 11.1\n", Some((11, 1))),
            ("QEMU emulator version ten", None),
            ("something else", None),
            ("", None),
        ] {
            let expected = expected.map(|(major, minor)| version(major, minor));
            assert_eq!(Version::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn u29_what_depends_on_the_version_goes_by_it() {
        assert!(!version(7, 2).has_cmpxchg16b() && version(10, 0).has_cmpxchg16b());
        let interface = |major, minor| version(major, minor).plugin_interface().ok();
        assert_eq!(interface(5, 2), None);
        assert_eq!(interface(7, 2), Some(PluginInterface::One));
        assert_eq!(interface(8, 2), Some(PluginInterface::One));
        assert_eq!(interface(9, 0), None, "it has version 2 alone");
        assert_eq!(interface(9, 1), Some(PluginInterface::Three));
        assert_eq!(interface(10, 0), Some(PluginInterface::Three));
    }

    #[test]
    fn u29_emulators_are_named_on_the_command_line() {
        assert_eq!(Wanted::parse("system"), Ok(Wanted::System));
        assert_eq!(Wanted::parse("10"), Ok(Wanted::Ten));
        assert_eq!(Wanted::parse("./bin"), Ok(Wanted::In("./bin".into())));
        assert_eq!(Wanted::Ten.arguments(), ["--qemu", "10"]);
        assert!(Wanted::parse("11").expect_err("is refused").contains("'10'"));
    }

    #[test]
    fn u29_an_emulator_beside_the_systems_uses_its_own_files() {
        let directory = tempfile::tempdir().expect("makes");
        let root = directory.path();
        fs::create_dir_all(root.join("usr/lib/x86_64-linux-gnu/qemu")).expect("makes");
        let emulator = Emulator::unpacked(root).expect("is one");
        let command = emulator.command(Arch::Aarch64);
        assert_eq!(command.get_program(), root.join("usr/bin/qemu-system-aarch64"));
        let arguments: Vec<_> = command.get_args().collect();
        let (firmware, bios) = (root.join("usr/share/qemu"), root.join("usr/share/seabios"));
        assert_eq!(arguments, ["-L".as_ref(), firmware.as_os_str(), "-L".as_ref(), bios.as_os_str()]);
        let modules = root.join("usr/lib/x86_64-linux-gnu/qemu");
        assert!(
            command.get_envs().any(|pair| pair == ("QEMU_MODULE_DIR".as_ref(), Some(modules.as_os_str())))
        );
        let system = Emulator::default().command(Arch::X86_64);
        assert_eq!((system.get_program(), system.get_args().count()), ("qemu-system-x86_64".as_ref(), 0));
    }

    #[test]
    fn u29_missing_libraries_are_named() {
        let text = "\tliba.so.1 => /lib/liba.so.1 (0x7f)\n\tlibb.so.2 => not found\n\tvdso.so.1 (0x7f)\n";
        assert_eq!(missing(text), ["libb.so.2"]);
    }
}
