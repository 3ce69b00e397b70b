//! Archives in cpio's "newc" format, which the Linux kernel unpacks as initial RAM disk. They may
//! follow each other; later members replace earlier ones.

use crate::prelude::*;
use cpio::newc::{Builder, ModeFileType, trailer};
use std::io::Write;

/// Archives start at multiples of this many bytes, by convention.
const BLOCK_BYTES: usize = 512;

#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<PathBuf>,
}

impl Archive {
    pub(crate) fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.member(Builder::new(name).mode(mode).set_mode_file_type(ModeFileType::Regular), data);
    }

    /// Adds the file at a path under another name, executable, and the directories that lead to it.
    pub(crate) fn add(&mut self, name: &str, path: &Path) -> Result<()> {
        let directories: Vec<_> = Path::new(name).ancestors().skip(1).collect();
        for directory in directories.into_iter().rev().skip(1) {
            if !self.directories.contains(directory) {
                self.directory(&directory.to_string_lossy());
            }
        }
        let data = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.file(name, 0o755, &data);
        Ok(())
    }

    pub(crate) fn directory(&mut self, name: &str) {
        self.directories.insert(name.into());
        self.member(Builder::new(name).mode(0o755).set_mode_file_type(ModeFileType::Directory), &[]);
    }

    pub(crate) fn symlink(&mut self, name: &str, target: &str) {
        let link = Builder::new(name).mode(0o777).set_mode_file_type(ModeFileType::Symlink);
        self.member(link, target.as_bytes());
    }

    pub(crate) fn character_device(&mut self, name: &str, (major, minor): (u32, u32)) {
        let device = Builder::new(name).mode(0o600).set_mode_file_type(ModeFileType::Char);
        self.member(device.rdev_major(major).rdev_minor(minor), &[]);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        trailer(&mut self.bytes).expect("memory takes it");
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        self.bytes
    }

    fn member(&mut self, member: Builder, data: &[u8]) {
        let size = u32::try_from(data.len()).expect("files are smaller than 4 GiB");
        let mut writer = member.write(&mut self.bytes, size);
        writer.write_all(data).and_then(|()| writer.finish().map(drop)).expect("memory takes it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.file("bin/tool", 0o755, b"12345");
        archive.symlink("bin/alias", "tool");
        archive.character_device("console", (5, 1));
        archive.finish()
    }

    #[test]
    fn members_are_aligned_and_a_trailer_ends_them() {
        let bytes = sample();
        assert_eq!(bytes.len() % BLOCK_BYTES, 0);
        let headers: Vec<usize> =
            bytes.windows(6).enumerate().filter(|(_, w)| w == b"070701").map(|(at, _)| at).collect();
        assert_eq!(headers.len(), 5);
        assert!(headers.iter().all(|at| at.is_multiple_of(4)), "{headers:?}");
        assert!(bytes[headers[4]..].windows(10).any(|w| w == b"TRAILER!!!"));
    }

    #[test]
    fn the_system_cpio_reads_it_where_there_is_one() {
        let Ok(mut cpio) =
            Command::new("cpio").args(["-t", "--quiet"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
        else {
            return;
        };
        cpio.stdin.take().expect("piped").write_all(&sample()).expect("cpio reads");
        let output = cpio.wait_with_output().expect("cpio ends");
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "bin\nbin/tool\nbin/alias\nconsole\n");
    }

    #[test]
    fn directories_come_once_and_before_what_is_in_them() {
        let directory = tempfile::tempdir().expect("makes");
        let file = directory.path().join("file");
        fs::write(&file, "x").expect("writes");
        let mut archive = Archive::default();
        archive.add("lib/a/one", &file).expect("adds");
        archive.add("lib/a/two", &file).expect("adds");
        assert_eq!(archive.directories, BTreeSet::from(["lib".into(), "lib/a".into()]));
        let bytes = archive.finish();
        let places = |name: &[u8]| -> Vec<_> {
            let windows = bytes.windows(name.len()).enumerate();
            windows.filter(|(_, window)| *window == name).map(|(at, _)| at).collect()
        };
        let [lib, a, one] = [&b"lib\0"[..], b"lib/a\0", b"lib/a/one\0"].map(places);
        assert!(lib.len() == 1 && a.len() == 1 && lib < a && a < one);
    }
}
