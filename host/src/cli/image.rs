//! `quell image`, `quell image-debian` and `quell release` on the command line.

use crate::demo::flush::ROUNDS;
use crate::image::Entry;
use crate::prelude::*;
use clap::Args;

/// Make a bootable CD: Quell and tlbcheck in a GRUB menu
///
/// For real machines, clouds and other hypervisors, with BIOS or UEFI; docs/on-a-pc.md says how to
/// put it on a stick. All output is on the first serial port at 115,200 baud, and on the screen.
/// Requires the packages of GRUB and xorriso. With --bzimage it makes no CD, but a tlbcheck for
/// loaders of Linux kernels.
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// Output file
    #[arg(long, short, value_name = "FILE", default_value = "quell.iso")]
    pub(crate) output: PathBuf,
    /// Menu entry to start by default [default: check, or demo or guests if there is one]
    #[arg(long, value_name = "ENTRY", hide_possible_values = true)]
    pub(crate) default: Option<Entry>,
    /// Add an entry that runs the demo's workload, flushing by IPI and by hypercall, and shows the
    /// table: 8 vCPUs on CPUs 0 and 1
    #[arg(long)]
    pub(crate) demo: bool,
    /// Rounds of each of the demo's threads
    #[arg(long, value_name = "N", requires = "demo", default_value_t = ROUNDS)]
    pub(crate) rounds: u32,
    /// Add an entry that runs the guests of this machine file; F1 to F8 choose whose console is on
    /// the screen
    #[arg(long, value_name = "FILE")]
    pub(crate) guests: Option<PathBuf>,
    /// Seconds that the menu waits
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) timeout: u32,
    /// Run this shell command in the Debian guest instead of a shell, then power off
    #[arg(long, value_name = "COMMAND")]
    pub(crate) exec: Option<String>,
    /// Virtual CPUs of the guests [default: 2, and 8 for the demo]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    pub(crate) vcpus: Option<u32>,
    /// Memory of the guests, for example 512M or 1G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    pub(crate) memory: u64,
    /// Make tlbcheck as a Linux bzImage instead of a CD
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "default", "demo", "guests", "timeout", "exec", "vcpus", "memory"])]
    pub(crate) bzimage: Option<PathBuf>,
}

/// Make the files of a release: the CD, tlbcheck for both architectures, checksums, a bill of
/// materials, licences
///
/// The same sources give the same bits, wherever the tree is: paths, times and debugging
/// information are omitted or fixed. With --check everything is built a second time, in a copy of
/// the tree, and compared; the exit status is 1 if a file differs. A dependency without a licence,
/// or with one that is not allowed, is an error.
///
/// The CD's timestamp is that of the last commit, or SOURCE_DATE_EPOCH. Debian's kernel and busybox
/// are taken from the cache, see `./quell fetch`.
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// Output directory; it must contain nothing else
    #[arg(long, short, value_name = "DIRECTORY", default_value = "release")]
    pub(crate) output: PathBuf,
    /// Build twice, in two places, and compare bit by bit
    #[arg(long)]
    pub(crate) check: bool,
    /// Print the files with their checksums as JSON, as docs/json.md describes
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make a disk with Debian: systemd, apt, fio, iperf3, and the guests' kernel
///
/// The disk is a raw file that boots: with `./quell run --disk`, or by EFI firmware on any machine
/// of its architecture. Log in on the serial console as root. The packages are fetched from Debian,
/// unpacked without root's rights, and configure themselves in a first boot under QEMU, which takes
/// some minutes. A disk that is there already and current is
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
