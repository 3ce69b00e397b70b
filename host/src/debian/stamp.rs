//! What a disk was made of, in a file beside it: `debian-amd64.img.json` for `debian-amd64.img`. A
//! disk is current if it would be made of the same today. It is somebody's disk from then on, so it
//! is never replaced without being told.

use super::tree;
use crate::prelude::*;
use sha2::{Digest, Sha256};
use std::fmt::Write;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    architecture: String,
    bytes: u64,
    /// Package and version of the kernel.
    pub(super) kernel: String,
    /// A checksum of everything else that this tool decides.
    recipe: String,
}

impl Stamp {
    /// Of a disk that is made now.
    pub(super) fn new(arch: Arch, bytes: u64, kernel: &str, password: &str) -> Self {
        let mut digest = Sha256::new();
        let parts = tree::SETTINGS.iter().flat_map(|(path, text)| [*path, *text]);
        let parts = parts.chain(tree::PACKAGES).chain([tree::UNPACK, tree::CONFIGURE, password]);
        for part in parts {
            // With its length, so that no two lists of parts have the same bytes.
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let mut recipe = String::new();
        for byte in digest.finalize() {
            // Writing to a string does not fail.
            let _ = write!(recipe, "{byte:02x}");
        }
        Self { architecture: arch.debian().to_owned(), bytes, kernel: kernel.to_owned(), recipe }
    }

    /// How a disk that has `self` differs from one with `wanted`.
    fn difference(&self, wanted: &Self) -> Option<String> {
        if self.architecture != wanted.architecture {
            return Some(format!("is for {}, not for {}", self.architecture, wanted.architecture));
        }
        if self.kernel != wanted.kernel {
            return Some(format!("has {}, and the guests have {}", self.kernel, wanted.kernel));
        }
        if self.bytes != wanted.bytes {
            return Some(format!("has {} bytes, not {}", self.bytes, wanted.bytes));
        }
        let is_other = self.recipe != wanted.recipe;
        is_other.then(|| "was made with another password, or by another version of this tool".to_owned())
    }

    /// Whether the disk at a place has this stamp, if there is one. An error if it has not.
    pub(super) fn is_of(&self, disk: &Path) -> Result<bool> {
        if !disk.exists() {
            return Ok(false);
        }
        let text = fs::read_to_string(beside(disk)).ok();
        let found = text.and_then(|text| serde_json::from_str::<Self>(&text).ok());
        let problem = match found {
            None => Some("is not a disk that this command made".to_owned()),
            Some(found) => found.difference(self),
        };
        match problem {
            None => Ok(true),
            Some(problem) => bail!(
                "{} exists and {problem}; --force replaces it with all that is on it, and -o FILE makes another",
                disk.display()
            ),
        }
    }

    pub(super) fn publish(&self, disk: &Path, place: &Path) -> Result<()> {
        let stamp = beside(place);
        // An old stamp must not vouch for the new disk, should this be interrupted.
        if stamp.exists() {
            fs::remove_file(&stamp).with_context(|| format!("cannot remove {}", stamp.display()))?;
        }
        fs::rename(disk, place)
            .with_context(|| format!("cannot move the new disk to {}", place.display()))?;
        results::replace(&stamp, self)
    }
}

fn beside(disk: &Path) -> PathBuf {
    disk.with_added_extension("json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp::new(Arch::X86_64, 1 << 30, "linux-image-1 1.2", "")
    }

    #[test]
    fn a_disk_is_current_if_it_would_be_made_the_same_way() {
        let directory = tempfile::tempdir().expect("makes");
        let (new, disk) = (directory.path().join("new"), directory.path().join("disk.img"));
        assert!(!stamp().is_of(&disk).expect("none"));
        fs::write(&new, "disk").expect("writes");
        stamp().publish(&new, &disk).expect("moves");
        assert!(!new.exists() && directory.path().join("disk.img.json").is_file());
        assert!(stamp().is_of(&disk).expect("is good"));
    }

    #[test]
    fn a_disk_that_is_not_current_is_not_replaced() {
        let directory = tempfile::tempdir().expect("makes");
        let (new, disk) = (directory.path().join("new"), directory.path().join("disk.img"));
        fs::write(&disk, "somebody's").expect("writes");
        let refused = |wanted: &Stamp| wanted.is_of(&disk).expect_err("is refused").to_string();
        let text = refused(&stamp());
        assert!(text.contains("not a disk that this command made") && text.contains("--force"), "{text}");
        fs::write(&new, "disk").expect("writes");
        stamp().publish(&new, &disk).expect("moves");
        let kernel = "linux-image-1 1.2";
        for (wanted, reason) in [
            (Stamp::new(Arch::X86_64, 1 << 30, "linux-image-2 2", ""), "the guests have linux-image-2 2"),
            (Stamp::new(Arch::X86_64, 2 << 30, kernel, ""), "1073741824 bytes"),
            (Stamp::new(Arch::X86_64, 1 << 30, kernel, "secret"), "another password"),
            (Stamp::new(Arch::Aarch64, 1 << 30, kernel, ""), "for amd64, not for arm64"),
        ] {
            assert!(refused(&wanted).contains(reason), "{}", refused(&wanted));
        }
    }
}
