//! Disks and filesystems that are made up.

mod disks;
mod distributions;
mod garbage;
mod scripts;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::volume::{Files, Volume};

/// Filesystems with these files, four on each disk.
#[derive(Default)]
struct Tree {
    volumes: Vec<Volume>,
    files: BTreeMap<(usize, String), String>,
}

impl Tree {
    fn with(mut self, volume: usize, path: &str, text: &str) -> Self {
        self.files.insert((volume, path.to_string()), text.to_string());
        for number in self.volumes.len()..=volume {
            self.volumes.push(Volume {
                place: (number / 4, number as u32 % 4),
                uuid: format!("uuid-{number}"),
                label: format!("label-{number}"),
                name: format!("volume {number}"),
                root: format!("/dev/v{number}"),
            });
        }
        self
    }
}

impl Files for Tree {
    fn volumes(&self) -> &[Volume] {
        &self.volumes
    }

    fn text(&self, volume: usize, path: &str) -> Option<String> {
        self.files.get(&(volume, path.to_string())).cloned()
    }

    fn size(&self, volume: usize, path: &str) -> Option<u64> {
        Some(self.text(volume, path)?.len() as u64)
    }

    fn names(&self, volume: usize, path: &str) -> Vec<String> {
        let inside = |(of, name): &(usize, String)| {
            let name = name.strip_prefix(path)?.strip_prefix('/').filter(|_| *of == volume)?;
            (!name.contains('/')).then(|| name.to_string())
        };
        self.files.keys().filter_map(inside).collect()
    }
}
