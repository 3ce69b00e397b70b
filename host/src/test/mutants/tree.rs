//! The mutated copy of the tree: which files, what is inserted, and its build.

use super::built::is_built;
use super::inserted;
use super::sites::{self, Found, Site};
use crate::prelude::*;
use crate::test::lines;
use crate::test::progress::Running;
use cargo_metadata::Message;
use cargo_metadata::diagnostic::{Diagnostic, DiagnosticLevel, DiagnosticSpan};

/// Longest time for one build.
const BUILD_TIMEOUT: Duration = Duration::from_secs(3600);
/// Builds until nothing is left that does not compile.
const BUILDS_MAX: usize = 40;
/// Bytes of text around a place that does not compile, and has no change around it.
const NEARBY: usize = 500;
/// Cargo's commands: what does not compile is found by the quicker one.
const CHECK: &str = "check --profile test --keep-going";
const BUILD: &str = "test --no-run";
/// What the compiler would refuse to compute.
const FLAGS: &str = "-Awarnings -Aarithmetic-overflow -Aunconditional-panic -Aoverflowing-literals";
/// What functions that must be computed are listed after.
const COMPUTED: &str = "const fn ";
/// The crate that the copy's places ask, below the copy.
const CHOSEN: &str = "crates/mutant";
const CHOSEN_SOURCE: &str = include_str!("chosen/lib.rs");
const CHOSEN_MANIFEST: &str = "[package]\nname = \"quell_mutant\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n";
/// What is built: the tests that need no machine.
const WHAT: &str = "--tests";

/// A source file of a room.
pub(super) struct Source {
    pub(super) room: usize,
    /// Below the root.
    pub(super) path: String,
    text: String,
    /// Numbers of its sites begin here.
    first: u32,
    found: Found,
}

pub(super) struct Tree {
    /// Directory, and the file that its modules begin in.
    packages: Vec<(&'static str, &'static str)>,
    root: PathBuf,
    build: PathBuf,
    pub(super) sources: Vec<Source>,
    /// Numbers of those that do not compile.
    dropped: BTreeSet<u32>,
    /// Names of functions that the compiler must compute, and that so cannot ask.
    computed: BTreeSet<String>,
    /// Where the inserted text of each file is.
    places: BTreeMap<String, Vec<(u32, Range<usize>)>>,
}

/// A program of tests.
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) package: PathBuf,
}

impl Tree {
    /// Finds what can be changed in the rooms; `rooms` are directories below the root.
    pub(super) fn read(rooms: &[Option<&str>], packages: Vec<(&'static str, &'static str)>) -> Result<Self> {
        let directory = workspace::target_dir("mutants");
        let (root, build) = (directory.join("tree"), directory.join("build"));
        let mut files = Vec::new();
        for (package, program) in &packages {
            let root_file = format!("{package}/src/{program}");
            reached_files(&root_file, true, &mut files)?;
        }
        let (mut sources, mut first) = (Vec::new(), 0);
        for (path, text) in files {
            let Some(room) =
                rooms.iter().position(|room| room.is_some_and(|room| path.starts_with(&format!("{room}/"))))
            else {
                continue;
            };
            let found = sites::find(&text).with_context(|| path.clone())?;
            let count = found.sites.len() as u32;
            sources.push(Source { room, path, text, first, found });
            first += count;
        }
        let (dropped, computed, places) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        Ok(Self { packages, root, build, sources, dropped, computed, places })
    }

    /// All that compile: number, source and site.
    pub(super) fn mutants(&self) -> impl Iterator<Item = (u32, &Source, &Site)> {
        self.all().filter(|(number, _, site)| self.compiles(*number, site))
    }

    fn all(&self) -> impl Iterator<Item = (u32, &Source, &Site)> {
        self.sources.iter().flat_map(|source| {
            (source.first..).zip(&source.found.sites).map(move |(number, site)| (number, source, site))
        })
    }

