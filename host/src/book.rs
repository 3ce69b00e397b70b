//! `quell book`: the documents as a book, by mdBook.
//!
//! The chapters are in several directories of the tree, and refer to each other by relative paths.
//! So they are copied, with the same layout, into a separate directory that has nothing else, and
//! the list of chapters (`docs/SUMMARY.md`) is put where mdBook looks for it.

use crate::prelude::*;

/// mdBook, built without serving and watching.
const TOOL: &str = "mdbook@0.5.2";
const SUMMARY: &str = "docs/SUMMARY.md";

pub(crate) fn book() -> Result<u8> {
    println!("{}", make()?.display());
    Ok(0)
}

pub(crate) fn make() -> Result<PathBuf> {
    let options = ["--no-default-features", "--features", "search"];
    let tool = workspace::installed(TOOL, "mdbook", &options)?;
    let directory = workspace::target_dir("book");
    let sources = directory.join("src");
    // Leftovers of a former run must not look like a chapter.
    let _ = fs::remove_dir_all(&sources);
    let summary = fs::read_to_string(workspace::root().join(SUMMARY)).context("cannot read the chapters")?;
    for chapter in chapters(&summary) {
        let copy = sources.join(&chapter);
        fs::create_dir_all(copy.parent().unwrap_or(&sources))?;
        fs::copy(workspace::root().join(&chapter), copy)
            .with_context(|| format!("{SUMMARY} names {}", chapter.display()))?;
    }
    fs::write(sources.join("SUMMARY.md"), from_the_top(&summary))?;
    fs::copy(workspace::root().join("docs/book.toml"), directory.join("book.toml"))?;
    let mut build = Command::new(tool);
    build.arg("build").arg(&directory).stdin(Stdio::null());
    let output = build.output().context("cannot start mdbook")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mdbook failed:\n{said}");
    let page = directory.join("book/index.html");
    ensure!(page.is_file(), "mdbook made no {}:\n{said}", page.display());
    Ok(page)
}

/// The chapters that a summary in `docs/` names, by their paths in the tree.
fn chapters(summary: &str) -> Vec<PathBuf> {
    targets(summary).map(from_root).collect()
}

pub(crate) fn targets(markdown: &str) -> impl Iterator<Item = &str> {
    markdown.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// A path relative to `docs/`, made relative to the root of the tree.
fn from_root(target: &str) -> PathBuf {
    target.strip_prefix("../").map_or_else(|| Path::new("docs").join(target), PathBuf::from)
}

/// The summary, with paths relative to the root of the chapters.
fn from_the_top(summary: &str) -> String {
    targets(summary).fold(summary.to_owned(), |text, target| {
        text.replace(&format!("]({target})"), &format!("]({})", from_root(target).display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documents for people, from the root of the tree.
    fn documents() -> Vec<PathBuf> {
        let root = workspace::root();
        let mut found: Vec<PathBuf> =
            ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tlbcheck/README.md"]
                .map(PathBuf::from)
                .into();
        let markdown = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
        let inner = |directory: &str| {
            let entries = fs::read_dir(root.join(directory)).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        found.extend(inner("docs").into_iter().filter(markdown));
        found.extend(
            inner("crates").into_iter().map(|path| path.join("README.md")).filter(|path| path.is_file()),
        );
        found.iter().map(|path| path.strip_prefix(root).unwrap_or(path).to_owned()).collect()
    }

    fn prose(text: &str) -> String {
        let mut is_code = false;
        let lines = text.lines().filter(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence
        });
        lines.fold(String::new(), |text, line| text + line + "\n")
    }

    /// The anchors of headings: lower case, blanks as hyphens, without punctuation.
    fn anchors(text: &str) -> BTreeSet<String> {
        let headings = prose(text);
        let headings = headings
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .map(|line| line.trim_start_matches('#'));
        let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, '-' | '_');
        let slug = |text: &str| text.trim().to_lowercase().replace(' ', "-").chars().filter(kept).collect();
        headings.map(slug).collect()
    }

    fn broken(document: &Path) -> Vec<String> {
        let root = workspace::root();
        let text = fs::read_to_string(root.join(document)).unwrap();
        let prose = prose(&text);
        let local = targets(&prose).filter(|target| !target.contains("://"));
        let is_broken = |target: &&str| {
            let (path, anchor) =
                target.split_once('#').map_or((*target, None), |(path, anchor)| (path, Some(anchor)));
            let file = match path {
                "" => root.join(document),
                path => root.join(document).parent().unwrap().join(path),
            };
            let found = if file.is_dir() { Some(String::new()) } else { fs::read_to_string(file).ok() };
            found.is_none_or(|text| anchor.is_some_and(|anchor| !anchors(&text).contains(anchor)))
        };
        local.filter(is_broken).map(|target| format!("{}: {target}", document.display())).collect()
    }

    #[test]
    fn links_lead_to_files_and_headings_that_there_are() {
        let documents = documents();
        assert!(documents.len() > 20, "{documents:?}");
        let found: Vec<_> = documents.iter().flat_map(|document| broken(document)).collect();
        assert!(found.is_empty(), "{found:#?}");
        let count: usize = documents
            .iter()
            .map(|document| targets(&fs::read_to_string(workspace::root().join(document)).unwrap()).count())
            .sum();
        assert!(count > 40, "{count} links");
    }

    #[test]
    fn each_document_is_a_chapter() {
        let summary = fs::read_to_string(workspace::root().join(SUMMARY)).unwrap();
        let named: BTreeSet<_> = chapters(&summary).into_iter().collect();
        let wanted = documents().into_iter().filter(|path| {
            path != Path::new(SUMMARY) && (path.starts_with("docs") || path.components().count() == 1)
        });
        assert_eq!(named, wanted.collect());
    }

    fn programs(text: &str) -> impl Iterator<Item = &str> {
        text.split("```rust\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0))
    }

    #[test]
    fn programs_of_the_crates_are_those_that_are_tested() {
        let read = |path: &Path| fs::read_to_string(workspace::root().join(path)).unwrap();
        // Each crate tests what its README has.
        let readmes: Vec<_> =
            documents().iter().filter(|path| path.starts_with("crates")).map(|path| read(path)).collect();
        let tested: Vec<_> = readmes.iter().flat_map(|text| programs(text)).collect();
        let shown = read(Path::new("docs/crates.md"));
        let shown: Vec<_> = programs(&shown).collect();
        assert!(shown.len() >= 5, "{} programs", shown.len());
        for program in shown {
            assert!(tested.contains(&program), "is in no README of a crate:\n{program}");
        }
    }

    #[test]
    fn a_summary_is_read_from_where_it_lies() {
        let summary = "[Quell](../README.md)\n- [One](one.md)\n";
        assert_eq!(chapters(summary), [Path::new("README.md"), Path::new("docs/one.md")]);
        assert_eq!(from_the_top(summary), "[Quell](README.md)\n- [One](docs/one.md)\n");
        assert_eq!(prose("a\n```text\nb\n```\nc\n"), "a\nc\n");
        assert!(anchors("# What is `it`, then?\n").contains("what-is-it-then"));
    }
}
