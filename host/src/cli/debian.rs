//! `quell image-debian` on the command line.

use crate::arch::Arch;
use crate::size::{self, GIB, MIB};
use clap::Args;
use std::path::PathBuf;

/// Make a disk with Debian: systemd, apt, fio, iperf3, and the modules of the guests' kernel
///
/// The disk is a raw file with one ext4 and no partitions: start the kernel of `./quell fetch` with
/// `root=/dev/nvme0n1 rw`, without an initial RAM disk. Log in on the serial console as root. The
/// packages are fetched from Debian, unpacked without root's rights, and configure themselves in a
/// first boot under QEMU, which takes some minutes. A disk that is there already and current is
/// left as it is. docs/debian.md says more.
#[derive(Debug, Args)]
pub(crate) struct ImageDebianArgs {
    /// Architecture of the system
    #[arg(long, value_name = "ARCH", default_value = "x86_64")]
    pub(crate) arch: Arch,
    /// Output file [default: debian-amd64.img or debian-arm64.img in target/]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Size of the disk; the file takes only what is used of it
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = disk_size)]
    pub(crate) size: u64,
    /// Password of root [default: none, so that the name is enough to log in]
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, value_parser = password)]
    pub(crate) password: String,
    /// Make the disk again, whatever is on it
    #[arg(long)]
    pub(crate) force: bool,
    /// Print path, size, kernel and seconds as JSON, as docs/json.md describes
    #[arg(long)]
    pub(crate) json: bool,
}

/// A size in which the system fits.
fn disk_size(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes < GIB => Err(format!("'{text}' is too small; Debian takes at least 1G")),
        bytes => Ok(bytes.next_multiple_of(MIB)),
    }
}

/// A password that one line can hold.
fn password(text: &str) -> Result<String, String> {
    if text.chars().any(char::is_control) {
        return Err("a password has neither line ends nor other control characters".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_too_small_is_refused() {
        assert!(disk_size("512M").expect_err("is refused").contains("at least 1G"));
        assert_eq!(disk_size("1G"), Ok(GIB));
        assert_eq!(disk_size("1073741825"), Ok(GIB + MIB));
        assert!(disk_size("lots").is_err());
    }

    #[test]
    fn a_password_is_one_line() {
        assert!(password("two\nlines").is_err());
        assert_eq!(password("good: one").as_deref(), Ok("good: one"));
    }
}