    fn compiles(&self, number: u32, site: &Site) -> bool {
        let is_computed = site.computed.as_ref().is_some_and(|function| self.computed.contains(function));
        !is_computed && !self.dropped.contains(&number)
    }

    /// Copies the tree and builds its tests, without what does not compile.
    pub(super) fn make(&mut self, running: &Running<'_>, signals: &Signals) -> Result<Vec<Program>> {
        self.copy()?;
        self.read_dropped();
        let mut what = CHECK;
        for round in 0..BUILDS_MAX {
            self.write()?;
            running.note(format!("build {}, {} left out", round + 1, self.dropped.len()));
            let (programs, errors) = self.cargo(what, running, signals)?;
            ensure!(signals.caught().is_none(), "stopped by a signal");
            match (errors.is_empty(), what == CHECK) {
                (true, true) => what = BUILD,
                (true, false) => return Ok(programs),
                (false, _) => {
                    self.drop_those(&errors)?;
                    self.write_dropped()?;
                }
            }
        }
        bail!("the mutated tree in {} does not compile after {BUILDS_MAX} builds", self.root.display())
    }

    fn copy(&self) -> Result<()> {
        let mut list = Command::new("git");
        list.current_dir(workspace::root()).args(["ls-files", "-z", "-co", "--exclude-standard"]);
        let output = list.output().context("cannot start git")?;
        ensure!(output.status.success(), "git cannot list the files of the tree");
        let names = String::from_utf8(output.stdout).context("names of files")?;
        let mutated: BTreeSet<_> = self.sources.iter().map(|source| source.path.as_str()).collect();
        for name in names.split_terminator('\0').filter(|name| !mutated.contains(name)) {
            let from = workspace::root().join(name);
            if !from.is_file() {
                continue;
            }
            let mut content = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
            let asks =
                self.packages.iter().any(|(package, _)| name.strip_suffix("/Cargo.toml") == Some(package));
            if asks {
                let depth = name.split('/').count() - 1;
                let line = format!("quell_mutant = {{ path = \"{}{CHOSEN}\" }}\n", "../".repeat(depth));
                let text = String::from_utf8(content).context("a manifest")?;
                let text = if text.contains("\n[dependencies]\n") {
                    text.replace("\n[dependencies]\n", &format!("\n[dependencies]\n{line}"))
                } else {
                    format!("{text}\n[dependencies]\n{line}")
                };
                content = text.into_bytes();
            }
            put(&self.root.join(name), &content)?;
            let permissions = fs::metadata(&from)?.permissions();
            fs::set_permissions(self.root.join(name), permissions)?;
        }
        put(&self.root.join(CHOSEN).join("Cargo.toml"), CHOSEN_MANIFEST.as_bytes())?;
        put(&self.root.join(CHOSEN).join("lib.rs"), CHOSEN_SOURCE.as_bytes())?;
        remove_others(&self.root, &|path| {
            let name = path.strip_prefix(&self.root).unwrap_or(path);
            name.starts_with(CHOSEN) || workspace::root().join(name).is_file()
        })
    }

    /// Writes the mutated sources.
    fn write(&mut self) -> Result<()> {
        for source in &self.sources {
            let left = (source.first..).zip(&source.found.sites);
            let left = left.filter(|(number, site)| self.compiles(*number, site));
            // The compiler computes nothing that it need not.
            let mut text = source.text.clone();
            for (_, says) in source.found.computed.iter().filter(|(name, _)| !self.computed.contains(name)) {
                text.replace_range(says.clone(), &" ".repeat(says.len()));
            }
            let (text, places) = inserted::insert(&text, left);
            put(&self.root.join(&source.path), text.as_bytes())?;
            self.places.insert(source.path.clone(), places);
        }
        Ok(())
    }

