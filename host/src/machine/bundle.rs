//! Writes the bundle: the tar archive that passes the guests to the hypervisor.

use crate::prelude::*;
use hostlink::bundle::{CONFIG, Member, SYMBOLS};
use std::io::Write;

pub(crate) struct Bundle<'a> {
    members: Vec<(String, &'a [u8])>,
}

impl<'a> Bundle<'a> {
    /// The bundle of guests: what is for the whole machine, each guest's configuration, the files
    /// that they name by their numbers, and the hypervisor's symbols.
    pub(crate) fn new(
        machine: &'a str,
        guests: &'a [String],
        files: &'a [Vec<u8>],
        symbols: &'a str,
    ) -> Self {
        let named = |member: Member<'_>, bytes| (member.to_string(), bytes);
        let mut members = vec![named(Member::Named(CONFIG), machine.as_bytes())];
        let guests = (0..).zip(guests).map(|(number, text)| named(Member::Guest(number), text.as_bytes()));
        members.extend(guests);
        members.extend((0..).zip(files).map(|(number, bytes)| named(Member::File(number), bytes.as_slice())));
        members.push(named(Member::Named(SYMBOLS), symbols.as_bytes()));
        Self { members }
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let file = std::fs::File::create(path).context("cannot write the bundle")?;
        let file = self.write_to(std::io::BufWriter::new(file)).context("cannot write the bundle")?;
        file.into_inner().map_err(|error| error.into_error())?;
        Ok(())
    }

    fn write_to<W: Write>(&self, sink: W) -> std::io::Result<W> {
        let mut archive = tar::Builder::new(sink);
        for (name, bytes) in &self.members {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, *bytes)?;
        }
        archive.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostlink::bundle::Reader;
    use std::io::Read;

    fn members(bundle: &Bundle<'_>) -> Vec<(String, Vec<u8>)> {
        let bytes = bundle.write_to(Vec::new()).expect("writes");
        let mut found = Vec::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().expect("is tar") {
            let mut entry = entry.expect("has a member");
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("reads");
            found.push((entry.path().expect("has a name").display().to_string(), bytes));
        }
        found
    }

    #[test]
    fn guests_are_found_by_the_hypervisors_reader() {
        let guests = ["name=a\nkernel=files/0\ninitrd=files/1\n".into(), "name=b\nkernel=files/0\n".into()];
        let files = [b"K".to_vec(), b"I".to_vec()];
        let found = members(&Bundle::new("slice_us=1000\n", &guests, &files, "0 a\n"));
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["config", "guests/00", "guests/01", "files/0", "files/1", "symbols"]);
        let member =
            |name: &str| found.iter().find(|(found, _)| found == name).map(|(_, bytes)| bytes.as_slice());
        let reader = Reader::new(member).expect("is a bundle");
        assert_eq!((reader.guest_count(), reader.symbols()), (2, Some(&b"0 a\n"[..])));
        let (a, b) = (reader.guest(0).expect("is there"), reader.guest(1).expect("is there"));
        assert_eq!((a.kernel, a.initrd, b.kernel, b.initrd), (&b"K"[..], Some(&b"I"[..]), &b"K"[..], None));
        assert_eq!((a.config.slice_us, b.config.name.as_str()), (1000, "b"));
    }
}
