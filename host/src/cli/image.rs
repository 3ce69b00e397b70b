//! `quell image` and `quell release` on the command line.

use crate::image::Entry;
use crate::size;
use clap::Args;
use hostlink::config::MAX_VCPUS;
use std::path::PathBuf;

/// Make a bootable CD: Quell and tlbcheck in a GRUB menu
///
/// For real machines, clouds and other hypervisors, with BIOS or UEFI. All output is on the first
/// serial port at 115,200 baud. Requires the packages of GRUB and xorriso. With --bzimage it makes
/// no CD, but a tlbcheck for loaders of Linux kernels.
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// Output file
    #[arg(long, short, value_name = "FILE", default_value = "quell.iso")]
    pub(crate) output: PathBuf,
    /// Menu entry to start by default
    #[arg(long, value_name = "ENTRY", default_value = "check")]
    pub(crate) default: Entry,
    /// Seconds that the menu waits
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub(crate) timeout: u32,
    /// Run this shell command in the Debian guest instead of a shell, then power off
    #[arg(long, value_name = "COMMAND")]
    pub(crate) exec: Option<String>,
    /// Virtual CPUs of the guests
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=MAX_VCPUS as i64))]
    pub(crate) vcpus: u32,
    /// Memory of the guests, for example 512M or 1G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    pub(crate) memory: u64,
    /// Make tlbcheck as a Linux bzImage instead of a CD
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "default", "timeout", "exec", "vcpus", "memory"])]
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