    fn cargo(
        &self,
        what: &str,
        running: &Running<'_>,
        signals: &Signals,
    ) -> Result<(Vec<Program>, Vec<Diagnostic>)> {
        let mut command = workspace::cargo();
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.build).env("RUSTFLAGS", FLAGS);
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_TEST_DEBUG", "0");
        command
            .args(what.split(' '))
            .args(WHAT.split(' '))
            .args(self.packages.iter().flat_map(|(package, _)| named(package)))
            .args(["--message-format=json"]);
        if self.packages.iter().any(|(package, _)| *package == "hypervisor") {
            command.args(["--features", "quell-hypervisor/trace"]);
        }
        let (mut programs, mut errors, mut said) = (Vec::new(), Vec::new(), Vec::new());
        let status = lines::read(command, BUILD_TIMEOUT, BUILD_TIMEOUT, signals, |line| {
            match serde_json::from_str(&line) {
                Ok(Message::CompilerArtifact(artifact)) => {
                    running.note(format!("builds {}", artifact.target.name));
                    if let Some(path) = artifact.executable.filter(|_| artifact.profile.test) {
                        let package =
                            artifact.manifest_path.parent().map(|path| path.as_std_path().to_owned());
                        programs.push(Program { path: path.into(), package: package.unwrap_or_default() });
                    }
                }
                Ok(Message::CompilerMessage(message)) if message.message.level == DiagnosticLevel::Error => {
                    if !message.message.spans.is_empty() {
                        errors.push(message.message);
                    }
                }
                Ok(_) => {}
                Err(_) => said.push(line),
            }
        })?;
        let succeeded = status.is_some_and(|status| status.success());
        ensure!(
            succeeded || !errors.is_empty(),
            "cargo fails in {}: {}",
            self.root.display(),
            said.join("\n")
        );
        Ok((programs, errors))
    }

    /// Drops those that the compiler complains about: the innermost at each place that it names, or
    /// else all nearby.
    fn drop_those(&mut self, errors: &[Diagnostic]) -> Result<()> {
        let before = (self.dropped.len(), self.computed.len());
        for error in errors {
            if let Some(name) = must_be_computed(error) {
                self.computed.insert(name);
                continue;
            }
            let spans = &error.spans;
            let mut found: Vec<_> = spans.iter().filter_map(|span| self.around(span, 0)).flatten().collect();
            if found.is_empty() {
                found = spans.iter().filter_map(|span| self.around(span, NEARBY)).flatten().collect();
            }
            self.dropped.extend(found);
        }
        if (self.dropped.len(), self.computed.len()) == before {
            let (span, what) = (&errors[0].spans[0], &errors[0].message);
            bail!("no change is at {}:{}: {what}", span.file_name, span.line_start);
        }
        Ok(())
    }

    /// Those that begin within `distance` bytes of a place, or else the innermost one around it.
    fn around(&self, span: &DiagnosticSpan, distance: usize) -> Option<Vec<u32>> {
        let mut span = span;
        // What a macro expands to is where it is called.
        while !self.places.contains_key(&span.file_name) {
            span = &span.expansion.as_ref()?.span;
        }
        let (start, end) = (span.byte_start as usize, span.byte_end as usize);
        let places = self.places[&span.file_name].iter();
        if distance > 0 {
            let near = places.filter(|(_, range)| range.start.abs_diff(start) < distance);
            return Some(near.map(|(number, _)| *number).collect());
        }
        let around = places.filter(|(_, range)| range.start <= start && end <= range.end);
        around.min_by_key(|(_, range)| range.len()).map(|(number, _)| vec![*number])
    }

    /// Names of what did not compile, one in a line: known at the next run.
    fn dropped_list(&self) -> PathBuf {
        self.build.with_file_name("dropped.txt")
    }

    fn read_dropped(&mut self) {
        let text = fs::read_to_string(self.dropped_list()).unwrap_or_default();
        let names: BTreeSet<_> = text.lines().collect();
        let known = self.mutants().filter(|(_, source, site)| names.contains(name(source, site).as_str()));
        let known: Vec<_> = known.map(|(number, ..)| number).collect();
        self.dropped.extend(known);
        self.computed.extend(text.lines().filter_map(|line| line.strip_prefix(COMPUTED)).map(str::to_owned));
    }

    fn write_dropped(&self) -> Result<()> {
        let dropped = self.all().filter(|(number, ..)| self.dropped.contains(number));
        let dropped = dropped.map(|(_, source, site)| name(source, site));
        let computed = self.computed.iter().map(|name| format!("{COMPUTED}{name}"));
        let text = fs::read_to_string(self.dropped_list()).unwrap_or_default();
        let is_here = |path: &str| self.sources.iter().any(|source| source.path == path);
        let elsewhere =
            text.lines().filter(|line| line.split_once(": ").is_some_and(|(path, _)| !is_here(path)));
        let names: Vec<_> = computed.chain(elsewhere.map(str::to_owned)).chain(dropped).collect();
        put(&self.dropped_list(), names.join("\n").as_bytes())
    }
}

