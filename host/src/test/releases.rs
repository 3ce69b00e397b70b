//! The contents of a release, made and checked as its users would.

use super::room::tool;
use crate::book;
use crate::test::prelude::*;

pub(super) const ACTS: &[Named] =
    &[("book_is_made", makes_book), ("release_is_the_same_wherever_it_is_built", is_reproducible)];

fn makes_book(_: &Room<'_>) -> Result<()> {
    let page = book::make()?;
    let first = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
    ensure!(first.contains("one-flush.html"), "{} does not name the chapters", page.display());
    Ok(())
}

fn is_reproducible(room: &Room<'_>) -> Result<()> {
    let output = room.directory.join("release");
    let mut release = tool(&["release", "--check", "--json", "--output"])?;
    let made = workspace::output(release.arg(&output))?;
    let said: Value = serde_json::from_str(&made).context("what it prints is no JSON")?;
    ensure!(said["reproducible"] == Value::Bool(true), "{said:#}");
    let files = said["files"].as_array().map_or(0, Vec::len);
    ensure!(files == 6, "{files} files, and a release has 6");
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "--quiet", "SHA256SUMS"]).current_dir(&output);
    workspace::output(&mut check).map(drop)
}
