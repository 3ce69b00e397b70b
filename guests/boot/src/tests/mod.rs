//! Disks and filesystems that are made up.

mod disks;
mod garbage;
mod scripts;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::volume::Files;

/// Filesystems with these files.
#[derive(Default)]
struct Tree(BTreeMap<(usize, String), String>);

impl Tree {
    fn with(mut self, volume: usize, path: &str, text: &str) -> Self {
        self.0.insert((volume, path.to_string()), text.to_string());
        self
    }
}

impl Files for Tree {
    fn count(&self) -> usize {
        self.0.keys().map(|(volume, _)| volume + 1).max().unwrap_or(0)
    }

    fn text(&self, volume: usize, path: &str) -> Option<String> {
        self.0.get(&(volume, path.to_string())).cloned()
    }

    fn size(&self, volume: usize, path: &str) -> Option<u64> {
        Some(self.text(volume, path)?.len() as u64)
    }

    fn names(&self, volume: usize, path: &str) -> Vec<String> {
        let inside = |(of, name): &(usize, String)| {
            let name = name.strip_prefix(path)?.strip_prefix('/').filter(|_| *of == volume)?;
            (!name.contains('/')).then(|| name.to_string())
        };
        self.0.keys().filter_map(inside).collect()
    }

    fn with_uuid(&self, uuid: &str) -> Option<usize> {
        uuid.strip_prefix("uuid-")?.parse().ok().filter(|volume| *volume < self.count())
    }

    fn with_label(&self, label: &str) -> Option<usize> {
        label.strip_prefix("label-")?.parse().ok().filter(|volume| *volume < self.count())
    }

    fn at(&self, disk: usize, partition: u32) -> Option<usize> {
        let volume = disk + partition as usize;
        (volume < self.count()).then_some(volume)
    }

    fn root(&self, volume: usize) -> String {
        format!("/dev/v{volume}")
    }

    fn name(&self, volume: usize) -> String {
        format!("volume {volume}")
    }
}