/// Changes with each of the programs: with the code, its tests, and what they are built of.
pub(super) fn fingerprint(programs: &[Program]) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    for program in programs {
        let content = fs::read(&program.path);
        hasher.update(&content.with_context(|| format!("cannot read {}", program.path.display()))?);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// The name of a function that is called where the compiler computes.
fn must_be_computed(error: &Diagnostic) -> Option<String> {
    error.code.as_ref().filter(|code| code.code == "E0015")?;
    let path = error.message.split('`').nth(1)?;
    let mut depth = 0;
    let is_outside = |letter: &char| {
        depth += i32::from(*letter == '<') - i32::from(*letter == '>');
        depth == 0 && *letter != '>'
    };
    let plain: String = path.chars().filter(is_outside).collect();
    let name = plain.split("::").filter(|part| !part.is_empty()).last()?;
    (!path.starts_with("quell_mutant")).then(|| name.to_owned())
}

/// How cargo is told a package's directory.
fn named(package: &str) -> [String; 2] {
    ["-p".to_owned(), format!("quell-{}", package.rsplit('/').next().unwrap_or(package))]
}

/// A mutant's name, without its position, which changes with every line above it.
pub(super) fn name(source: &Source, site: &Site) -> String {
    format!("{}: {}", source.path, site.what)
}

/// Removes the files that an earlier copy had, and that are no more.
fn remove_others(directory: &Path, is_kept: &impl Fn(&Path) -> bool) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, is_kept)?;
            // Cargo takes what is left of a package for one.
            let _it_may_have_files = fs::remove_dir(&path);
        } else if !is_kept(&path) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Writes what is not there yet, so that cargo does not build it again.
fn put(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let directory = path.parent().context("a file has a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// The files that a program or a library is made of, tests' left out.
fn reached_files(path: &str, owns_directory: bool, files: &mut Vec<(String, String)>) -> Result<()> {
    let text =
        fs::read_to_string(workspace::root().join(path)).with_context(|| format!("cannot read {path}"))?;
    let parsed = syn::parse_file(&text).with_context(|| path.to_owned())?;
    let (directory, file) = path.rsplit_once('/').context("a path below the root")?;
    let below = if owns_directory || file == "mod.rs" {
        directory.to_owned()
    } else {
        path.trim_end_matches(".rs").to_owned()
    };
    files.push((path.to_owned(), text));
    for item in parsed.items {
        let syn::Item::Mod(module) = item else { continue };
        if module.content.is_some() || !is_built(&module.attrs) {
            continue;
        }
        let [flat, deep] =
            [format!("{below}/{}.rs", module.ident), format!("{below}/{}/mod.rs", module.ident)];
        let next = if workspace::root().join(&flat).is_file() { flat } else { deep };
        reached_files(&next, false, files)?;
    }
    Ok(())
}
