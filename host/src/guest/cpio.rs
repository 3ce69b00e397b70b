//! Archives in cpio's "newc" format, which the Linux kernel unpacks as initial RAM disk.
//!
//! Every member is a header of 110 ASCII characters, its name with a NUL, and its data, both padded
//! to 4 bytes. A trailer ends the archive. Archives may follow each other; later members replace
//! earlier ones. Source: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

/// Archives start at multiples of this many bytes, by convention.
const BLOCK_BYTES: usize = 512;

const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    members: u32,
}

struct Member<'a> {
    name: &'a str,
    mode: u32,
    device: (u32, u32),
    data: &'a [u8],
}

impl Archive {
    pub(crate) fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.member(&Member { name, mode: FILE | mode, device: (0, 0), data });
    }

    /// Adds a directory that everyone may read.
    pub(crate) fn directory(&mut self, name: &str) {
        self.member(&Member { name, mode: DIRECTORY | 0o755, device: (0, 0), data: &[] });
    }

    pub(crate) fn symlink(&mut self, name: &str, target: &str) {
        self.member(&Member { name, mode: SYMLINK | 0o777, device: (0, 0), data: target.as_bytes() });
    }

    pub(crate) fn character_device(&mut self, name: &str, device: (u32, u32)) {
        self.member(&Member { name, mode: CHARACTER_DEVICE | 0o600, device, data: &[] });
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.member(&Member { name: "TRAILER!!!", mode: 0, device: (0, 0), data: &[] });
        self.pad(BLOCK_BYTES);
        self.bytes
    }

    fn member(&mut self, member: &Member<'_>) {
        self.members += 1;
        let Member { name, mode, device: (major, minor), data } = member;
        let name_size = name.len() + 1;
        // Inode, mode, uid, gid, links, mtime, size, device of the file system (two words), device
        // that the member is (two words), size of the name, checksum (unused).
        let fields = [
            u64::from(self.members),
            u64::from(*mode),
            0,
            0,
            1,
            0,
            data.len() as u64,
            0,
            0,
            u64::from(*major),
            u64::from(*minor),
            name_size as u64,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            assert!(field <= u64::from(u32::MAX), "{name}: too large for the format");
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad(4);
        self.bytes.extend_from_slice(data);
        self.pad(4);
    }

    fn pad(&mut self, unit: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(unit), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

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
}
