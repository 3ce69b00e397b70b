//! The disk's files: packages that dpkg unpacks under fakeroot, the system's own settings, and the
//! filesystem made of all that.

use super::files;
use crate::guest::cache::DebianPackages;
use crate::machine::child::end_with_us;
use crate::prelude::*;
use crate::run::tail;
use crate::steps::Steps;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;

/// Unpacks archives; its first lines say how.
pub(super) const UNPACK: &str = include_str!("unpack.sh");
/// The disk's label, by which the system finds its root.
pub(super) const LABEL: &str = "quell";

/// A tree of files, with owners that only fakeroot knows.
pub(super) struct Tree<'a> {
    work: &'a Path,
}

impl<'a> Tree<'a> {
    /// Unpacks the packages in the directory `work`.
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

    /// Writes the system's settings, and what the first boot needs.
    pub(super) fn write_settings(&self, sources: &str, kernel: &str, password: &str) -> Result<()> {
        let root = self.root();
        for (path, text) in files::SETTINGS {
            files::write(&root, path, 0o644, text)?;
        }
        files::write(&root, files::SOURCES, 0o644, sources)?;
        let (path, target) = files::RESOLVER;
        symlink(target, root.join(path)).with_context(|| format!("cannot make /{path}"))?;
        let credentials = if password.is_empty() { String::new() } else { format!("root:{password}\n") };
        files::write(&root, files::SETUP_KERNEL, 0o644, kernel)?;
        files::write(&root, files::SETUP_PASSWORD, 0o600, &credentials)?;
        files::write(&root, files::SETUP, 0o755, files::CONFIGURE)
    }

    pub(super) fn make_disk(&self, disk: &Path, bytes: u64) -> Result<()> {
        let file = File::create(disk).with_context(|| format!("cannot write {}", disk.display()))?;
        file.set_len(bytes).with_context(|| format!("cannot make {} that large", disk.display()))?;
        let mut command = self.fakeroot("-i");
        command.args(["mkfs.ext4", "-q", "-F", "-L", LABEL, "-d"]).arg(self.root());
        // Nothing is left for later: the kernel would write it while the disk is measured.
        command.args(["-E", "root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0"]).arg(disk);
        run(command, self.work, |_| ()).context("cannot make the filesystem")
    }
}

/// Runs a command to its end; `heard` is told each line that it prints.
fn run(mut command: Command, work: &Path, mut heard: impl FnMut(&str)) -> Result<()> {
    let errors = work.join("errors");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&errors)?);
    end_with_us(&mut command);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| {
        format!("cannot start {program}; Debian has what this needs in fakeroot, dpkg and e2fsprogs")
    })?;
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        heard(&line?);
    }
    let status = child.wait()?;
    let said = fs::read(&errors).unwrap_or_default();
    ensure!(
        status.success(),
        "{program} failed ({status}); it takes fakeroot, dpkg and e2fsprogs:\n{}",
        tail(&String::from_utf8_lossy(&said))
    );
    Ok(())
}

#[cfg(test)]
mod tests {
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
}
