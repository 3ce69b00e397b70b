//! The filesystems on the disks.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use ext4_view::Ext4;

use crate::disk::Shared;
use crate::table::partitions;

/// The longest file that is read whole: configurations are much shorter.
const TEXT_MAX: u64 = 1 << 20;
/// The most files of a directory that are looked at.
const FILES_MAX: usize = 1024;

/// What is known of a filesystem besides its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its disk, from 0, and its partition, from 1, or 0 for all of the disk.
    pub place: (usize, u32),
    /// Its UUID.
    pub uuid: String,
    /// Its label.
    pub label: String,
    /// Its name for people.
    pub name: String,
    /// Its name for Linux's `root=`.
    pub root: String,
}

/// What a search for files needs of filesystems, which have numbers from 0. Tests have another one.
pub trait Files {
    /// All of them.
    fn volumes(&self) -> &[Volume];
    /// A text file. Links are followed.
    fn text(&self, volume: usize, path: &str) -> Option<String>;
    /// Bytes of a file.
    fn size(&self, volume: usize, path: &str) -> Option<u64>;
    /// Names in a directory.
    fn names(&self, volume: usize, path: &str) -> Vec<String>;
}

/// All filesystems, and what is to be said of each partition.
#[derive(Default)]
pub struct Volumes {
    volumes: Vec<Volume>,
    /// The filesystems; nothing is looked for on others than ext4.
    pub ext4: Vec<Ext4>,
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
            let (name, device) = match number {
                0 => (format!("{name}, without partitions"), format!("/dev/nvme{disk}n1")),
                _ => (format!("{name}, partition {number}"), format!("/dev/nvme{disk}n1p{number}")),
            };
            match Ext4::load(Box::new(partition.part)) {
                Ok(ext4) => {
                    let uuid = ext4.uuid().to_string();
                    self.seen.push(format!("{name}: ext4 {uuid}"));
                    let label = ext4.label().to_str().unwrap_or_default().to_string();
                    let root = partition.name.unwrap_or(device);
                    self.volumes.push(Volume { place: (disk, number), uuid, label, name, root });
                    self.ext4.push(ext4);
                }
                Err(why) => self.seen.push(format!("{name}: no ext4 that can be read ({why})")),
            }
        }
    }
}

impl Files for Volumes {
    fn volumes(&self) -> &[Volume] {
        &self.volumes
    }

    fn text(&self, volume: usize, path: &str) -> Option<String> {
        let is_short = self.size(volume, path)? <= TEXT_MAX;
        let bytes = is_short.then(|| self.ext4.get(volume)?.read(path).ok()).flatten()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn size(&self, volume: usize, path: &str) -> Option<u64> {
        let data = self.ext4.get(volume)?.metadata(path).ok()?;
        data.file_type().is_regular_file().then(|| data.len())
    }

    fn names(&self, volume: usize, path: &str) -> Vec<String> {
        let entries = self.ext4.get(volume).and_then(|ext4| ext4.read_dir(path).ok());
        let names = entries.into_iter().flatten().take(FILES_MAX).map_while(Result::ok);
        names.filter_map(|entry| Some(entry.file_name().as_str().ok()?.to_string())).collect()
    }
}
