//! Which kernel is started.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::version::compare;
use crate::volume::Files;
use crate::{entries, grub};

/// A file: the number of its filesystem, and its path there.
pub type Place = (usize, String);

/// What is to be started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The kernel.
    pub kernel: Place,
    /// Initial RAM disks, one behind the other.
    pub initrds: Vec<Place>,
    /// The kernel's command line.
    pub words: String,
    /// The file that says so.
    pub said_by: String,
}

/// The links that Debian's kernels make, and the directories with kernels of all versions.
const LINKS: [(&str, &str); 2] = [("/vmlinuz", "/initrd.img"), ("/boot/vmlinuz", "/boot/initrd.img")];
const KERNEL: &str = "/boot/vmlinuz-";
/// What may be the initial RAM disk of a version.
const INITRDS: [(&str, &str); 3] =
    [("/boot/initrd.img-", ""), ("/boot/initramfs-", ".img"), ("/boot/initrd-", "")];

/// Finds the kernel to start. If there is none, says what was looked for.
///
/// # Errors
///
/// There is none: a line about each thing that was tried.
pub fn find(files: &impl Files) -> Result<Choice, Vec<String>> {
    let mut tried = Vec::new();
    if files.count() == 0 {
        let entries = entries::PLACES.map(|(place, _)| place).join("/*.conf, ");
        let others = LINKS.map(|(link, _)| link).join(", ");
        let configurations = grub::PLACES.join(", ");
        tried.push(format!("looked for on an ext4: {entries}/*.conf, {configurations}, {others}, {KERNEL}*"));
    }
    for way in [by_entries, by_grub, by_name] {
        for volume in 0..files.count() {
            match way(files, volume).and_then(|choice| complete(files, choice)) {
                Ok(choice) => return Ok(choice),
                Err(why) => tried.push(format!("{}: {why}", files.name(volume))),
            }
        }
    }
    Err(tried)
}

fn by_entries<F: Files>(files: &F, volume: usize) -> Result<Choice, String> {
    let places = entries::PLACES.map(|(place, _)| place).join("/*.conf, ");
    entries::default(files, volume).ok_or_else(|| format!("no {places}/*.conf"))
}

fn by_grub<F: Files>(files: &F, volume: usize) -> Result<Choice, String> {
    let place = grub::PLACES.iter().find(|place| files.size(volume, place).is_some());
    let place = place.ok_or_else(|| format!("no {}", grub::PLACES.join(", ")))?;
    grub::default(files, volume, place).map_err(|why| format!("{place}: {why}"))
}

fn by_name<F: Files>(files: &F, volume: usize) -> Result<Choice, String> {
    let is_there = |path: &str| files.size(volume, path).is_some();
    let linked = LINKS.iter().find(|(kernel, _)| is_there(kernel));
    let (kernel, initrd) = match linked {
        Some((kernel, initrd)) => (kernel.to_string(), Some(initrd.to_string())),
        None => {
            let names = files.names(volume, "/boot");
            let versions = names.iter().filter_map(|name| name.strip_prefix("vmlinuz-"));
            let newest = versions.max_by(|a, b| compare(a, b));
            let version =
                newest.ok_or_else(|| format!("no {}, {KERNEL}*", LINKS.map(|(link, _)| link).join(", ")))?;
            let named = INITRDS.map(|(begin, end)| format!("{begin}{version}{end}"));
            (format!("{KERNEL}{version}"), named.into_iter().find(|path| is_there(path)))
        }
    };
    Ok(Choice {
        said_by: kernel.clone(),
        kernel: (volume, kernel),
        initrds: initrd.filter(|path| is_there(path)).map(|path| (volume, path)).into_iter().collect(),
        words: format!("root={} rw", files.root(volume)),
    })
}

/// All files of a choice have to be there.
fn complete(files: &impl Files, choice: Choice) -> Result<Choice, String> {
    let missing = |place: &&Place| files.size(place.0, &place.1).is_none();
    if let Some((_, path)) = [&choice.kernel].into_iter().chain(&choice.initrds).find(missing) {
        return Err(format!("{} names {path}, which is not there", choice.said_by));
    }
    Ok(choice)
}
