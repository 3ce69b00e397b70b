//! The components of a release's programs: crates according to cargo's metadata, and Debian's
//! packages in the CD.
//!
//! The bill of materials is in CycloneDX 1.5 (ECMA-424), as JSON. Writing that format takes one
//! page of code, less than any library for it.

use crate::guest::cache::Versions;
use crate::image::MKRESCUE;
use crate::prelude::*;
use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, PackageId};
use spdx::{Expression, LicenseReq};
use std::fmt::Write;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Allowed licences of crates: each permits distributing its code in binary form under ours.
const ALLOWED: [&str; 9] =
    ["0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "Unicode-3.0", "Zlib"];

/// The programs of a release that are built from crates: package, features, and target.
const PROGRAMS: [(&str, &[&str], Arch); 3] = [
    ("quell-hypervisor", &["image"], Arch::X86_64),
    ("quell-tlbcheck", &[], Arch::X86_64),
    ("quell-tlbcheck", &[], Arch::Aarch64),
];
const WORKLOADS: &str = "quell-workloads";

/// Debian's packages in the CD, by name prefix, and their licences.
const DEBIAN: [(&str, &str); 3] =
    [("linux-image", "GPL-2.0-only"), ("busybox", "GPL-2.0-only"), ("grub", "GPL-3.0-or-later")];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Component {
    name: String,
    version: String,
    licence: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// From this tree.
    Own,
    /// From the registry.
    Crate,
    /// From Debian.
    Package,
}

#[derive(Debug, Default)]
pub(super) struct Inventory {
    components: BTreeSet<Component>,
}

/// Fails if a crate has no licence, or one that is not allowed.
pub(super) fn of_programs() -> Result<Inventory> {
    let mut inventory = Inventory::default();
    for (package, features, arch) in PROGRAMS {
        inventory.add_crates(&metadata(package, features, arch.bare_target())?, package)?;
    }
    inventory.add_crates(&metadata(WORKLOADS, &[], Arch::X86_64.linux_target())?, WORKLOADS)?;
    Ok(inventory)
}

fn metadata(package: &str, features: &[&str], target: &str) -> Result<Metadata> {
    let mut command = MetadataCommand::new();
    command.current_dir(workspace::root());
    command.other_options(["--locked", "--filter-platform", target].map(str::to_owned));
    let features = features.iter().map(|feature| format!("{package}/{feature}")).collect();
    command.features(CargoOpt::SomeFeatures(features));
    command.exec().with_context(|| format!("cargo does not say what {package} is made of"))
}

impl Inventory {
    fn add_crates(&mut self, metadata: &Metadata, package: &str) -> Result<()> {
        let root = metadata.packages.iter().find(|found| found.name.as_str() == package);
        let root = root.with_context(|| format!("there is no package {package}"))?;
        let resolve = metadata.resolve.as_ref().context("cargo resolves no dependencies")?;
        let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
        let mut left = vec![&root.id];
        let mut seen = BTreeSet::new();
        while let Some(id) = left.pop() {
            if !seen.insert(id) {
                continue;
            }
            let found = &metadata[id];
            // The dependencies of a macro run in the compiler.
            if found.targets.iter().any(|target| target.is_proc_macro()) {
                continue;
            }
            let node = nodes.get(id).with_context(|| format!("cargo does not resolve {id}"))?;
            let is_linked = |kind: &cargo_metadata::DepKindInfo| kind.kind == DependencyKind::Normal;
            let linked = node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(is_linked));
            left.extend(linked.map(|dep| &dep.pkg));
            let kind = if found.source.is_none() { Kind::Own } else { Kind::Crate };
            self.add(found.name.as_str(), &found.version.to_string(), found.license.as_deref(), kind)?;
        }
        Ok(())
    }

    fn add(&mut self, name: &str, version: &str, licence: Option<&str>, kind: Kind) -> Result<()> {
        let licence = licence.with_context(|| format!("{name} {version} names no licence"))?;
        // Old crates separate alternatives by a slash.
        let licence = licence.replace('/', " OR ");
        if kind != Kind::Package {
            allow(&licence).with_context(|| format!("{name} {version}"))?;
        }
        let (name, version) = (name.to_owned(), version.to_owned());
        self.components.insert(Component { name, version, licence, kind });
        Ok(())
    }

    pub(super) fn add_packages(&mut self, versions: &Versions) -> Result<()> {
        let output = Command::new(MKRESCUE).arg("--version").output();
        let output = output.with_context(|| format!("cannot start {MKRESCUE}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let grub = format!("grub {}", said.split_whitespace().last().unwrap_or("unknown"));
        for package in [&versions.kernel, &versions.busybox, &grub] {
            let (name, version) =
                package.split_once(' ').with_context(|| format!("{package:?} has no version"))?;
            let licence = DEBIAN.iter().find(|(beginning, _)| name.starts_with(beginning));
            self.add(name, version.trim(), licence.map(|&(_, licence)| licence), Kind::Package)?;
        }
        Ok(())
    }

    pub(super) fn bill(&self, epoch: u64) -> Result<String> {
        let time = OffsetDateTime::from_unix_timestamp(epoch.try_into()?)?.format(&Rfc3339)?;
        let components: Vec<Value> = self.components.iter().map(Component::entry).collect();
        let bill = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "timestamp": time,
                "component": {
                    "type": "operating-system",
                    "name": "quell",
                    "version": env!("CARGO_PKG_VERSION"),
                    "licenses": [{ "expression": env!("CARGO_PKG_LICENSE") }],
                },
            },
            "components": components,
        });
        Ok(format!("{}\n", serde_json::to_string_pretty(&bill)?))
    }

    pub(super) fn licences(&self) -> String {
        let mut text = format!(
            "# Licences\n\nQuell {} is licensed under {}. Its programs have these built in.\n",
            env!("CARGO_PKG_VERSION"),
            env!("CARGO_PKG_LICENSE")
        );
        for (kind, title) in [
            (Kind::Own, "Crates of this project"),
            (Kind::Crate, "Crates of others"),
            (Kind::Package, "Packages of Debian's in the CD, whose sources Debian has"),
        ] {
            // Writing to a string does not fail.
            let _ = write!(text, "\n## {title}\n\n| name | version | licence |\n|---|---|---|\n");
            for Component { name, version, licence, .. } in
                self.components.iter().filter(|of| of.kind == kind)
            {
                let _ = writeln!(text, "| {name} | {version} | {licence} |");
            }
        }
        text
    }
}

