//! The disk's files: packages unpacked under fakeroot, dpkg's database about them, the system's own
//! settings, and the filesystem made of all that.

use super::dpkg::{self, Interests};
use super::files;
use crate::guest::cache::DebianPackages;
use crate::machine::child::end_with_us;
use crate::run::tail;
use crate::steps::Steps;
use anyhow::{Context, Result, ensure};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Unpacks archives; its first lines say how.
pub(super) const UNPACK: &str = include_str!("unpack.sh");
/// The files of a package that are not copied to dpkg's database as they are.
const NOT_COPIED: [&str; 2] = ["control", "list"];
/// Where dpkg has its database.
const DATABASE: &str = "var/lib/dpkg";
/// The disk's label, by which the system finds its root.
pub(super) const LABEL: &str = "quell";

/// A tree of files, with owners that only fakeroot knows.
pub(super) struct Tree<'a> {
    work: &'a Path,
    /// The unpacked packages: the beginnings of their archives' names.
    names: Vec<String>,
}

impl<'a> Tree<'a> {
    /// Unpacks the packages in the directory `work`.
    pub(super) fn unpack(packages: &DebianPackages, work: &'a Path, steps: &Steps) -> Result<Self> {
        let script = work.join("unpack.sh");
        fs::write(&script, UNPACK).with_context(|| format!("cannot write {}", script.display()))?;
        let mut tree = Self { work, names: Vec::new() };
        let mut command = tree.fakeroot("-s");
        command.arg("sh").arg(&script).arg(work).args(&packages.archives);
        let count = packages.archives.len();
        tree.names = run(command, work, |done| {
            steps.detail(format!("unpacking packages: {done} of {count}"));
        })
        .context("cannot unpack the packages")?;
        ensure!(tree.names.len() == count, "{} of {count} packages were unpacked", tree.names.len());
        Ok(tree)
    }

    fn root(&self) -> PathBuf {
        self.work.join("root")
    }

    /// The control file or other text of a package; `None` if it has none of that name.
    fn text(&self, package: &str, name: &str) -> Result<Option<String>> {
        let path = self.work.join("control").join(package).join(name);
        if !path.exists() {
            return Ok(None);
        }
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display())).map(Some)
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

    pub(super) fn write_database(&self) -> Result<()> {
        let (root, mut status, mut interests) = (self.root(), String::new(), Interests::default());
        for package in &self.names {
            let need = |name: &str| {
                self.text(package, name)?.with_context(|| format!("the package {package} has no {name}"))
            };
            let (control, printed) = (need("control")?, need("list")?);
            let stem = dpkg::stem(&control).with_context(|| format!("the package {package} is damaged"))?;
            self.copy_control(package, &stem)?;
            let listed = format!("{DATABASE}/info/{stem}.list");
            files::write(&root, &listed, 0o644, &dpkg::list(&printed))?;
            let conffiles = self.text(package, "conffiles")?.unwrap_or_default();
            let paths: Vec<_> = dpkg::conffiles(&conffiles).collect();
            let hashes = md5(&root, &paths)?;
            let hashes: Vec<_> = paths.into_iter().zip(hashes.iter().map(String::as_str)).collect();
            status += &dpkg::status(&control, &hashes);
            interests.add(&stem, &self.text(package, "triggers")?.unwrap_or_default());
        }
        let write = |name: &str, text: &str| files::write(&root, &format!("{DATABASE}/{name}"), 0o644, text);
        write("status", &status)?;
        write("info/format", "1\n")?;
        write("triggers/File", &interests.paths)?;
        for (name, text) in &interests.named {
            write(&format!("triggers/{name}"), text)?;
        }
        ["available", "diversions", "statoverride", "triggers/Unincorp"]
            .iter()
            .try_for_each(|name| write(name, ""))
    }

    /// Copies the scripts of a package, and what else is in its control archive.
    fn copy_control(&self, package: &str, stem: &str) -> Result<()> {
        let directory = self.work.join("control").join(package);
        for entry in fs::read_dir(&directory).with_context(|| format!("no {}", directory.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if NOT_COPIED.contains(&name.as_str()) {
                continue;
            }
            let place = self.root().join(DATABASE).join("info").join(format!("{stem}.{name}"));
            fs::copy(entry.path(), &place).with_context(|| format!("cannot write {}", place.display()))?;
            let is_script = entry.metadata()?.permissions().mode() & 0o100 != 0;
            let mode = if is_script { 0o755 } else { 0o644 };
            fs::set_permissions(&place, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
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
        run(command, self.work, |_| ()).context("cannot make the filesystem").map(drop)
    }
}

/// Runs a command to its end; returns the lines that it printed. `heard` is told how many there
/// are, after each.
fn run(mut command: Command, work: &Path, heard: impl Fn(usize)) -> Result<Vec<String>> {
    let errors = work.join("errors");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&errors)?);
    end_with_us(&mut command);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| {
        format!("cannot start {program}; Debian has what this needs in fakeroot, e2fsprogs and tar")
    })?;
    let mut lines = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        lines.push(line?);
        heard(lines.len());
    }
    let status = child.wait()?;
    let said = fs::read(&errors).unwrap_or_default();
    ensure!(
        status.success(),
        "{program} failed ({status}); it takes fakeroot, e2fsprogs and tar:\n{}",
        tail(&String::from_utf8_lossy(&said))
    );
    Ok(lines)
}

/// The MD5 sums of files in a tree, which dpkg goes by.
fn md5(root: &Path, paths: &[&str]) -> Result<Vec<String>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let mut command = Command::new("md5sum");
    command.arg("--").args(paths.iter().map(|path| root.join(path.trim_start_matches('/'))));
    let output = command.stdin(Stdio::null()).output().context("cannot start md5sum")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    // It begins a line with a backslash if a path has special characters in it.
    let hash = |line: &str| line.trim_start_matches('\\').split(' ').next().unwrap_or_default().to_owned();
    let hashes: Vec<_> = text.lines().map(hash).collect();
    ensure!(hashes.len() == paths.len(), "md5sum has read {} of {} files", hashes.len(), paths.len());
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_files_of_the_tree() {
        let root = tempfile::tempdir().expect("makes");
        fs::write(root.path().join("empty"), "").expect("writes");
        assert_eq!(md5(root.path(), &["/empty"]).expect("sums"), ["d41d8cd98f00b204e9800998ecf8427e"]);
        assert!(md5(root.path(), &["/missing"]).is_err());
        assert!(md5(root.path(), &[]).expect("none").is_empty());
    }

    #[test]
    fn what_a_failed_program_said_is_in_the_error() {
        let work = tempfile::tempdir().expect("makes");
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b; echo why >&2; exit 3"]);
        let error = run(command, work.path(), |_| ()).expect_err("fails").to_string();
        assert!(error.contains("why") && error.contains("fakeroot"), "{error}");
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b"]);
        assert_eq!(run(command, work.path(), |_| ()).expect("runs"), ["a", "b"]);
    }
}
