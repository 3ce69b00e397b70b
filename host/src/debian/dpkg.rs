//! dpkg's database of packages that are unpacked and not configured yet: what dpkg would have
//! written, had it unpacked them itself. Their own scripts run later, in the system.
//!
//! The forms are those of dpkg 1.21: deb-control(5), deb-triggers(5), and its doc/triggers.txt for
//! the files of triggers.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The value of a field in a package's control file. Fields of several lines are not asked for.
pub(super) fn field<'t>(control: &'t str, name: &str) -> Option<&'t str> {
    control.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// The beginning of the names of a package's files in the database. Of a package that may be there
/// for several architectures it has the architecture in it.
pub(super) fn stem(control: &str) -> Result<String> {
    let name = field(control, "Package").context("a package has no name")?;
    let architecture = field(control, "Architecture").context("a package has no architecture")?;
    Ok(match field(control, "Multi-Arch") {
        Some("same") => format!("{name}:{architecture}"),
        _ => name.to_owned(),
    })
}

/// The paths of the configuration files that a package lists. Other lines name files to remove.
pub(super) fn conffiles(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with('/'))
}

/// A package's paragraph in the database. `hashes` are its configuration files and their MD5 sums.
/// dpkg compares these with what is on the disk when it updates the package.
pub(super) fn status(control: &str, hashes: &[(&str, &str)]) -> String {
    let control = control.trim_end();
    let (first, rest) = control.split_once('\n').unwrap_or((control, ""));
    let mut text = format!("{first}\nStatus: install ok unpacked\n");
    if !rest.is_empty() {
        text += rest;
        text.push('\n');
    }
    if !hashes.is_empty() {
        text += "Conffiles:\n";
    }
    for (path, hash) in hashes {
        // Writing to a string does not fail.
        let _ = writeln!(text, " {path} {hash}");
    }
    text.push('\n');
    text
}

/// The list of a package's paths, from the one that tar printed when it unpacked them.
pub(super) fn list(printed: &str) -> String {
    let mut text = String::new();
    for path in printed.lines() {
        let path = path.strip_prefix('.').unwrap_or(path).trim_end_matches('/');
        text += if path.is_empty() { "/." } else { path };
        text.push('\n');
    }
    text
}

/// Which packages want to hear of what: of changed paths, and of triggers with names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Interests {
    /// The file of paths.
    pub(super) paths: String,
    /// The files of other triggers, by name.
    pub(super) named: BTreeMap<String, String>,
}

impl Interests {
    pub(super) fn add(&mut self, stem: &str, declared: &str) {
        for line in declared.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let (Some(directive), Some(trigger)) = (words.next(), words.next()) else { continue };
            let who = match directive {
                "interest" | "interest-await" => stem.to_owned(),
                "interest-noawait" => format!("{stem}/noawait"),
                // What the package itself activates; at the first boot everything is configured.
                _ => continue,
            };
            // Writing to a string does not fail.
            let _ = if trigger.starts_with('/') {
                writeln!(self.paths, "{trigger} {who}")
            } else {
                writeln!(self.named.entry(trigger.to_owned()).or_default(), "{who}")
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "Package: libx1\nVersion: 1:2-3\nArchitecture: amd64\nMulti-Arch: same\nDescription: x\n Package: y\n";

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        assert_eq!(field(LIBRARY, "Version"), Some("1:2-3"));
        assert_eq!(field(LIBRARY, "Pack"), None);
        assert_eq!(field("Description: a\n Package: b\n", "Package"), None, "a line of another field");
    }

    #[test]
    fn the_architecture_is_named_where_there_may_be_several() {
        assert_eq!(stem(LIBRARY).expect("has one"), "libx1:amd64");
        assert_eq!(stem("Package: p\nArchitecture: all\nMulti-Arch: foreign\n").expect("has one"), "p");
        assert!(stem("Package: p\n").is_err());
        assert!(stem("").is_err());
    }

    #[test]
    fn a_paragraph_says_that_the_package_is_unpacked() {
        let text = status("Package: p\nVersion: 1\n", &[("/etc/p", "d41d8cd98f00b204e9800998ecf8427e")]);
        assert_eq!(
            text,
            "Package: p\nStatus: install ok unpacked\nVersion: 1\n\
             Conffiles:\n /etc/p d41d8cd98f00b204e9800998ecf8427e\n\n"
        );
        assert_eq!(status("Package: p", &[]), "Package: p\nStatus: install ok unpacked\n\n");
    }

    #[test]
    fn files_to_remove_are_no_configuration_files() {
        let paths: Vec<_> = conffiles("/etc/a\nremove-on-upgrade /etc/b\n\n/etc/c\n").collect();
        assert_eq!(paths, ["/etc/a", "/etc/c"]);
    }

    #[test]
    fn paths_are_listed_as_dpkg_lists_them() {
        assert_eq!(list("./\n./usr/\n./usr/bin/a b\n"), "/.\n/usr\n/usr/bin/a b\n");
        assert_eq!(list(""), "");
    }

    #[test]
    fn only_interests_are_kept_of_triggers() {
        let mut interests = Interests::default();
        interests.add("libc-bin", "# comment\ninterest-await ldconfig\nactivate-noawait other\n");
        interests.add("systemd", "interest-noawait /usr/lib/systemd/catalog # why\ninterest\n");
        interests.add("libx1:amd64", "interest ldconfig\n");
        assert_eq!(interests.paths, "/usr/lib/systemd/catalog systemd/noawait\n");
        let named = BTreeMap::from([("ldconfig".to_owned(), "libc-bin\nlibx1:amd64\n".to_owned())]);
        assert_eq!(interests.named, named);
    }
}
