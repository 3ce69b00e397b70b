//! A machine's notice to other processes of the same user: a small file in the private directory,
//! for `./quell top`.

use super::PART_SUFFIX;
use crate::machine::ram::Whereabouts;
use crate::prelude::*;
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

const BYTES_MAX: u64 = 64 << 10;
const TITLE_CHARS_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notice {
    pid: u32,
    /// The command line that started it.
    pub(crate) title: String,
    pub(crate) arch: String,
    /// When it was started, in milliseconds since 1970.
    started_ms: u64,
    /// Physical address of the beacon.
    pub(crate) beacon: u64,
    /// The machine's bundle.
    pub(crate) bundle: PathBuf,
    ram: Whereabouts,
    /// Names of the counters in order, so that a tool of another version cannot confuse them.
    counters: Vec<String>,
}

impl Notice {
    pub(crate) fn new(arch: Arch, ram: &Ram, beacon: u64, bundle: &Path) -> Result<Self> {
        Ok(Self {
            pid: process::id(),
            title: title(std::env::args().skip(1)),
            arch: arch.name().to_owned(),
            started_ms: now_ms(),
            beacon,
            bundle: std::path::absolute(bundle)?,
            ram: ram.whereabouts()?,
            counters: Counter::ALL.map(|counter| counter.name().to_owned()).to_vec(),
        })
    }

    pub(crate) fn uptime(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.started_ms))
    }

    pub(crate) fn open_ram(&self, writes: bool) -> Result<Ram> {
        Ram::open(self.pid, &self.ram, writes)
    }

    /// Writes it to a file. A reader sees either all of it or no file.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let part = path.with_extension(PART_SUFFIX);
        // A process with the same ID may have left one.
        let _ = fs::remove_file(&part);
        let written = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
            file.write_all(serde_json::to_string(self)?.as_bytes())?;
            fs::rename(&part, path)
        };
        written().with_context(|| format!("cannot write {}", path.display()))
    }

    pub(super) fn read(path: &Path, uid: u32) -> Result<Option<Self>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.with_context(|| format!("cannot open {}", path.display()))?,
        };
        let data = file.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
        let path = path.display();
        ensure!(data.is_file(), "{path} is not a file: remove it");
        ensure!(data.uid() == uid, "{path} belongs to somebody else");
        let mut text = String::new();
        file.take(BYTES_MAX).read_to_string(&mut text).with_context(|| format!("cannot read {path}"))?;
        let notice: Self =
            serde_json::from_str(&text).with_context(|| format!("{path} is not what it should be"))?;
        let is_ours = notice.counters.iter().eq(Counter::ALL.map(Counter::name).iter());
        ensure!(is_ours, "{path} is of another version of this tool, whose hypervisor counts other things");
        Ok(Some(notice))
    }
}

fn title(words: impl Iterator<Item = String>) -> String {
    foreign(&words.collect::<Vec<_>>().join(" ")).chars().take(TITLE_CHARS_MAX).collect()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::getuid;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn notice() -> (Ram, Notice) {
        let ram = Ram::new(8192, 0).expect("makes");
        let notice = Notice::new(Arch::X86_64, &ram, 0x1000, Path::new("/b")).expect("says");
        (ram, notice)
    }

    #[test]
    fn what_is_written_is_read_by_its_owner_alone() {
        let directory = tempfile::tempdir().expect("makes");
        let (path, uid) = (directory.path().join("1.json"), getuid().as_raw());
        assert_eq!(Notice::read(&path, uid).expect("none is there"), None);
        let (_ram, notice) = notice();
        notice.write(&path).expect("writes");
        notice.write(&path).expect("writes again");
        assert_eq!(fs::metadata(&path).expect("is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(Notice::read(&path, uid).expect("reads").as_ref(), Some(&notice));
        notice.open_ram(false).expect("is there");
        assert_eq!(fs::read_dir(directory.path()).expect("reads").count(), 1, "nothing else is left");

        let refused = |path: &Path, uid| format!("{:#}", Notice::read(path, uid).expect_err("is refused"));
        assert!(refused(&path, uid + 1).contains("somebody else"));
        let link = directory.path().join("2.json");
        symlink(&path, &link).expect("links");
        assert!(refused(&link, uid).contains("cannot open"));
        assert!(refused(directory.path(), uid).contains("not a file"));
    }

    #[test]
    fn nonsense_and_other_versions_are_refused() {
        let directory = tempfile::tempdir().expect("makes");
        let (path, uid) = (directory.path().join("1.json"), getuid().as_raw());
        let refused = || format!("{:#}", Notice::read(&path, uid).expect_err("is refused"));
        for text in ["", "{}", "[1, 2]", "\u{1}"] {
            fs::write(&path, text).expect("writes");
            assert!(refused().contains("not what it should be"), "{text}");
        }
        fs::write(&path, " ".repeat(1 << 20)).expect("writes");
        assert!(refused().contains("not what it should be"));
        let (_ram, mut notice) = notice();
        notice.counters.swap(0, 1);
        notice.write(&path).expect("writes");
        assert!(refused().contains("another version"));
    }

    #[test]
    fn a_title_is_one_line() {
        let words = ["run", "--exec", "a\n\u{1b}[31mb"].map(str::to_owned);
        assert_eq!(title(words.into_iter()), "run --exec a  [31mb");
        assert_eq!(title(["x".repeat(9999)].into_iter()).len(), TITLE_CHARS_MAX);
    }
}