impl Component {
    fn entry(&self) -> Value {
        let Self { name, version, licence, kind } = self;
        let (category, from) = match kind {
            Kind::Own | Kind::Crate => ("library", format!("pkg:cargo/{name}@{version}")),
            Kind::Package => ("application", format!("pkg:deb/debian/{name}@{version}")),
        };
        json!({
            "type": category,
            "bom-ref": from,
            "purl": from,
            "name": name,
            "version": version,
            "licenses": [{ "expression": licence }],
        })
    }
}

fn allow(licence: &str) -> Result<()> {
    let expression = Expression::parse(licence).with_context(|| format!("no licence is called {licence}"))?;
    let is_allowed = |requirement: &LicenseReq| {
        requirement.license.id().is_some_and(|id| ALLOWED.contains(&id.name))
            && requirement.addition.is_none()
    };
    ensure!(expression.evaluate(is_allowed), "it is under {licence}; allowed are {}", ALLOWED.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_allowed_if_it_leaves_a_way() {
        for licence in ["MIT", "MIT OR GPL-3.0-only", "Apache-2.0 AND MIT"] {
            assert!(allow(licence).is_ok(), "{licence}");
        }
        for licence in ["GPL-3.0-only", "MIT AND GPL-2.0-only", "Apache-2.0 WITH LLVM-exception", "Ours", ""]
        {
            assert!(allow(licence).is_err(), "{licence}");
        }
    }

    #[test]
    fn what_names_no_licence_or_one_that_is_not_allowed_is_refused() {
        let mut inventory = Inventory::default();
        inventory.add("a", "1.0.0", Some("MIT/Apache-2.0"), Kind::Crate).unwrap();
        assert!(inventory.add("b", "1.0.0", None, Kind::Crate).is_err());
        let error = inventory.add("c", "2.0.0", Some("GPL-3.0-only"), Kind::Crate).unwrap_err();
        assert!(format!("{error:#}").contains("c 2.0.0: it is under GPL-3.0-only"), "{error:#}");
        let versions =
            Versions { kernel: "linux-image-1 6.1".to_owned(), busybox: "something 1.35".to_owned() };
        assert!(inventory.add_packages(&versions).is_err(), "nobody knows its licence");
    }

    #[test]
    fn all_that_is_built_in_is_in_the_bill_with_an_allowed_licence() {
        let inventory = of_programs().unwrap();
        let bill: Value = serde_json::from_str(&inventory.bill(0).unwrap()).unwrap();
        assert_eq!(bill["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
        let components = bill["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|component| component["name"] == name);
        for name in ["quell-coherence", "quell-hypervisor", "quell-tlbcheck", "spin", "smccc"] {
            let found = named(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert!(found["purl"].as_str().unwrap().starts_with(&format!("pkg:cargo/{name}@")));
        }
        for name in ["loom", "proptest", "clap", "zerocopy-derive", "proc-macro2"] {
            assert!(named(name).is_none(), "{name} is not linked into any of them");
        }
        let text = inventory.licences();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("| quell-hypervisor | ")).count(),
            1,
            "{text}"
        );
    }
}
