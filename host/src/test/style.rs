//! `quell check-style`: what can be said of sources, documents and commits within two seconds.
//!
//! Sources are formatted; files, comments and documents keep the limits that CONTRIBUTING.md names;
//! a commit's subject fits one line of a list. Functions are clippy's business (`too_many_lines`,
//! with its limit in `clippy.toml`).

use super::host::STEPS;
use crate::cli::CheckStyleArgs;
use crate::prelude::*;
use std::fmt::Display;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// The most columns of a line in a document or a comment.
const WIDTH: usize = 100;
const SUBJECT_WIDTH: usize = 72;
const LINES_MAX: usize = 400;

/// Documents for people with little time, and their most lines; tables are as wide as the text.
const SHORT: [(&str, usize); 2] = [("ARCHITECTURE.md", 350), ("README.md", 130)];

/// Tables, which are as long as there are rows.
const TABLES: [&str; 1] = ["crates/coherence/src/shootdown/model/mutants.rs"];

/// Checks the tree, and the last commit's subject or that of the one being made; 1 if it is wrong.
pub(crate) fn check(args: &CheckStyleArgs) -> Result<u8> {
    if args.install_hook {
        println!("{}", install_hook()?.display());
        return Ok(0);
    }
    let message = match &args.message {
        Some(file) => fs::read_to_string(file).context("cannot read the commit's message")?,
        None => git(&["log", "-1", "--format=%B"])?,
    };
    let mut found: Vec<String> = wrong_message(&message).into_iter().collect();
    found.extend(faults()?);
    found.iter().for_each(|line| eprintln!("{line}"));
    let format = STEPS.iter().find(|step| step.name == "format").context("there is no step format")?;
    let mut format = format.command(workspace::cargo());
    let is_formatted = format.stdout(Stdio::inherit()).status()?.success();
    Ok(u8::from(!is_formatted || !found.is_empty()))
}

fn git(args: &[&str]) -> Result<String> {
    workspace::output(Command::new("git").current_dir(workspace::root()).args(args))
}

/// Has git call this before each commit: this program as it was built, because a change of the host
/// tool should not have to be built before it can be committed.
fn install_hook() -> Result<PathBuf> {
    let path = git(&["rev-parse", "--path-format=absolute", "--git-path", "hooks/commit-msg"])?;
    let path = PathBuf::from(path.trim_end());
    ensure!(!path.exists(), "{} exists: remove it, or call ./quell check-style in it", path.display());
    fs::create_dir_all(path.parent().context("a hook is in a directory")?)?;
    fs::write(&path, hook(&env::current_exe()?))?;
    fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    Ok(path)
}

/// The hook. Git calls it with the file of the message, at the root of the tree.
fn hook(tool: &Path) -> String {
    let tool = tool.display();
    format!(
        "#!/bin/sh\n\
         # Installed by ./quell check-style --install-hook.\n\
         tool='{tool}'\n\
         [ -x \"$tool\" ] || tool=./quell\n\
         CARGO_MANIFEST_DIR=$PWD/host exec \"$tool\" check-style --message \"$1\"\n"
    )
}

/// What is wrong with the message of a commit. Git leaves out lines that begin with `#`.
fn wrong_message(message: &str) -> Option<String> {
    let mut lines = message.lines().filter(|line| !line.starts_with('#')).skip_while(|line| line.is_empty());
    let subject = lines.next()?;
    let width = subject.chars().count();
    if width > SUBJECT_WIDTH {
        return Some(format!("subject of {width} characters, at most {SUBJECT_WIDTH}: {subject}"));
    }
    let is_separate = lines.next().is_none_or(str::is_empty);
    (!is_separate).then(|| format!("no empty line after the subject: {subject}"))
}

/// All sources below a directory, without what is built.
pub(super) fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && !name.starts_with("target") {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    found
}

pub(super) fn documents() -> Result<Vec<PathBuf>> {
    let root = workspace::root();
    let top = ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md", "tlbcheck/README.md"];
    let mut documents: Vec<_> = top.map(|name| root.join(name)).into();
    for entry in fs::read_dir(root.join("docs"))? {
        documents.push(entry?.path());
    }
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    Ok(documents)
}

fn place(path: &Path) -> impl Display {
    path.strip_prefix(workspace::root()).unwrap_or(path).display()
}

fn line_count(path: &Path) -> Result<usize> {
    Ok(fs::read_to_string(path)?.lines().count())
}

