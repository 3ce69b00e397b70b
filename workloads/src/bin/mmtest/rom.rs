//! A PCI device's expansion ROM through sysfs.

use hostlink::rom;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of one system call, during which the kernel decodes the ROM.
const READ_BYTES: usize = 4096;

/// The ROM's file: writes to it set whether it may be read.
pub(crate) struct Rom {
    control: File,
    contents: File,
    len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Toggle {
    /// From the system call that allows reading to the return of the one that forbids it.
    pub(crate) duration: Duration,
    /// Offset of the first wrong byte.
    pub(crate) wrong: Option<u32>,
}

impl Rom {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let contents = File::open(path)?;
        let control = OpenOptions::new().write(true).open(path)?;
        Self::of(control, contents)
    }

    fn of(control: File, contents: File) -> io::Result<Self> {
        let len = u32::try_from(contents.metadata()?.len()).map_err(io::Error::other)?;
        if len < READ_BYTES as u32 {
            return Err(io::Error::other(format!("a ROM of {len} bytes")));
        }
        Ok(Self { control, contents, len })
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Enables the ROM, checks a page of it, another one for each `number`, and disables it.
    pub(crate) fn toggle(&self, number: u64) -> io::Result<Toggle> {
        let page = number % self.page_count();
        self.read(page..page + 1)
    }

    /// Enables the ROM, reads and checks all of it page by page, as `cat` does, and disables it.
    pub(crate) fn read_whole(&self) -> io::Result<Toggle> {
        self.read(0..self.page_count())
    }

    fn page_count(&self) -> u64 {
        u64::from(self.len) / READ_BYTES as u64
    }

    fn read(&self, pages: Range<u64>) -> io::Result<Toggle> {
        let mut bytes = [0; READ_BYTES];
        let mut wrong = None;
        let begin = Instant::now();
        self.allow(b"1\n")?;
        for page in pages {
            let offset = page * READ_BYTES as u64;
            let count = self.contents.read_at(&mut bytes, offset)?;
            let start = offset as u32;
            let short = (count < READ_BYTES).then_some(start + count as u32);
            wrong = wrong.or_else(|| rom::first_wrong(self.len, start, &bytes[..count]).or(short));
        }
        self.allow(b"0\n")?;
        Ok(Toggle { duration: begin.elapsed(), wrong })
    }

    fn allow(&self, what: &[u8]) -> io::Result<()> {
        self.control.write_all_at(what, 0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// A ROM in a file, with a byte changed by `spoil`.
    pub(crate) fn fake(name: &str, spoil: impl FnOnce(&mut [u8])) -> Rom {
        let len = rom::LEN;
        let mut image: Vec<u8> = (0..len / rom::LINE).flat_map(|index| rom::line(len, index)).collect();
        spoil(&mut image);
        let path = std::env::temp_dir().join(format!("quell-{name}-{}", std::process::id()));
        fs::write(&path, image).expect("writes");
        let contents = File::open(&path).expect("opens");
        fs::remove_file(&path).expect("removes");
        let control = OpenOptions::new().write(true).open("/dev/null").expect("opens");
        Rom::of(control, contents).expect("is a ROM")
    }

    #[test]
    fn every_page_is_read_in_turn() {
        let rom = fake("rom-pages", |image| image[0x5678] ^= 1);
        for number in 0..128 {
            let wrong = rom.toggle(number).expect("reads").wrong;
            assert_eq!(wrong, (number % 64 == 5).then_some(0x5678), "{number}");
        }
        assert_eq!(rom.read_whole().expect("reads").wrong, Some(0x5678));
    }

    #[test]
    fn what_is_no_rom_is_refused() {
        assert!(Rom::open(Path::new("/nonexistent/rom")).is_err());
        assert!(Rom::open(Path::new("/dev/null")).is_err_and(|error| error.to_string().contains("0 bytes")));
    }
}
