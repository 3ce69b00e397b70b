//! The bundle, the tar archive that passes the guests to the hypervisor; the hypervisor's symbols
//! in it; and the memory that a machine with a bundle needs.

use crate::prelude::*;
use hostlink::bundle::{CONFIG, Member, SYMBOLS};
use hostlink::counters::BEACON_SYMBOL;
use object::{Object, ObjectSymbol, SymbolKind};
use std::fmt::Write as _;
use std::io::Write;

pub(crate) struct Bundle<'a> {
    members: Vec<(String, &'a [u8])>,
}

impl<'a> Bundle<'a> {
    /// Each guest's configuration names files by their numbers.
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

/// The parts of the hypervisor's symbol table that the tool needs.
pub(crate) struct Symbols {
    /// Functions for backtraces, in the form of the bundle's member.
    pub(crate) table: String,
    /// Physical address of the beacon; `None` if the image has none.
    pub(crate) beacon: Option<u64>,
}

pub(crate) fn read_symbols(path: &Path) -> Result<Symbols> {
    let image = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(image.as_slice())
        .with_context(|| format!("{} is not an ELF64 file", path.display()))?;
    let functions = elf
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.address() != 0)
        .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?)));
    // The image runs where it is linked, mapped one to one: symbol values are physical addresses.
    let beacon = elf.symbols().find(|symbol| symbol.name() == Ok(BEACON_SYMBOL));
    Ok(Symbols { table: table(functions), beacon: beacon.map(|symbol| symbol.address()) })
}

/// Lines of `ADDRESS NAME`, sorted by address, one per address.
fn table<'a>(functions: impl Iterator<Item = (u64, &'a str)>) -> String {
    let mut functions: Vec<_> = functions.collect();
    functions.sort_unstable();
    functions.dedup_by_key(|(address, _)| *address);
    let mut text = String::new();
    for (address, name) in functions {
        // The alternate form omits the hash after the name. Writing to a string cannot fail.
        let _ = writeln!(text, "{address:x} {:#}", rustc_demangle::demangle(name));
    }
    text
}

/// With what is the hypervisor's own, and the bundle, which stays until the guests are made.
pub(crate) fn memory_around(guest_bytes: u64, bundle_bytes: u64) -> u64 {
    let given = guest_bytes + bundle_bytes;
    (given + given / HEAP_FRACTION).next_multiple_of(64 * MIB) + 256 * MIB
}

/// The same with what is around each of several guests.
pub(crate) fn memory_for_guests(guest_bytes: u64, guests: u64, vcpus: u32, bundle_bytes: u64) -> u64 {
    /// Consoles' rings, tables' roots and the like of a guest.
    const GUEST_BYTES: u64 = 4 * MIB;
    const VCPU_BYTES: u64 = 128 << 10;
    let states = guests * GUEST_BYTES + u64::from(vcpus) * VCPU_BYTES;
    memory_around(guest_bytes, bundle_bytes) + states.next_multiple_of(MIB)
}

/// The hypervisor's heap is half of this fraction of the memory, in addition to its fixed size.
const HEAP_FRACTION: u64 = 128;

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

    #[test]
    fn lines_are_sorted_demangled_and_unique() {
        let names = [
            (0x2000, "_ZN10hypervisor4vcpu3run17h0123456789abcdefE"),
            (0x1000, "start32"),
            (0x2000, "zz_alias"),
        ];
        assert_eq!(table(names.into_iter()), "1000 start32\n2000 hypervisor::vcpu::run\n");
    }

    #[test]
    fn the_machine_has_room_beyond_the_guest_and_its_bundle() {
        assert_eq!(memory_around(512 * MIB, 16 * MIB), (576 + 256) * MIB);
        assert!(memory_around(512 * MIB, 300 * MIB) >= (512 + 300 + 256) * MIB);
        assert!(memory_around(64 << 30, 16 * MIB) >= (64 << 30) + (256 + 256) * MIB, "a heap for 64 GiB");
    }

    #[test]
    fn each_guest_and_each_vcpu_takes_some_more() {
        let need = |guests, vcpus| memory_for_guests(512 * MIB, guests, vcpus, 16 * MIB);
        assert!(need(1, 1) > memory_around(512 * MIB, 16 * MIB));
        assert_eq!(need(16, 16) - need(1, 16), 60 * MIB);
        assert_eq!(need(1, 1024) - need(1, 16), 126 * MIB);
        assert!(need(3, 1).is_multiple_of(MIB));
    }
}
