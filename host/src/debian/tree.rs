//! The disk's files: packages that dpkg unpacks under fakeroot, the system's own settings, and the
//! filesystem made of all that.

use super::layout;
use crate::guest::cache::DebianPackages;
use crate::machine::emulator::end_with_us;
use crate::prelude::*;
use crate::steps::Steps;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};

/// Unpacks archives; its first lines say how.
pub(super) const UNPACK: &str = include_str!("unpack.sh");
/// The disk's label, by which the system finds its root.
pub(super) const LABEL: &str = "quell";

/// A tree of files, with owners that only fakeroot knows.
pub(super) struct Tree<'a> {
    work: &'a Path,
}

impl<'a> Tree<'a> {
    pub(super) fn unpack(packages: &DebianPackages, work: &'a Path, steps: &Steps) -> Result<Self> {
        let script = work.join("unpack.sh");
        fs::write(&script, UNPACK).with_context(|| format!("cannot write {}", script.display()))?;
        let tree = Self { work };
        let mut command = tree.fakeroot("-s");
        command.arg("sh").arg(&script).arg(work).args(&packages.archives);
        let count = packages.archives.len();
        let mut done = 0;
        let unpacked = run(command, work, |line| {
            done += usize::from(line.starts_with("Unpacking "));
            steps.detail(format!("unpacking packages: {done} of {count}"));
        });
        unpacked.context("cannot unpack the packages")?;
        ensure!(done == count, "{done} of {count} packages were unpacked");
        Ok(tree)
    }

    fn root(&self) -> PathBuf {
        self.work.join("root")
    }

    /// Fakeroot with the owners that it has been told so far: kept with `-s`, used with `-i`.
    fn fakeroot(&self, how: &str) -> Command {
        let mut command = Command::new("fakeroot");
        command.arg(how).arg(self.work.join("owners")).arg("--");
        // Users' paths lack the directories of the system's programs.
        let mut path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
        path.push(":/usr/sbin:/sbin");
        command.env("PATH", path).env("LC_ALL", "C");
        command
    }

    pub(super) fn write_settings(&self, sources: &str, password: &str) -> Result<()> {
        let root = self.root();
        for (path, text) in SETTINGS {
            write(&root, path, 0o644, text)?;
        }
        write(&root, SOURCES, 0o644, sources)?;
        let (path, target) = RESOLVER;
        symlink(target, root.join(path)).with_context(|| format!("cannot make /{path}"))?;
        let credentials = if password.is_empty() { String::new() } else { format!("root:{password}\n") };
        write(&root, SETUP_PASSWORD, 0o600, &credentials)?;
        write(&root, SETUP, 0o755, CONFIGURE)
    }

    pub(super) fn make_disk(&self, arch: Arch, disk: &Path, bytes: u64) -> Result<()> {
        let mut mkfs = self.fakeroot("-i");
        mkfs.arg("mkfs.ext4");
        layout::make((disk, bytes), arch, (&self.root(), mkfs), self.work)
    }
}

pub(super) fn run(mut command: Command, work: &Path, mut heard: impl FnMut(&str)) -> Result<()> {
    let errors = work.join("errors");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&errors)?);
    end_with_us(&mut command);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| {
        format!("cannot start {program}; Debian has what this needs in fakeroot, dpkg, e2fsprogs and mtools")
    })?;
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        heard(&line?);
    }
    let status = child.wait()?;
    let said = fs::read(&errors).unwrap_or_default();
    ensure!(
        status.success(),
        "{program} failed ({status}); it takes fakeroot, dpkg, e2fsprogs and mtools:\n{}",
        tail(&String::from_utf8_lossy(&said))
    );
    Ok(())
}

/// Without `usr-is-merged` apt takes `usrmerge`, which is for systems to be converted.
pub(super) const PACKAGES: &str = "apt dbus debian-archive-keyring e2fsprogs fio init iperf3 iproute2 \
    iputils-ping kmod less nano netbase procps systemd-resolved udev usr-is-merged";

pub(super) const SETTINGS: [(&str, &str); 4] = [
    ("etc/hostname", "quell\n"),
    ("etc/hosts", "127.0.0.1 localhost\n127.0.1.1 quell\n::1 localhost ip6-localhost ip6-loopback\n"),
    // The root is mounted by the kernel already, on whatever device; here are its options.
    ("etc/fstab", "LABEL=quell / ext4 noatime 0 0\n"),
    // Copies of the disk must not get the same address, so the card counts, not the system.
    (
        "etc/systemd/network/80-ethernet.network",
        "[Match]\nType=ether\n\n[Network]\nDHCP=yes\n\n[DHCPv4]\nClientIdentifier=mac\n",
    ),
];

pub(super) const SOURCES: &str = "etc/apt/sources.list";
/// The link to the name servers, and its target: those that DHCP has named.
pub(super) const RESOLVER: (&str, &str) = ("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf");

/// The init of the first boot, and its files.
pub(super) const SETUP: &str = "quell-setup/configure.sh";
pub(super) const SETUP_PASSWORD: &str = "quell-setup/password";
/// The script; its first lines say what it does.
pub(super) const CONFIGURE: &str = include_str!("configure.sh");

pub(super) fn write(root: &Path, path: &str, mode: u32, text: &str) -> Result<()> {
    let place = root.join(path);
    let written = || -> std::io::Result<()> {
        place.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&place, text)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(mode))
    };
    written().with_context(|| format!("cannot write {}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::super::tree::LABEL;
    use super::*;

    #[test]
    fn what_a_failed_program_said_is_in_the_error() {
        let work = tempfile::tempdir().expect("makes");
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b; echo why >&2; exit 3"]);
        let error = run(command, work.path(), |_| ()).expect_err("fails").to_string();
        assert!(error.contains("why") && error.contains("fakeroot"), "{error}");
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b"]);
        let mut lines = Vec::new();
        run(command, work.path(), |line| lines.push(line.to_owned())).expect("runs");
        assert_eq!(lines, ["a", "b"]);
    }

    #[test]
    fn the_root_is_found_by_the_label_that_the_disk_has() {
        let fstab = SETTINGS.iter().find(|(path, _)| *path == "etc/fstab").expect("is there");
        assert!(fstab.1.starts_with(&format!("LABEL={LABEL} / ext4 ")));
    }

    #[test]
    fn the_first_boot_finds_its_files_where_they_are_put() {
        let directory = Path::new(SETUP).parent().and_then(Path::to_str).expect("has one");
        assert!(CONFIGURE.contains(&format!("setup=/{directory}\n")));
        let name = SETUP_PASSWORD.strip_prefix(directory).expect("is beside the script");
        assert!(CONFIGURE.contains(&format!("$setup{name}")));
    }

    #[test]
    fn paths_are_relative_to_the_tree() {
        let others = [SOURCES, RESOLVER.0, SETUP, SETUP_PASSWORD];
        for path in SETTINGS.iter().map(|(path, _)| *path).chain(others) {
            assert!(Path::new(path).is_relative(), "{path} would be written on this system");
        }
    }

    #[test]
    fn packages_are_in_order_and_named_once() {
        assert!(PACKAGES.split(' ').is_sorted_by(|a, b| a < b));
    }
}
