//! What a guest is besides its memory and its state: its configuration, and the files that it is
//! started from at a reset.

use crate::prelude::*;
use hostlink::bundle::Reader;
use hostlink::config::{Config, ResetPolicy};
use std::io::Read;

/// Version of what tools say of a guest, and of the frames.
pub(super) const VERSION: u32 = migration::frame::VERSION;
/// What is told of a configuration: what the guest sees of it, and what its resets do. The rest is
/// each machine's: a guest's place among others, files' names, switches for tests.
const TOLD: [&str; 8] =
    ["vcpus", "memory", "flush", "nested", "reset", "cmdline", "apic_ids", "emulated_apic"];
/// Longest file that is taken.
const FILE_MAX: u64 = 4 << 30;

/// A file of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(super) bytes: u64,
    /// BLAKE3, in hexadecimal digits.
    pub(super) digest: String,
}

impl Part {
    fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, digest: blake3::hash(bytes).to_string() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Description {
    version: u32,
    pub(crate) arch: String,
    pub(crate) name: String,
    /// What is told of its configuration.
    config: BTreeMap<String, String>,
    pub(super) kernel: Part,
    pub(super) initrd: Option<Part>,
}

impl Description {
    /// What has to be the same on both sides.
    fn facts(&self) -> Vec<(&str, String)> {
        let part = |part: &Part| format!("one of {} bytes (digest {:.16})", part.bytes, part.digest);
        let mut facts = vec![
            ("the version of the stream", self.version.to_string()),
            ("the architecture", self.arch.clone()),
            ("the kernel", part(&self.kernel)),
        ];
        facts.extend(self.initrd.as_ref().map(|initrd| ("the initial RAM disk", part(initrd))));
        facts.extend(self.config.iter().map(|(key, value)| (key.as_str(), value.clone())));
        facts
    }

    /// What differs between a guest here and one that is to come, or come back.
    pub(super) fn difference(&self, there: &Self) -> Option<String> {
        let (here, there) = (self.facts(), there.facts());
        let of = |facts: &[(&str, String)], what: &str| {
            facts.iter().find(|(name, _)| *name == what).map_or("none".to_owned(), |(_, value)| value.clone())
        };
        here.iter().chain(&there).find_map(|(what, _)| {
            let (here, there) = (of(&here, what), of(&there, what));
            (here != there).then(|| format!("{what} is {here} here, and {there} there"))
        })
    }

    /// Bytes of its memory.
    pub(super) fn memory(&self) -> u64 {
        self.config.get("memory").and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
    }

    /// The configuration as text, for [`Config::parse_guest`].
    pub(crate) fn config(&self) -> String {
        self.config.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
    }

    /// Bytes of its kernel and its initial RAM disk.
    pub(crate) fn files(&self) -> u64 {
        self.kernel.bytes + self.initrd.as_ref().map_or(0, |part| part.bytes)
    }

    /// What makes it impossible for a guest to be restored from this.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.version == VERSION,
            "it is of version {}, and this tool reads version {VERSION}",
            self.version
        );
        let known = [Arch::X86_64, Arch::Aarch64].map(Arch::name).contains(&self.arch.as_str());
        ensure!(known, "its architecture is '{}', which is none", self.arch);
        if let Some(key) = self.config.keys().find(|key| !TOLD.contains(&key.as_str())) {
            bail!("its configuration has a key that no guest brings along: {key:?}");
        }
        ensure!(
            !self.config.values().any(|text| text.contains(['\n', '\r'])),
            "a value of its configuration is not one line"
        );
        let text = self.config();
        let config = Config::parse_guest(&text, &Config::default());
        let config = config.map_err(|error| anyhow!("its configuration: {error}"))?;
        ensure!(config.reset != ResetPolicy::Panic, "its reset is a panic of the hypervisor, for tests");
        let sizes = [Some(&self.kernel), self.initrd.as_ref()];
        ensure!(
            sizes.into_iter().flatten().all(|part| part.bytes <= FILE_MAX),
            "its kernel or its initial RAM disk is larger than any"
        );
        Ok(())
    }
}

/// A guest's description, and the files themselves.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) description: Description,
    pub(super) kernel: Vec<u8>,
    pub(super) initrd: Option<Vec<u8>>,
}

impl Described {
    /// The guest of this name in a bundle.
    pub(crate) fn of_bundle(path: &Path, name: Name, arch: &str) -> Result<Self> {
        let read = || -> Result<BTreeMap<String, Vec<u8>>> {
            let mut members = BTreeMap::new();
            for entry in tar::Archive::new(fs::File::open(path)?).entries()? {
                let mut entry = entry?;
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                members.insert(entry.path()?.to_string_lossy().into_owned(), bytes);
            }
            Ok(members)
        };
        let members =
            read().with_context(|| format!("cannot read the machine's bundle {}", path.display()))?;
        Self::of_members(&members, name, arch)
    }

    fn of_members(members: &BTreeMap<String, Vec<u8>>, name: Name, arch: &str) -> Result<Self> {
        let find = |member: &str| members.get(member).map(Vec::as_slice);
        let reader = Reader::new(find).map_err(|error| anyhow!("{error}"))?;
        let guests = (0..reader.guest_count()).filter_map(|number| reader.guest(number).ok());
        let guest = guests.into_iter().find(|guest| guest.config.name == name);
        let guest = guest.with_context(|| format!("the machine has no guest {name}"))?;
        let text = guest.config.of_guest().to_string();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let pairs = pairs.filter(|(key, _)| TOLD.contains(key));
        let description = Description {
            version: VERSION,
            arch: arch.to_owned(),
            name: name.to_string(),
            config: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            kernel: Part::of(guest.kernel),
            initrd: guest.initrd.map(Part::of),
        };
        Ok(Self { description, kernel: guest.kernel.to_owned(), initrd: guest.initrd.map(<[u8]>::to_owned) })
    }

