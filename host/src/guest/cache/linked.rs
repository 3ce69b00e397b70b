//! Programs with all that they are linked with: QEMU for Arm64, which runs under KVM in an emulated
//! machine, kexec in guests, and herd7, which runs here with its own loader. Each is fetched as a
//! package with those that it depends on; only the program and its libraries are kept.

use super::super::cpio::Archive;
use super::backports::at_release;
use super::{Apt, New, Unavailable, VERSION, find, kept, unpack_to, version};
use crate::prelude::*;
use object::read::elf::ElfFile64;
use object::{Endianness, elf};
use std::collections::VecDeque;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkedProgram {
    pub(crate) program: PathBuf,
    /// All files that it is linked with, its loader among them.
    pub(crate) libraries: Vec<PathBuf>,
    /// Its package and version.
    pub(crate) version: String,
}

impl LinkedProgram {
    /// The one of this name at a place of the cache.
    pub(super) fn at(place: &Path, name: &str) -> Result<Self> {
        let entries = fs::read_dir(place.join("lib"))?;
        let mut libraries = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        libraries.sort();
        let version = fs::read_to_string(place.join(VERSION))?;
        Ok(Self { program: place.join(name), libraries, version })
    }

    pub(crate) fn add_libraries(&self, archive: &mut Archive) -> Result<()> {
        self.libraries.iter().try_for_each(|library| {
            let name = library.file_name().context("a library has no name")?.to_string_lossy();
            archive.add(&format!("lib/{name}"), library)
        })
    }

    /// To run it on this system, by its own loader.
    pub(crate) fn command(&self) -> Result<Command> {
        let is_loader =
            |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-"));
        let loader = self.libraries.iter().find(is_loader).context("a program without a loader")?;
        let mut command = Command::new(loader);
        command.arg("--library-path").arg(self.program.with_file_name("lib")).arg(&self.program);
        Ok(command)
    }

    /// The directory of its data, if it has some.
    pub(crate) fn data(&self) -> PathBuf {
        self.program.with_file_name("data")
    }
}

/// QEMU for Arm64 machines, built for Arm64; fetches its packages if they are missing.
pub(crate) fn foreign_qemu() -> Result<LinkedProgram> {
    linked_program(Arch::Aarch64, None, "qemu-system-arm", &format!("usr/bin/{}", Arch::Aarch64.qemu()), None)
}

/// The program that has a kernel start another one; fetches its packages if they are missing.
pub(crate) fn kexec(arch: Arch) -> Result<LinkedProgram> {
    linked_program(arch, None, "kexec-tools", "sbin/kexec", None)
}

/// herd7, with Arm's model of memory as its data.
pub(crate) fn herd() -> Result<LinkedProgram> {
    let (package, data) = ("herdtools7", "usr/share/herdtools7/herd");
    linked_program(Arch::X86_64, Some("sid"), package, "usr/bin/herd7", Some(data))
        .map_err(|error| error.context(Unavailable("herd7 is unavailable".into())))
}

/// A program of this system's release or of another; with a directory of data of its package.
fn linked_program(
    arch: Arch,
    suite: Option<&str>,
    package: &str,
    path: &str,
    data: Option<&str>,
) -> Result<LinkedProgram> {
    let architecture = arch.debian();
    let needed = ["program", VERSION, "lib", "data"];
    let needed = &needed[..needed.len() - usize::from(data.is_none())];
    let place = kept(&format!("{package}-{architecture}"), needed, false, |new| {
        let fetch = || -> Result<()> {
            let apt = match suite {
                Some(suite) => at_release(suite, arch, false, new)?,
                None => {
                    let apt = Apt::foreign(architecture, &new.cache.join(format!("apt-{architecture}")))?;
                    apt.run("apt-get", &["update"], new.work.path()).context("apt-get update failed")?;
                    apt
                }
            };
            fetch(&apt, &[package], &[("program", path)], new)?;
            if let Some(data) = data {
                fs::rename(new.work.path().join("root").join(data), new.kept.join("data"))?;
            }
            Ok(())
        };
        fetch().with_context(|| {
            format!("cannot fetch {package} for {architecture}; this needs apt and, once, network access")
        })
    })?;
    LinkedProgram::at(&place, "program")
}

