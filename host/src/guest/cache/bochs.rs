//! Bochs with a TLB that keeps what its tags may keep (`emulator/bochs`), built once from Debian's
//! source package. Its BIOS is a package too: the one in the source finds one processor only.

use super::backports::at_release;
use super::{New, Unavailable, kept};
use crate::prelude::*;
use std::hash::{DefaultHasher, Hash, Hasher};

const SUITE: &str = "trixie";
const SOURCE: &str = "bochs_3.0+dfsg.orig.tar.xz";
const OURS: [&str; 4] = ["build.sh", "tagged-tlb.patch", "tagged_tlb.cc", "tagged_tlb.h"];

/// The emulator and its firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bochs {
    pub(crate) program: PathBuf,
    pub(crate) bios: PathBuf,
    pub(crate) vgabios: PathBuf,
}

/// The emulator; fetches and builds it if the cache does not have it as it is in this tree.
pub(crate) fn bochs() -> Result<Bochs> {
    let ours = workspace::root().join("emulator/bochs");
    let mut state = DefaultHasher::new();
    for name in OURS {
        let path = ours.join(name);
        fs::read(&path).with_context(|| format!("no {}", path.display()))?.hash(&mut state);
    }
    let name = format!("bochs-{:016x}", state.finish());
    let place = kept(&name, &["bochs", "bios", "vgabios"], false, |new| fetch(&ours, new))?;
    let [program, bios, vgabios] = ["bochs", "bios", "vgabios"].map(|name| place.join(name));
    Ok(Bochs { program, bios, vgabios })
}

fn fetch(ours: &Path, new: &New) -> Result<()> {
    let work = new.work.path();
    let cannot = |what: &str| Unavailable(format!("cannot fetch {what} of Debian's {SUITE}"));
    let apt = at_release(SUITE, Arch::X86_64, true, new).with_context(|| cannot("the package lists"))?;
    eprintln!("quell: fetching Bochs (4 MB of source), and building it: 2 to 3 minutes, once");
    // A mirror may lack the package's description, which is not needed. Its archive is checked.
    let fetched = apt.run("apt-get", &["source", "--download-only", "bochs"], work);
    let source = work.join(SOURCE);
    if !source.is_file() {
        fetched.with_context(|| cannot("the source of Bochs"))?;
        return Err(cannot(SOURCE).into());
    }
    let bios = apt.unpacked("bochsbios", new).with_context(|| cannot("the BIOS of Bochs"))?;
    fs::rename(bios.root.join("usr/share/bochs/BIOS-bochs-latest"), new.kept.join("bios"))
        .context("the package bochsbios has no BIOS")?;
    let mut build = Command::new("sh");
    build.arg(ours.join("build.sh")).args([work, &source, &new.kept]);
    let status = build.stdin(Stdio::null()).status().context("cannot start sh")?;
    ensure!(status.success(), "building Bochs failed ({status}); it needs g++, make, patch and xz");
    // What was built from another version of our change.
    for entry in fs::read_dir(&new.cache)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("bochs-")) {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}
