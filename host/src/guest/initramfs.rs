//! The guest's initial RAM disk: busybox, the workloads and an init script. A second, tiny archive
//! after the first contains the part that differs from run to run: the command to execute.

use super::cache::GuestFiles;
use super::cpio::Archive;
use crate::prelude::*;

const INIT: &[u8] = include_bytes!("init");
const SESSION: &[u8] = include_bytes!("session");
/// The job of busybox's init: run the session, once, on the console.
const INITTAB: &[u8] = b"::once:/etc/session\n";

/// The common part of every run: busybox under all its names, `programs` (name and file), and init.
pub(crate) fn base(files: &GuestFiles, programs: &[(&str, PathBuf)]) -> Result<Vec<u8>> {
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
    for applet in applets(&busybox).with_context(|| format!("{}", files.busybox.display()))? {
        if applet != "busybox" {
            archive.symlink(&format!("bin/{applet}"), "busybox");
        }
    }
    for (name, path) in programs {
        archive.add(&format!("bin/{name}"), path)?;
    }
    archive.file("init", 0o755, INIT);
    archive.file("etc/inittab", 0o644, INITTAB);
    archive.file("etc/session", 0o755, SESSION);
    Ok(archive.finish())
}

/// The part for one run: the guest's shell runs `command` instead of being interactive.
pub(crate) fn command(command: &str) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.file("command", 0o644, command.as_bytes());
    archive.finish()
}

/// The names that busybox answers to. The program may be of an architecture that does not run here,
/// so its table of names is searched for: adjacent strings that end with 0, `[` and `[[` first.
fn applets(busybox: &[u8]) -> Result<Vec<String>> {
    const FIRST: &[u8] = b"\0[\0[[\0";
    let at = busybox.windows(FIRST.len()).position(|window| window == FIRST);
    let table = &busybox[at.context("the program has no table of names")? + 1..];
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"[-_.".contains(byte);
    let names = table.split(|byte| *byte == 0);
    let names: Vec<_> = names
        .take_while(|name| !name.is_empty() && name.iter().all(is_letter))
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    let missing =
        ["init", "mount", "poweroff", "sh"].into_iter().find(|name| !names.iter().any(|n| n == name));
    match missing {
        Some(name) => bail!("the program has no {name}"),
        None => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_busybox_has_no_names() {
        assert!(applets(b"").is_err());
        assert!(applets(b"\0[\0[[\0acpid\0sh\0\0init\0mount\0poweroff\0").is_err(), "init is elsewhere");
    }

    #[test]
    fn names_end_where_the_table_does() {
        let names =
            applets(b"x\0[\0[[\0init\0mkfs.ext2\0mount\0poweroff\0sh\0\0usage: %s").expect("has some");
        assert_eq!(names, ["[", "[[", "init", "mkfs.ext2", "mount", "poweroff", "sh"]);
    }
}
