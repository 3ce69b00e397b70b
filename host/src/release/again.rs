//! The second build: in a copy of the tree, by the same program.

use super::File;
use crate::machine::signals::Signals;
use crate::prelude::*;

/// Directories of the tree that no build reads.
const LEFT_OUT: [&str; 2] = ["target", ".git"];
const LOOK: Duration = Duration::from_millis(200);

/// Builds again, and returns the files that differ from the first time.
pub(super) fn differing(first: &Path, files: &[File], epoch: u64, signals: &Signals) -> Result<Vec<String>> {
    let place = tempfile::Builder::new().prefix("quell-again-").tempdir()?;
    let (tree, second) = (place.path().join("another tree"), place.path().join("release"));
    copy_tree(workspace::root(), &tree, first)?;
    let mut command = Command::new(env::current_exe().context("this program has no path")?);
    command.args(["release", "--output"]).arg(&second);
    command.env("CARGO_MANIFEST_DIR", tree.join("host")).env("CARGO_TARGET_DIR", tree.join("target"));
    command.env("SOURCE_DATE_EPOCH", epoch.to_string());
    // Its messages are written to standard error: the output may be JSON.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().context("cannot start the second build")?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Some(signal) = signals.caught() {
            // The terminal has sent the signal to the child as well, or nothing has.
            let _ = child.kill();
            child.wait()?;
            bail!("the second build was ended by signal {signal}");
        }
        thread::sleep(LOOK);
    };
    ensure!(status.success(), "the second build failed ({status})");
    Ok(others(first, &second, files))
}

/// Files that have other contents in the second directory, or are missing there.
fn others(first: &Path, second: &Path, files: &[File]) -> Vec<String> {
    let is_other =
        |file: &&File| fs::read(first.join(&file.name)).ok() != fs::read(second.join(&file.name)).ok();
    files.iter().filter(is_other).map(|file| file.name.clone()).collect()
}

/// Copies the sources, without build output and the release itself.
fn copy_tree(from: &Path, to: &Path, release: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let release = release.canonicalize().ok();
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_left_out = LEFT_OUT.iter().any(|left_out| name == *left_out);
        if is_left_out || path.canonicalize().ok() == release {
            continue;
        }
        let copy = to.join(&name);
        if entry.file_type()?.is_dir() {
            copy_tree(&path, &copy, release.as_deref().unwrap_or(Path::new("")))?;
        } else {
            fs::copy(&path, &copy).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_the_same_are_named() {
        let place = tempfile::tempdir().unwrap();
        let (first, second) = (place.path().join("1"), place.path().join("2"));
        for (directory, files) in [(&first, "abc"), (&second, "ab")] {
            fs::create_dir(directory).unwrap();
            for name in files.chars() {
                fs::write(directory.join(name.to_string()), name.to_string()).unwrap();
            }
        }
        let files = ["a", "b", "c"].map(|name| File::of(&first.join(name)).unwrap());
        assert_eq!(others(&first, &second, &files), ["c"], "it is missing");
        fs::write(second.join("a"), "A").unwrap();
        assert_eq!(others(&first, &second, &files), ["a", "c"]);
    }

    #[test]
    fn a_copy_has_the_sources_alone() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        for file in ["src/main.rs", "target/built", ".git/config", "release/image", "Cargo.toml"] {
            let path = tree.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let copy = place.path().join("copy");
        copy_tree(&tree, &copy, &tree.join("release")).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&copy).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["Cargo.toml", "src"]);
        assert_eq!(fs::read_to_string(copy.join("src/main.rs")).unwrap(), "src/main.rs");
    }
}