    #[cfg(test)]
    pub(super) fn made_up(kernel: &[u8], config: &str) -> Self {
        let text = format!("kernel=files/0\ninitrd=files/1\n{config}");
        let members = [
            ("config", b"".to_vec()),
            ("guests/00", text.into_bytes()),
            ("files/0", kernel.to_owned()),
            ("files/1", b"initrd".to_vec()),
        ];
        let members = members.map(|(name, bytes)| (name.to_owned(), bytes)).into();
        Self::of_members(&members, Name::GUEST, "x86_64").expect("is one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m7_what_differs_is_named_and_a_guests_place_may_differ() {
        let here = Described::made_up(b"kernel", "vcpus=2\nmemory=67108864\n").description;
        let other = |kernel: &[u8], config: &str| Described::made_up(kernel, config).description;
        let placed = other(b"kernel", "vcpus=2\nmemory=67108864\nweight=7\ncpus=1\nstart=manual\n");
        assert_eq!(here.difference(&placed), None);
        for (there, what) in [
            (other(b"kernel", "vcpus=3\nmemory=67108864\n"), "vcpus is 2 here, and 3 there"),
            (other(b"kernel", "vcpus=2\nmemory=134217728\n"), "memory is"),
            (other(b"kernel", "vcpus=2\nmemory=67108864\ncmdline=a\n"), "cmdline is"),
            (other(b"another", "vcpus=2\nmemory=67108864\n"), "the kernel is one of 6 bytes"),
            (Description { arch: "aarch64".into(), ..here.clone() }, "the architecture"),
            (Description { version: 0, ..here.clone() }, "the version"),
            (Description { initrd: None, ..here.clone() }, "the initial RAM disk"),
        ] {
            let named = here.difference(&there).expect("differs");
            assert!(named.contains(what), "{named}");
        }
    }

    #[test]
    fn a_guest_of_a_bundle_is_described_with_its_files() {
        let directory = tempfile::tempdir().expect("makes");
        let path = directory.path().join("bundle");
        let mut bundle = tar::Builder::new(Vec::new());
        for (name, text) in [
            ("config", ""),
            ("guests/00", "name=other\nkernel=files/0\nvcpus=1\nmemory=2097152\n"),
            ("guests/01", "kernel=files/1\ninitrd=files/0\nvcpus=2\nmemory=4194304\ncmdline=quiet\n"),
            ("files/0", "first"),
            ("files/1", "second"),
        ] {
            let mut header = tar::Header::new_ustar();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            bundle.append_data(&mut header, name, text.as_bytes()).expect("appends");
        }
        fs::write(&path, bundle.into_inner().expect("is whole")).expect("writes");
        let found = Described::of_bundle(&path, Name::GUEST, "aarch64").expect("is there");
        assert_eq!((&*found.kernel, found.initrd.as_deref()), (&b"second"[..], Some(&b"first"[..])));
        assert_eq!(found.description.files(), 11, "bytes of both");
        assert_eq!(Description { initrd: None, ..found.description.clone() }.files(), 6);
        let Description { version, arch, name, config, kernel, initrd } = found.description;
        assert_eq!((version, &*arch, &*name), (VERSION, "aarch64", "guest"));
        assert_eq!((kernel, initrd), (Part::of(b"second"), Some(Part::of(b"first"))));
        let facts = ["vcpus", "memory", "cmdline"].map(|key| config.get(key).map(String::as_str));
        assert_eq!(facts, [Some("2"), Some("4194304"), Some("quiet")]);
        let why = Described::of_bundle(&path, Name::parse("third").expect("a name"), "aarch64")
            .expect_err("is none");
        assert!(format!("{why:#}").contains("no guest third"), "{why:#}");
        let why = Described::of_bundle(directory.path(), Name::GUEST, "aarch64").expect_err("is no file");
        assert!(format!("{why:#}").contains("cannot read the machine's bundle"), "{why:#}");
    }

    #[test]
    fn m6_what_no_guest_is_is_refused() {
        let good = Described::made_up(b"kernel", "vcpus=2\ncmdline=a=b\n").description;
        good.check().expect("is one");
        let with = |key: &str, value: &str| {
            let mut wrong = good.clone();
            wrong.config.insert(key.to_owned(), value.to_owned());
            format!("{:#}", wrong.check().expect_err("is refused"))
        };
        assert!(with("vcpus", "9999").contains("configuration"));
        assert!(with("cmdline", "a\nvcpus=9").contains("one line"));
        assert!(with("reset", "panic").contains("its reset is a panic"));
        assert!(with("memory", "18446744073707454464").contains("at most 2^46"));
        assert!(with("cmdline", &"x".repeat(200_000)).contains("at most 65535 bytes"));
        // All but the guest's own, whatever the value.
        let all = Config::default().to_string();
        let keys = all.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key);
        let more = ["a\nvcpus", "unheard", "initrd", "firmware", "devices"];
        for key in keys.filter(|key| !TOLD.contains(key)).chain(more) {
            let why = with(key, "1");
            assert!(why.contains("brings along") && !why.contains('\n'), "{why}");
        }
        let huge = Part { bytes: u64::MAX, ..good.kernel.clone() };
        assert!(Description { kernel: huge, ..good.clone() }.check().is_err());
        assert!(Description { version: 9, ..good }.check().is_err());
    }
}
