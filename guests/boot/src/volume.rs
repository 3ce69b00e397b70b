//! The filesystems on the disks.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use ext4_view::{Ext4, PathBuf};

use crate::disk::Shared;
use crate::table::partitions;

/// The longest file that is read whole: configurations are much shorter.
const TEXT_MAX: u64 = 1 << 20;
/// The most files of a directory that are looked at.
const FILES_MAX: usize = 1024;

/// What a search for files needs of filesystems, which have numbers from 0. Tests have another one.
pub trait Files {
    /// How many there are.
    fn count(&self) -> usize;
    /// A text file. Links are followed.
    fn text(&self, volume: usize, path: &str) -> Option<String>;
    /// Bytes of a file.
    fn size(&self, volume: usize, path: &str) -> Option<u64>;
    /// Names in a directory.
    fn names(&self, volume: usize, path: &str) -> Vec<String>;
    /// The filesystem with this UUID.
    fn with_uuid(&self, uuid: &str) -> Option<usize>;
    /// The filesystem with this label.
    fn with_label(&self, label: &str) -> Option<usize>;
    /// That on a disk, from 0, and its partition, from 1, or 0 for all of the disk.
    fn at(&self, disk: usize, partition: u32) -> Option<usize>;
    /// Its name for Linux's `root=`.
    fn root(&self, volume: usize) -> String;
    /// Its name for people.
    fn name(&self, volume: usize) -> String;
}

/// A filesystem.
pub struct Volume {
    place: (usize, u32),
    name: String,
    /// Its name for Linux's `root=`.
    root: String,
    /// The filesystem; nothing is looked for on others than ext4.
    pub ext4: Ext4,
}

/// All filesystems, and what is to be said of each partition.
#[derive(Default)]
pub struct Volumes {
    /// The filesystems.
    pub all: Vec<Volume>,
    /// A line for each partition, or disk without any.
    pub seen: Vec<String>,
}

impl Volumes {
    /// Adds those of a disk, the next one.
    pub fn add(&mut self, disk: usize, shared: &Shared) {
        let name = format!("disk {}", disk + 1);
        let found = match partitions(shared) {
            Ok(found) => found,
            Err(why) => return self.seen.push(format!("{name}: {why}")),
        };
        for partition in found {
            let number = partition.number;
            let (place, device) = match number {
                0 => (format!("{name}, without partitions"), format!("/dev/nvme{disk}n1")),
                _ => (format!("{name}, partition {number}"), format!("/dev/nvme{disk}n1p{number}")),
            };
            match Ext4::load(Box::new(partition.part)) {
                Ok(ext4) => {
                    self.seen.push(format!("{place}: ext4 {}", ext4.uuid()));
                    let root = partition.name.unwrap_or(device);
                    self.all.push(Volume { place: (disk, number), name: place, root, ext4 });
                }
                Err(why) => self.seen.push(format!("{place}: no ext4 that can be read ({why})")),
            }
        }
    }

    fn ext4(&self, volume: usize) -> Option<&Ext4> {
        Some(&self.all.get(volume)?.ext4)
    }

    fn number(&self, is_it: impl Fn(&Volume) -> bool) -> Option<usize> {
        self.all.iter().position(is_it)
    }
}

impl Files for Volumes {
    fn count(&self) -> usize {
        self.all.len()
    }

    fn text(&self, volume: usize, path: &str) -> Option<String> {
        let is_short = self.size(volume, path)? <= TEXT_MAX;
        let bytes = is_short.then(|| self.ext4(volume)?.read(path).ok()).flatten()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn size(&self, volume: usize, path: &str) -> Option<u64> {
        let data = self.ext4(volume)?.metadata(path).ok()?;
        data.file_type().is_regular_file().then(|| data.len())
    }

    fn names(&self, volume: usize, path: &str) -> Vec<String> {
        let entries =
            self.ext4(volume).and_then(|ext4| ext4.read_dir(PathBuf::try_from(path).ok()?.as_path()).ok());
        let names = entries.into_iter().flatten().take(FILES_MAX).map_while(Result::ok);
        names.filter_map(|entry| Some(entry.file_name().as_str().ok()?.to_string())).collect()
    }

    fn with_uuid(&self, uuid: &str) -> Option<usize> {
        self.number(|volume| volume.ext4.uuid().to_string().eq_ignore_ascii_case(uuid))
    }

    fn with_label(&self, label: &str) -> Option<usize> {
        self.number(|volume| volume.ext4.label().to_str() == Ok(label))
    }

    fn at(&self, disk: usize, partition: u32) -> Option<usize> {
        self.number(|volume| volume.place == (disk, partition))
    }

    fn root(&self, volume: usize) -> String {
        self.all.get(volume).map(|volume| volume.root.clone()).unwrap_or_default()
    }

    fn name(&self, volume: usize) -> String {
        self.all.get(volume).map(|volume| volume.name.clone()).unwrap_or_default()
    }
}