/// Fetches and unpacks the packages and what they depend on, below `root` in the directory for
/// work. Keeps the programs, by their names and paths, with all of their libraries. A library that
/// a program loads itself is given like one, by its name alone.
pub(super) fn fetch(apt: &Apt, packages: &[&str], programs: &[(&str, &str)], new: &New) -> Result<()> {
    eprintln!("quell: fetching {}, and what they depend on", packages.join(", "));
    let (work, kept) = (new.work.path(), &new.kept);
    let archives = work.join("archives");
    fs::create_dir_all(archives.join("partial"))?;
    let place = format!("Dir::Cache::archives={}", archives.display());
    let options = ["-o", &place, "--yes", "--download-only", "--no-install-recommends"];
    apt.run("apt-get", &[&options[..], &["install"], packages].concat(), work)?;
    let root = work.join("root");
    for entry in fs::read_dir(&archives)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            unpack_to(&path, &root)?;
        }
    }
    fs::create_dir_all(kept.join("lib"))?;
    let objects = shared_objects(&root)?;
    for (program, path) in programs {
        let path = objects.get(*path).cloned().unwrap_or_else(|| root.join(path));
        for (name, file) in linked_with(&path, &objects)? {
            fs::copy(&file, kept.join("lib").join(name))
                .with_context(|| format!("cannot copy {}", file.display()))?;
        }
        fs::copy(&path, kept.join(program))?;
    }
    let package = packages[0];
    let version = version(&find(&archives, &format!("{package}_"))?)?;
    fs::write(kept.join(VERSION), format!("{package} {version}"))?;
    Ok(())
}

/// The shared objects in a tree by name. Of those with the same name the one with the shortest way
/// from the root counts; the others are variants for particular processors.
fn shared_objects(root: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut left = VecDeque::from([root.to_owned()]);
    while let Some(directory) = left.pop_front() {
        for entry in
            fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?
        {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push_back(entry.path());
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.contains(".so") {
                found.entry(name).or_insert_with(|| entry.path());
            }
        }
    }
    Ok(found)
}

fn linked_with(program: &Path, objects: &BTreeMap<String, PathBuf>) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut left = vec![program.to_owned()];
    while let Some(file) = left.pop() {
        let data = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for name in needed(&data).with_context(|| format!("{} is no sound ELF file", file.display()))? {
            if found.contains_key(&name) {
                continue;
            }
            let path = objects
                .get(&name)
                .with_context(|| format!("{} needs {name}, which no package has", file.display()))?;
            found.insert(name, path.clone());
            left.push(path.clone());
        }
    }
    Ok(found)
}

fn needed(data: &[u8]) -> object::Result<Vec<String>> {
    let file = ElfFile64::<Endianness>::parse(data)?;
    let table = file.elf_dynamic_table()?;
    let needed = table.iter().filter(|entry| entry.tag == elf::DT_NEEDED);
    needed.map(|entry| Ok(String::from_utf8_lossy(table.string(entry)?).into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_behind_a_program_are_found_and_missing_ones_are_named() {
        let this = std::env::current_exe().expect("has a path");
        let names = needed(&fs::read(&this).expect("reads")).expect("is an ELF file");
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        let error = linked_with(&this, &BTreeMap::new()).expect_err("there are none");
        assert!(error.to_string().contains(".so"), "{error}");
        assert!(needed(b"#!/bin/sh").is_err());
    }

    #[test]
    fn the_general_variant_of_an_object_is_taken() {
        let directory = tempfile::tempdir().expect("makes");
        for place in ["lib/variants/new", "lib"] {
            fs::create_dir_all(directory.path().join(place)).expect("makes");
            fs::write(directory.path().join(place).join("libx.so.1"), place).expect("writes");
        }
        fs::write(directory.path().join("lib/readme"), "text").expect("writes");
        let objects = shared_objects(directory.path()).expect("reads");
        assert_eq!(objects.len(), 1);
        assert_eq!(fs::read_to_string(&objects["libx.so.1"]).expect("reads"), "lib");
    }
}
