//! Writes the bundle: the tar archive that passes a guest to the hypervisor.

use anyhow::{Context, Result};
use hostlink::bundle::{CONFIG, INITRD, KERNEL, SYMBOLS};
use std::io::Write;
use std::path::Path;

/// The contents of a bundle.
pub(crate) struct Bundle<'a> {
    /// The configuration, as `hostlink::config` describes it.
    pub(crate) config: String,
    /// The guest's kernel.
    pub(crate) kernel: &'a [u8],
    /// Its initial RAM disk.
    pub(crate) initrd: Option<&'a [u8]>,
    /// The hypervisor's symbols.
    pub(crate) symbols: &'a str,
}

impl Bundle<'_> {
    /// Writes the archive to a new file at `path`.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let file = std::fs::File::create(path).context("cannot write the bundle")?;
        let file = self.write_to(std::io::BufWriter::new(file)).context("cannot write the bundle")?;
        file.into_inner().map_err(|error| error.into_error())?;
        Ok(())
    }

    fn write_to<W: Write>(&self, sink: W) -> std::io::Result<W> {
        let mut archive = tar::Builder::new(sink);
        let initrd = self.initrd.map(|bytes| (INITRD, bytes));
        let members = [(CONFIG, self.config.as_bytes()), (KERNEL, self.kernel)];
        let symbols = (SYMBOLS, self.symbols.as_bytes());
        for (name, bytes) in members.into_iter().chain(initrd).chain([symbols]) {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, bytes)?;
        }
        archive.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn members_have_the_agreed_names() {
        let bundle = Bundle { config: "vcpus=2\n".into(), kernel: b"K", initrd: Some(b"I"), symbols: "" };
        let bytes = bundle.write_to(Vec::new()).expect("writes");
        let mut found = Vec::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().expect("is tar") {
            let mut entry = entry.expect("has a member");
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("reads");
            found.push((entry.path().expect("has a name").display().to_string(), text));
        }
        let expected = [("config", "vcpus=2\n"), ("kernel", "K"), ("initrd", "I"), ("symbols", "")];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }

    #[test]
    fn a_guest_without_initrd_has_no_such_member() {
        let bundle = Bundle { config: String::new(), kernel: b"K", initrd: None, symbols: "" };
        let bytes = bundle.write_to(Vec::new()).expect("writes");
        let mut archive = tar::Archive::new(bytes.as_slice());
        assert_eq!(archive.entries().expect("is tar").count(), 3);
    }
}
