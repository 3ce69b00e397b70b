//! How QEMU is given a file, so that its name is taken for nothing else: not for the name of a
//! protocol (`a:b.img`), nor for further options (`a,b.img`), nor for other characters.

use crate::prelude::*;
use rustix::fs::FileType;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path;

/// A path as the value of an option. QEMU ends values at a comma; one that is written twice is a
/// comma.
pub(crate) fn value(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes().iter();
    let doubled = bytes.flat_map(|&byte| [byte, byte].into_iter().take(if byte == b',' { 2 } else { 1 }));
    OsString::from_vec(doubled.collect())
}

/// A value of `-drive`: these options, and this disk.
///
/// # Errors
///
/// If it is neither a file nor a block device.
pub(crate) fn drive(options: &str, disk: &Path) -> Result<OsString> {
    let driver = driver(disk)?;
    let path = path::absolute(disk).with_context(|| format!("no {}", disk.display()))?;
    let options = format!("{options},format=raw,file.driver={driver},file.filename=");
    Ok([OsStr::new(&options), &value(&path)].into_iter().collect())
}

pub(crate) fn driver(disk: &Path) -> Result<&'static str> {
    let data = fs::metadata(disk).with_context(|| format!("cannot use {}", disk.display()))?;
    let kind = FileType::from_raw_mode(data.mode());
    let Some(driver) = driver_for(kind) else {
        bail!("{} is neither a file nor a block device", disk.display())
    };
    Ok(driver)
}

const fn driver_for(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::RegularFile => Some("file"),
        FileType::BlockDevice => Some("host_device"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u52_whatever_a_disk_is_called_qemu_opens_that_file() {
        let directory = tempfile::tempdir().expect("makes");
        for name in [&b"a:b.img"[..], b"a,b=c,.img", b"file.driver=null-co", b"json:{}", b"\xff\xfe"] {
            let path = directory.path().join(OsStr::from_bytes(name));
            fs::write(&path, "").expect("writes");
            let given = drive("if=none,id=disk8", &path).expect("is a file").into_vec();
            let begin = b"if=none,id=disk8,format=raw,file.driver=file,file.filename=/";
            assert!(given.starts_with(begin), "{}", String::from_utf8_lossy(&given));
            // The way in which QEMU reads it.
            let text = given[begin.len() - 1..].to_vec();
            let mut read = Vec::new();
            let mut bytes = text.into_iter().peekable();
            while let Some(byte) = bytes.next() {
                assert!(byte != b',' || bytes.next() == Some(b','), "another option begins");
                read.push(byte);
            }
            assert_eq!(read, path.as_os_str().as_bytes());
        }
    }

    #[test]
    fn u52_relative_names_are_no_protocols() {
        let given = drive("if=none", Path::new("src/main.rs")).expect("cargo tests in host/");
        assert!(given.to_string_lossy().contains("file.filename=/"), "{given:?}");
        assert!(given.to_string_lossy().ends_with("/src/main.rs"), "{given:?}");
    }

    #[test]
    fn u52_a_disk_may_be_a_block_device_and_nothing_else() {
        assert_eq!(driver_for(FileType::BlockDevice), Some("host_device"));
        assert_eq!(driver_for(FileType::RegularFile), Some("file"));
        for path in ["/dev/null", "/"] {
            let why = driver(Path::new(path)).expect_err("is refused").to_string();
            assert!(why.contains("neither a file nor a block device"), "{why}");
        }
        assert!(driver(Path::new("/nowhere.img")).is_err());
    }
}