/// Files that are longer, or have wider lines, than they may.
fn faults() -> Result<Vec<String>> {
    let sources = sources(workspace::root());
    let is_table = |path: &Path| TABLES.iter().any(|table| path.ends_with(table));
    let files = sources.iter().filter(|path| !is_table(path)).map(|path| (path.clone(), LINES_MAX));
    let short = SHORT.map(|(document, lines_max)| (workspace::root().join(document), lines_max));
    let mut found = Vec::new();
    for (path, lines_max) in files.chain(short.clone()) {
        let count = line_count(&path)?;
        if count > lines_max {
            found.push(format!("{}: {count} lines, at most {lines_max}", place(&path)));
        }
    }
    found.extend(too_wide(&sources, wide_comments)?);
    found.extend(too_wide(&documents()?, wide_prose)?);
    found.extend(too_wide(&short.map(|(path, _)| path), wide_lines)?);
    Ok(found)
}

fn wide_lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.chars().count() > WIDTH).collect()
}

/// The lines of these files that are too wide, according to `of`.
fn too_wide(files: &[PathBuf], of: fn(&str) -> Vec<&str>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files {
        let text = fs::read_to_string(path)?;
        let wide = of(&text).into_iter();
        found.extend(wide.map(|line| format!("{}: wider than {WIDTH}: {line}", place(path))));
    }
    Ok(found)
}

/// Lines of prose in a document that are too wide: not in tables, headings or code.
fn wide_prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        // A single code span cannot be split.
        let item = line.trim_start_matches("- ");
        let is_long_span = item.starts_with("`` ") && item.ends_with(" ``");
        let is_span = is_long_span || item.starts_with('`') && item.matches('`').count() == 2;
        let is_free = is_code || is_span || line.starts_with(['|', '#', '<']) || line.starts_with("    ");
        if !is_free && line.chars().count() > WIDTH {
            found.push(line);
        }
    }
    found
}

fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["//!", "///", "//"].iter().find_map(|start| line.strip_prefix(start))
}

/// Lines of comments that are too wide: of prose, not of code, tables or a single link.
fn wide_comments(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(said) = comment(line) else {
            is_code = false;
            continue;
        };
        is_code ^= said.trim_start().starts_with("```");
        let said = said.trim();
        let has_columns = said.starts_with('|') || said.contains("   ");
        let is_one_link = said.starts_with('[') && !said.contains(' ');
        if !is_code && !has_columns && !is_one_link && line.chars().count() > WIDTH {
            found.push(line);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_have_at_most_400_lines() {
        let sources = sources(workspace::root());
        assert!(sources.len() > 500, "{} sources", sources.len());
        assert_eq!(faults().unwrap(), [""; 0]);
        for table in TABLES {
            let count = line_count(&workspace::root().join(table)).unwrap();
            assert!(count > LINES_MAX, "{table} needs no exception");
        }
        let (wide, row) = (format!("    // {}", "a ".repeat(50)), "| ".repeat(51));
        let (links, link) = (format!("// [a] {}", "b ".repeat(50)), format!("// [{}]", "a".repeat(100)));
        let text = format!(
            "{wide}\n/// ```\n{wide}\n/// ```\n// | {wide}\n// a    b{wide}\n{link}\n{links}\nlet b;"
        );
        assert_eq!(wide_comments(&text), [wide.as_str(), links.as_str()]);
        let wide = "a ".repeat(51);
        assert_eq!(wide_prose(&format!("{wide}\n{row}\n```\n{wide}\n```\nb")), [wide.as_str()]);
        assert_eq!(wide_lines(&format!("a\n{row}")), [row.as_str()]);
    }

    #[test]
    fn a_subject_fits_one_line_and_stands_alone() {
        let (fits, long) = ("é".repeat(SUBJECT_WIDTH), "a".repeat(SUBJECT_WIDTH + 1));
        for right in ["", "# only a hint\n", "One\n", "One\n\nWhy.\n", "\n# hint\nOne\n# hint\n", &fits] {
            assert_eq!(wrong_message(right), None, "{right:?}");
        }
        for wrong in ["One\nWhy.\n", "# hint\nOne\nWhy.\n", &long] {
            assert!(wrong_message(wrong).is_some(), "{wrong:?}");
        }
    }

    #[test]
    fn a_hook_names_the_tool_and_passes_the_message_on() {
        let hook = hook(Path::new("/a b/quell-host"));
        assert!(hook.contains("tool='/a b/quell-host'\n") && hook.contains("--message \"$1\"\n"), "{hook}");
    }
}
