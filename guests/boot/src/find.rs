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

/// A way to find it on a filesystem, which says why there it is of no use. `None` if nothing is
/// there for it.
type Way<F> = fn(&F, usize) -> Option<Result<Choice, String>>;

/// Finds the kernel to start: in all ways on the first disk, then on the next. Entries come after
/// GRUB, which reads those that its configuration wants. If there is none, says what was looked
/// for.
///
/// # Errors
///
/// There is none: a line about each thing that was tried.
pub fn find<F: Files>(files: &F) -> Result<Choice, Vec<String>> {
    let ways: [(Way<F>, String); 3] = [
        (by_grub, grub::PLACES.join(", ")),
        (by_entries, entries::PLACES.map(|(place, _)| format!("{place}/entries/*.conf")).join(", ")),
        (by_name, format!("{}, {KERNEL}*", LINKS.map(|(link, _)| link).join(", "))),
    ];
    let mut tried = Vec::new();
    if files.volumes().is_empty() {
        let all = ways.each_ref().map(|(_, looks_for)| looks_for.as_str());
        tried.push(format!("looked for on an ext4: {}", all.join(", ")));
    }
    let volumes = files.volumes().iter().enumerate();
    let mut order: Vec<_> =
        volumes.flat_map(|(volume, about)| [0, 1, 2].map(|way| (about.place.0, way, volume))).collect();
    order.sort_unstable();
    for (_, way, volume) in order {
        let (way, looks_for) = &ways[way];
        let choice = way(files, volume).unwrap_or_else(|| Err(format!("no {looks_for}")));
        match choice.and_then(|choice| complete(files, choice)) {
            Ok(choice) => return Ok(choice),
            Err(why) => tried.push(format!("{}: {why}", files.volumes()[volume].name)),
        }
    }
    Err(tried)
}

fn by_entries<F: Files>(files: &F, volume: usize) -> Option<Result<Choice, String>> {
    entries::default(files, volume).map(Ok)
}

fn by_grub<F: Files>(files: &F, volume: usize) -> Option<Result<Choice, String>> {
    let place = grub::PLACES.iter().find(|place| files.size(volume, place).is_some())?;
    Some(grub::default(files, volume, place).map_err(|why| format!("{place}: {why}")))
}

fn by_name<F: Files>(files: &F, volume: usize) -> Option<Result<Choice, String>> {
    let is_there = |path: &str| files.size(volume, path).is_some();
    let (kernel, initrd) = match LINKS.iter().find(|(kernel, _)| is_there(kernel)) {
        Some((kernel, initrd)) => (kernel.to_string(), Some(initrd.to_string())),
        None => {
            let names = files.names(volume, "/boot");
            let versions = names.iter().filter_map(|name| name.strip_prefix("vmlinuz-"));
            let version = versions.max_by(|a, b| compare(a, b))?;
            let named = INITRDS.map(|(begin, end)| format!("{begin}{version}{end}"));
            (format!("{KERNEL}{version}"), named.into_iter().find(|path| is_there(path)))
        }
    };
    Some(Ok(Choice {
        said_by: kernel.clone(),
        kernel: (volume, kernel),
        initrds: initrd.filter(|path| is_there(path)).map(|path| (volume, path)).into_iter().collect(),
        words: format!("root={} rw", files.volumes()[volume].root),
    }))
}

/// All files of a choice have to be there.
fn complete(files: &impl Files, choice: Choice) -> Result<Choice, String> {
    let missing = |place: &&Place| files.size(place.0, &place.1).is_none();
    if let Some((_, path)) = [&choice.kernel].into_iter().chain(&choice.initrds).find(missing) {
        return Err(format!("{} names {path}, which is not there", choice.said_by));
    }
    Ok(choice)
}
