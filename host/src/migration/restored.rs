//! A note beside a snapshot that a guest was restored from it. A guest that is restored a second
//! time has what the first one has: keys, and with a kernel that does not know the generation id
//! the next random numbers, too.
//!
//! The note is the file `NAME.restored`, one line: [`MAGIC`], the snapshot's salt, which no other
//! one has, and the seconds since 1970. It is written when a restoration begins, so no guest runs
//! without it; a copy of the snapshot elsewhere has none.

use crate::prelude::*;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const MAGIC: &str = "quell restored ";

fn place(snapshot: &Path) -> PathBuf {
    let mut name = snapshot.as_os_str().to_owned();
    name.push(".restored");
    name.into()
}

fn digits(salt: &[u8]) -> String {
    salt.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// When a guest was last restored from the snapshot with this salt, as far as is known.
pub(super) fn last(snapshot: &Path, salt: &[u8]) -> Option<String> {
    let note = fs::read_to_string(place(snapshot)).ok()?;
    let (of, at) = note.strip_prefix(MAGIC)?.trim_end().split_once(' ')?;
    let at = OffsetDateTime::from_unix_timestamp(at.parse().ok()?).ok()?;
    at.format(&Rfc3339).ok().filter(|_| of == digits(salt))
}

/// A guest is being restored from it.
pub(super) fn note(snapshot: &Path, salt: &[u8]) -> Result<()> {
    let place = place(snapshot);
    let write = || -> Result<()> {
        match fs::symlink_metadata(&place) {
            Ok(other) => {
                let is_note = other.is_file() && fs::read(&place)?.starts_with(MAGIC.as_bytes());
                ensure!(is_note, "another file has that name");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        let at = OffsetDateTime::now_utc().unix_timestamp();
        Ok(fs::write(&place, format!("{MAGIC}{} {at}\n", digits(salt)))?)
    };
    write().with_context(|| {
        let name = place.display();
        format!("that it was restored is not noted in {name}, and --check will not warn of it")
    })
}

/// What a user is to know who restores it once more.
pub(super) fn warning(snapshot: &Path, last: &str) -> String {
    format!(
        "{} was restored before, on {last}: both guests have the same keys, and may draw the same random \
         numbers (docs/migration.md)",
        snapshot.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn m11_a_snapshot_that_was_restored_is_known_until_another_has_its_name() {
        let directory = tempfile::tempdir().expect("makes");
        let snapshot = directory.path().join("web.snapshot");
        assert_eq!(last(&snapshot, &[1; 32]), None);
        for _ in 0..2 {
            note(&snapshot, &[1; 32]).expect("writes");
            let at = last(&snapshot, &[1; 32]).expect("is noted");
            assert!(warning(&snapshot, &at).contains("web.snapshot was restored before, on 2"), "{at}");
        }
        assert_eq!(last(&snapshot, &[2; 32]), None, "another one that was saved there");
        fs::write(place(&snapshot), format!("{MAGIC}{} \x1b[2J\n", digits(&[1; 32]))).expect("writes");
        assert_eq!(last(&snapshot, &[1; 32]), None, "that is no time");
    }

    #[test]
    fn m11_what_is_no_note_stays_and_a_note_that_cannot_be_written_is_said() {
        let directory = tempfile::tempdir().expect("makes");
        let (snapshot, other) = (directory.path().join("s"), directory.path().join("other"));
        fs::write(&other, "mine").expect("writes");
        fs::write(place(&snapshot), "mine").expect("writes");
        let refused = || format!("{:#}", note(&snapshot, &[1; 32]).expect_err("is refused"));
        assert!(refused().contains("another file has that name") && refused().contains("--check"));
        fs::remove_file(place(&snapshot)).expect("removes");
        symlink(&other, place(&snapshot)).expect("makes");
        assert!(refused().contains("another file has that name"));
        assert_eq!(fs::read_to_string(&other).expect("reads"), "mine");
        let nowhere = directory.path().join("no/s");
        assert!(format!("{:#}", note(&nowhere, &[1; 32]).expect_err("fails")).contains("is not noted"));
    }
}
