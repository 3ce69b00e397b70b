//! The guest's initial RAM disk: busybox, the workloads and an init script. A second, tiny archive
//! behind the first carries what differs from run to run: the command to execute.

use super::cache::GuestFiles;
use super::cpio::Archive;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const INIT: &[u8] = include_bytes!("init");
const SESSION: &[u8] = include_bytes!("session");
/// What busybox' init does: run the session, once, on the console.
const INITTAB: &[u8] = b"::once:/etc/session\n";

/// The part that every run has: busybox under all its names, `programs` (name and file), and init.
pub(crate) fn base(files: &GuestFiles, programs: &[(&str, &Path)]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "etc", "proc", "root", "sys", "tmp"] {
        archive.directory(directory);
    }
    archive.symlink("sbin", "bin");
    archive.character_device("dev/console", (5, 1));
    archive.file("etc/passwd", 0o644, b"root::0:0:root:/root:/bin/sh\n");
    let busybox = fs::read(&files.busybox)
        .with_context(|| format!("cannot read busybox at {}", files.busybox.display()))?;
    archive.file("bin/busybox", 0o755, &busybox);
    for applet in applets(&files.busybox)? {
        if applet != "busybox" {
            archive.symlink(&format!("bin/{applet}"), "busybox");
        }
    }
    for (name, path) in programs {
        let program = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        archive.file(&format!("bin/{name}"), 0o755, &program);
    }
    archive.file("init", 0o755, INIT);
    archive.file("etc/inittab", 0o644, INITTAB);
    archive.file("etc/session", 0o755, SESSION);
    Ok(archive.finish())
}

/// The part for one run: `command` is run by the guest's shell instead of an interactive one.
pub(crate) fn command(command: &str) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.file("command", 0o644, command.as_bytes());
    archive.finish()
}

/// The names that busybox answers to; it is static, so it runs here as it does in the guest.
fn applets(busybox: &Path) -> Result<Vec<String>> {
    let output = Command::new(busybox)
        .arg("--list")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", busybox.display()))?;
    ensure!(output.status.success(), "{} --list failed", busybox.display());
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}
