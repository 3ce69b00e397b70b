//! The filesystems on the disks.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;

use ext4_view::{Ext4, Ext4Error};

use crate::disk::{Part, Shared};
use crate::table::partitions;

/// The longest file that is read whole: configurations are much shorter.
const TEXT_MAX: u64 = 1 << 20;
/// The most files of a directory that are looked at, and lines about what cannot be read.
const FILES_MAX: usize = 1024;
const UNREADABLE_MAX: usize = 32;
/// What is at this byte of a filesystem if it is an ext4, or its ancestors.
const MAGIC: (u64, [u8; 2]) = (1080, 0xef53_u16.to_le_bytes());

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
    /// What is there, and cannot be read, and why.
    pub unreadable: RefCell<Vec<String>>,
}

impl Volumes {
    /// Adds those of a disk, the next one.
    pub fn add(&mut self, disk: usize, shared: &Shared) {
        let name = format!("disk {}", disk + 1);
        let found = match partitions(shared) {
            Ok(found) => found,
            Err(why) => return self.cannot_read(&name, why),
        };
        for partition in found {
            let number = partition.number;
            let (name, device) = match number {
                0 => (format!("{name}, without partitions"), format!("/dev/nvme{disk}n1")),
                _ => (format!("{name}, partition {number}"), format!("/dev/nvme{disk}n1p{number}")),
            };
            if !is_ext4(&partition.part) {
                self.seen.push(format!("{name}: no ext4"));
                continue;
            }
            match Ext4::load(Box::new(partition.part)) {
                Ok(ext4) => {
                    let uuid = ext4.uuid().to_string();
                    self.seen.push(format!("{name}: ext4 {uuid}"));
                    let label = ext4.label().to_str().unwrap_or_default().to_string();
                    let root = partition.name.unwrap_or(device);
                    self.volumes.push(Volume { place: (disk, number), uuid, label, name, root });
                    self.ext4.push(ext4);
                }
                Err(why) => self.cannot_read(&format!("{name}: its ext4"), why),
            }
        }
    }

    /// Notes what cannot be read.
    fn cannot_read(&self, what: &str, why: impl fmt::Display) {
        let (line, mut lines) = (format!("{what} cannot be read: {why}"), self.unreadable.borrow_mut());
        if lines.len() < UNREADABLE_MAX && !lines.contains(&line) {
            lines.push(line);
        }
    }

    /// What a filesystem says of a path. If that is there, and cannot be read, this is noted.
    fn ask<T>(&self, volume: usize, path: &str, of: impl FnOnce(&Ext4) -> Result<T, Ext4Error>) -> Option<T> {
        match of(self.ext4.get(volume)?) {
            Ok(answer) => Some(answer),
            Err(Ext4Error::NotFound | Ext4Error::NotADirectory) => None,
            Err(why) => {
                self.cannot_read(&format!("{}: {path}", self.volumes[volume].name), why);
                None
            }
        }
    }
}

fn is_ext4(part: &Part) -> bool {
    let mut magic = [0; 2];
    part.read_at(MAGIC.0, &mut magic).is_ok_and(|()| magic == MAGIC.1)
}

impl Files for Volumes {
    fn volumes(&self) -> &[Volume] {
        &self.volumes
    }

    fn text(&self, volume: usize, path: &str) -> Option<String> {
        let size = self.size(volume, path)?;
        if size > TEXT_MAX {
            self.cannot_read(&format!("{}: {path}", self.volumes[volume].name), "it is too long");
            return None;
        }
        let bytes = self.ask(volume, path, |ext4| ext4.read(path))?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn size(&self, volume: usize, path: &str) -> Option<u64> {
        let data = self.ask(volume, path, |ext4| ext4.metadata(path))?;
        data.file_type().is_regular_file().then(|| data.len())
    }

    fn names(&self, volume: usize, path: &str) -> Vec<String> {
        let mut names = Vec::new();
        self.ask(volume, path, |ext4| {
            for entry in ext4.read_dir(path)?.take(FILES_MAX) {
                names.extend(entry?.file_name().as_str().ok().map(ToString::to_string));
            }
            Ok(())
        });
        if names.len() == FILES_MAX {
            self.cannot_read(
                &format!("{}: all of {path}", self.volumes[volume].name),
                "it has too many files",
            );
        }
        names
    }
}
